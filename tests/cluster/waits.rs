//! Who waits for a name of a cluster is woken by its release, also after its slot has moved.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::moves::{NODE_TIMEOUT, name_at, redlock_for, try_acquire, until_granted};
use crate::support::cluster::Cluster;

/// Longer than any wait here.
const TTL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_who_waits_at_each_master() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let (holder, waiter) = (redlock_for(&cluster, TTL), redlock_for(&cluster, TTL));
    for master in 0..3 {
        let name = name_at(&cluster, master, "n");
        until_granted(&holder, &name).await;
        let held = try_acquire(&holder, &name).await.unwrap().acquired().expect("it is free");
        let mutex = waiter.mutex(&name).acquire_timeout(TTL).build().unwrap();
        let waits = tokio::spawn(async move { mutex.acquire().await.map(drop) });
        // Once there is a queue, the waiter is in it.
        let queue = format!("{{{name}}}:queue");
        let begun = Instant::now();
        while cluster.servers[master].cli(&["exists", &queue]) != "1" {
            assert!(begun.elapsed() < TTL / 2, "nobody waits");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        held.release().await.unwrap();
        timeout(TTL / 2, waits).await.expect("it is woken").unwrap().unwrap();
    }
}
