//! Hints to those who wait.

use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

use super::bench::{Bench, LONG};
use super::ops::{acquire, acquire_waiting, extend_saying, release};
use super::{Case, list};
use crate::name::LockKeys;
use crate::node::NodeEvent;
use crate::op::{Op, Reply};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: release_wakes_a_waiter,
        Nothing: release_wakes_an_inspector,
        Nothing: new_metadata_wakes_an_inspector,
        Nothing: a_run_wakes_the_waiter_of_one_of_its_locks,
    ]
}

/// A single hint may be lost; so the event is provoked a few times before the node is blamed.
const TRIES: u32 = 3;

async fn heard(events: &mut Receiver<NodeEvent>, key: &str) -> bool {
    let wait = async {
        loop {
            match events.recv().await {
                Ok(NodeEvent::Changed(k)) if *k == *key => return true,
                Ok(_) | Err(RecvError::Lagged(_)) => (),
                Err(RecvError::Closed) => return false,
            }
        }
    };
    timeout(Duration::from_secs(2), wait).await.unwrap_or(false)
}

fn inspect_waiting(keys: &LockKeys) -> Op {
    Op::Inspect { keys: keys.clone(), wait: true }
}

async fn release_wakes_a_waiter(b: Bench) {
    for _ in 0..TRIES {
        let (k, (a, c)) = (b.lock(), b.owners());
        let mut events = b.events();
        b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        let held = b.ask(acquire_waiting(&k, c, LONG)).await;
        b.check(matches!(held, Reply::Held { .. }), "a held lock is not granted", &held);
        b.expect(release(&k, a), Reply::Done, "the owner releases").await;
        if heard(&mut events, k.lock()).await {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("a release wakes who was held off with `wait`", &"no hint");
}

async fn release_wakes_an_inspector(b: Bench) {
    for _ in 0..TRIES {
        let (k, a) = (b.lock(), b.owner());
        let mut events = b.events();
        b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        b.ask(inspect_waiting(&k)).await;
        b.expect(release(&k, a), Reply::Done, "the owner releases").await;
        if heard(&mut events, k.lock()).await {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("a release wakes who inspected with `wait`", &"no hint");
}

async fn new_metadata_wakes_an_inspector(b: Bench) {
    for _ in 0..TRIES {
        let (k, a) = (b.lock(), b.owner());
        let mut events = b.events();
        let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        b.ask(inspect_waiting(&k)).await;
        b.expect(extend_saying(&k, a, t, b"news"), Reply::Done, "the owner speaks").await;
        if heard(&mut events, k.lock()).await {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("new metadata wakes who inspected with `wait`", &"no hint");
}

async fn a_run_wakes_the_waiter_of_one_of_its_locks(b: Bench) {
    for _ in 0..TRIES {
        let held: Vec<_> = (0..8).map(|_| (b.lock(), b.owner())).collect();
        let mut events = b.events();
        b.all(held.iter().map(|(k, a)| acquire(k, *a, LONG)).collect()).await;
        let awaited = &held[4].0;
        b.ask(acquire_waiting(awaited, b.owner(), LONG)).await;
        let release =
            |(k, a): &(LockKeys, _)| Op::Release { keys: k.clone(), owner: *a, words: false };
        let got = b.all(held.iter().map(release).collect()).await;
        b.check(got.iter().all(|r| *r == Reply::Done), "all of a run are released", &got);
        if heard(&mut events, awaited.lock()).await {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("a release in a run wakes who waits for its lock", &"no hint");
}
