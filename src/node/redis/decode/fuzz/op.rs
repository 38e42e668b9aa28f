//! An op of each kind, for the tests of decoding.

use super::*;
use crate::op::IfHeld;

const SLOTS: Slots = Slots::any(8);

pub(super) fn op(kind: char) -> Op {
    let (keys, key): (_, Arc<str>) = (LockKeys::new("k"), "r".into());
    let (owner, token) = (OwnerToken::from_random(1), FencingToken::new(5));
    match kind {
        'A' | 'a' => {
            let if_held = (kind == 'A').then_some(IfHeld::Watch);
            Op::Acquire {
                mode: LockMode::Exclusive,
                keys,
                owner,
                ttl: SECOND,
                proposal: 1,
                if_held,
            }
        }
        'O' => {
            let place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };
            let if_held = Some(IfHeld::Fair { place, ticket: None });
            let mode = LockMode::Exclusive;
            Op::Acquire { mode, keys, owner, ttl: SECOND, proposal: 1, if_held }
        }
        'S' => {
            let mode = LockMode::Shared;
            Op::Acquire { mode, keys, owner, ttl: SECOND, proposal: 1, if_held: None }
        }
        'H' => {
            let mode = LockMode::Shared;
            Op::Extend { mode, keys, owner, ttl: SECOND, token, meta: None, reassert: None }
        }
        'G' => Op::Release { mode: LockMode::Shared, keys, owner, meta: false },
        'P' => {
            let mode = LockMode::Slot(SLOTS);
            Op::Acquire { mode, keys, owner, ttl: SECOND, proposal: 1, if_held: None }
        }
        'Y' => {
            let mode = LockMode::Slot(SLOTS.exactly(3));
            Op::Extend { mode, keys, owner, ttl: SECOND, token, meta: None, reassert: None }
        }
        'F' => Op::Release { mode: LockMode::Slot(SLOTS), keys, owner, meta: false },
        'U' => Op::Raise { keys, owner, token, slot: Some(3) },
        'R' => Op::Raise { keys, owner, token, slot: None },
        'X' => Op::Extend {
            mode: LockMode::Exclusive,
            keys,
            owner,
            ttl: SECOND,
            token,
            meta: None,
            reassert: None,
        },
        'D' | 'd' => Op::Release { mode: LockMode::Exclusive, keys, owner, meta: kind == 'D' },
        'I' => Op::Inspect { keys, wait: false },
        'E' => Op::Enlist(Enlist { key, owner, ttl: SECOND, entry: None, news: false }),
        'C' => Op::Claim(Claim {
            key,
            owner,
            lease: SECOND,
            retention: SECOND,
            proposal: 1,
            fingerprint: None,
            force: false,
            born: None,
            accepted: Duration::ZERO,
            created: None,
            wait: false,
        }),
        'r' => Op::RaiseClaim { key, owner, token },
        'x' => {
            let (lease, retention) = (SECOND, SECOND);
            Op::ExtendClaim {
                ballot: Ballot { key, owner, token, retention, fingerprint: None },
                lease,
                reassert: None,
            }
        }
        'c' => {
            let (value, retention) = (Some(b"v"[..].into()), SECOND);
            Op::Complete {
                ballot: Ballot { key, owner, token, retention, fingerprint: None },
                value,
            }
        }
        's' => {
            let (list, retention) = (b"[]"[..].into(), SECOND);
            Op::Steps { ballot: Ballot { key, owner, token, retention, fingerprint: None }, list }
        }
        'u' => Op::Unclaim { key, owner, end: ClaimEnd::Undone },
        'L' => Op::Lookup {
            key,
            retention: SECOND,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        },
        other => panic!("no kind {other}"),
    }
}
