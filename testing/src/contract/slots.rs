//! Test cases for callers that state different numbers of slots. Each case has the number of its
//! rule in `docs/design/semaphore.md`.

use std::time::Duration;

use palisade::node::spi::{LockKeys, Op, Reply, Slots, Want};

use tokio::time::sleep;

use super::bench::{Bench, LONG, SHORT};
use super::hints::{TRIES, listening, next_hint};
use super::ops::{acquire, acquire_waiting, is_held, on_slots, release};
use super::semaphores::{TWO, ask, full, given, has, slot};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_2_a_slot_that_is_not_there_is_not_given,
        Nothing: rule_5_a_release_that_frees_nothing_wakes_a_waiter_for_a_free_slot,
        Nothing: rule_6_a_free_slot_is_kept_for_a_waiter_that_knows_it,
        Nothing: rule_6_slots_that_are_freed_together_go_to_waiters_that_know_them,
    ]
}

async fn rule_2_a_slot_that_is_not_there_is_not_given(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let none = Reply::Held { remaining: None, foreign: false };
    let first = |of| Slots { of, want: Want::First { start: 0, step: 1 } };
    let more = first(Slots::MAX + 1);
    given(&b, ask(&k, a), 0).await;
    for slots in [TWO.exactly(2), TWO.exactly(300), first(0), more, more.exactly(Slots::MAX)] {
        for keys in [&k, &b.lock()] {
            for owner in [a, b.owner()] {
                let got = b.ask(on_slots(acquire(keys, owner, LONG), slots)).await;
                b.check(got == none, "no node has such a slot", &(slots, got));
            }
        }
    }
    has(&b, &k, &[(0, a)]).await;
    given(&b, ask(&k, b.owner()), 1).await;
}

async fn rule_5_a_release_that_frees_nothing_wakes_a_waiter_for_a_free_slot(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut got = None;
    for _ in 0..TRIES {
        let (k, a) = (b.lock(), b.owner());
        given(&b, on_slots(acquire(&k, b.owner(), SHORT), TWO), 0).await;
        given(&b, ask(&k, a), 1).await;
        let waits = acquire_waiting(&k, b.owner(), (1, Duration::from_secs(10)));
        let held = b.ask(on_slots(waits, TWO)).await;
        if !is_held(&held) {
            // The short lease is over already.
            continue;
        }
        sleep(SHORT + Duration::from_millis(20)).await;
        let stranger = on_slots(release(&k, b.owner()), TWO);
        b.expect(stranger, Reply::Absent, "there is nothing to release").await;
        got = next_hint(&mut events, k.lock()).await;
        if got == Some(Some(1)) {
            return;
        }
    }
    b.broken("a waiter is woken for the slot that is free", &got);
}

/// The first waiter states two slots, the second four.
fn waiting(b: &Bench, k: &LockKeys) -> [Op; 2] {
    let seconds = Duration::from_secs;
    [(1, seconds(30), TWO), (2, seconds(20), Slots::any(4))].map(|(handle, waited, slots)| {
        on_slots(acquire_waiting(k, b.owner(), (handle, waited)), slots)
    })
}

async fn rule_6_a_free_slot_is_kept_for_a_waiter_that_knows_it(b: Bench) {
    let mut events = b.events();
    // A slot is not reserved for a client that receives no hint.
    listening(&b, &mut events).await;
    let (k, a, _) = full(&b).await;
    let (d, e) = b.owners();
    given(&b, on_slots(acquire(&k, d, LONG), Slots::any(4)), 2).await;
    given(&b, on_slots(acquire(&k, e, LONG), Slots::any(4)), 3).await;
    let [few, many] = waiting(&b, &k);
    let ops = vec![few.clone(), many.clone(), on_slots(release(&k, e), TWO), few.clone(), many];
    let got = b.all(ops).await;
    b.check(is_held(&got[0]) && is_held(&got[1]), "both wait", &got);
    b.check(is_held(&got[3]), "the slot is above those that the first one knows", &got);
    b.check(slot(&got[4]) == Some(3), "it is reserved for the second", &got);
    let got = b.all(vec![on_slots(release(&k, a), TWO), few]).await;
    b.check(slot(&got[1]) == Some(0), "the first keeps its place", &got);
}

async fn rule_6_slots_that_are_freed_together_go_to_waiters_that_know_them(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a, _) = full(&b).await;
    let (d, e) = b.owners();
    given(&b, on_slots(acquire(&k, d, LONG), Slots::any(4)), 2).await;
    given(&b, on_slots(acquire(&k, e, LONG), Slots::any(4)), 3).await;
    let [few, many] = waiting(&b, &k);
    let (a, e) = (on_slots(release(&k, a), TWO), on_slots(release(&k, e), TWO));
    let got = b.all(vec![few.clone(), many.clone(), e, a, many, few]).await;
    let slots = (slot(&got[4]), slot(&got[5]));
    b.check(slots == (Some(3), Some(0)), "each has the slot that it knows", &got);
}
