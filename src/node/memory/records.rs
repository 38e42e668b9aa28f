//! The ops on idempotency records of a node in memory. Each key is a single-decree consensus on its
//! result: a claim is the promise, and a completion the accept. A ballot is a pair of fencing token
//! and owner.

use std::sync::Arc;
use std::time::Duration;

use super::quarantine::Header;
use super::shelf::{Perish, Shelf};
use crate::node::lost_claims::Unsure;
use crate::op::{
    Ballot, Claim, ClaimEnd, FingerprintBytes, QuarantineId, RecordState, Reply, StoredRecord,
    StoredSteps,
};
use crate::token::{FencingToken, OwnerToken};

/// Change that an operator makes to a record without a result.
#[cfg(feature = "test-util")]
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "for tests")]
pub enum RecordChange {
    /// The command `palisade idem rerun`, which sets the number of attempts to zero.
    Rerun,
    /// The command `palisade idem purge --unfinished`, which also removes the handler's finished
    /// steps and the fingerprint of the request.
    PurgeUnfinished,
}

/// All data under the key of one idempotency record.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// Owner of the last promised ballot (the tokens of a claim); `None` if that claim was ended
    /// before its lease ended.
    own: Option<OwnerToken>,
    /// Fencing token of the highest ballot that the node has promised (accepted for a claim). The
    /// node refuses requests with a lower one.
    fence: u64,
    /// End of the claim's lease. The field keeps this time after the lease has ended, so that a
    /// lapsed claim (one that ended without a result) is recognised.
    till: Option<u64>,
    attempt: u32,
    fingerprint: Option<FingerprintBytes>,
    record: Option<StoredRecord>,
    /// Steps that the handler has finished; removed when the result is stored.
    steps: Option<StoredSteps>,
    /// True if a caller waits for the end of the claim.
    awaited: bool,
    /// Data history in which the last promise (the highest accepted ballot) was made. If that is an
    /// earlier history, the node may have lost a higher promise. So the promise then counts as at
    /// least the floor (smallest token) of the present history.
    promised_in: Option<QuarantineId>,
    expires: u64,
}

impl Perish for Entry {
    fn refresh(&mut self, now: u64) -> bool {
        self.expires > now
    }
}

impl Entry {
    fn lease(&self, h: &Header) -> Option<Duration> {
        self.till.filter(|t| *t > h.now).map(|t| h.until(t))
    }

    /// Returns the time for which other claims of this key are refused because a claim runs; `None`
    /// if no claim runs.
    fn claimed_for(&self, h: &Header) -> Option<Duration> {
        // After a planned handover, the clock of the old server may have been behind the clock of
        // this server. So the old server's leases may end later than they seem to.
        let more = if h.settling { h.apart() } else { Duration::ZERO };
        let till = self.till.map(|t| t.saturating_add(u64::try_from(more.as_nanos()).unwrap_or(0)));
        till.filter(|t| *t > h.now).map(|t| h.until(t))
    }

    fn is_of_this_life(&self, h: &Header) -> bool {
        self.promised_in == Some(h.id())
    }

    /// Returns the lowest fencing token that is accepted for this key. It is accepted only from the
    /// last owner of the record; every other owner needs a higher token.
    fn effective(&self, h: &Header) -> u64 {
        if self.is_of_this_life(h) { self.fence } else { self.fence.max(h.floor) }
    }

    /// Keeps the record for as long as this writer needs it, and at least for as long as an earlier
    /// writer needed it. A claim adds its lease, so that a result that is stored within the lease
    /// need not keep the record for longer.
    fn keep(&mut self, h: &Header, retention: Duration, lease: Duration) {
        let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        self.expires = self.expires.max(h.record_till(retention).saturating_add(lease));
    }

    /// Stores the fingerprint of the request, unless one is stored already.
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
            record: self.record.clone(),
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

