//! Functions that build requests to nodes, for tests.
#![allow(dead_code, unreachable_pub)]

use std::time::Duration;

use palisade::node::spi::{
    Batch, Env as _, IfHeld, LockKeys, LockMode, Op, OwnerToken, Remembered, SystemEnv, Terms,
};

pub fn owner() -> OwnerToken {
    OwnerToken::from_random(SystemEnv.random())
}

/// Returns an op that acquires a lock exclusively and does not wait in the queue.
pub fn acquire(name: &str, owner: OwnerToken, ttl: Duration) -> Op {
    let (mode, keys, proposal) =
        (LockMode::Exclusive, LockKeys::new(name), SystemEnv.wall_micros());
    Op::Acquire { mode, keys, owner, ttl, proposal, if_held: None }
}

pub fn release(name: &str, owner: OwnerToken) -> Op {
    Op::Release { mode: LockMode::Exclusive, keys: LockKeys::new(name), owner, meta: true }
}

/// Returns the op with another lock mode: exclusive, shared, or a slot of a semaphore.
pub fn in_mode(mut op: Op, wanted: LockMode) -> Op {
    if let Op::Acquire { mode, .. } | Op::Extend { mode, .. } | Op::Release { mode, .. } = &mut op {
        *mode = wanted;
    }
    op
}

/// Returns the acquire with another behaviour for the case that the lock is held.
pub fn if_held(mut op: Op, wanted: IfHeld) -> Op {
    if let Op::Acquire { if_held, .. } = &mut op {
        *if_held = Some(wanted);
    }
    op
}

/// Returns a batch that the server executes at any time: it has no deadline on the server's clock.
pub fn batch(max_ttl: Duration, ops: Vec<Op>) -> Batch {
    let terms = Terms { max_ttl, clock_error: Duration::from_secs(60) };
    Batch { terms, not_after: None, remembers: Remembered::default(), ops }
}
