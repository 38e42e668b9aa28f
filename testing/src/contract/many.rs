//! Test cases for several locks at once. Each case has the number of its rule in
//! `docs/design/multi_lock.md`.

use std::time::Instant;

use palisade::node::spi::{Holder, LockKeys, OwnerToken, Reply, Slots};

use super::bench::{Bench, LONG, SHORT};
use super::crash::after;
use super::handover::{handed_over, slowly};
use super::hints::{WAITERS, awaited, listening};
use super::ops::{
    acquire, acquire_at, extend, inspect, is_granted, is_held, on_slots, raise, reassert, release,
    shared, take, take_for,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_1_all_names_are_granted_or_none,
        Nothing: rule_1_a_repeated_request_has_what_it_has,
        Nothing: rule_1_readers_keep_all_names_out,
        Nothing: rule_1_a_permit_keeps_all_names_out,
        Foreign: rule_1_another_programs_value_keeps_all_names_out,
        Nothing: rule_1_the_latest_end_counts,
        Nothing: rule_2_one_token_is_above_all_fences,
        Nothing: rule_3_all_fences_are_raised_or_none,
        Nothing: rule_4_all_names_are_extended_or_none,
        Nothing: rule_5_a_release_frees_what_is_its_owners,
        Nothing: rule_6_names_that_were_collected_are_taken_over_together,
        Nothing: rule_6_a_name_of_another_owner_is_not_taken_over,
        Nothing: rule_6_a_takeover_shortens_no_grant,
        Nothing: rule_6_a_repeated_takeover_is_granted_anew,
        Nothing: rule_6_a_name_that_is_only_reserved_is_taken_over,
        HandOver: rule_6_a_reserved_name_that_is_kept_is_not_taken_over,
        RestartEmpty: rule_7_nothing_is_granted_in_quarantine,
        RestartKeeping: rule_7_a_holder_names_the_quarantine,
        HandOver: rule_7_a_name_that_may_be_held_keeps_all_out,
    ]
}

fn three(b: &Bench) -> ([LockKeys; 3], LockKeys) {
    let names = [b.lock(), b.lock(), b.lock()];
    let all = LockKeys::many(names.to_vec());
    (names, all)
}

fn fence_of(reply: &Reply, owner: OwnerToken) -> Option<u64> {
    match reply {
        Reply::Holder(Some(Holder { owner: Some(is), fence, .. })) if *is == owner => Some(*fence),
        _ => None,
    }
}

/// `None` for a name that the owner does not have.
async fn fences(b: &Bench, names: &[LockKeys], owner: OwnerToken) -> Vec<Option<u64>> {
    let seen = b.all(names.iter().map(inspect).collect()).await;
    seen.iter().map(|reply| fence_of(reply, owner)).collect()
}

async fn rule_1_all_names_are_granted_or_none(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    b.granted(acquire(&names[1], a, LONG), "a free lock is granted").await;
    let held = b.ask(acquire(&all, c, LONG)).await;
    b.check(is_held(&held), "one busy name refuses all", &held);
    let none = fences(&b, &names, c).await;
    b.check(none == [None; 3], "and none is taken", &none);
    b.granted(acquire(&names[0], a, LONG), "the others are free").await;
    b.all(vec![release(&names[0], a), release(&names[1], a)]).await;
    let t = b.granted(acquire(&all, c, LONG), "all are free, and granted").await;
    let same = fences(&b, &names, c).await;
    b.check(same == [Some(t); 3], "under one token", &(t, same));
    for name in &names {
        let held = b.ask(acquire(name, a, LONG)).await;
        b.check(is_held(&held), "each name is held", &held);
    }
}

async fn rule_1_a_repeated_request_has_what_it_has(b: Bench) {
    let ((names, all), a) = (three(&b), b.owner());
    let t = b.granted(acquire(&all, a, LONG / 2), "free locks are granted").await;
    let again = b.granted(acquire(&all, a, LONG), "a repeated request is granted").await;
    b.check(t == again, "with the same fence", &(t, again));
    let seen = b.ask(inspect(&names[2])).await;
    let short = matches!(seen, Reply::Holder(Some(Holder { remaining: Some(rest), .. }))
        if rest <= LONG / 2);
    b.check(short, "and the same end", &seen);
}

