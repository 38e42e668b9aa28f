//! The failover window. For some time after a group's failover, the old master may still grant,
//! while the new master has a copy of the lock. The group is one node, so it must not vote for two
//! holders.
//!
//! Two memory nodes represent the old and the new master of one group. Each client is connected to
//! one of them. A snapshot of the data stands for replication. The clock is tokio's paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::error::{ExtendError, NodeFault};
use palisade::node::spi::{Env, LockNode as _};
use palisade::test_util::{MemorySnapshot, TokioEnv};
use palisade::{LockGuard, MemoryNode, Redlock, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::support::wrap::{Wrap, refused};

/// The failover window L: time after a failover during which the old master may still grant.
const L: Duration = Duration::from_secs(4);
const MAX_TTL: Duration = Duration::from_secs(20);

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A group with an old and a new master, and two clients, each with its view of the group. The
/// client `a` uses the new master after the failover. The client `b` stays with the old master.
struct Story {
    old: MemoryNode,
    new: MemoryNode,
    moved: Arc<AtomicBool>,
    down: Arc<AtomicBool>,
    a: Redlock,
    b: Redlock,
}

impl Story {
    fn new() -> Self {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
        let master = || {
            let node = MemoryNode::builder().name("group").env(Arc::clone(&env));
            node.failover_window(L).unwrap().build()
        };
        let (old, new) = (master(), master());
        let down = Arc::<AtomicBool>::default();
        let client = |moved: &Arc<AtomicBool>| {
            let (old, new, moved) = (old.clone(), new.clone(), Arc::clone(moved));
            let down = Arc::clone(&down);
            let builder = Redlock::builder().max_ttl(MAX_TTL).env(Arc::clone(&env));
            let view = Wrap::new(old, move |old, batch, deadline| {
                let is_down = down.load(Ordering::Relaxed);
                let node = if moved.load(Ordering::Relaxed) { new.clone() } else { old };
                async move {
                    if is_down {
                        return refused(&batch, NodeFault::Unreachable);
                    }
                    node.call(batch, deadline).await
                }
            });
            builder.node(view).build().unwrap()
        };
        let moved = Arc::default();
        let (a, b) = (client(&moved), client(&Arc::default()));
        Self { old, new, moved, down, a, b }
    }

    /// Acquires the lock for the client `a` from the old master, without automatic renewal.
    async fn held(&self, ttl: Duration) -> LockGuard {
        self.a.mutex("job").ttl(ttl).auto_renew(false).await.unwrap()
    }

    /// Replaces the master: restores the replicated data on the new master, and moves the client
    /// `a` to it. Without replicated data, the new master is empty.
    fn fail_over(&self, replicated: Option<MemorySnapshot>) {
        match replicated {
            Some(data) => self.new.restore(data),
            None => self.new.restart_empty(),
        }
        self.moved.store(true, Ordering::Relaxed);
    }

    /// The client `b` tries to get the lock from the old master until the old master stops. Asserts
    /// that `a` and `b` never hold the lock at the same time. Returns true if `b` got the lock.
    async fn never_both(&self, a: &LockGuard, failed_over: Instant) -> bool {
        while failed_over.elapsed() < L {
            let mutex = self.b.mutex("job").ttl(s(10)).auto_renew(false).build().unwrap();
            if let TryAcquire::Acquired(b) = mutex.try_acquire().await.unwrap() {
                let both = a.is_valid() && b.is_valid();
                assert!(!both, "two hold the lock {:?} after the failover", failed_over.elapsed());
                // `b` still holds the lock, so the guard of `a` must not become valid again.
                sleep(L.saturating_sub(failed_over.elapsed())).await;
                assert!(!a.is_valid(), "A came back while B held the lock");
                assert!(b.is_valid(), "B holds beyond the window");
                return true;
            }
            sleep(Duration::from_millis(50)).await;
        }
        false
    }

    /// Asserts that a renewal after this pause prolongs the lock of `a`, and that `b` does not get
    /// it.
    async fn is_renewed(&self, a: &LockGuard, failed_over: Instant, pause: Duration) {
        let before = a.valid_until();
        sleep(pause).await;
        assert!(a.extend().await.unwrap() > before);
        assert!(!self.never_both(a, failed_over).await);
        assert!(a.is_valid());
    }

    /// Asserts that a renewal reports the lock of `a` as lost, and that `b` gets the lock from the
    /// old master.
    async fn is_lost(&self, a: &LockGuard, failed_over: Instant) {
        let renewal = a.extend().await;
        assert!(self.never_both(a, failed_over).await, "the old master grants what ran out");
        // The node cannot renew the lock for the client `a` before the deadline of its guard. So
        // the renewal reports at once, before the deadline, that the lock is lost.
        assert!(matches!(renewal, Err(ExtendError::Lost(_))), "{renewal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_ends_before_the_old_master_stops_is_not_renewed() {
    let story = Story::new();
    let a = story.held(s(2)).await;
    sleep(s(1)).await;
    story.fail_over(Some(story.old.snapshot()));
    let failed_over = Instant::now();
    story.is_lost(&a, failed_over).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_replicated_is_not_put_back_if_the_old_master_may_give_it_away() {
    let story = Story::new();
    let a = story.held(s(2)).await;
    sleep(s(1)).await;
    story.fail_over(None);
    let failed_over = Instant::now();
    story.is_lost(&a, failed_over).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_releases_nothing() {
    let story = Story::new();
    let a = story.held(s(2)).await;
    story.fail_over(Some(story.old.snapshot()));
    let before = a.valid_until();
    story.down.store(true, Ordering::Relaxed);
    match a.extend().await {
        Err(ExtendError::Unknown(why)) => {
            let text = why.to_string();
            assert!(text.contains("group"), "the node that gave no vote is named: {text}");
        }
        other => panic!("{other:?}"),
    }
    story.down.store(false, Ordering::Relaxed);
    assert!(a.is_valid(), "the old deadline counts");
    assert_eq!(a.valid_until(), before);
    assert!(a.release().await.is_ok(), "the copy is still on the new master");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_outlasts_the_old_master_is_renewed_at_once() {
    let story = Story::new();
    let a = story.held(s(12)).await;
    sleep(s(2)).await;
    story.fail_over(Some(story.old.snapshot()));
    let failed_over = Instant::now();
    story.is_renewed(&a, failed_over, Duration::ZERO).await;
    assert!(a.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_holder_renews_a_copy_from_before_its_last_renewal() {
    let story = Story::new();
    let a = story.held(s(8)).await;
    let replicated = story.old.snapshot();
    sleep(s(6)).await;
    // The old master confirms this renewal. The renewal is not replicated, so the copy of the lock
    // still ends in 2 s.
    a.extend().await.unwrap();
    story.fail_over(Some(replicated));
    let failed_over = Instant::now();
    story.is_renewed(&a, failed_over, s(1)).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_replicated_is_put_back_if_the_old_master_keeps_it_until_it_stops() {
    let story = Story::new();
    let a = story.held(s(8)).await;
    sleep(s(1)).await;
    story.fail_over(None);
    let failed_over = Instant::now();
    story.is_renewed(&a, failed_over, s(1)).await;
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_do_not_cost_the_right_to_put_a_lock_back() {
    let story = Story::new();
    let a = story.held(s(12)).await;
    story.fail_over(None);
    let failed_over = Instant::now();
    // A new master refuses writes until its first replica is attached. Each renewal fails at once
    // meanwhile.
    story.down.store(true, Ordering::Relaxed);
    for _ in 0..6 {
        sleep(Duration::from_millis(400)).await;
        assert!(matches!(a.extend().await, Err(ExtendError::Unknown(_))));
    }
    story.down.store(false, Ordering::Relaxed);
    story.is_renewed(&a, failed_over, Duration::ZERO).await;
}
