//! A master is frozen for ten seconds, is replaced by a failover, and runs again. The counters of
//! the old master must show that no client sends it requests after the failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::{Redlock, SentinelNode};
use tokio::time::sleep;

use crate::support::group::{Groups, calls_of, cli, scripts_run};
use crate::support::wait::until;

const HANDLES: usize = 3;

fn handle(groups: &Groups) -> Redlock {
    let node = SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
    let ttl = Duration::from_secs(3);
    Redlock::builder().ttl(ttl).max_ttl(ttl).node(node).build().unwrap()
}

fn written(addr: &str) -> u64 {
    calls_of(addr, &["cmdstat_set:"])
}

/// State that all clients of the test share.
#[derive(Default)]
struct Work {
    stopped: AtomicBool,
    under_way: AtomicUsize,
    done: AtomicUsize,
}

/// Acquires and releases locks one after the other, for one client.
async fn work(redlock: Redlock, client: usize, shared: Arc<Work>) {
    for n in 0.. {
        while shared.stopped.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5)).await;
        }
        shared.under_way.fetch_add(1, Ordering::SeqCst);
        if !shared.stopped.load(Ordering::SeqCst) {
            let mutex = redlock
                .mutex(format!("work-{client}-{n}"))
                .acquire_timeout(Duration::from_secs(1))
                .build()
                .unwrap();
            if let Ok(guard) = mutex.acquire().await {
                let _ = guard.release().await;
                shared.done.fetch_add(1, Ordering::SeqCst);
            }
        }
        shared.under_way.fetch_sub(1, Ordering::SeqCst);
        sleep(Duration::from_millis(10)).await;
    }
}

/// Holds a lock and a leadership. Acquires both again after each loss.
async fn hold(redlock: Redlock, client: usize) {
    let election = redlock.election("leader").acquire_timeout(Duration::from_secs(1));
    let election = election.build().unwrap();
    let mutex = redlock.mutex(format!("held-{client}")).build().unwrap();
    loop {
        let guard = mutex.acquire().await;
        let leading = election.campaign("me").await;
        if let Ok(guard) = guard {
            guard.lost().await;
        }
        drop(leading);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_frozen_for_ten_seconds_is_never_written_to_again() {
    let groups = Groups::up(1);
    let (old, shared) = (groups.servers(0)[0].clone(), Arc::new(Work::default()));
    for client in 0..HANDLES {
        let redlock = handle(&groups);
        tokio::spawn(work(redlock.clone(), client, shared.clone()));
        tokio::spawn(hold(redlock, client));
    }
    let done = || shared.done.load(Ordering::SeqCst);
    until("work before the fault", || done() > 100).await;

    // Stop all work except renewals, so few requests are in progress when the master freezes.
    // Scripts that the old master executes after its resume were therefore sent during the freeze.
    shared.stopped.store(true, Ordering::SeqCst);
    until("idleness", || shared.under_way.load(Ordering::SeqCst) == 0).await;
    let before = written(&old);
    assert!(before > 100, "the counter counts: {before}");
    groups.break_("freeze", 0, &[]);
    let frozen = Instant::now();
    shared.stopped.store(false, Ordering::SeqCst);

    let named = || cli(&groups.sentinels(0)[1], &["SENTINEL", "MASTERS"]);
    let at_first = done();
    until("a failover", || !named().contains(old.rsplit_once(':').unwrap().1)).await;
    until("grants of the new master", || done() > at_first + 20).await;
    sleep(Duration::from_secs(10).saturating_sub(frozen.elapsed())).await;
    groups.break_("resume", 0, &[]);
    until("the old master to answer", || cli(&old, &["PING"]) == "PONG").await;
    assert!(cli(&old, &["ROLE"]).starts_with("master"), "it does not know that it was replaced");

    // After its resume, the old master executes requests that the clients sent before they noticed
    // the failover. In this time, each handle sent it at most four batches of requests, which is
    // the depth of its queue. Each handle also sent a renewal or two between the first count and
    // the freeze. A batch sets a lock, its fence and the note. Logins only look at the data.
    sleep(Duration::from_millis(300)).await;
    let (more, late) = (written(&old) - before, scripts_run(&old));
    assert!(more <= 3 * 6 * HANDLES as u64, "{more} keys were set on it");

    let resumed = done();
    sleep(Duration::from_secs(4)).await;
    assert!(done() > resumed + 50, "the clients work on: {}", done() - resumed);
    assert_eq!(scripts_run(&old), late, "scripts at the resumed old master");
}