async fn rule_1_readers_keep_all_names_out(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    b.granted(shared(acquire(&names[2], a, LONG)), "a free lock is granted to a reader").await;
    let held = b.ask(acquire(&all, c, LONG)).await;
    b.check(is_held(&held), "a reader keeps all names out", &held);
    b.expect(shared(release(&names[2], a)), Reply::Done, "the reader releases").await;
    b.granted(acquire(&all, c, LONG), "all are free").await;
    let held = b.ask(shared(acquire(&names[0], a, LONG))).await;
    b.check(is_held(&held), "and keep readers out", &held);
}

async fn rule_1_a_permit_keeps_all_names_out(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    let permit = b.ask(on_slots(acquire(&names[1], a, LONG), Slots::any(2))).await;
    b.check(matches!(permit, Reply::Permit { .. }), "a free permit is granted", &permit);
    let held = b.ask(acquire(&all, c, LONG)).await;
    let is_foreign = matches!(held, Reply::Held { foreign: true, .. });
    b.check(is_foreign, "a semaphore under one of the names keeps all out", &held);
}

async fn rule_1_another_programs_value_keeps_all_names_out(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    if let Some(put) = &b.hooks.put_foreign {
        put(names[1].lock().to_owned(), Some(LONG)).await;
    }
    b.granted(acquire(&names[0], a, LONG), "a free lock is granted").await;
    let held = b.ask(acquire(&all, c, LONG)).await;
    let foreign = matches!(held, Reply::Held { foreign: true, .. });
    b.check(foreign, "another program's value is reported, also beside an owner", &held);
    let said = b.all(vec![extend(&all, c, LONG, 1), release(&all, c)]).await;
    let refused = said == [Reply::NotOwner, Reply::NotOwner];
    b.check(refused, "it is neither extended nor released", &said);
}

async fn rule_1_the_latest_end_counts(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    b.granted(acquire(&names[0], a, LONG), "a free lock is granted").await;
    b.granted(acquire(&names[1], a, SHORT), "a free lock is granted").await;
    let held = b.ask(acquire(&all, c, LONG)).await;
    let late = matches!(held, Reply::Held { remaining: Some(rest), .. } if rest > LONG / 2);
    b.check(late, "the last name's end is the answer", &held);
}

async fn rule_2_one_token_is_above_all_fences(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    let high = b.high().await.get();
    let t = b.granted(acquire_at(&names[1], a, LONG, high), "a free lock is granted").await;
    b.expect(release(&names[1], a), Reply::Done, "the owner releases").await;
    let both = b.granted(acquire(&all, c, LONG), "free locks are granted").await;
    b.check(both > t, "the token is above the largest fence", &(t, both));
    b.expect(release(&all, c), Reply::Done, "the owner releases").await;
    for name in &names {
        let next = b.granted(acquire(name, a, LONG), "a free lock is granted").await;
        b.check(next > both, "each later token is above it", &(both, next));
    }
}

async fn rule_3_all_fences_are_raised_or_none(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    let t = b.granted(acquire(&all, a, LONG), "free locks are granted").await;
    b.expect(raise(&all, c, t + 9), Reply::NotOwner, "only for the owner").await;
    b.expect(raise(&all, a, t + 5), Reply::Done, "all are raised").await;
    b.expect(raise(&all, a, t + 4), Reply::NotOwner, "never downwards").await;
    let raised = fences(&b, &names, a).await;
    b.check(raised == [Some(t + 5); 3], "all have the token", &(t, raised));
    b.expect(release(&names[2], a), Reply::Done, "one name is gone").await;
    b.expect(raise(&all, a, t + 9), Reply::NotOwner, "where one is missing none is raised").await;
    let same = fences(&b, &names[..2], a).await;
    b.check(same == [Some(t + 5); 2], "none is raised", &(t, same));
}

