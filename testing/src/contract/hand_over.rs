//! Test cases for the hand-over of a lock to another process. Each case has the number of its rule
//! in `docs/design/hand_over.md`.

use palisade::node::spi::{Holder, LockKeys, Op, OwnerToken, Reply};

use super::bench::{Bench, LONG, SHORT};
use super::crash::after;
use super::handover::{handed_over, slowly};
use super::hints::{WAITERS, awaited, listening};
use super::ops::{
    acquire, acquire_waiting, extend, extend_saying, inspect, is_held, is_owned_by, release,
    shared, take_only,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_2_a_lock_is_handed_over_by_its_owner,
        Nothing: rule_2_a_node_where_the_owner_has_nothing_refuses,
        Nothing: rule_2_another_owner_keeps_its_lock,
        Nothing: rule_2_readers_keep_their_lock,
        Nothing: rule_2_a_repeated_request_recognises_itself,
        Nothing: rule_2_a_reservation_is_not_handed_over,
        Foreign: rule_2_another_programs_value_stays,
        Nothing: rule_3_nothing_is_handed_over_after_a_later_grant,
        Nothing: rule_4_the_time_is_never_shortened,
        Nothing: rule_4_waiters_keep_their_places,
        RestartKeeping: rule_5_nothing_is_handed_over_in_quarantine,
        HandOver: rule_5_a_settling_node_hands_over_what_is_there_and_keeps_nothing_for_it,
    ]
}

fn redeem(keys: &LockKeys, owner: OwnerToken, ticket: (OwnerToken, u64)) -> Op {
    take_only(keys, owner, ticket, LONG)
}

async fn rule_2_a_lock_is_handed_over_by_its_owner(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, t, b"its meta"), Reply::Done, "the owner speaks").await;
    let got = b.all(vec![redeem(&k, c, (a, t)), inspect(&k), extend(&k, a, LONG, t)]).await;
    let higher = matches!(got[0], Reply::Granted { fence } if fence > t);
    b.check(higher, "it is granted under a higher fence", &got);
    let silent = matches!(&got[1], Reply::Holder(Some(Holder { meta: None, .. })));
    b.check(is_owned_by(&got[1], c) && silent, "it has the new owner, without metadata", &got);
    b.check(got[2] == Reply::NotOwner, "the owner before has lost it", &got);
    let again = b.ask(redeem(&k, b.owner(), (a, t))).await;
    b.check(is_held(&again), "a second one is refused", &again);
    b.expect(release(&k, c), Reply::Done, "the new owner releases").await;
    let late = b.ask(redeem(&k, b.owner(), (a, t))).await;
    b.check(is_held(&late), "and also afterwards", &late);
}

async fn rule_2_a_node_where_the_owner_has_nothing_refuses(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let refused = b.ask(redeem(&k, c, (a, 1))).await;
    let at_once = matches!(refused, Reply::Held { remaining: Some(rest), foreign: false }
        if rest.is_zero());
    b.check(at_once, "a lock that never was is not handed over", &refused);
    let t = b.granted(acquire(&k, a, SHORT), "a free lock is granted").await;
    b.until("what has lapsed is not handed over", inspect(&k), |r| *r == Reply::Holder(None)).await;
    let refused = b.ask(redeem(&k, c, (a, t))).await;
    b.check(is_held(&refused), "it is refused", &refused);
    b.expect(inspect(&k), Reply::Holder(None), "and nothing is left of it").await;
    let next = b.granted(acquire(&k, c, LONG), "the lock is free").await;
    b.check(next > t, "under a higher fence", &(t, next));
}

async fn rule_2_another_owner_keeps_its_lock(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, c, LONG), "a free lock is granted").await;
    let got = b.all(vec![redeem(&k, b.owner(), (a, t + 9)), inspect(&k)]).await;
    let rest = matches!(got[0], Reply::Held { remaining: Some(rest), foreign: false }
        if rest > LONG / 2);
    b.check(rest && is_owned_by(&got[1], c), "another owner keeps it", &got);
}

async fn rule_2_readers_keep_their_lock(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = b.granted(shared(acquire(&k, a, LONG)), "a free lock is granted to a reader").await;
    let refused = b.ask(redeem(&k, b.owner(), (a, t))).await;
    b.check(is_held(&refused), "a reader's lock is not handed over", &refused);
    b.expect(shared(release(&k, a)), Reply::Done, "the reader has it").await;
}

