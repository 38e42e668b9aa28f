//! The rule of idempotency records (rules of docs/design/idempotency.md): what an op makes of a
//! record.
//!
//! Each key is a single-decree consensus on its result: a claim is the promise, and a completion
//! the accept. A ballot is a pair of fencing token and owner.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use super::header::{Header, last_young};
use super::lost_claims::Unsure;
use crate::op::{
    Ballot, Claim, ClaimEnd, FingerprintBytes, Op, QuarantineId, RecordState, Reply, StoredRecord,
    StoredSteps,
};
use crate::token::{FencingToken, OwnerToken};

/// A record: all that a node has under the key. Times are in ns on the expiry clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Owner of the last promised ballot; `None` if its claim was ended before its lease.
    pub(crate) own: Option<OwnerToken>,
    pub(crate) fence: u64,
    /// End of the claim's lease. It stays when the lease is over, so that a lapsed claim is
    /// recognised; `None` if the claim was ended.
    pub(crate) till: Option<u64>,
    pub(crate) attempt: u32,
    pub(crate) fingerprint: Option<FingerprintBytes>,
    pub(crate) result: Option<StoredRecord>,
    /// Never beside a result.
    pub(crate) steps: Option<StoredSteps>,
    /// Data history in which the promise was made (idempotency 3); `None` counts as an earlier one.
    pub(crate) promised_in: Option<QuarantineId>,
    pub(crate) expires: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub(crate) reply: Reply,
    /// `None` if the op changes nothing.
    pub(crate) row: Option<Row>,
    pub(crate) waiters: Waiters,
}

/// What becomes of the calls that wait for the end of a claim (idempotency 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiters {
    Stay,
    /// The caller is one more.
    Join,
    Wake,
}

impl Ruling {
    fn unchanged(reply: Reply) -> Self {
        Self { reply, row: None, waiters: Waiters::Stay }
    }

    fn write(reply: Reply, row: Row) -> Self {
        Self { reply, row: Some(row), waiters: Waiters::Stay }
    }
}

/// The rule. `row` is the record as it is; `None` if there is none or its time is over.
pub(crate) fn decide(h: &Header, op: &Op, row: Option<&Row>) -> Ruling {
    match op {
        Op::Claim(claim) => decide_claim(h, claim, row),
        Op::RaiseClaim { owner, token, .. } => raise(h, (*owner, *token), row),
        Op::ExtendClaim { ballot, lease, reassert } => extend(h, ballot, (*lease, *reassert), row),
        Op::Complete { ballot, value } => complete(h, ballot, value.as_ref(), row),
        Op::Steps { ballot, list } => steps(h, ballot, list, row),
        Op::Unclaim { owner, end, .. } => unclaim(*owner, *end, row),
        Op::Lookup { retention, fingerprint, born, accepted, .. } => {
            let unsure = h.lost_claims().unsure(*born, *retention, *accepted);
            lookup(h, *fingerprint, unsure, row)
        }
        Op::Acquire { .. }
        | Op::Raise { .. }
        | Op::Extend { .. }
        | Op::Release { .. }
        | Op::Inspect { .. }
        | Op::Enlist(_) => unreachable!("no op on a record: {op:?}"),
    }
}

/// Last time of the node's clock, in µs, until which it may write what was decided for an earlier
/// time; `None` if that does not depend on the clock.
pub(crate) fn holds_until(h: &Header, op: &Op) -> Option<u64> {
    match op {
        Op::Claim(c) => {
            let young = last_young(c.created, c.retention);
            Some(young.min(h.last_in_range(c.proposal)))
        }
        Op::RaiseClaim { .. } | Op::ExtendClaim { .. } => Some(u64::MAX),
        _ => None,
    }
}

