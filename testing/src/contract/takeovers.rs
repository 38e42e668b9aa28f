//! A lock that is taken from its owner is never free in between.

use std::time::Duration;

use palisade::node::spi::{Holder, LockKeys, OwnerToken, Reply};

use super::bench::{Bench, LONG, SHORT};
use super::crash::after;
use super::handover::{handed_over, slowly};
use super::hints::{WAITERS, awaited, listening};
use super::ops::{
    acquire, acquire_waiting, extend, extend_saying, inspect, is_owned_by, release, take, take_for,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_lock_is_taken_from_its_owner,
        Nothing: a_lock_is_taken_only_from_the_named_owner,
        Nothing: a_free_lock_is_granted_to_who_would_take_it,
        Nothing: a_takeover_does_not_grant_the_lock_to_a_waiter,
        Nothing: a_closing_is_never_shortened,
        Nothing: a_renewal_in_between_is_respected,
        Nothing: who_took_a_lock_takes_it_again_from_itself,
        Nothing: a_reservation_cannot_be_taken_over,
        HandOver: a_held_lock_is_taken_while_a_node_settles,
        RestartKeeping: nothing_is_taken_in_quarantine,
    ]
}

async fn a_lock_is_taken_from_its_owner(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, fence, b"its meta"), Reply::Done, "the owner writes metadata")
        .await;
    let got = b.all(vec![take(&k, c, a), inspect(&k), extend(&k, a, LONG, fence)]).await;
    let higher = matches!(got[0], Reply::Granted { fence: next } if next > fence);
    b.check(higher, "it is granted to who takes it, under a higher fence", &got);
    b.check(is_owned_by(&got[1], c), "it has the new owner", &got);
    let silent = matches!(&got[1], Reply::Holder(Some(Holder { meta: None, .. })));
    b.check(silent, "no owner is shown with the metadata of another", &got);
    b.check(got[2] == Reply::NotOwner, "the owner before has lost it", &got);
    let again = b.granted(take(&k, c, a), "a repeated request recognises itself").await;
    let higher = matches!(got[0], Reply::Granted { fence } if fence <= again);
    b.check(higher, "and its fence does not fall", &(&got, again));
}

async fn rest(b: &Bench, keys: &LockKeys, owner: OwnerToken) -> Duration {
    match b.ask(inspect(keys)).await {
        Reply::Holder(Some(Holder { owner: Some(is), remaining: Some(rest), .. }))
            if is == owner =>
        {
            rest
        }
        other => b.broken("it is the owner's", &other),
    }
}

async fn a_closing_is_never_shortened(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, fence, b"its meta"), Reply::Done, "the owner writes metadata")
        .await;
    let got = b.all(vec![take_for(&k, c, a, LONG / 2), inspect(&k)]).await;
    let rest = matches!(got[0], Reply::Held { remaining: Some(rest), foreign: false }
        if rest > LONG / 2 && rest <= LONG);
    b.check(rest, "who would hold it for less than is left is told what is left", &got);
    let same = matches!(&got[1], Reply::Holder(Some(Holder { meta: Some(meta), .. }))
        if **meta == b"its meta"[..]);
    b.check(same && is_owned_by(&got[1], a), "and nothing changes", &got);
    b.expect(extend(&k, a, LONG, fence), Reply::Done, "the owner goes on").await;
    b.granted(take(&k, c, a), "for as long as is left it is given").await;
    let waits = b.ask(acquire(&k, b.owner(), LONG)).await;
    let closed = matches!(waits, Reply::Held { remaining: Some(rest), .. } if rest > LONG / 2);
    b.check(closed, "a third waits for as long as the owner had it", &waits);
}

async fn a_renewal_in_between_is_respected(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG / 4), "a free lock is granted").await;
    let seen = rest(&b, &k, a).await;
    b.expect(extend(&k, a, LONG, fence), Reply::Done, "the owner renews").await;
    let left = match b.ask(take_for(&k, c, a, seen)).await {
        Reply::Held { remaining: Some(rest), foreign: false } => rest,
        other => b.broken("what was seen before a renewal does not count", &other),
    };
    b.check(left > LONG / 2, "the answer says what is left now", &left);
    b.granted(take_for(&k, c, a, left), "who asks for as long has it").await;
}

