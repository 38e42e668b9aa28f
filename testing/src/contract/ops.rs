//! Functions that make the operations of the test cases.

use std::sync::Arc;
use std::time::Duration;

use palisade::FencingToken;
use palisade::node::spi::{
    Ballot, Claim, ClaimEnd, FingerprintBytes, Holder, IfHeld, LockKeys, LockMode, Op, OwnerToken,
    Place, QuarantineId, RecordKey, Reply, Slots,
};

use super::bench::{KEEP, LONG};

pub(super) fn acquire(keys: &LockKeys, owner: OwnerToken, ttl: Duration) -> Op {
    acquire_at(keys, owner, ttl, 0)
}

pub(super) fn acquire_at(keys: &LockKeys, owner: OwnerToken, ttl: Duration, proposal: u64) -> Op {
    let (mode, keys) = (LockMode::Exclusive, keys.clone());
    Op::Acquire { mode, keys, owner, ttl, proposal, if_held: None }
}

fn acquire_if(keys: &LockKeys, owner: OwnerToken, ttl: Duration, if_held: IfHeld) -> Op {
    let (mode, keys) = (LockMode::Exclusive, keys.clone());
    Op::Acquire { mode, keys, owner, ttl, proposal: 0, if_held: Some(if_held) }
}

pub(super) fn shared(mut op: Op) -> Op {
    if let Op::Acquire { mode, .. } | Op::Extend { mode, .. } | Op::Release { mode, .. } = &mut op {
        *mode = LockMode::Shared;
    }
    op
}

pub(super) fn on_slots(mut op: Op, slots: Slots) -> Op {
    if let Op::Acquire { mode, .. } | Op::Extend { mode, .. } | Op::Release { mode, .. } = &mut op {
        *mode = LockMode::Slot(slots);
    }
    if let Op::Raise { slot, .. } = &mut op {
        *slot = slots.slot();
    }
    op
}

/// The longest that a node allows.
pub(super) const RESERVED: Duration = Duration::from_millis(50);

/// Makes an acquisition by the client `waiter`, which has waited for `span`.
pub(super) fn acquire_waiting(
    keys: &LockKeys,
    owner: OwnerToken,
    (waiter, span): (u64, Duration),
) -> Op {
    let place = Place { waiter, waited: span, needs: RESERVED };
    acquire_if(keys, owner, LONG, IfHeld::Queue(place))
}

/// A candidate only watches the lock.
pub(super) fn acquire_watching(keys: &LockKeys, owner: OwnerToken) -> Op {
    acquire_if(keys, owner, LONG, IfHeld::Watch)
}

pub(super) fn take(keys: &LockKeys, owner: OwnerToken, from: OwnerToken) -> Op {
    take_for(keys, owner, from, LONG)
}

pub(super) fn take_for(keys: &LockKeys, owner: OwnerToken, from: OwnerToken, ttl: Duration) -> Op {
    acquire_if(keys, owner, ttl, IfHeld::TakeFrom(from))
}

pub(super) fn take_only(
    keys: &LockKeys,
    owner: OwnerToken,
    (from, token): (OwnerToken, u64),
    ttl: Duration,
) -> Op {
    let token = FencingToken::new(token);
    acquire_if(keys, owner, ttl, IfHeld::TakeOnly { from, token })
}

pub(super) fn raise(keys: &LockKeys, owner: OwnerToken, token: u64) -> Op {
    Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(token), slot: None }
}

pub(super) fn extend(keys: &LockKeys, owner: OwnerToken, ttl: Duration, token: u64) -> Op {
    reassert(keys, owner, ttl, token, None)
}

pub(super) fn reassert(
    keys: &LockKeys,
    owner: OwnerToken,
    ttl: Duration,
    token: u64,
    reassert: Option<QuarantineId>,
) -> Op {
    let (keys, token) = (keys.clone(), FencingToken::new(token));
    Op::Extend { mode: LockMode::Exclusive, keys, owner, ttl, token, meta: None, reassert }
}

pub(super) fn extend_saying(keys: &LockKeys, owner: OwnerToken, token: u64, meta: &[u8]) -> Op {
    let (keys, token) = (keys.clone(), FencingToken::new(token));
    let (ttl, meta) = (LONG, Some(Arc::from(meta)));
    Op::Extend { mode: LockMode::Exclusive, keys, owner, ttl, token, meta, reassert: None }
}

pub(super) fn release(keys: &LockKeys, owner: OwnerToken) -> Op {
    Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: true }
}

pub(super) fn inspect(keys: &LockKeys) -> Op {
    Op::Inspect { keys: keys.clone(), wait: false }
}

pub(super) fn claim(key: &RecordKey, owner: OwnerToken, lease: Duration) -> Op {
    claim_with(key, owner, lease, None, false)
}

pub(super) fn claim_print(
    key: &RecordKey,
    owner: OwnerToken,
    lease: Duration,
    fingerprint: FingerprintBytes,
) -> Op {
    claim_with(key, owner, lease, Some(fingerprint), false)
}

