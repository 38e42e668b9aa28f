//! Short words for the ops.

use std::sync::Arc;
use std::time::Duration;

use super::bench::KEEP;
use crate::name::LockKeys;
use crate::op::{Claim, FingerprintBytes, Op, RecordKey};
use crate::token::{FencingToken, OwnerToken};

pub(super) fn acquire(keys: &LockKeys, owner: OwnerToken, ttl: Duration) -> Op {
    acquire_at(keys, owner, ttl, 0)
}

pub(super) fn acquire_at(keys: &LockKeys, owner: OwnerToken, ttl: Duration, proposal: u64) -> Op {
    Op::Acquire { keys: keys.clone(), owner, ttl, proposal, wait: false }
}

pub(super) fn acquire_waiting(keys: &LockKeys, owner: OwnerToken, ttl: Duration) -> Op {
    Op::Acquire { keys: keys.clone(), owner, ttl, proposal: 0, wait: true }
}

pub(super) fn raise(keys: &LockKeys, owner: OwnerToken, token: u64) -> Op {
    Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(token) }
}

pub(super) fn extend(keys: &LockKeys, owner: OwnerToken, ttl: Duration, token: u64) -> Op {
    reassert(keys, owner, ttl, token, None)
}

pub(super) fn reassert(
    keys: &LockKeys,
    owner: OwnerToken,
    ttl: Duration,
    token: u64,
    reassert: Option<u64>,
) -> Op {
    let token = FencingToken::new(token);
    Op::Extend { keys: keys.clone(), owner, ttl, token, meta: None, reassert }
}

pub(super) fn extend_saying(keys: &LockKeys, owner: OwnerToken, token: u64, meta: &[u8]) -> Op {
    let (keys, token) = (keys.clone(), FencingToken::new(token));
    let (ttl, meta) = (super::bench::LONG, Some(Arc::from(meta)));
    Op::Extend { keys, owner, ttl, token, meta, reassert: None }
}

pub(super) fn release(keys: &LockKeys, owner: OwnerToken) -> Op {
    Op::Release { keys: keys.clone(), owner, words: true }
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
    let (key, retention, proposal) = (key.clone(), KEEP, 0);
    Op::Claim(Claim { key, owner, lease, retention, proposal, fingerprint, force })
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
    reassert: Option<u64>,
) -> Op {
    let token = FencingToken::new(token);
    Op::ExtendClaim { key: key.clone(), owner, token, lease, retention: KEEP, reassert }
}

pub(super) fn complete(key: &RecordKey, owner: OwnerToken, token: u64, value: &[u8]) -> Op {
    let (token, value) = (FencingToken::new(token), Arc::from(value));
    Op::Complete { key: key.clone(), owner, token, value, retention: KEEP }
}

pub(super) fn unclaim(key: &RecordKey, owner: OwnerToken) -> Op {
    Op::Unclaim { key: key.clone(), owner }
}

pub(super) fn lookup(key: &RecordKey) -> Op {
    Op::Lookup { key: key.clone() }
}
