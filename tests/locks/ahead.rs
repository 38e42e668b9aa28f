//! A fencing token is a time on a node's clock. No lock gets the token of a node whose clock is far
//! ahead of the caller's clock.

use std::sync::Arc;

use palisade::error::{NodeFault, NodeOutcome};
use palisade::node::spi::{Env, SystemEnv};
use palisade::{AcquireError, MemoryNode, Moment, Redlock};

/// Time of the stopped wall clock: 2020-09-13, in microseconds since 1970.
const NOW: u64 = 1_600_000_000_000_000;
const SECOND: u64 = 1_000_000;

/// An environment with the real clocks of the machine, except for its wall clock: that clock is
/// stopped at this time, in microseconds since 1970.
#[derive(Debug)]
struct Wall(u64);

impl Env for Wall {
    fn now(&self) -> Moment {
        SystemEnv.now()
    }

    fn wall_micros(&self) -> u64 {
        self.0
    }

    fn random(&self) -> u128 {
        SystemEnv.random()
    }
}

fn node(ahead: u64) -> MemoryNode {
    MemoryNode::builder().env(Arc::new(Wall(NOW + ahead))).build()
}

fn redlock(nodes: impl IntoIterator<Item = MemoryNode>) -> Redlock {
    let builder = nodes.into_iter().fold(Redlock::builder(), palisade::RedlockBuilder::node);
    builder.env(Arc::new(Wall(NOW))).build().unwrap()
}

/// The clock error E is 2 s. A node's smallest valid token is its own time minus E. A token counts
/// if it is at most 4E + 1 s ahead of the caller's wall clock.
#[tokio::test]
async fn a_token_counts_up_to_four_times_the_clock_error_and_a_second_ahead() {
    let most = (2 + 4 * 2 + 1) * SECOND;
    for ahead in [0, 2 * SECOND, most] {
        let mutex = redlock([node(ahead)]).mutex("job").build().unwrap();
        let token = mutex.acquire().await.unwrap().fencing_token().get();
        assert_eq!(token, NOW + ahead.saturating_sub(2 * SECOND));
    }
    let redlock = redlock([node(most + 1)]);
    let AcquireError::NoQuorum(why) =
        redlock.mutex("job").build().unwrap().try_acquire().await.unwrap_err()
    else {
        panic!("a token of the far future counts")
    };
    let faults: Vec<_> = why.nodes.iter().map(|(_, outcome)| outcome.clone()).collect();
    let ahead =
        |o: &NodeOutcome| matches!(o, NodeOutcome::Failed(e) if e.fault() == NodeFault::TokenAhead);
    assert!(faults.iter().all(ahead), "{faults:?}");
}

#[tokio::test]
async fn one_node_of_three_that_is_far_ahead_does_not_lend_its_token_to_the_others() {
    let redlock = redlock([node(0), node(3_600 * SECOND), node(0)]);
    for _ in 0..3 {
        let guard = redlock.mutex("job").build().unwrap().acquire().await.unwrap();
        let token = guard.fencing_token().get();
        assert!((NOW..NOW + SECOND).contains(&token), "{token}");
        guard.release().await.unwrap();
    }
}
