//! Tests that renew and release one lease on two threads at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::lease::{Lease, Subject};
use super::*;
use crate::config::Config;
use crate::durability::Durability;
use crate::env::SystemEnv;
use crate::error::{ExtendError, Resource};
use crate::name::LockKeys;
use crate::node::MemoryNode;

const TTL: Duration = Duration::from_secs(20);

pub(super) fn core() -> Arc<Core> {
    let nodes = (0..3).map(|_| Arc::new(MemoryNode::new()) as Arc<dyn LockNode>).collect();
    // The two busy threads leave little processor time to the node queues.
    let config = Config { node_deadline: Duration::from_secs(5), ..Config::default() };
    Arc::new(Core::new(nodes, config, Arc::new(SystemEnv), Meters::new(false)))
}

pub(super) fn ask(keys: &LockKeys) -> acquire::AcquireRequest<'_> {
    let ask = acquire::AcquireRequest::new(keys, TTL, Durability::Primary);
    acquire::AcquireRequest { within: TTL, ..ask }
}

pub(super) fn lease_of(core: &Core, keys: &LockKeys, won: acquire::Acquired) -> Lease {
    let of = Resource::Lock(keys.lock().into());
    let subject = Subject::Lock { of, keys: keys.clone() };
    let meters = Arc::clone(&core.meters.claimed);
    Lease::new(subject, (won.owner, won.token), (TTL, won.until), None, won.replies, None, meters)
}

/// Waits until both threads have called this function, so that both continue at the same time.
fn meet(at: &AtomicUsize, turn: usize) {
    at.fetch_add(1, Ordering::SeqCst);
    while at.load(Ordering::SeqCst) < 2 * turn {
        std::hint::spin_loop();
    }
}

#[tokio::test]
async fn a_renewal_of_what_was_told_as_lost_meanwhile_is_none() {
    let core = core();
    let keys = LockKeys::new("k");
    let won = core.attempt(ask(&keys)).await.expect("free");
    let lease = Arc::new(lease_of(&core, &keys, won));
    let mut renewal = std::pin::pin!(core.extend(&lease, true));
    assert!(futures_util::poll!(renewal.as_mut()).is_pending(), "the nodes have yet to answer");
    lease.lose(core.env.now());
    assert_eq!(renewal.await, Err(ExtendError::Lost(lease.resource())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_renewal_never_brings_back_what_was_released() {
    let core = core();
    let keys = LockKeys::new("k");
    let at = Arc::new(AtomicUsize::new(0));
    for turn in 1..=1_500 {
        let won = core.attempt(ask(&keys)).await;
        let won = won.unwrap_or_else(|loss| panic!("turn {turn}: still there: {loss:?}"));
        let lease = Arc::new(lease_of(&core, &keys, won));
        let renewal = {
            let (core, lease, at) = (Arc::clone(&core), Arc::clone(&lease), Arc::clone(&at));
            tokio::spawn(async move {
                meet(&at, turn);
                let _ = core.extend(&lease, true).await;
            })
        };
        meet(&at, turn);
        for _ in 0..turn % 64 {
            std::hint::spin_loop();
        }
        let held = lease.end_held(core.env.now());
        let outcome = core.release(&lease, held).await;
        renewal.await.expect("no panic");
        assert_eq!(outcome, Ok(()));
    }
}

#[tokio::test]
async fn a_lease_counts_as_lost_or_as_given_up() {
    let core = core();
    let keys = LockKeys::new("k");
    let won = core.attempt(ask(&keys)).await.expect("free");
    let lease = || {
        let until = won.until;
        let lease =
            lease_of(&core, &keys, acquire::Acquired { replies: Arc::clone(&won.replies), ..won });
        (lease, until)
    };
    let is_lost = |lease: &Lease| lease.over_since().expect("it is over").lost;
    let instant = Duration::from_nanos(1);
    let (given_up, until) = lease();
    given_up.end(until - instant);
    assert!(!is_lost(&given_up), "its holder ended it in time");
    let (too_late, until) = lease();
    too_late.end(until);
    assert!(is_lost(&too_late), "its deadline had passed when its holder ended it");
    let (taken, until) = lease();
    taken.lose(until - instant);
    assert!(is_lost(&taken), "nodes answered that it is another owner's");
    let end = taken.over_since().map(|over| over.at);
    taken.end(until + instant);
    assert_eq!(taken.over_since().map(|over| over.at), end, "it ended once");
}
