//! An operator takes over a lock while other callers wait for the lock. The previous holder and a
//! waiter never hold the lock at the same time, even if the operator dies or its requests are lost.

use std::sync::Arc;
use std::time::Duration;

use palisade::node::{MemoryNode, RedisNode};
use palisade::{AcquireError, LockGuard, LockHolder, Mutex, Redlock};
use palisade_ops::{Deployment, HandedOver, Handover};
use palisade_testing::fault::{Fault, Step};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::server::Server;
use crate::trio::{SHORT, Trio, job};

const TTL: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(180);

/// The processes of these tests: a holder that hangs (`first`), an operator that takes the lock
/// over (`second`), and a caller that waits for the lock (`others`).
type World = Trio;

impl World {
    /// Starts the test: a holder acquires the lock without automatic renewal, and another caller
    /// waits for it. Returns the holder's guard and the waiter's task. The task returns whether the
    /// holder's guard was still valid when the waiter got the lock.
    async fn held(&self) -> (Arc<LockGuard>, JoinHandle<bool>) {
        self.held_for(TTL).await
    }

    async fn held_for(&self, ttl: Duration) -> (Arc<LockGuard>, JoinHandle<bool>) {
        let mutex = self.first.mutex("job").ttl(ttl).auto_renew(false).build().unwrap();
        let holder = Arc::new(mutex.acquire().await.unwrap());
        let (next, before) = (self.others.mutex("job").acquire_timeout(PATIENCE), holder.clone());
        let next = next.build().unwrap();
        let waits = tokio::spawn(async move {
            let _guard = next.acquire().await.unwrap();
            before.is_valid()
        });
        sleep(Duration::from_millis(200)).await;
        (holder, waits)
    }

    /// Returns the operator's mutex, and the current holder of the lock.
    async fn sees(&self, ttl: Duration) -> (Mutex, LockHolder) {
        let mutex = self.second.mutex("job").ttl(ttl).auto_renew(false);
        let mutex = mutex.acquire_timeout(5 * TTL).build().unwrap();
        let holder = mutex.inspect().await.unwrap().holder().expect("it is held");
        (mutex, holder)
    }
}

/// Asserts that the previous holder's guard was no longer valid when the waiter got the lock.
async fn no_second_holder(waits: JoinHandle<bool>) {
    assert!(!waits.await.unwrap(), "two hold the lock");
}

#[tokio::test]
async fn a_lost_answer_admits_no_second_holder() {
    World::each(TTL, async |world| {
        let (_held, waits) = world.held().await;
        let (mutex, holder) = world.sees(TTL).await;
        // The operator's first request reads the holder. The reply to its second request, the
        // acquire, is lost.
        world.script(&[Step::fine(), Step::lose_reply()]);
        let won =
            mutex.take_over(&holder, "it hangs").await.expect("its own attempt is no obstacle");
        assert!(won.guard.is_valid());
        assert!(!waits.is_finished());
        drop(won);
        no_second_holder(waits).await;
    })
    .await;
}

