//! Test cases for hints to clients that wait for a lock.

use std::time::Duration;

use palisade::node::spi::{Claim, LockKeys, LockMode, NodeSignal, Op, OwnerToken, Reply};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

use super::bench::{Bench, LONG};
use super::ops::{
    acquire, acquire_waiting, acquire_watching, claim, claim_terms, complete, extend_saying,
    release, unclaim,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: release_wakes_a_waiter,
        Nothing: a_release_wakes_the_longest_waiter_and_no_other,
        Nothing: release_wakes_an_inspector,
        Nothing: release_wakes_who_watches_and_who_waits,
        Nothing: new_metadata_wakes_an_inspector,
        Nothing: metadata_wakes_an_inspector_once_and_only_if_it_is_new,
        Nothing: the_end_of_a_claim_wakes_who_waits_for_it,
        Nothing: a_run_wakes_the_waiter_of_one_of_its_locks,
    ]
}

/// A single hint may be lost: the case fails only if all attempts fail.
pub(super) const TRIES: u32 = 3;
/// Without a hint within this time, the release has woken no waiter.
pub(super) const HUSH: Duration = Duration::from_millis(200);

/// `Some(Some(_))` has the number of the client whose turn it is; `Some(None)` is for all that
/// watch. `None` if no hint arrives in time.
pub(super) async fn next_hint(events: &mut Receiver<NodeSignal>, key: &str) -> Option<Option<u64>> {
    let wait = async {
        loop {
            match events.recv().await {
                Ok(NodeSignal::Changed(k)) if *k == *key => return Some(None),
                Ok(NodeSignal::Turn { key: k, waiter, .. }) if *k == *key => {
                    return Some(Some(waiter));
                }
                Ok(_) | Err(RecvError::Lagged(_)) => (),
                Err(RecvError::Closed) => return None,
            }
        }
    };
    timeout(Duration::from_secs(2), wait).await.ok().flatten()
}

/// Number and wait of three clients, in the order of their requests.
pub(super) const WAITERS: [(u64, Duration); 3] =
    [(2, Duration::from_secs(20)), (3, Duration::from_secs(10)), (1, Duration::from_secs(30))];

pub(super) async fn awaited(b: &Bench, waiters: &[(u64, Duration)]) -> (LockKeys, OwnerToken) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    for waiter in waiters {
        let held = b.ask(acquire_waiting(&k, b.owner(), *waiter)).await;
        b.check(matches!(held, Reply::Held { .. }), "a held lock is not granted", &held);
    }
    (k, a)
}

/// Reads all hints of earlier requests, so that none is left.
pub(super) async fn listening(b: &Bench, events: &mut Receiver<NodeSignal>) {
    let (k, a) = awaited(b, &WAITERS).await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    while timeout(Duration::from_millis(300), events.recv()).await.is_ok() {}
}

async fn a_release_wakes_the_longest_waiter_and_no_other(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut got = Vec::new();
    for _ in 0..TRIES {
        let (k, a) = awaited(&b, &WAITERS).await;
        // A repeated request does not change the place of the waiter.
        b.ask(acquire_waiting(&k, b.owner(), WAITERS[0])).await;
        b.expect(release(&k, a), Reply::Done, "the owner releases").await;
        got = vec![next_hint(&mut events, k.lock()).await];
        // If the reservation has already ended, the release of the free lock also wakes the next
        // waiter.
        for waiter in [1, 2, 3] {
            b.ask(release(&k, OwnerToken::reserved_for(waiter))).await;
            got.push(timeout(HUSH, next_hint(&mut events, k.lock())).await.unwrap_or(None));
        }
        if got == [Some(Some(1)), Some(Some(2)), Some(Some(3)), None] {
            return;
        }
    }
    b.broken("releases wake who waits in their order, one at a time", &got);
}

fn inspect_waiting(keys: &LockKeys) -> Op {
    Op::Inspect { keys: keys.clone(), wait: true }
}

