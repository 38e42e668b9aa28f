//! With default settings, a lock survives the failover of a group that `sentinel-conf` started. If
//! the settings are too short for this, an event reports the numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::Moment;
use palisade::node::spi::Env;
use palisade::node::spi::{Batch, Replies};
use palisade::node::{
    FailoverTimes, NodeEvent,
    spi::{BoxFuture, LockNode},
};
use palisade::test_util::TokioEnv;
use palisade::{Failover, MemoryNode, Redlock, RedlockBuilder, SentinelNode};
use tokio::time::{sleep, timeout};

use crate::support::forward;
use crate::support::group::Groups;

const S: Duration = Duration::from_secs(1);

/// A memory node that reports the duration of a failover, as a node of a Sentinel group does.
struct Group(MemoryNode, FailoverTimes);

impl LockNode for Group {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.0.call(batch, deadline)
    }

    fn failover(&self) -> Option<FailoverTimes> {
        Some(self.1)
    }

    forward!(0);
}

fn over(groups: usize) -> RedlockBuilder {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
    let times = FailoverTimes { down_after: 5 * S, window: 4 * S };
    let node = |_| Group(MemoryNode::builder().env(Arc::clone(&env)).build(), times);
    let builder = Redlock::builder().env(Arc::clone(&env));
    (0..groups).map(node).fold(builder, RedlockBuilder::node)
}

/// Holds two locks for ten minutes. Returns the events that report a ttl as too short for a
/// failover.
async fn reported(redlock: &Redlock, ttl: Duration) -> Vec<NodeEvent> {
    let mut events = redlock.events();
    let _a = redlock.mutex("a").ttl(ttl).build().unwrap().acquire().await.unwrap();
    let _b = redlock.mutex("b").ttl(ttl).build().unwrap().acquire().await.unwrap();
    sleep(600 * S).await;
    let all = std::iter::from_fn(|| events.try_next().map(|named| named.event));
    all.filter(|event| matches!(event, NodeEvent::TtlTooShort { .. })).collect()
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_does_not_outlive_a_failover_is_reported_once_with_the_numbers() {
    let told_all = reported(&over(1).build().unwrap(), 15 * S).await;
    let [NodeEvent::TtlTooShort { ttl, lasts, needed, down_after, window, enough, .. }] =
        &told_all[..]
    else {
        panic!("{told_all:?}")
    };
    assert_eq!((*ttl, *down_after, *window), (15 * S, 5 * S, 4 * S));
    assert_eq!((*lasts, *needed), (Duration::from_millis(11_098), Duration::from_millis(11_500)));
    assert_eq!(*enough, 16 * S);
    let enough = over(1).max_ttl(16 * S).build().unwrap();
    assert_eq!(reported(&enough, 16 * S).await, [], "the ttl that it names is enough");
    assert_eq!(reported(&over(3).build().unwrap(), 15 * S).await, [], "two groups renew it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_with_defaults_outlives_a_crash_of_the_shipped_groups_master() {
    // The test has three attempts, because the election among the Sentinels may be too slow on a
    // busy machine.
    for _ in 0..3 {
        let groups = Groups::shipped();
        let node = || SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
        let redlock = Redlock::builder().node(node()).build().unwrap();
        let mut events = redlock.events();
        let guard = redlock.mutex("defaults").build().unwrap().acquire().await.unwrap();
        let ttl = redlock.config().ttl;
        // Kill the master at the worst moment: just before the renewal, when the lease is shortest.
        while guard.remaining() > ttl * 3 / 4 + Duration::from_millis(400) {
            sleep(Duration::from_millis(1)).await;
        }
        let (old, left, struck) = (guard.valid_until(), guard.remaining(), Instant::now());
        groups.break_("kill", 0, &[]);
        let others = groups.servers(0).split_off(1);
        while !others.iter().any(|at| groups.cli(at, &["set", "probe", "1"]) == "OK") {
            sleep(Duration::from_millis(20)).await;
        }
        let promoted = struck.elapsed();
        let renewed = async {
            while guard.is_valid() && guard.valid_until() == old {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(30 * S, renewed).await.expect("neither renewed nor lost");
        println!(
            "new master after {promoted:?}, renewed after {:?}, {left:?} were left",
            struck.elapsed()
        );
        if !guard.is_valid() && promoted > Duration::from_millis(6_500) {
            continue;
        }
        assert!(guard.is_valid(), "lost, although there was a new master after {promoted:?}");
        // The guard returns `Kept`, and the new master has the lock.
        assert_eq!(guard.failover().await, Failover::Kept);
        let at = others.iter().find(|at| groups.cli(at, &["role"]).starts_with("master"));
        let has = groups.cli(at.expect("a new master"), &["pttl", "defaults"]);
        let left: u64 = has.parse().expect("a number of milliseconds");
        assert!(left > 0, "{left} ms on the new master");
        // No event reports that the default ttl is too short.
        while let Some(event) = events.try_next().map(|named| named.event) {
            assert!(!matches!(event, NodeEvent::TtlTooShort { .. }), "{event:?}");
        }
        assert!(guard.release().await.is_ok());
        return;
    }
    panic!("this machine takes more than 6.5 s for each failover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_says_how_long_its_failovers_take() {
    let groups = Groups::up_with(1, 6_000, 3, &[]);
    let node = SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
    assert_eq!(node.failover(), None, "nobody was asked yet");
    let node: Arc<dyn LockNode> = Arc::new(node);
    let redlock = Redlock::builder().node_arc(Arc::clone(&node)).ttl(4 * S).build().unwrap();
    let mut events = redlock.events();
    let _guard = redlock.mutex("short").build().unwrap().acquire().await.unwrap();
    let heard = async {
        loop {
            let event = events.next().await.unwrap().event;
            if let NodeEvent::TtlTooShort { needed, enough, .. } = event {
                return (needed, enough);
            }
        }
    };
    let (needed, enough) = timeout(30 * S, heard).await.expect("nobody says that 4 s are few");
    let times = FailoverTimes { down_after: 6 * S, window: 5 * S };
    assert_eq!(node.failover(), Some(times));
    assert_eq!((needed, enough), (Duration::from_millis(13_500), 19 * S));
}
