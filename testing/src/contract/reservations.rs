//! Test cases for reservations. The requests about a reserved lock are in the same batch as its
//! release, so the node executes them before the reservation ends.

use std::time::Duration;

use palisade::node::spi::{LockKeys, LockMode, Op, OwnerToken, Reply};

use super::bench::{Bench, LONG};
use super::hints::{WAITERS, awaited, listening};
use super::ops::{
    RESERVED, acquire, acquire_waiting, acquire_watching, extend, inspect, is_held, raise, release,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_released_lock_is_reserved_for_the_longest_waiter,
        Nothing: a_reservation_is_no_holder,
        Nothing: a_reservation_that_is_given_back_passes_to_the_next,
        Nothing: a_reservation_is_over_soon,
        Nothing: a_lock_without_waiters_is_not_reserved,
        Nothing: a_lock_is_not_reserved_for_who_watches,
    ]
}

/// Has waited longest.
const FIRST: (u64, Duration) = WAITERS[2];
const NEXT: (u64, Duration) = WAITERS[0];
const THIRD: (u64, Duration) = WAITERS[1];

/// With three waiters, and `ops` in the same batch. Returns the lock and the replies to these.
async fn after_release<F>(b: &Bench, ops: F) -> (LockKeys, Vec<Reply>)
where
    F: FnOnce(&LockKeys) -> Vec<Op>,
{
    let mut events = b.events();
    // A node reserves a lock only for a client that receives hints.
    listening(b, &mut events).await;
    let (k, a) = awaited(b, &WAITERS).await;
    let mut all = vec![release(&k, a)];
    all.extend(ops(&k));
    let mut got = b.all(all).await;
    let released = got.remove(0);
    b.check(released == Reply::Done, "the owner releases", &released);
    (k, got)
}

/// A node may execute neighbouring releases of this kind together.
fn release_alone(keys: &LockKeys, owner: OwnerToken) -> Op {
    Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false }
}

async fn a_released_lock_is_reserved_for_the_longest_waiter(b: Bench) {
    let (_, got) = after_release(&b, |k| {
        vec![
            acquire(k, b.owner(), LONG),
            acquire_waiting(k, b.owner(), NEXT),
            acquire_waiting(k, b.owner(), FIRST),
            acquire_waiting(k, b.owner(), THIRD),
        ]
    })
    .await;
    b.check(is_held(&got[0]), "who does not wait is refused a reserved lock", &got);
    b.check(is_held(&got[1]), "another waiter is refused a reserved lock", &got);
    b.check(matches!(got[2], Reply::Granted { .. }), "it is granted to the first waiter", &got);
    b.check(is_held(&got[3]), "a lock is granted once", &got);
    let Reply::Held { remaining: Some(rest), .. } = &got[0] else { return };
    b.check(*rest <= RESERVED, "a reservation is short", &got);
}

async fn a_reservation_is_no_holder(b: Bench) {
    let (k, got) = after_release(&b, |k| {
        vec![
            inspect(k),
            release(k, b.owner()),
            release_alone(k, b.owner()),
            raise(k, OwnerToken::reserved_for(FIRST.0), 1),
            extend(k, b.owner(), LONG, 1),
            acquire_waiting(k, b.owner(), FIRST),
        ]
    })
    .await;
    b.check(got[0] == Reply::Holder(None), "a reserved lock has no holder", &got);
    b.check(got[1] == Reply::Absent, "a reserved lock is not another owner's", &got);
    b.check(got[2] == Reply::Absent, "nor for who has left metadata", &got);
    b.check(got[3] == Reply::NotOwner, "a reservation is not raised to a token", &got);
    b.check(got[4] == Reply::Done, "a holder puts its lock back over a reservation", &got);
    b.check(is_held(&got[5]), "… and then no waiter has its turn", &got);
    let read = b.ask(inspect(&k)).await;
    b.check(matches!(read, Reply::Holder(Some(_))), "the holder is read again", &read);
}

async fn a_reservation_that_is_given_back_passes_to_the_next(b: Bench) {
    for release in [release, release_alone] {
        let back = |k: &LockKeys, (waiter, _)| release(k, OwnerToken::reserved_for(waiter));
        let (_, got) = after_release(&b, |k| {
            vec![
                back(k, NEXT),
                back(k, FIRST),
                acquire(k, b.owner(), LONG),
                acquire_waiting(k, b.owner(), THIRD),
                acquire_waiting(k, b.owner(), NEXT),
            ]
        })
        .await;
        is_passed_on(&b, &got);
    }
}

fn is_passed_on(b: &Bench, got: &[Reply]) {
    b.check(got[0] == Reply::Absent, "only its waiter gives a reservation back", &got);
    b.check(got[1] == Reply::Done, "a waiter gives its turn back", &got);
    b.check(is_held(&got[2]) && is_held(&got[3]), "it is reserved for the next", &got);
    b.check(matches!(got[4], Reply::Granted { .. }), "… who is granted the lock", &got);
}

async fn a_reservation_is_over_soon(b: Bench) {
    let (k, got) = after_release(&b, |k| vec![acquire(k, b.owner(), LONG)]).await;
    b.check(is_held(&got[0]), "a reserved lock is not granted to others", &got);
    let free = |reply: &Reply| matches!(reply, Reply::Granted { .. });
    b.until("a reservation is over by itself", acquire(&k, b.owner(), LONG), free).await;
}

async fn a_lock_without_waiters_is_not_reserved(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let got = b.all(vec![release(&k, a), acquire(&k, b.owner(), LONG)]).await;
    b.check(matches!(got[1], Reply::Granted { .. }), "a released lock is free", &got);
}

async fn a_lock_is_not_reserved_for_who_watches(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a) = awaited(&b, &[]).await;
    b.ask(acquire_watching(&k, b.owner())).await;
    let got = b.all(vec![release(&k, a), acquire(&k, b.owner(), LONG)]).await;
    b.check(matches!(got[1], Reply::Granted { .. }), "the first acquire is granted", &got);
    // A candidate has no place in the queue.
    let (_, got) = after_release(&b, |k| vec![acquire_watching(k, b.owner())]).await;
    b.check(is_held(&got[0]), "who watches is refused a reserved lock", &got);
}