async fn who_took_a_lock_takes_it_again_from_itself(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG / 4), "a free lock is granted").await;
    let first = b.granted(take_for(&k, c, a, LONG / 2), "it is taken").await;
    // The answer was lost.
    let second = b.granted(take(&k, c, a), "who has it already takes it again").await;
    b.check(second >= first, "fences do not fall", &(first, second));
    let left = rest(&b, &k, c).await;
    b.check(left > LONG / 2, "the lease has the new length", &left);
    b.granted(take_for(&k, c, a, SHORT), "a late request recognises itself").await;
    let left = rest(&b, &k, c).await;
    b.check(left > LONG / 2, "and shortens nothing", &left);
}

async fn a_reservation_cannot_be_taken_over(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a) = awaited(&b, &WAITERS).await;
    let first = OwnerToken::reserved_for(WAITERS[2].0);
    let got = b.all(vec![release(&k, a), take(&k, b.owner(), first)]).await;
    b.check(matches!(got[1], Reply::Held { .. }), "it is refused, as if it were held", &got);
}

async fn a_held_lock_is_taken_while_a_node_settles(b: Bench) {
    let b = slowly(b).await;
    let (k, (a, c), d) = (b.lock(), b.owners(), b.owner());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    handed_over(&b).await;
    let short = take_for(&k, c, a, LONG / 2);
    let third = acquire(&k, d, LONG);
    let ops = vec![short, inspect(&k), take(&k, c, a), release(&k, c), third, inspect(&k)];
    let got = b.all(ops).await;
    let refused = matches!(got[0], Reply::Held { remaining: Some(rest), .. } if rest > LONG / 2);
    b.check(refused && is_owned_by(&got[1], a), "a refused takeover changes nothing", &got);
    b.check(matches!(got[2], Reply::Granted { .. }), "it is given at once", &got);
    // Soon after a planned handover, the previous owner's lease may have ended too early by the new
    // server's clock.
    let kept = matches!(got[4], Reply::Held { remaining: Some(rest), .. }
        if rest <= 2 * b.terms.clock_error);
    b.check(kept, "a released name is kept for as long as clocks may differ", &got);
    b.check(is_owned_by(&got[5], OwnerToken::KEPT), "and shown as that", &got);
}

async fn a_lock_is_taken_only_from_the_named_owner(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, fence, b"its meta"), Reply::Done, "the owner writes metadata")
        .await;
    let got = b.all(vec![take(&k, c, b.owner()), inspect(&k)]).await;
    let held = matches!(got[0], Reply::Held { foreign: false, .. });
    b.check(held, "who names another owner is refused", &got);
    let same = matches!(&got[1], Reply::Holder(Some(Holder { meta: Some(meta), .. }))
        if **meta == b"its meta"[..]);
    b.check(same && is_owned_by(&got[1], a), "the owner keeps it, and its metadata", &got);
}

async fn a_free_lock_is_granted_to_who_would_take_it(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(take(&k, c, a), "a free lock is granted").await;
    b.expect(release(&k, c), Reply::Done, "the owner releases").await;
}

async fn a_takeover_does_not_grant_the_lock_to_a_waiter(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a) = awaited(&b, &WAITERS).await;
    let (c, first) = (b.owner(), WAITERS[2]);
    let waits = || acquire_waiting(&k, b.owner(), first);
    let got = b.all(vec![take(&k, c, a), waits(), release(&k, c), waits()]).await;
    b.check(matches!(got[0], Reply::Granted { .. }), "the lock is taken", &got);
    b.check(matches!(got[1], Reply::Held { .. }), "who waits is refused", &got);
    b.check(matches!(got[3], Reply::Granted { .. }), "… until it is released", &got);
}

async fn nothing_is_taken_in_quarantine(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let got = b.all(vec![inspect(&k), take(&k, c, a), inspect(&k)]).await;
    let refused = matches!(got[1], Reply::Quarantined { .. });
    b.check(refused, "nothing is granted in quarantine", &got);
    let named = |reply: &Reply| matches!(reply, Reply::Holder(Some(_)));
    b.check(named(&got[0]) == named(&got[2]), "… and no owner loses what it has", &got);
}