#[tokio::test]
async fn a_takeover_that_is_dropped_midway_admits_no_second_holder() {
    World::each(TTL, async |world| {
        let (_held, waits) = world.held().await;
        let (mutex, holder) = world.sees(TTL).await;
        let seen = job(&world.others);
        world.script(&[Step::fine(), Step::delay_reply(TTL)]);
        let given_away = async {
            let still = |now: Option<LockHolder>| now.is_some_and(|now| now.owner == holder.owner);
            while still(seen.inspect().await.unwrap().holder()) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            // On a busy machine, the takeover may end first. Then its guard is dropped.
            taken = mutex.take_over(&holder, "it hangs") => drop(taken),
            () = given_away => {}
        }
        no_second_holder(waits).await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_given_up_at_once_admits_no_second_holder() {
    for released in [true, false] {
        World::each(TTL, async |world| {
            let (held, waits) = world.held().await;
            let (mutex, holder) = world.sees(TTL).await;
            let won = mutex.take_over(&holder, "it hangs").await.unwrap();
            assert!(won.guard.fencing_token() > held.fencing_token());
            if released {
                won.guard.release().await.expect("it was held until then");
            }
            no_second_holder(waits).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_taker_with_a_shorter_lease_admits_no_second_holder() {
    World::each(TTL, async |world| {
        let (_held, waits) = world.held().await;
        let (mutex, holder) = world.sees(SHORT).await;
        let won = mutex.take_over(&holder, "it hangs").await.unwrap();
        // The operator's process dies, so its guard is never released.
        std::mem::forget(won);
        no_second_holder(waits).await;
    })
    .await;
}

/// A takeover asks for the rest of the holder's lease at once. It does not wait until its own ttl
/// is long enough.
#[tokio::test]
async fn a_taker_with_a_shorter_lease_need_not_ask_again() {
    for n in [1, 3] {
        let world = World::memory(2 * TTL, n);
        let mutex = world.first.mutex("job").auto_renew(false).build().unwrap();
        let held = mutex.acquire().await.unwrap();
        let (mutex, holder) = world.sees(SHORT).await;
        let calls = || world.network.iter().map(|node| node.control().calls()).max();
        let before = calls().unwrap();
        let won = mutex.take_over(&holder, "it hangs").await.unwrap();
        // It reads the lock, takes it, and stores the reason.
        let sent = calls().unwrap() - before;
        assert!(sent <= 3 || held.is_valid(), "{n} nodes: it waited for the holder's end");
        drop(won);
    }
}

#[tokio::test]
async fn a_renewal_between_look_and_request_admits_no_second_holder() {
    World::each(TTL, async |world| {
        let (held, waits) = world.held().await;
        sleep(TTL / 2).await;
        let (mutex, holder) = world.sees(SHORT).await;
        let before: Vec<_> = world.network.iter().map(|node| node.control().calls()).collect();
        world.script(&[Step::fine(), Step::delay(SHORT)]);
        let renewed = async {
            let on_its_way = || {
                let now = world.network.iter().map(|node| node.control().calls());
                now.zip(&before).all(|(now, before)| now >= before + 2)
            };
            while !on_its_way() {
                sleep(Duration::from_millis(1)).await;
            }
            // On a busy machine, the renewal may come too late and fail. The test then checks
            // nothing.
            drop(held.extend().await);
        };
        let (won, ()) = tokio::join!(mutex.take_over(&holder, "it hangs"), renewed);
        std::mem::forget(won.unwrap());
        no_second_holder(waits).await;
    })
    .await;
}

#[tokio::test]
async fn a_takeover_soon_after_a_handover_admits_no_second_holder() {
    let node = MemoryNode::new();
    let world = World::of(TTL, |_| Fault::new(node.clone()), 1, Vec::new());
    let (_held, waits) = world.held_for(2 * TTL).await;
    assert!(node.close(PATIENCE));
    node.hand_over();
    taken_while_it_settles(&world, waits).await;

    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    let node = || RedisNode::builder(&url).trust_fresh(true).build().unwrap();
    let world = World::of(TTL, |_| Fault::new(node()), 1, Vec::new());
    let (_held, waits) = world.held_for(2 * TTL).await;
    let handover = Handover::new(Deployment::new().node(&url));
    let restarted = async {
        server.restart();
        Ok(())
    };
    let done = handover.lone(restarted, |_| ()).await.unwrap();
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
    taken_while_it_settles(&world, waits).await;
}

async fn taken_while_it_settles(world: &World, waits: JoinHandle<bool>) {
    let mutex = world.second.mutex("job").acquire_timeout(SHORT).build().unwrap();
    // On a slow machine, the planned handover of the server may take longer than the holder's
    // lease. Then the lock has no holder, and nothing is left to take over.
    if let Some(holder) = mutex.inspect().await.unwrap().holder() {
        drop(mutex.take_over(&holder, "it hangs").await);
    }
    no_second_holder(waits).await;
}

#[tokio::test]
async fn a_guard_that_is_kept_long_enough_is_released_as_any_other() {
    World::each(TTL, async |world| {
        let (_held, waits) = world.held().await;
        let (_, holder) = world.sees(TTL).await;
        let mutex = job(&world.second);
        let won = mutex.take_over(&holder, "it hangs").await.unwrap();
        // After this wait the previous holder's lease has ended, even if the clocks are wrong.
        sleep(2 * TTL).await;
        let taker = mutex.inspect().await.unwrap().holder().expect("it is held");
        won.guard.release().await.unwrap();
        let next = mutex.inspect().await.unwrap().holder();
        assert!(next.is_none_or(|next| next.owner != taker.owner), "it was left to lapse");
        no_second_holder(waits).await;
    })
    .await;
}

#[tokio::test]
async fn a_takeover_ends_when_its_handle_is_closed() {
    let world = World::memory(TTL, 3);
    let (_held, waits) = world.held().await;
    let (mutex, holder) = world.sees(TTL).await;
    waits.abort();
    // Another caller acquires the free lock and keeps it. So the takeover must wait, until its
    // handle is closed.
    let well = world.first.mutex("job").acquire_timeout(PATIENCE).build().unwrap();
    let _well = well.acquire().await.unwrap();
    let closed = async {
        sleep(SHORT).await;
        world.second.close(TTL).await
    };
    let (taken, left) = tokio::join!(mutex.take_over(&holder, "it hangs"), closed);
    assert!(matches!(taken, Err(AcquireError::Closed(_))), "{taken:?}");
    assert!(left.is_clean(), "{left}");
}

#[tokio::test]
async fn a_takeover_does_not_wait_for_what_needs_a_person() {
    let server = Server::start(&["--requirepass", "secret"]);
    let node = |url: String| RedisNode::builder(url).trust_fresh(true).build().unwrap();
    let handle = |url| Redlock::builder().node(node(url)).build().unwrap();
    let known = handle(format!("redis://:secret@{}", server.addr()));
    let mutex = known.mutex("job").build().unwrap();
    let _held = mutex.acquire().await.unwrap();
    let holder = mutex.inspect().await.unwrap().holder().unwrap();
    let unknown = handle(format!("redis://:wrong@{}", server.addr()));
    let mutex = unknown.mutex("job").acquire_timeout(PATIENCE).build().unwrap();
    let taken = timeout(PATIENCE / 4, mutex.take_over(&holder, "it hangs")).await;
    let taken = taken.expect("a wrong password stays wrong");
    assert!(matches!(taken, Err(AcquireError::NoQuorum(_))), "{taken:?}");
}

#[tokio::test]
async fn a_lock_that_is_taken_over_goes_to_no_other_owner_in_between() {
    for world in [World::memory(TTL, 5), World::redis(TTL, 3)] {
        for _ in 0..3 {
            let (held, waits) = world.held().await;
            let (_, holder) = world.sees(TTL).await;
            let mutex = job(&world.second);
            let won = mutex.take_over(&holder, "it hangs").await.unwrap();
            assert!(won.from.is_some_and(|from| from.fence >= held.fencing_token()));
            assert!(!waits.is_finished(), "who waited had it, beside the one that hangs");
            let token = won.guard.fencing_token();
            assert!(token > held.fencing_token());
            won.guard.release().await.unwrap();
            no_second_holder(waits).await;
        }
    }
}