fn decide_claim(h: &Header, c: &Claim, row: Option<&Row>) -> Ruling {
    if row.is_some_and(|row| row.is_anothers(c.fingerprint)) {
        return Ruling::unchanged(Reply::Mismatch);
    }
    let result = row.and_then(|row| row.result.as_ref());
    if let Some(result) = result
        && !c.force
    {
        return Ruling::unchanged(Reply::Completed(result.clone()));
    }
    if h.is_quarantined() {
        return Ruling::unchanged(h.quarantined());
    }
    if let Some((row, remaining)) = row.and_then(|row| Some((row, row.claimed_for(h)?))) {
        if row.own == Some(c.owner) {
            return Ruling::unchanged(row.claimed(h, c));
        }
        // `force` repairs a result. Where there is none, it never ends another owner's claim that
        // still runs.
        if result.is_none() {
            let waiters = if c.wait { Waiters::Join } else { Waiters::Stay };
            return Ruling { reply: Reply::InFlight { remaining }, row: None, waiters };
        }
    }
    if h.is_too_old(c.created, c.retention) {
        return Ruling::unchanged(Reply::TooOld);
    }
    let mut row = row.cloned().unwrap_or_default();
    row.promise(h, c.owner, h.next_fence(row.fence, c.proposal));
    row.till = Some(h.after(c.lease));
    row.attempt = row.attempt.saturating_add(1);
    row.is_of(c.fingerprint);
    row.keep(h, c.retention, c.lease);
    Ruling::write(row.claimed(h, c), row)
}

fn raise(h: &Header, (owner, token): (OwnerToken, FencingToken), row: Option<&Row>) -> Ruling {
    let token = token.get();
    // The promise must be of this data history. Otherwise a raise that was under way when the node
    // lost its data would renew it, although the node may have forgotten a higher one.
    let may_raise = |row: &&Row| {
        row.own == Some(owner) && row.is_of_this_life(h) && row.fence <= token && !h.is_ahead(token)
    };
    let Some(row) = row.filter(may_raise) else { return Ruling::unchanged(Reply::NotOwner) };
    let mut row = row.clone();
    row.promise(h, owner, token);
    Ruling::write(row.result.clone().map_or(Reply::Done, Reply::Completed), row)
}

fn extend(
    h: &Header,
    b: &Ballot,
    (lease, reassert): (Duration, Option<QuarantineId>),
    row: Option<&Row>,
) -> Ruling {
    let t = b.token.get();
    if let Some(row) = row {
        if row.is_anothers(b.fingerprint) {
            return Ruling::unchanged(Reply::Mismatch);
        }
        if let Some(result) = &row.result {
            return Ruling::unchanged(Reply::Completed(result.clone()));
        }
        if row.fence > t || (row.fence == t && row.own != Some(b.owner)) {
            return Ruling::unchanged(Reply::NotOwner);
        }
    }
    if !h.may_extend(reassert) {
        return Ruling::unchanged(h.quarantined());
    }
    // (idempotency 3): the promise of an earlier history stays below the floor until its holder
    // names the quarantine, because a higher one may have been forgotten.
    let same_life = row.is_some_and(|row| row.is_of_this_life(h));
    let counts = same_life || h.facts.since == 0 || reassert == Some(h.id());
    let mut row = written(h, b, lease, row);
    row.promised_in = counts.then(|| h.id());
    row.till = Some(h.after(lease));
    Ruling::write(Reply::Done, row)
}

fn complete(h: &Header, b: &Ballot, value: Option<&Arc<[u8]>>, row: Option<&Row>) -> Ruling {
    if let Some(refusal) = refusal(h, b, row) {
        return Ruling::unchanged(refusal);
    }
    let mut row = written(h, b, Duration::ZERO, row);
    row.result = Some(StoredRecord { token: b.token, value: value.cloned() });
    (row.steps, row.till) = (None, None);
    Ruling { waiters: Waiters::Wake, ..Ruling::write(Reply::Done, row) }
}