async fn rule_2_a_repeated_request_recognises_itself(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let first = b.granted(redeem(&k, c, (a, t)), "it is handed over").await;
    // The reply to the first request was lost.
    let again = b.granted(redeem(&k, c, (a, t)), "who has it already gets it again").await;
    b.check(again >= first && first > t, "fences do not fall", &(t, first, again));
    let late = take_only(&k, c, (a, t), SHORT);
    b.granted(late, "a late request recognises itself").await;
    let seen = b.ask(inspect(&k)).await;
    let long = matches!(&seen, Reply::Holder(Some(Holder { remaining: Some(rest), .. }))
        if *rest > LONG / 2);
    b.check(long && is_owned_by(&seen, c), "and shortens nothing", &seen);
}

async fn rule_2_a_reservation_is_not_handed_over(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a) = awaited(&b, &WAITERS).await;
    let first = OwnerToken::reserved_for(WAITERS[2].0);
    let high = b.high().await.get();
    let got = b.all(vec![release(&k, a), redeem(&k, b.owner(), (first, high))]).await;
    b.check(is_held(&got[1]), "it is refused, as if it were held", &got);
}

async fn rule_2_another_programs_value_stays(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    if let Some(put) = &b.hooks.put_foreign {
        put(k.lock().to_owned(), Some(LONG)).await;
    }
    let refused = b.ask(redeem(&k, c, (a, 1))).await;
    let foreign = matches!(refused, Reply::Held { foreign: true, .. });
    b.check(foreign, "another program's value is not handed over", &refused);
}

async fn rule_3_nothing_is_handed_over_after_a_later_grant(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    let next = b.granted(acquire(&k, c, LONG), "a free lock is granted").await;
    b.expect(release(&k, c), Reply::Done, "the next owner releases").await;
    // An extension of the first owner arrives late.
    b.expect(extend(&k, a, LONG, t), Reply::Done, "an absent lock is put back").await;
    let got = b.all(vec![redeem(&k, b.owner(), (a, t)), inspect(&k)]).await;
    let kept = is_held(&got[0]) && is_owned_by(&got[1], a);
    b.check(kept, "another owner had it in between", &(t, next, got));
}

async fn rule_4_the_time_is_never_shortened(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let got = b.all(vec![take_only(&k, c, (a, t), LONG / 2), inspect(&k)]).await;
    let rest = matches!(got[0], Reply::Held { remaining: Some(rest), foreign: false }
        if rest > LONG / 2 && rest <= LONG);
    b.check(rest, "who would hold it for less than is left is told what is left", &got);
    b.check(is_owned_by(&got[1], a), "and nothing changes", &got);
    b.granted(redeem(&k, c, (a, t)), "for as long as is left it is given").await;
}

async fn rule_4_waiters_keep_their_places(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a) = awaited(&b, &WAITERS).await;
    let (c, high) = (b.owner(), b.high().await.get());
    let waits = || acquire_waiting(&k, b.owner(), WAITERS[2]);
    let got = b.all(vec![redeem(&k, c, (a, high)), waits(), release(&k, c), waits()]).await;
    b.check(matches!(got[0], Reply::Granted { .. }), "the lock is handed over", &got);
    b.check(matches!(got[1], Reply::Held { .. }), "who waits is refused", &got);
    b.check(matches!(got[3], Reply::Granted { .. }), "… until it is released", &got);
}

async fn rule_5_nothing_is_handed_over_in_quarantine(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let got = b.all(vec![inspect(&k), redeem(&k, c, (a, t)), inspect(&k)]).await;
    let refused = matches!(got[1], Reply::Quarantined { .. });
    b.check(refused, "nothing is granted in quarantine", &got);
    let named = |reply: &Reply| matches!(reply, Reply::Holder(Some(_)));
    b.check(named(&got[0]) == named(&got[2]), "… and no owner loses what it has", &got);
}

async fn rule_5_a_settling_node_hands_over_what_is_there_and_keeps_nothing_for_it(b: Bench) {
    let b = slowly(b).await;
    let (k, gone, (a, c)) = (b.lock(), b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let u = b.granted(acquire(&gone, a, LONG), "a free lock is granted").await;
    b.expect(release(&gone, a), Reply::Done, "the owner releases").await;
    handed_over(&b).await;
    let got = b.all(vec![redeem(&k, c, (a, t)), redeem(&gone, c, (a, u)), inspect(&gone)]).await;
    b.check(matches!(got[0], Reply::Granted { .. }), "it is given at once", &got);
    b.check(is_held(&got[1]), "what is not there is not given", &got);
    b.check(is_owned_by(&got[2], OwnerToken::KEPT), "and kept as any other name", &got);
}
