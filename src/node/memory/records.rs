//! Idempotency records: single-decree consensus per key; ballot = (fence, owner) (DESIGN 5.7).

use std::sync::Arc;
use std::time::Duration;

use super::guard::Header;
use super::shelf::{Perish, Shelf};
use crate::op::{Claim, FingerprintBytes, RecordState, Reply, StoredRecord};
use crate::token::{FencingToken, OwnerToken};

/// All that stands under one record's key.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The last owner a promise was given to.
    own: Option<OwnerToken>,
    /// The highest ballot promised.
    fence: u64,
    /// End of the lease; stays after it lapsed, so that a lapsed claim is seen.
    till: Option<u64>,
    attempt: u32,
    fingerprint: Option<FingerprintBytes>,
    record: Option<StoredRecord>,
    /// The marker's `since` at the last promise: a promise of an earlier life of the node counts
    /// as the floor, since a higher one may have been forgotten.
    promised_in: u64,
    /// What the last claim was told of this node's memory, for its repeats.
    remembered: bool,
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

    /// When the owner's lease ends; long past if there is none.
    fn lease_end(&self, owner: OwnerToken) -> u64 {
        self.till.filter(|_| self.own == Some(owner)).unwrap_or(0)
    }

    /// The lowest ballot that may still be accepted from its owner.
    fn effective(&self, h: &Header) -> u64 {
        if self.promised_in == h.since { self.fence } else { self.fence.max(h.floor) }
    }

    fn claimed(&self) -> Reply {
        Reply::Claimed {
            fence: self.fence,
            attempt: self.attempt,
            record: self.record.clone(),
            remembers: self.remembered,
        }
    }

    fn promise(&mut self, h: &Header, owner: OwnerToken, token: u64) {
        self.fence = token;
        self.own = Some(owner);
        self.promised_in = h.since;
    }

    /// Why a claim is not granted.
    fn refusal(&self, h: &Header, c: &Claim) -> Option<Reply> {
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
        let remaining = self.lease(h)?;
        if self.own == Some(c.owner) {
            return Some(self.claimed());
        }
        // `force` repairs what is completed; it never takes a running claim away.
        self.record.is_none().then_some(Reply::InFlight { remaining })
    }
}

/// The records of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(Shelf<Entry>);

impl Records {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn claim(&mut self, h: &Header, c: &Claim) -> Reply {
        if !h.quarantine.is_zero() {
            return h.quarantined();
        }
        if let Some(refusal) = self.0.live(&c.key, h.now).and_then(|e| e.refusal(h, c)) {
            return refusal;
        }
        let e = self.0.open(&c.key, h.now);
        let fence = h.next_fence(e.fence, c.proposal);
        e.promise(h, c.owner, fence);
        e.till = Some(h.after(c.lease));
        e.attempt = e.attempt.saturating_add(1);
        e.fingerprint = e.fingerprint.or(c.fingerprint);
        e.remembered = remembers_all(h, c.retention);
        e.expires = h.after(c.retention);
        e.claimed()
    }

    pub(super) fn raise(
        &mut self,
        h: &Header,
        key: &str,
        owner: OwnerToken,
        token: FencingToken,
    ) -> Reply {
        match self.0.live(key, h.now) {
            Some(e) if e.own == Some(owner) && e.effective(h) <= token.get() => {
                e.promise(h, owner, token.get());
                e.record.clone().map_or(Reply::Done, Reply::Completed)
            }
            _ => Reply::NotOwner,
        }
    }

    pub(super) fn extend(
        &mut self,
        h: &Header,
        key: &str,
        owner: OwnerToken,
        token: FencingToken,
        (lease, retention): (Duration, Duration),
        reassert: Option<u64>,
    ) -> Reply {
        let (till, expires) = (h.after(lease), h.after(retention));
        let known = self.0.live(key, h.now);
        let same_life = known.as_ref().is_some_and(|e| e.promised_in == h.since);
        let denied = !match known.as_ref().filter(|_| same_life) {
            // A lease that is not this owner's proves nothing about a copy elsewhere.
            Some(e) => h.may_prolong(Some(e.lease_end(owner)), reassert),
            None => h.may_recreate(reassert),
        };
        if denied && known.is_none() {
            return h.quarantined();
        }
        let e = self.0.open(key, h.now);
        if let Some(record) = &e.record {
            return Reply::Completed(record.clone());
        }
        let (t, mine) = (token.get(), e.own == Some(owner));
        if e.fence > t || (e.fence == t && !mine) {
            return Reply::NotOwner;
        }
        if denied {
            return h.quarantined();
        }
        // A promise of an earlier life stays below the floor unless its holder may re-assert it: a
        // higher one may have been forgotten (5.7).
        let life = if reassert == Some(h.since) || h.since == 0 { h.since } else { NO_LIFE };
        let life = if same_life { h.since } else { life };
        e.promise(h, owner, t);
        e.promised_in = life;
        e.till = Some(till);
        e.attempt = e.attempt.max(1);
        e.expires = expires;
        Reply::Done
    }

    pub(super) fn complete(
        &mut self,
        h: &Header,
        key: &str,
        owner: OwnerToken,
        (token, value): (FencingToken, &Arc<[u8]>),
        retention: Duration,
    ) -> Reply {
        let (promised, mine) = self
            .0
            .live(key, h.now)
            .map_or((h.floor, false), |e| (e.effective(h), e.own == Some(owner)));
        #[cfg(feature = "sim-bugs")]
        let (promised, mine) = if crate::bugs::on(crate::bugs::Bug::CompleteByRecord) {
            let record = self.0.live(key, h.now).and_then(|e| e.record.as_ref());
            (record.map_or(0, |r| r.token.get()), true)
        } else {
            (promised, mine)
        };
        // The whole ballot decides: two owners may carry equal numbers (5.7).
        if promised > token.get() || (promised == token.get() && !mine) {
            return Reply::NotOwner;
        }
        let e = self.0.open(key, h.now);
        e.promise(h, owner, token.get());
        e.record = Some(StoredRecord { token, value: value.clone() });
        e.till = None;
        e.attempt = e.attempt.max(1);
        e.expires = h.after(retention);
        Reply::Done
    }

    pub(super) fn unclaim(&mut self, h: &Header, key: &str, owner: OwnerToken) -> Reply {
        let Some(e) = self.0.live(key, h.now) else { return Reply::Absent };
        if e.own != Some(owner) || e.record.is_some() || e.till.is_none() {
            return Reply::NotOwner;
        }
        e.till = None;
        e.own = None;
        e.attempt = e.attempt.saturating_sub(1);
        if e.attempt == 0 {
            // Nothing happened under this key; only the order of ballots must survive.
            e.fingerprint = None;
            e.expires = h.fence_till();
        }
        Reply::Done
    }

    pub(super) fn lookup(&mut self, h: &Header, key: &str) -> Reply {
        Reply::Record(self.0.live(key, h.now).map(|e| RecordState {
            fence: e.fence,
            attempt: e.attempt,
            lease: e.lease(h),
            record: e.record.clone(),
        }))
    }
}

/// The life of a promise that is known from no life of this node.
const NO_LIFE: u64 = u64::MAX;

/// Whether "not here" means "never was": nothing was lost since the key could have been claimed.
fn remembers_all(h: &Header, retention: Duration) -> bool {
    h.since == 0 || h.complete_for() > retention
}