    /// Returns the reply if the claim begins nothing new: a refusal, or the confirmation of a claim
    /// that the same owner has already.
    fn refusal(&mut self, h: &Header, c: &Claim) -> Option<Reply> {
        if let (Some(stored), Some(given)) = (self.fingerprint, c.fingerprint)
            && stored != given
        {
            return Some(Reply::Mismatch);
        }
        if let Some(record) = &self.record
            && !c.force
        {
            return Some(Reply::Completed(record.clone()));
        }
        if h.is_quarantined() {
            return Some(h.quarantined());
        }
        if let Some(remaining) = self.claimed_for(h) {
            if self.own == Some(c.owner) {
                return Some(self.claimed(h, c));
            }
            // `force` is for the repair of a record that has a result. It never ends another
            // owner's claim that still runs.
            if self.record.is_none() {
                self.awaited |= c.wait;
                return Some(Reply::InFlight { remaining });
            }
        }
        None
    }
}

/// All idempotency records of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(Shelf<Entry>);

impl Records {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn claim(&mut self, h: &Header, c: &Claim) -> Reply {
        if let Some(refusal) = self.0.live(&c.key, h.now).and_then(|e| e.refusal(h, c)) {
            return refusal;
        }
        if h.is_quarantined() {
            return h.quarantined();
        }
        if h.is_too_old(c.created, c.retention) {
            return Reply::TooOld;
        }
        let e = self.0.open(&c.key, h.now);
        let fence = h.next_fence(e.fence, c.proposal);
        e.promise(h, c.owner, fence);
        e.till = Some(h.after(c.lease));
        e.attempt = e.attempt.saturating_add(1);
        e.is_of(c.fingerprint);
        e.keep(h, c.retention, c.lease);
        e.claimed(h, c)
    }

    pub(super) fn raise(
        &mut self,
        h: &Header,
        key: &str,
        owner: OwnerToken,
        token: FencingToken,
    ) -> Reply {
        match self.0.live(key, h.now) {
            // The promise (the highest ballot that the node accepted) must be of this data history.
            // Otherwise a request to raise it that was under way when the node lost its data would
            // renew the promise, although the node may have forgotten a higher one.
            Some(e)
                if e.own == Some(owner)
                    && e.is_of_this_life(h)
                    && e.fence <= token.get()
                    && !h.is_ahead(token.get()) =>
            {
                e.promise(h, owner, token.get());
                e.record.clone().map_or(Reply::Done, Reply::Completed)
            }
            _ => Reply::NotOwner,
        }
    }

    pub(super) fn extend(
        &mut self,
        h: &Header,
        b: &Ballot,
        lease: Duration,
        reassert: Option<QuarantineId>,
    ) -> Reply {
        let t = b.token.get();
        let known = self.0.live(&b.key, h.now);
        if let Some(e) = &known {
            if e.is_anothers(b.fingerprint) {
                return Reply::Mismatch;
            }
            if let Some(record) = &e.record {
                return Reply::Completed(record.clone());
            }
            if e.fence > t || (e.fence == t && e.own != Some(b.owner)) {
                return Reply::NotOwner;
            }
        }
        if !h.may_extend(reassert) {
            return h.quarantined();
        }
        // An extension does not make a promise (the highest accepted ballot) of an earlier data
        // history count in this one. So a result below the floor (smallest token of this history)
        // is still refused, because the node may have forgotten a higher promise. Only a holder
        // that names the quarantine makes its promise count.
        let same_life = known.as_ref().is_some_and(|e| e.is_of_this_life(h));
        let counts = same_life || h.facts.since == 0 || reassert == Some(h.id());
        let e = self.write(h, b, lease);
        e.promised_in = counts.then(|| h.id());
        e.till = Some(h.after(lease));
        Reply::Done
    }

    /// Promises to refuse smaller ballots than this one, and keeps the record for its retention
    /// after `lease`. Returns the record, to which the caller writes.
    fn write(&mut self, h: &Header, b: &Ballot, lease: Duration) -> &mut Entry {
        let e = self.0.open(&b.key, h.now);
        e.promise(h, b.owner, b.token.get());
        e.attempt = e.attempt.max(1);
        e.is_of(b.fingerprint);
        e.keep(h, b.retention, lease);
        e
    }

    /// Returns the refusal of a result or of steps. One reason is that the record is of another
    /// request. The other is that a higher ballot was promised, or a ballot with the same token to
    /// another owner: two owners may have equal tokens.
    fn refusal(&mut self, h: &Header, b: &Ballot) -> Option<Reply> {
        let known = self.0.live(&b.key, h.now);
        if known.as_ref().is_some_and(|e| e.is_anothers(b.fingerprint)) {
            return Some(Reply::Mismatch);
        }
        let (promised, mine) =
            known.map_or((h.floor, false), |e| (e.effective(h), e.own == Some(b.owner)));
        let overtaken = promised > b.token.get() || (promised == b.token.get() && !mine);
        overtaken.then_some(Reply::NotOwner)
    }