async fn rule_4_all_names_are_extended_or_none(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    let t = b.granted(acquire(&all, a, LONG / 4), "free locks are granted").await;
    b.expect(extend(&all, a, LONG, t + 3), Reply::Done, "all are extended").await;
    let lifted = fences(&b, &names, a).await;
    b.check(lifted == [Some(t + 3); 3], "and their fences lifted", &(t, lifted));
    let seen = b.ask(inspect(&names[1])).await;
    let long = matches!(seen, Reply::Holder(Some(Holder { remaining: Some(rest), .. }))
        if rest > LONG / 2);
    b.check(long, "for the new length", &seen);
    b.expect(release(&names[1], a), Reply::Done, "one name is gone").await;
    b.expect(extend(&all, a, LONG, t), Reply::Done, "what is absent is put back").await;
    b.expect(release(&names[1], a), Reply::Done, "one name is gone").await;
    b.granted(acquire(&names[1], c, LONG), "another owner has it").await;
    b.expect(extend(&all, a, 2 * LONG, t), Reply::NotOwner, "then none is extended").await;
    let seen = b.ask(inspect(&names[0])).await;
    let same = matches!(seen, Reply::Holder(Some(Holder { remaining: Some(rest), .. }))
        if rest <= LONG);
    b.check(same, "nor longer than before", &seen);
}

async fn rule_5_a_release_frees_what_is_its_owners(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    b.expect(release(&all, a), Reply::Absent, "there is nothing to release").await;
    b.granted(acquire(&all, a, LONG), "free locks are granted").await;
    b.expect(release(&all, c), Reply::NotOwner, "another owner's are not released").await;
    b.expect(release(&all, a), Reply::Done, "all are released").await;
    b.expect(release(&all, a), Reply::Absent, "once").await;
    b.granted(acquire(&all, a, LONG), "they are free").await;
    b.expect(release(&names[0], a), Reply::Done, "one name is gone").await;
    b.granted(acquire(&names[0], c, LONG), "another owner has it").await;
    b.expect(release(&all, a), Reply::NotOwner, "one is another's").await;
    let got = b.all(names.iter().map(inspect).collect()).await;
    let freed =
        fence_of(&got[0], c).is_some() && got[1..].iter().all(|r| *r == Reply::Holder(None));
    b.check(freed, "it stays, and the others are free", &got);
}

/// The first owner has the first two locks, the second the last one.
async fn two_collected(b: &Bench) -> ([LockKeys; 3], LockKeys, (OwnerToken, OwnerToken)) {
    let ((names, all), (a, c)) = (three(b), b.owners());
    for (name, owner) in names.iter().zip([a, a, c]) {
        b.granted(acquire(name, owner, LONG), "a free lock is granted").await;
    }
    (names, all, (a, c))
}

async fn rule_6_names_that_were_collected_are_taken_over_together(b: Bench) {
    let (names, all, (a, c)) = two_collected(&b).await;
    let held = b.ask(acquire(&all, c, LONG)).await;
    b.check(is_held(&held), "who does not name their owner is refused", &held);
    let before = fences(&b, &names[..2], a).await;
    let t = b.granted(take(&all, c, a), "who names it is granted all").await;
    let above = before.iter().all(|fence| fence.is_some_and(|fence| fence < t));
    b.check(above, "the token is above all fences", &(t, before));
    let same = fences(&b, &names, c).await;
    b.check(same == [Some(t); 3], "and is that of all names", &(t, same));
    b.expect(release(&names[0], a), Reply::NotOwner, "they are the owner's no more").await;
    b.expect(release(&all, c), Reply::Done, "all are released").await;
}

async fn rule_6_a_name_of_another_owner_is_not_taken_over(b: Bench) {
    let (names, all, (a, c)) = two_collected(&b).await;
    b.expect(release(&names[1], a), Reply::Done, "one name is gone").await;
    let d = b.owner();
    b.granted(acquire(&names[1], d, LONG), "another owner has it").await;
    let held = b.ask(take(&all, c, a)).await;
    b.check(is_held(&held), "one name of another owner refuses all", &held);
    let same = (
        fences(&b, &names[..1], a).await,
        fences(&b, &names[1..2], d).await,
        fences(&b, &names[2..], c).await,
    );
    let all_have = [&same.0, &same.1, &same.2].iter().all(|of| of[0].is_some());
    b.check(all_have, "and all keep what they have", &same);
    b.expect(release(&names[1], d), Reply::Done, "it is free").await;
    b.granted(take(&all, c, a), "then all are granted").await;
}

async fn rule_6_a_takeover_shortens_no_grant(b: Bench) {
    let (names, all, (a, c)) = two_collected(&b).await;
    let held = b.ask(take_for(&all, c, a, LONG / 2)).await;
    b.check(is_held(&held), "a shorter ttl is refused", &held);
    let same = fences(&b, &names[..2], a).await;
    b.check(same.iter().all(Option::is_some), "and nothing is transferred", &same);
}

