//! Tests that renew and release one lease on two threads at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::acquire::LockAttempt;
use super::lease::Lease;
use super::retry::AttemptTerms;
use super::*;
use crate::config::Config;
use crate::durability::Durability;
use crate::env::SystemEnv;
use crate::error::{ExtendError, Resource};
use crate::name::LockKeys;
use crate::node::MemoryNode;
use crate::quorum::acquire::Loss;
use crate::span::Call;

const TTL: Duration = Duration::from_secs(20);

fn core() -> Arc<Core> {
    let nodes = (0..3).map(|_| Arc::new(MemoryNode::new()) as Arc<dyn LockNode>).collect();
    // The two busy threads leave little processor time to the node queues.
    let config = Config { node_deadline: Duration::from_secs(5), ..Config::default() };
    Arc::new(Core::new(nodes, config, Arc::new(SystemEnv), Meters::new(false), 0))
}

async fn attempt(core: &Arc<Core>, name: &str) -> Result<Arc<Lease>, Loss> {
    let operation = Call::new(tracing::Span::none());
    let attempt = LockAttempt {
        core,
        of: Resource::Lock(name.into()),
        keys: &LockKeys::new(name),
        mode: LockMode::Exclusive,
        ttl: TTL,
        level: Durability::Primary,
        meters: Arc::clone(&core.meters.claimed),
        operation: &operation,
        waits_for_quarantine: false,
        awaits_all: false,
        taker: None,
        fair: None,
    };
    attempt.once(AttemptTerms { if_held: None, left: TTL }).await.map(Arc::new)
}

fn meet(at: &AtomicUsize, turn: usize) {
    at.fetch_add(1, Ordering::SeqCst);
    while at.load(Ordering::SeqCst) < 2 * turn {
        std::hint::spin_loop();
    }
}

#[tokio::test]
async fn a_renewal_of_what_was_told_as_lost_meanwhile_is_none() {
    let core = core();
    let lease = attempt(&core, "k").await.expect("free");
    let mut renewal = std::pin::pin!(core.extend(&lease, true));
    assert!(futures_util::poll!(renewal.as_mut()).is_pending(), "the nodes have yet to answer");
    lease.lose(core.env.now());
    assert_eq!(renewal.await, Err(ExtendError::Lost(lease.resource())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_renewal_never_brings_back_what_was_released() {
    let core = core();
    let at = Arc::new(AtomicUsize::new(0));
    for turn in 1..=1_500 {
        let lease = attempt(&core, "k").await;
        let lease = lease.unwrap_or_else(|loss| panic!("turn {turn}: still there: {loss:?}"));
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
    let lease = async |name| {
        let lease = attempt(&core, name).await.expect("free");
        let until = lease.until();
        (lease, until)
    };
    let is_lost = |lease: &Lease| lease.over_since().expect("it is over").lost;
    let instant = Duration::from_nanos(1);
    let (given_up, until) = lease("a").await;
    given_up.end(until - instant);
    assert!(!is_lost(&given_up), "its holder ended it in time");
    let (too_late, until) = lease("b").await;
    too_late.end(until);
    assert!(is_lost(&too_late), "its deadline had passed when its holder ended it");
    let (taken, until) = lease("c").await;
    taken.lose(until - instant);
    assert!(is_lost(&taken), "nodes answered that it is another owner's");
    let end = taken.over_since().map(|over| over.at);
    taken.end(until + instant);
    assert_eq!(taken.over_since().map(|over| over.at), end, "it ended once");
}
