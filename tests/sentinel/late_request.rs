//! A request is sent to one master of a group and executed late by the next master, whose clock is
//! behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::node::MemoryNode;
use palisade::node::spi::{Env, LockNode as _};
use palisade::{Moment, Redlock, TryAcquire};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::support::wrap::Wrap;

/// Time by which the new master's clock is behind the old master's clock. Each clock may be wrong
/// by 2 s.
const BEHIND: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct Clock {
    began: Instant,
    behind: Duration,
    dice: AtomicU64,
}

impl Clock {
    fn new(began: Instant, behind: Duration) -> Arc<Self> {
        // Servers draw their identities from the random numbers of `dice`, so the two environments
        // must begin with different numbers.
        let dice = AtomicU64::new(1 + behind.as_micros() as u64);
        Arc::new(Self { began, behind, dice })
    }
}

impl Env for Clock {
    fn now(&self) -> Moment {
        Moment::from_nanos(1) + self.began.elapsed()
    }
    fn wall_micros(&self) -> u64 {
        1_800_000_000_000_000 + self.began.elapsed().as_micros() as u64
            - self.behind.as_micros() as u64
    }
    fn random(&self) -> u128 {
        let n = u128::from(self.dice.fetch_add(1, Ordering::Relaxed));
        n << 64 | n
    }
}

/// After the failover of the group, the new master is frozen. Requests to it wait until it
/// continues.
#[tokio::test(start_paused = true)]
async fn a_late_request_does_not_take_effect_on_the_next_master() {
    let began = Instant::now();
    // Both have the data of one vote.
    let master = |behind| MemoryNode::builder().named(1, 1).env(Clock::new(began, behind)).build();
    let (old, new) = (master(Duration::ZERO), master(BEHIND));
    let (thaw, thawed) = watch::channel(None);
    let master = new.clone();
    let group = Wrap::new(old, move |old, batch, deadline| {
        let (mut thawed, new) = (thawed.clone(), master.clone());
        async move {
            if thawed.borrow().is_none() {
                return old.call(batch, deadline).await;
            }
            let arrives = tokio::spawn(async move {
                thawed.wait_for(|thawed| *thawed == Some(true)).await.expect("the test goes on");
                new.call(batch, deadline).await
            });
            arrives.await.expect("it is executed")
        }
    });
    let redlock =
        Redlock::builder().node(group).env(Clock::new(began, Duration::ZERO)).build().unwrap();
    let patient = Duration::from_secs(600);
    let mutex = redlock.mutex("n").acquire_timeout(patient).build().unwrap();
    let TryAcquire::Acquired(guard) = mutex.try_acquire().await.unwrap() else { panic!("taken") };
    guard.release().await.unwrap();

    thaw.send_replace(Some(false));
    assert!(mutex.try_acquire().await.is_err(), "the new master is frozen");
    // On the old master's clock, the request's deadline was two seconds ago. On the new master's
    // clock, which is behind, it is two seconds ahead. The request must not take effect
    // nevertheless.
    sleep(BEHIND / 2).await;
    thaw.send_replace(Some(true));
    sleep(Duration::from_millis(1)).await;
    assert!(new.is_empty(), "a late request took effect");
    // Now the client has a reply of the new master, and knows its clock. So new requests have right
    // deadlines and succeed, once the quarantine of the new history is over.
    let got = mutex.acquire().await;
    assert!(got.is_ok(), "{got:?}");
}
