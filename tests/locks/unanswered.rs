//! Fair calls that reach too few nodes for an answer.

use std::sync::Arc;
use std::time::Duration;

use palisade::{LockGuard, Mutex, Redlock};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::memory::Timed;

const LONG: Duration = Duration::from_secs(60);

fn fair(redlock: &Redlock) -> Mutex {
    redlock.mutex("plotter").fair(true).acquire_timeout(LONG).build().unwrap()
}

/// Begins a call, and returns when it has reported its position.
async fn queue_up(redlock: &Redlock) -> JoinHandle<LockGuard> {
    let (mutex, queued) = (fair(redlock), Arc::new(Notify::new()));
    let task = tokio::spawn({
        let queued = Arc::clone(&queued);
        async move { mutex.acquire_with(|_| queued.notify_one()).await.unwrap() }
    });
    timeout(LONG, queued.notified()).await.expect("the call has a position");
    task
}

/// The first call in the queue reaches one node only, and the second one this node and another.
/// Each of the two is needed for the second call's majority, so the first one must not keep it out.
#[tokio::test(start_paused = true)]
async fn a_fair_call_without_a_majority_does_not_stay_ahead_of_others() {
    let nodes = Timed::new(3);
    let (cut_off, links) = nodes.linked();
    let (next, others) = nodes.linked();
    let holder = fair(&nodes.redlock()).acquire().await.unwrap();
    let first = queue_up(&cut_off).await;
    for link in &links[1..] {
        link.cut();
    }
    sleep(Duration::from_secs(5)).await;
    let second = queue_up(&next).await;
    others[2].cut();
    holder.release().await.unwrap();
    let guard = timeout(LONG / 2, second).await.expect("it is kept out").unwrap();
    assert!(guard.is_valid());
    first.abort();
}