pub(super) fn claim_force(key: &RecordKey, owner: OwnerToken, lease: Duration) -> Op {
    claim_with(key, owner, lease, None, true)
}

fn claim_with(
    key: &RecordKey,
    owner: OwnerToken,
    lease: Duration,
    fingerprint: Option<FingerprintBytes>,
    force: bool,
) -> Op {
    Op::Claim(claim_terms(key, owner, lease, fingerprint, force))
}

pub(super) fn claim_terms(
    key: &RecordKey,
    owner: OwnerToken,
    lease: Duration,
    fingerprint: Option<FingerprintBytes>,
    force: bool,
) -> Claim {
    Claim {
        key: key.clone(),
        owner,
        lease,
        retention: KEEP,
        proposal: 0,
        fingerprint,
        force,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    }
}

pub(super) fn raise_claim(key: &RecordKey, owner: OwnerToken, token: u64) -> Op {
    Op::RaiseClaim { key: key.clone(), owner, token: FencingToken::new(token) }
}

pub(super) fn extend_claim(key: &RecordKey, owner: OwnerToken, token: u64, lease: Duration) -> Op {
    reassert_claim(key, owner, token, lease, None)
}

pub(super) fn reassert_claim(
    key: &RecordKey,
    owner: OwnerToken,
    token: u64,
    lease: Duration,
    reassert: Option<QuarantineId>,
) -> Op {
    let (key, token) = (key.clone(), FencingToken::new(token));
    Op::ExtendClaim {
        ballot: Ballot { key, owner, token, retention: KEEP, fingerprint: None },
        lease,
        reassert,
    }
}

pub(super) fn extend_claim_print(
    key: &RecordKey,
    owner: OwnerToken,
    token: u64,
    fingerprint: FingerprintBytes,
) -> Op {
    let (key, token) = (key.clone(), FencingToken::new(token));
    let (lease, fingerprint) = (LONG, Some(fingerprint));
    Op::ExtendClaim {
        ballot: Ballot { key, owner, token, retention: KEEP, fingerprint },
        lease,
        reassert: None,
    }
}

pub(super) fn complete(key: &RecordKey, owner: OwnerToken, token: u64, value: &[u8]) -> Op {
    complete_with(key, owner, token, Some(value), None)
}

pub(super) fn complete_with(
    key: &RecordKey,
    owner: OwnerToken,
    token: u64,
    value: Option<&[u8]>,
    fingerprint: Option<FingerprintBytes>,
) -> Op {
    let (key, token) = (key.clone(), FencingToken::new(token));
    let value = value.map(Arc::from);
    Op::Complete { ballot: Ballot { key, owner, token, retention: KEEP, fingerprint }, value }
}

pub(super) fn steps(key: &RecordKey, owner: OwnerToken, token: u64, list: &[u8]) -> Op {
    steps_with(key, owner, token, list, None)
}

pub(super) fn steps_print(
    key: &RecordKey,
    owner: OwnerToken,
    token: u64,
    list: &[u8],
    fingerprint: FingerprintBytes,
) -> Op {
    steps_with(key, owner, token, list, Some(fingerprint))
}

fn steps_with(
    key: &RecordKey,
    owner: OwnerToken,
    token: u64,
    list: &[u8],
    fingerprint: Option<FingerprintBytes>,
) -> Op {
    let (key, token, list) = (key.clone(), FencingToken::new(token), Arc::from(list));
    Op::Steps { ballot: Ballot { key, owner, token, retention: KEEP, fingerprint }, list }
}

pub(super) fn unclaim(key: &RecordKey, owner: OwnerToken) -> Op {
    end_claim(key, owner, ClaimEnd::Undone)
}

pub(super) fn end_claim(key: &RecordKey, owner: OwnerToken, end: ClaimEnd) -> Op {
    Op::Unclaim { key: key.clone(), owner, end }
}

pub(super) fn lookup(key: &RecordKey) -> Op {
    lookup_with(key, None, None)
}

pub(super) fn lookup_print(key: &RecordKey, fingerprint: FingerprintBytes) -> Op {
    lookup_with(key, Some(fingerprint), None)
}

pub(super) fn lookup_born(key: &RecordKey, born: Option<u64>) -> Op {
    lookup_with(key, None, born)
}

fn lookup_with(key: &RecordKey, fingerprint: Option<FingerprintBytes>, born: Option<u64>) -> Op {
    let (key, accepted) = (key.clone(), Duration::ZERO);
    Op::Lookup { key, retention: KEEP, fingerprint, born, accepted }
}

pub(super) fn is_held(reply: &Reply) -> bool {
    matches!(reply, Reply::Held { remaining: Some(_), foreign: false })
}

pub(super) fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { .. })
}

pub(super) fn is_owned_by(reply: &Reply, owner: OwnerToken) -> bool {
    matches!(reply, Reply::Holder(Some(Holder { owner: Some(is), .. })) if *is == owner)
}