fn steps(h: &Header, b: &Ballot, list: &Arc<[u8]>, row: Option<&Row>) -> Ruling {
    if let Some(refusal) = refusal(h, b, row) {
        return Ruling::unchanged(refusal);
    }
    // A repeated request may arrive after a later one with more steps, which must stay.
    let longer = |s: &StoredSteps| s.token == b.token && s.list.len() >= list.len();
    match row {
        Some(row) if row.result.is_some() => return Ruling::unchanged(Reply::NotOwner),
        Some(row) if row.steps.as_ref().is_some_and(longer) => {
            return Ruling::unchanged(Reply::Done);
        }
        _ => {}
    }
    let mut row = written(h, b, Duration::ZERO, row);
    row.steps = Some(StoredSteps { token: b.token, list: Arc::clone(list) });
    Ruling::write(Reply::Done, row)
}

fn unclaim(owner: OwnerToken, end: ClaimEnd, row: Option<&Row>) -> Ruling {
    let Some(row) = row else { return Ruling::unchanged(Reply::Absent) };
    if row.own != Some(owner) || row.result.is_some() || row.till.is_none() {
        return Ruling::unchanged(Reply::NotOwner);
    }
    let mut row = row.clone();
    // Without an owner, none of its requests that are still under way extends or completes the
    // record.
    (row.own, row.till) = (None, None);
    if end != ClaimEnd::Lapsed {
        row.attempt = row.attempt.saturating_sub(1);
    }
    if row.attempt == 0 && end == ClaimEnd::Undone && row.steps.is_none() {
        // No attempt did anything under this key. The record keeps its life and its last ballot:
        // late requests of other clients have to be refused, too (idempotency 4).
        row.fingerprint = None;
    }
    Ruling { waiters: Waiters::Wake, ..Ruling::write(Reply::Done, row) }
}

fn lookup(
    h: &Header,
    fingerprint: Option<FingerprintBytes>,
    Unsure { remaining: unsure, losses, .. }: Unsure,
    row: Option<&Row>,
) -> Ruling {
    if row.is_some_and(|row| row.is_anothers(fingerprint)) {
        return Ruling::unchanged(Reply::Mismatch);
    }
    let state = row.map(|row| RecordState {
        fence: row.fence,
        attempt: row.attempt,
        lease: row.till.filter(|till| *till > h.now).map(|till| h.until(till)),
        record: row.result.clone(),
    });
    Ruling::unchanged(Reply::Record { state, unsure, losses })
}

/// Refusal of a result or of steps: the record is of another request, or a higher ballot was
/// promised, or one with the same token to another owner (idempotency 2).
fn refusal(h: &Header, b: &Ballot, row: Option<&Row>) -> Option<Reply> {
    if row.is_some_and(|row| row.is_anothers(b.fingerprint)) {
        return Some(Reply::Mismatch);
    }
    let (promised, mine) =
        row.map_or((h.floor, false), |row| (row.effective(h), row.own == Some(b.owner)));
    let overtaken = promised > b.token.get() || (promised == b.token.get() && !mine);
    overtaken.then_some(Reply::NotOwner)
}

/// The record after its promise went to this ballot, kept for its retention after `lease`.
fn written(h: &Header, b: &Ballot, lease: Duration, row: Option<&Row>) -> Row {
    let mut row = row.cloned().unwrap_or_default();
    row.promise(h, b.owner, b.token.get());
    row.attempt = row.attempt.max(1);
    row.is_of(b.fingerprint);
    row.keep(h, b.retention, lease);
    row
}

impl Row {
    pub(crate) fn has_expired(&self, now: u64) -> bool {
        self.expires <= now
    }

    fn claimed_for(&self, h: &Header) -> Option<Duration> {
        // (quarantine 11): the clock of the server that was handed over may have been behind this
        // clock.
        let more = if h.settling { h.apart() } else { Duration::ZERO };
        let till = self.till.map(|t| t.saturating_add(u64::try_from(more.as_nanos()).unwrap_or(0)));
        till.filter(|t| *t > h.now).map(|t| h.until(t))
    }

    fn is_of_this_life(&self, h: &Header) -> bool {
        self.promised_in == Some(h.id())
    }