async fn release_wakes_a_waiter(b: Bench) {
    for _ in 0..TRIES {
        let mut events = b.events();
        let (k, a) = awaited(&b, &WAITERS[..1]).await;
        b.expect(release(&k, a), Reply::Done, "the owner releases").await;
        if next_hint(&mut events, k.lock()).await.is_some() {
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
        if next_hint(&mut events, k.lock()).await.is_some() {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("a release wakes who inspected with `wait`", &"no hint");
}

async fn release_wakes_who_watches_and_who_waits(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut got = Vec::new();
    for waiters in [&WAITERS[..0], &WAITERS[..1]] {
        let want: Vec<_> = waiters.iter().map(|w| Some(w.0)).chain([None]).collect();
        for _ in 0..TRIES {
            let (k, a) = awaited(&b, waiters).await;
            for _ in 0..2 {
                let held = b.ask(acquire_watching(&k, b.owner())).await;
                b.check(matches!(held, Reply::Held { .. }), "a held lock is not granted", &held);
            }
            b.expect(release(&k, a), Reply::Done, "the owner releases").await;
            got.clear();
            while let Some(hint) =
                timeout(HUSH, next_hint(&mut events, k.lock())).await.unwrap_or(None)
            {
                got.push(hint);
            }
            if got == want {
                break;
            }
        }
        b.check(got == want, "a release wakes all who watch, and one who waits", &got);
    }
}

async fn the_end_of_a_claim_wakes_who_waits_for_it(b: Bench) {
    for gives_back in [false, true] {
        let mut woken = false;
        for _ in 0..TRIES {
            let (r, (a, c)) = (b.key(), b.owners());
            let mut events = b.events();
            let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
            let waits = Claim { wait: true, ..claim_terms(&r, c, LONG, None, false) };
            let reply = b.ask(Op::Claim(waits)).await;
            b.check(matches!(reply, Reply::InFlight { .. }), "a running claim keeps off", &reply);
            let end = if gives_back { unclaim(&r, a) } else { complete(&r, a, t, b"ok") };
            b.expect(end, Reply::Done, "the owner ends its claim").await;
            woken = next_hint(&mut events, &r).await.is_some();
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
        // The new metadata end the wait of the inspector, but must not remove the place of
        // `WAITERS[0]`.
        b.ask(acquire_waiting(&k, b.owner(), WAITERS[0])).await;
        b.ask(inspect_waiting(&k)).await;
        b.expect(extend_saying(&k, a, t, b"news"), Reply::Done, "the owner writes metadata").await;
        if next_hint(&mut events, k.lock()).await.is_some() {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("new metadata wakes who inspected with `wait`", &"no hint");
}

async fn metadata_wakes_an_inspector_once_and_only_if_it_is_new(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut got = Vec::new();
    for _ in 0..TRIES {
        let (k, a) = (b.lock(), b.owner());
        let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        b.expect(extend_saying(&k, a, t, b"same"), Reply::Done, "the owner writes metadata").await;
        b.ask(inspect_waiting(&k)).await;
        got.clear();
        for text in [&b"same"[..], b"news"] {
            b.expect(extend_saying(&k, a, t, text), Reply::Done, "the owner writes metadata").await;
            let mut hints = 0;
            while timeout(HUSH, next_hint(&mut events, k.lock())).await.is_ok_and(|h| h.is_some()) {
                hints += 1;
            }
            got.push(hints);
        }
        if got == [0, 1] {
            return;
        }
    }
    b.broken("the same metadata wakes no inspector, and new metadata wakes it once", &got);
}

async fn a_run_wakes_the_waiter_of_one_of_its_locks(b: Bench) {
    for _ in 0..TRIES {
        let held: Vec<_> = (0..8).map(|_| (b.lock(), b.owner())).collect();
        let mut events = b.events();
        b.all(held.iter().map(|(k, a)| acquire(k, *a, LONG)).collect()).await;
        let awaited = &held[4].0;
        b.ask(acquire_waiting(awaited, b.owner(), WAITERS[0])).await;
        let release = |(k, a): &(LockKeys, _)| Op::Release {
            mode: LockMode::Exclusive,
            keys: k.clone(),
            owner: *a,
            meta: false,
        };
        let got = b.all(held.iter().map(release).collect()).await;
        b.check(got.iter().all(|r| *r == Reply::Done), "all of a run are released", &got);
        if next_hint(&mut events, awaited.lock()).await.is_some() {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    b.broken("a release in a run wakes who waits for its lock", &"no hint");
}
