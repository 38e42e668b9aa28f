//! Hints to those who wait.

use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

use super::bench::{Bench, LONG};
use super::ops::{
    acquire, acquire_waiting, claim, claim_terms, complete, extend_saying, release, unclaim,
};
use super::{Case, list};
use crate::name::LockKeys;
use crate::node::NodeEvent;
use crate::op::{Claim, Op, Reply};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: release_wakes_a_waiter,
        Nothing: release_wakes_an_inspector,
        Nothing: new_metadata_wakes_an_inspector,
        Nothing: the_end_of_a_claim_wakes_who_waits_for_it,
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

async fn the_end_of_a_claim_wakes_who_waits_for_it(b: Bench) {
    for gives_back in [false, true] {
        let mut woken = false;
        for _ in 0..TRIES {
            let (r, (a, c)) = (b.key(), b.owners());
            let mut events = b.events();
            let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
            let waits = Claim { wait: true, ..claim_terms(&r, c, LONG, None, false) };
            let said = b.ask(Op::Claim(waits)).await;
            b.check(matches!(said, Reply::InFlight { .. }), "a running claim keeps off", &said);
            let end = if gives_back { unclaim(&r, a) } else { complete(&r, a, t, b"ok") };
            b.expect(end, Reply::Done, "the owner ends its claim").await;
            woken = heard(&mut events, &r).await;
            if woken {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        b.check(woken, "the end of a claim wakes who waits for it", &gives_back);
    }
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