    /// Lowest token that is accepted, and only from the last owner (idempotency 3).
    fn effective(&self, h: &Header) -> u64 {
        if self.is_of_this_life(h) { self.fence } else { self.fence.max(h.floor) }
    }

    /// Never shortens the life that an earlier writer needed. A claim adds its lease, so that a
    /// result within the lease need not look at it (idempotency 9).
    fn keep(&mut self, h: &Header, retention: Duration, lease: Duration) {
        let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        self.expires = self.expires.max(h.record_till(retention).saturating_add(lease));
    }

    /// The first fingerprint stays (idempotency 8).
    fn is_of(&mut self, fingerprint: Option<FingerprintBytes>) {
        self.fingerprint = self.fingerprint.or(fingerprint);
    }

    fn is_anothers(&self, fingerprint: Option<FingerprintBytes>) -> bool {
        matches!((self.fingerprint, fingerprint), (Some(stored), Some(given)) if stored != given)
    }

    fn claimed(&self, h: &Header, c: &Claim) -> Reply {
        let Unsure { remaining: unsure, losses, fresh } =
            h.lost_claims().unsure(c.born, c.retention, c.accepted);
        Reply::Claimed {
            fence: self.fence,
            attempt: self.attempt,
            record: self.result.clone(),
            steps: self.steps.clone(),
            unsure,
            losses,
            fresh,
        }
    }

    fn promise(&mut self, h: &Header, owner: OwnerToken, token: u64) {
        self.fence = token;
        self.own = Some(owner);
        self.promised_in = Some(h.id());
    }
}

/// Change that an operator makes to a record (idempotency 17).
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "for operators' programs and tests of this workspace")]
pub enum RecordChange {
    /// Ends the running claim.
    Release,
    /// Sets the number of attempts to zero, if there is no result.
    Rerun,
    /// Removes the result, the attempts and the fingerprint.
    Purge,
    /// As `Purge`, and also removes the steps of a record without a result.
    PurgeUnfinished,
}

/// Why an operator's change leaves a record as it is.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "for operators' programs of this workspace")]
pub enum Unchanged {
    NoClaimRuns,
    ClaimRuns,
    /// Soon after a planned handover, by which the claim may still run.
    ClaimMayRun,
    Stored,
    Unfinished,
}

impl RecordChange {
    /// A claim counts as running until `longer` (ns) after the end of its lease.
    pub(crate) fn decide(self, row: &Row, now: u64, longer: u64) -> Result<Row, Unchanged> {
        let runs = row.till.is_some_and(|till| till.saturating_add(longer) > now);
        let is_stored = row.result.is_some();
        match self {
            Self::Release | Self::Rerun if is_stored => Err(Unchanged::Stored),
            Self::Release if !runs => Err(Unchanged::NoClaimRuns),
            Self::Release => Ok(Row { own: None, till: None, ..row.clone() }),
            _ if runs && !is_stored && row.till.is_some_and(|till| till > now) => {
                Err(Unchanged::ClaimRuns)
            }
            _ if runs && !is_stored => Err(Unchanged::ClaimMayRun),
            Self::Purge if !is_stored => Err(Unchanged::Unfinished),
            _ => Ok(self.emptied(row)),
        }
    }

    /// The record after an operator's change in a simulation: `None` unless its promise is the one
    /// that was `seen`, it has no result, and no claim runs.
    #[cfg(feature = "test-util")]
    pub(crate) fn of(self, row: &Row, seen: u64, now: u64, longer: u64) -> Option<Row> {
        if row.fence != seen || row.result.is_some() {
            return None;
        }
        self.decide(row, now, longer).ok()
    }

    fn emptied(self, row: &Row) -> Row {
        let mut row = Row { own: None, till: None, attempt: 0, ..row.clone() };
        if self != Self::Rerun {
            (row.result, row.steps, row.fingerprint) = (None, None, None);
        }
        row
    }
}
