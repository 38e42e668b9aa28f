//! Every public future may be dropped at each of its awaits. After the drop, no key remains longer
//! than its ttl, and each guard reports the right state.
//!
//! Each test polls a future k times and then drops it. k grows until the future completes.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use palisade::{Redlock, TryAcquire};
use palisade_testing::fault::Odds;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::nodes::becomes_free;
use crate::support::memory::Cluster;

const LONG: Duration = Duration::from_secs(20);

/// Polls `future` at most `k` times, then drops it. Returns its output if it completed.
pub(crate) async fn poll_times<F: Future>(k: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        if polls == k {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending if polls == k => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn slow(c: &Cluster, seed: u64) {
    for (i, control) in c.controls.iter().enumerate() {
        let odds = Odds { delay: 0.8, max_delay: Duration::from_millis(4), ..Odds::default() };
        control.dice(seed * 31 + i as u64, odds);
    }
}

const KINDS: [&str; 6] = ["mutex", "reader", "writer", "permit", "permits", "names"];

/// Acquires a lock of this kind, and drops the guard.
async fn acquire(kind: &str, r: &Redlock) {
    let doc = r.rw_lock("c").ttl(LONG).build().unwrap();
    let pool = r.semaphore("c", 4).ttl(LONG).build().unwrap();
    let valid = match kind {
        "mutex" => r.mutex("c").ttl(LONG).build().unwrap().acquire().await.unwrap().is_valid(),
        "reader" => doc.read().await.unwrap().is_valid(),
        "writer" => doc.write().await.unwrap().is_valid(),
        "permit" => pool.acquire().await.unwrap().is_valid(),
        "permits" => pool.acquire_many(3).await.unwrap().is_valid(),
        _ => r.multi(["b", "c"]).ttl(LONG).build().unwrap().acquire().await.unwrap().is_valid(),
    };
    assert!(valid, "{kind}");
}

#[tokio::test]
async fn acquire_dropped_at_every_await() {
    for n in [1, 3, 5] {
        let all: JoinSet<()> = KINDS.into_iter().map(|kind| acquire_dropped(kind, n)).collect();
        all.join_all().await;
    }
}

async fn acquire_dropped(kind: &str, n: usize) {
    let mut done = 0;
    for k in 0..40 {
        let c = Cluster::new(n);
        slow(&c, k as u64);
        let r = c.redlock();
        done += usize::from(poll_times(k, acquire(kind, &r)).await.is_some());
        let other = c.redlock();
        if kind.starts_with("permit") {
            let all = other.semaphore("c", 4).build().unwrap();
            let all = timeout(LONG / 2, all.acquire_many(4)).await;
            all.expect("a permit leaked").unwrap().release().await.unwrap();
        } else {
            becomes_free(&other, "b").await;
            becomes_free(&other, "c").await;
        }
        assert_eq!(r.held(), 0, "{kind}: the keeper forgot it");
    }
    assert!(done > 0, "{kind}: the future completes at some k");
}

#[tokio::test]
async fn waiting_dropped_at_every_await_passes_the_turn_on() {
    for k in 0..30 {
        let c = Cluster::new(3);
        slow(&c, k as u64);
        let mutex = c.redlock().mutex("w").ttl(LONG).build().unwrap();
        let held = mutex.acquire().await.unwrap();
        let (a, b) = (mutex.clone(), mutex.clone());
        let dropped = tokio::spawn(async move { poll_times(k, a.acquire()).await.map(drop) });
        let other = tokio::spawn(async move { b.acquire().await.map(drop) });
        sleep(Duration::from_millis(20)).await;
        let _ = held.release().await;
        timeout(LONG, other).await.expect("the other waiter starved").unwrap().unwrap();
        let _ = timeout(LONG, dropped).await.expect("polled a bounded number of times");
        becomes_free(&c.redlock(), "w").await;
    }
}

#[tokio::test]
async fn extend_dropped_at_every_await_never_lies() {
    for k in 0..20 {
        let c = Cluster::new(3);
        slow(&c, k as u64);
        let r = c.redlock();
        let guard =
            r.mutex("e").ttl(LONG).auto_renew(false).build().unwrap().acquire().await.unwrap();
        let before = guard.valid_until();
        match poll_times(k, guard.extend()).await {
            Some(result) => assert!(result.unwrap() > before),
            None => assert!(guard.valid_until() >= before),
        }
        assert!(guard.is_valid());
        assert!(matches!(
            r.mutex("e").build().unwrap().try_acquire().await.unwrap(),
            TryAcquire::Taken(_)
        ));
        drop(guard);
        becomes_free(&c.redlock(), "e").await;
    }
}

#[tokio::test]
async fn release_dropped_at_every_await_goes_on() {
    for k in 0..20 {
        let c = Cluster::new(3);
        slow(&c, k as u64);
        let r = c.redlock();
        let guard = r.mutex("r").ttl(LONG).build().unwrap().acquire().await.unwrap();
        if let Some(outcome) = poll_times(k, guard.release()).await {
            assert!(outcome.is_ok());
        }
        becomes_free(&c.redlock(), "r").await;
    }
}

#[tokio::test]
async fn the_handle_dropped_with_everything_under_way() {
    for k in 0..20 {
        let c = Cluster::new(3);
        slow(&c, k as u64);
        let r = c.redlock();
        let _ = poll_times(k, r.mutex("h").ttl(LONG).build().unwrap().acquire())
            .await
            .map(std::mem::drop);
        drop(r);
        becomes_free(&c.redlock(), "h").await;
    }
}