    /// Stores a result. Returns the answer, and true if a caller waits for the end of the claim.
    pub(super) fn complete(
        &mut self,
        h: &Header,
        b: &Ballot,
        value: Option<&Arc<[u8]>>,
    ) -> (Reply, bool) {
        if let Some(refusal) = self.refusal(h, b) {
            return (refusal, false);
        }
        let e = self.write(h, b, Duration::ZERO);
        e.record = Some(StoredRecord { token: b.token, value: value.cloned() });
        (e.steps, e.till) = (None, None);
        (Reply::Done, std::mem::take(&mut e.awaited))
    }

    pub(super) fn steps(&mut self, h: &Header, b: &Ballot, list: &Arc<[u8]>) -> Reply {
        if let Some(refusal) = self.refusal(h, b) {
            return refusal;
        }
        // A repeated request may arrive after a later request with more steps, which must stay.
        let longer = |s: &StoredSteps| s.token == b.token && s.list.len() >= list.len();
        match self.0.live(&b.key, h.now) {
            Some(e) if e.record.is_some() => return Reply::NotOwner,
            Some(e) if e.steps.as_ref().is_some_and(longer) => return Reply::Done,
            _ => {}
        }
        let e = self.write(h, b, Duration::ZERO);
        e.steps = Some(StoredSteps { token: b.token, list: Arc::clone(list) });
        Reply::Done
    }

    /// Ends a claim. Returns the answer, and true if a caller waits for the end of the claim.
    pub(super) fn unclaim(
        &mut self,
        h: &Header,
        key: &str,
        owner: OwnerToken,
        end: ClaimEnd,
    ) -> (Reply, bool) {
        let Some(e) = self.0.live(key, h.now) else { return (Reply::Absent, false) };
        if e.own != Some(owner) || e.record.is_some() || e.till.is_none() {
            return (Reply::NotOwner, false);
        }
        e.till = None;
        // The owner is removed, so that none of its requests that are still under way extends or
        // completes the record.
        e.own = None;
        if end != ClaimEnd::Lapsed {
            e.attempt = e.attempt.saturating_sub(1);
        }
        if e.attempt == 0 && end == ClaimEnd::Undone && e.steps.is_none() {
            // No attempt did anything under this key. The entry keeps its life and its last ballot:
            // late requests of other clients have to be refused, too (idempotency 4).
            e.fingerprint = None;
        }
        (Reply::Done, std::mem::take(&mut e.awaited))
    }

    pub(super) fn lookup(
        &mut self,
        h: &Header,
        key: &str,
        fingerprint: Option<FingerprintBytes>,
        Unsure { remaining: unsure, losses, .. }: Unsure,
    ) -> Reply {
        if self.0.live(key, h.now).is_some_and(|e| e.is_anothers(fingerprint)) {
            return Reply::Mismatch;
        }
        let state = self.0.live(key, h.now).map(|e| RecordState {
            fence: e.fence,
            attempt: e.attempt,
            lease: e.lease(h),
            record: e.record.clone(),
        });
        Reply::Record { state, unsure, losses }
    }
}

#[cfg(feature = "test-util")]
impl Records {
    /// Changes a record for an operator, as `ops/src/lua/change.lua` does: only if the highest
    /// promised ballot is still `seen`, there is no result, and no claim runs. A claim counts as
    /// running until `longer` (ns) after the end of its lease. Returns true if the record was
    /// changed.
    pub(super) fn change(
        &mut self,
        (key, seen): (&str, u64),
        change: RecordChange,
        (now, longer): (u64, u64),
    ) -> bool {
        let Some(e) = self.0.live(key, now) else { return false };
        let runs = e.till.is_some_and(|till| till.saturating_add(longer) > now);
        if e.fence != seen || runs || e.record.is_some() {
            return false;
        }
        (e.own, e.till, e.attempt) = (None, None, 0);
        if change == RecordChange::PurgeUnfinished {
            (e.record, e.steps, e.fingerprint) = (None, None, None);
        }
        true
    }
}
