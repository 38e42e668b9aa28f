//! A lock that is taken from its owner goes to nobody in between.

use super::bench::{Bench, LONG};
use super::crash::after;
use super::hints::{WAITERS, awaited, listening};
use super::ops::{acquire, acquire_waiting, extend, extend_saying, inspect, release, take};
use super::{Case, list};
use crate::op::{Holder, Reply};
use crate::token::OwnerToken;

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_lock_is_taken_from_its_owner,
        Nothing: a_lock_is_taken_from_nobody_else,
        Nothing: a_free_lock_is_granted_to_who_would_take_it,
        Nothing: those_who_wait_go_on_waiting,
        RestartKeeping: nothing_is_taken_in_quarantine,
    ]
}

fn owned_by(reply: &Reply, owner: OwnerToken) -> bool {
    matches!(reply, Reply::Holder(Some(Holder { owner: Some(is), .. })) if *is == owner)
}

async fn a_lock_is_taken_from_its_owner(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, fence, b"its meta"), Reply::Done, "the owner speaks").await;
    let got = b.all(vec![take(&k, c, a), inspect(&k), extend(&k, a, LONG, fence)]).await;
    let higher = matches!(got[0], Reply::Granted { fence: next } if next > fence);
    b.check(higher, "it is granted to who takes it, under a higher fence", &got);
    b.check(owned_by(&got[1], c), "it has the new owner", &got);
    let silent = matches!(&got[1], Reply::Holder(Some(Holder { meta: None, .. })));
    b.check(silent, "nobody is shown with the metadata of another", &got);
    b.check(got[2] == Reply::NotOwner, "the owner before has lost it", &got);
    b.expect(take(&k, c, a), got[0].clone(), "a repeated request recognises itself").await;
}

async fn a_lock_is_taken_from_nobody_else(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, fence, b"its meta"), Reply::Done, "the owner speaks").await;
    let got = b.all(vec![take(&k, c, b.owner()), inspect(&k)]).await;
    let held = matches!(got[0], Reply::Held { foreign: false, .. });
    b.check(held, "who names another owner is refused", &got);
    let same = matches!(&got[1], Reply::Holder(Some(Holder { meta: Some(meta), .. }))
        if **meta == b"its meta"[..]);
    b.check(same && owned_by(&got[1], a), "the owner keeps it, and its metadata", &got);
}

async fn a_free_lock_is_granted_to_who_would_take_it(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(take(&k, c, a), "a free lock is granted").await;
    b.expect(release(&k, c), Reply::Done, "the owner releases").await;
}

async fn those_who_wait_go_on_waiting(b: Bench) {
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
    b.check(named(&got[0]) == named(&got[2]), "… and nobody loses what it has", &got);
}