async fn rule_6_a_repeated_takeover_is_granted_anew(b: Bench) {
    let ((names, all), (a, c)) = (three(&b), b.owners());
    let t = b.granted(take_for(&all, c, a, LONG / 2), "free locks are granted").await;
    let again = b.granted(take(&all, c, a), "a repeated request is granted").await;
    b.check(again > t, "with a new token", &(t, again));
    let seen = b.ask(inspect(&names[2])).await;
    let long = matches!(seen, Reply::Holder(Some(Holder { remaining: Some(rest), .. }))
        if rest > LONG / 2);
    b.check(long, "and a new end", &seen);
}

async fn rule_6_a_name_that_is_only_reserved_is_taken_over(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let ((k, owner), (a, c)) = (awaited(&b, &WAITERS).await, b.owners());
    let both = LockKeys::many(vec![b.lock(), k.clone()]);
    let ops = vec![release(&k, owner), acquire(&both, c, LONG), take(&both, c, a)];
    let got = b.all(ops).await;
    b.check(got[0] == Reply::Done && is_held(&got[1]), "a released name is reserved", &got);
    b.check(is_granted(&got[2]), "a reservation does not refuse a takeover", &got);
}

async fn rule_6_a_reserved_name_that_is_kept_is_not_taken_over(b: Bench) {
    let b = slowly(b).await;
    let begun = Instant::now();
    handed_over(&b).await;
    let mut events = b.events();
    listening(&b, &mut events).await;
    let ((k, owner), (a, c)) = (awaited(&b, &WAITERS).await, b.owners());
    let both = LockKeys::many(vec![b.lock(), k.clone()]);
    let got = b.all(vec![release(&k, owner), take(&both, c, a)]).await;
    // On a slow machine the node may have stopped settling.
    let late = begun.elapsed() >= b.terms.max_ttl;
    b.check(is_held(&got[1]) || late, "a name that was used lately is kept for its holder", &got);
}

async fn rule_7_nothing_is_granted_in_quarantine(b: Bench) {
    let ((_, all), a) = (three(&b), b.owner());
    let t = b.granted(acquire(&all, a, LONG), "free locks are granted").await;
    after(&b, b.hooks.restart_empty.as_ref()).await;
    let ops = vec![acquire(&all, b.owner(), LONG), raise(&all, a, t + 1), extend(&all, a, LONG, t)];
    let said = b.all(ops).await;
    let silent = said.iter().all(|reply| matches!(reply, Reply::Quarantined { .. }));
    b.check(silent, "a node that forgot grants, raises and extends nothing", &said);
    b.expect(release(&all, a), Reply::Absent, "releases go on").await;
    b.settle().await;
    b.until("it grants after the quarantine", acquire(&all, a, LONG), is_granted).await;
}

async fn rule_7_a_holder_names_the_quarantine(b: Bench) {
    let ((names, all), a) = (three(&b), b.owner());
    let t = b.granted(acquire(&all, a, LONG), "free locks are granted").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let said = b.ask(extend(&all, a, LONG, t)).await;
    let Reply::Quarantined { id, .. } = said else { b.broken("it is in quarantine", &said) };
    let again = reassert(&all, a, LONG, t, Some(id));
    b.expect(again, Reply::Done, "who names the quarantine extends all").await;
    let same = fences(&b, &names, a).await;
    b.check(same == [Some(t); 3], "and has all", &same);
}

async fn rule_7_a_name_that_may_be_held_keeps_all_out(b: Bench) {
    let b = slowly(b).await;
    let ((names, all), a) = (three(&b), b.owner());
    b.granted(acquire(&names[1], a, LONG), "a free lock is granted").await;
    b.expect(release(&names[1], a), Reply::Done, "the owner releases").await;
    handed_over(&b).await;
    let held = b.ask(acquire(&all, b.owner(), LONG)).await;
    let kept = matches!(held, Reply::Held { remaining: Some(rest), foreign: false }
        if rest <= 2 * b.terms.clock_error);
    b.check(kept, "a name that was used lately is kept, and all wait for it", &held);
    b.until("then all are granted", acquire(&all, a, LONG), is_granted).await;
}
