//! Test cases for permits of semaphores. The number in the name of a case is that of its rule in
//! `docs/design/semaphore.md`.

use std::time::{Duration, Instant};

use palisade::node::spi::{LockKeys, Op, OwnerToken, QuarantineId, Reply, SlotGrant, Slots, Want};
use tokio::time::sleep;

use super::bench::{Bench, LONG, ROUNDED, SHORT};
use super::crash::after;
use super::handover::{handed_over, slowly};
use super::hints::{HUSH, TRIES, listening, next_hint};
use super::ops::{
    RESERVED, acquire, acquire_at, acquire_waiting, acquire_watching, extend, inspect, is_held,
    on_slots, raise, reassert, release, shared,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_1_each_slot_has_one_owner,
        Nothing: rule_1_slots_are_given_in_the_callers_order,
        Nothing: rule_1_an_owner_that_asks_again_has_what_it_has,
        Nothing: rule_1_a_slot_whose_grant_is_over_is_free,
        Nothing: rule_1_each_slot_has_its_own_fence,
        Foreign: rule_1_another_programs_value_keeps_all_out,
        Nothing: rule_1_a_lock_and_a_semaphore_share_no_key,
        Nothing: rule_2_a_move_takes_the_slot_and_leaves_the_other,
        Nothing: rule_2_a_move_to_a_slot_of_another_leaves_it_there,
        Nothing: rule_2_a_reservation_does_not_refuse_a_move,
        Nothing: rule_3_the_fence_of_the_owners_slot_is_raised,
        Nothing: rule_4_an_extension_puts_the_owner_into_its_slot,
        Nothing: rule_4_an_extension_leaves_a_slot_to_its_owner,
        Nothing: rule_5_a_release_frees_the_owners_slot_only,
        Nothing: rule_5_each_release_wakes_one_waiter,
        Nothing: rule_5_a_released_slot_is_reserved_for_the_waiter,
        Nothing: rule_5_what_is_given_back_goes_to_the_next_waiter,
        Nothing: rule_5_a_release_wakes_who_watches,
        Nothing: rule_6_callers_may_know_different_numbers_of_slots,
        RestartEmpty: rule_9_a_node_in_quarantine_gives_no_slot,
        RestartKeeping: rule_9_a_holder_names_the_quarantine,
        HandOver: rule_9_a_slot_that_may_still_be_held_is_kept,
    ]
}

/// Request for any slot of a semaphore of two permits.
pub(super) const TWO: Slots = Slots::any(2);

pub(super) fn ask(keys: &LockKeys, owner: OwnerToken) -> Op {
    on_slots(acquire(keys, owner, LONG), TWO)
}

fn move_to(keys: &LockKeys, owner: OwnerToken, slot: u16) -> Op {
    on_slots(acquire(keys, owner, LONG), TWO.exactly(slot))
}

fn renew(keys: &LockKeys, owner: OwnerToken, slot: u16, token: u64) -> Op {
    on_slots(extend(keys, owner, LONG, token), TWO.exactly(slot))
}

fn leave(keys: &LockKeys, owner: OwnerToken) -> Op {
    on_slots(release(keys, owner), TWO)
}

fn wait(keys: &LockKeys, owner: OwnerToken, waiter: (u64, Duration)) -> Op {
    on_slots(acquire_waiting(keys, owner, waiter), TWO)
}

pub(super) fn slot(reply: &Reply) -> Option<u16> {
    match reply {
        Reply::Permit { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// Sends the acquire `op`, checks that it is granted the slot `want`, and returns its fencing
/// token.
pub(super) async fn given(b: &Bench, op: Op, want: u16) -> u64 {
    match b.ask(op).await {
        Reply::Permit { fence, slot } if slot == want => fence,
        other => b.broken("the slot is given", &(want, other)),
    }
}

/// Makes a semaphore whose two permits have these owners.
pub(super) async fn full(b: &Bench) -> (LockKeys, OwnerToken, OwnerToken) {
    let (k, (a, c)) = (b.lock(), b.owners());
    given(b, ask(&k, a), 0).await;
    given(b, ask(&k, c), 1).await;
    (k, a, c)
}

/// Returns the held permits of the semaphore, as the node reports them.
async fn permits(b: &Bench, k: &LockKeys) -> Vec<SlotGrant> {
    match b.ask(inspect(k)).await {
        Reply::Permits(all) => all,
        other => b.broken("the key is a semaphore's", &other),
    }
}

/// Checks that exactly these slots are held by these owners, as the node reports it.
pub(super) async fn has(b: &Bench, k: &LockKeys, want: &[(u16, OwnerToken)]) {
    let seen = permits(b, k).await;
    let got: Vec<_> = seen.iter().map(|permit| (permit.slot, permit.owner)).collect();
    b.check(got == want, "the right owners have the right slots", &(want, got));
}

async fn rule_1_each_slot_has_one_owner(b: Bench) {
    let (k, a, c) = full(&b).await;
    let held = b.ask(ask(&k, b.owner())).await;
    let Reply::Held { remaining: Some(rest), foreign: false } = held else {
        b.broken("no slot is left", &held)
    };
    b.check(rest <= LONG + ROUNDED && rest > LONG / 2, "until the first of them ends", &rest);
    has(&b, &k, &[(0, a), (1, c)]).await;
}

async fn rule_1_slots_are_given_in_the_callers_order(b: Bench) {
    let k = b.lock();
    let any = |start, step| Slots { of: 5, want: Want::First { start, step } };
    let ops = [(3, 3), (3, 3), (3, 3), (4, 4), (0, 1), (0, 1)];
    let ops = ops.map(|(start, step)| on_slots(acquire(&k, b.owner(), LONG), any(start, step)));
    let got = b.all(ops.to_vec()).await;
    let slots: Vec<_> = got.iter().map(slot).collect();
    let want = [Some(3), Some(1), Some(4), Some(2), Some(0), None];
    b.check(slots == want, "start, start + step, … modulo the number", &got);
}

async fn rule_1_an_owner_that_asks_again_has_what_it_has(b: Bench) {
    let (k, a, c) = full(&b).await;
    let before = permits(&b, &k).await;
    let other_order = Slots { of: 2, want: Want::First { start: 1, step: 1 } };
    let again = b.all(vec![ask(&k, a), on_slots(acquire(&k, a, LONG * 2), other_order)]).await;
    let same = Reply::Permit { fence: before[0].fence, slot: 0 };
    b.check(again.iter().all(|reply| *reply == same), "the answer is the same", &again);
    let after = permits(&b, &k).await;
    b.check(after[0].remaining <= LONG + ROUNDED, "the end of the grant stays", &after);
    has(&b, &k, &[(0, a), (1, c)]).await;
}

async fn rule_1_a_slot_whose_grant_is_over_is_free(b: Bench) {
    let (k, a, c) = (b.lock(), b.owner(), b.owner());
    let begun = Instant::now();
    let fence = b.granted(on_slots(acquire(&k, a, SHORT), TWO.exactly(1)), "a slot").await;
    given(&b, ask(&k, c), 0).await;
    let last = b.owner();
    let free = |reply: &Reply| slot(reply) == Some(1);
    let got = b.until("a slot whose owner is gone is given", ask(&k, last), free).await;
    b.check(begun.elapsed() >= SHORT, "not before its end", &begun.elapsed());
    let higher = matches!(got, Reply::Permit { fence: next, .. } if next > fence);
    b.check(higher, "with a larger token", &got);
    let late = b.all(vec![renew(&k, a, 1, fence), leave(&k, a)]).await;
    b.check(late == [Reply::NotOwner, Reply::Absent], "the old owner has nothing", &late);
    has(&b, &k, &[(0, c), (1, last)]).await;
}

async fn rule_1_each_slot_has_its_own_fence(b: Bench) {
    let (k, a, c) = (b.lock(), b.owner(), b.owner());
    let high = b.high().await.get();
    let at =
        |owner, proposal, slot| on_slots(acquire_at(&k, owner, LONG, proposal), TWO.exactly(slot));
    let first = b.granted(at(a, 0, 0), "a free slot").await;
    let second = b.granted(at(c, high, 1), "a free slot").await;
    b.check(second > first, "a proposal counts within the node's clock and E", &(first, second));
    b.expect(leave(&k, a), Reply::Done, "the owner releases").await;
    b.expect(leave(&k, c), Reply::Done, "the owner releases").await;
    let again = b.granted(at(b.owner(), 0, 1), "a free slot").await;
    b.check(again == second + 1, "the next token of a slot is larger", &(second, again));
    let other = b.granted(at(b.owner(), 0, 0), "a free slot").await;
    b.check(other > first && other < second, "another slot's fence is not changed", &other);
}

async fn rule_1_another_programs_value_keeps_all_out(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    if let Some(put) = &b.hooks.put_foreign {
        put(k.lock().to_owned(), Some(LONG)).await;
    }
    let held = b.all(vec![ask(&k, a), move_to(&k, a, 1)]).await;
    let foreign = |reply: &Reply| matches!(reply, Reply::Held { foreign: true, .. });
    b.check(held.iter().all(foreign), "another program's value is no semaphore", &held);
    let said = b.all(vec![renew(&k, a, 0, 1), leave(&k, a)]).await;
    let refused = said == [Reply::NotOwner, Reply::NotOwner];
    b.check(refused, "it is neither extended nor released", &said);
}

async fn rule_1_a_lock_and_a_semaphore_share_no_key(b: Bench) {
    let (k, a, _) = full(&b).await;
    let foreign = |reply: &Reply| matches!(reply, Reply::Held { foreign: true, .. });
    let ops = vec![acquire(&k, a, LONG), shared(acquire(&k, a, LONG))];
    let held = b.all(ops).await;
    b.check(held.iter().all(foreign), "a semaphore's key is no lock's", &held);
    let ops = vec![extend(&k, a, LONG, 1), release(&k, a), shared(release(&k, a)), raise(&k, a, 1)];
    let said = b.all(ops).await;
    let refused = said.iter().all(|reply| *reply == Reply::NotOwner);
    b.check(refused, "it is neither extended nor released as one", &said);
    let lock = b.lock();
    b.granted(acquire(&lock, a, LONG), "a free lock is granted").await;
    let held = b.ask(ask(&lock, a)).await;
    b.check(foreign(&held), "a lock's key is no semaphore's", &held);
    let said = b.all(vec![renew(&lock, a, 0, 1), leave(&lock, a)]).await;
    let refused = said.iter().all(|reply| *reply == Reply::NotOwner);
    b.check(refused, "it is neither extended nor released as one", &said);
}

async fn rule_2_a_move_takes_the_slot_and_leaves_the_other(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    given(&b, ask(&k, a), 0).await;
    let fence = given(&b, move_to(&k, a, 1), 1).await;
    has(&b, &k, &[(1, a)]).await;
    let again = b.ask(move_to(&k, a, 1)).await;
    b.check(again == Reply::Permit { fence, slot: 1 }, "a repeated move changes nothing", &again);
    let c = b.owner();
    given(&b, ask(&k, c), 0).await;
    has(&b, &k, &[(0, c), (1, a)]).await;
}

async fn rule_2_a_move_to_a_slot_of_another_leaves_it_there(b: Bench) {
    let (k, a, c) = full(&b).await;
    let held = b.ask(move_to(&k, a, 1)).await;
    b.check(is_held(&held), "another owner keeps its slot", &held);
    // The node refused to move the owner to the taken slot, but freed the owner's old slot, because
    // an owner that asks for exactly one slot needs no other slot.
    has(&b, &k, &[(1, c)]).await;
    given(&b, ask(&k, b.owner()), 0).await;
}

async fn rule_2_a_reservation_does_not_refuse_a_move(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, a, c) = awaited(&b).await;
    let [_, first, _] = WAITERS;
    let ops = vec![
        leave(&k, c),
        ask(&k, b.owner()),
        move_to(&k, a, 1),
        wait(&k, b.owner(), first),
        ask(&k, b.owner()),
    ];
    let got = b.all(ops).await;
    b.check(is_held(&got[1]), "the slot is reserved", &got);
    b.check(slot(&got[2]) == Some(1), "a move takes a slot that is only reserved", &got);
    b.check(slot(&got[3]) == Some(0), "the waiter gets the slot that the move left", &got);
    b.check(is_held(&got[4]), "no slot is free", &got);
}

async fn rule_3_the_fence_of_the_owners_slot_is_raised(b: Bench) {
    let (k, a, c) = full(&b).await;
    let (high, before) = (b.high().await.get(), permits(&b, &k).await);
    let to = |owner, token, slot| on_slots(raise(&k, owner, token), TWO.exactly(slot));
    let far = high + 8 * b.terms.clock_error.as_micros() as u64 + 2_000_000;
    let refused = [to(a, high, 1), to(b.owner(), high, 0), to(a, far, 0), to(a, 1, 0)];
    let got = b.all(refused.to_vec()).await;
    let none = got.iter().all(|reply| *reply == Reply::NotOwner);
    b.check(none, "not for another slot, by another, too far, or lower", &got);
    b.expect(to(a, high, 0), Reply::Done, "the owner raises its slot's fence").await;
    let after = permits(&b, &k).await;
    let fences = (after[0].fence, after[1].fence);
    b.check(fences == (high, before[1].fence), "and no other", &after);
    b.expect(leave(&k, c), Reply::Done, "the owner releases").await;
    b.expect(to(c, high, 1), Reply::NotOwner, "who has released raises nothing").await;
}

async fn rule_4_an_extension_puts_the_owner_into_its_slot(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = given(&b, ask(&k, a), 0).await;
    let longer = on_slots(extend(&k, a, LONG / 2, t), TWO.exactly(0));
    b.expect(longer, Reply::Done, "the owner extends").await;
    let seen = permits(&b, &k).await;
    let rest = seen[0].remaining;
    b.check(rest <= LONG / 2 + ROUNDED && rest > LONG / 4, "from now", &seen);
    let high = b.high().await.get();
    b.expect(renew(&k, a, 1, high), Reply::Done, "an extension moves its owner").await;
    has(&b, &k, &[(1, a)]).await;
    b.check(permits(&b, &k).await[0].fence == high, "the fence is at least the token", &high);
    let gone = b.lock();
    b.expect(renew(&gone, a, 1, 1), Reply::Done, "a permit that is absent is put back").await;
    has(&b, &gone, &[(1, a)]).await;
}

async fn rule_4_an_extension_leaves_a_slot_to_its_owner(b: Bench) {
    let (k, a, c) = full(&b).await;
    let t = b.high().await.get();
    b.expect(renew(&k, b.owner(), 0, t), Reply::NotOwner, "another owner keeps its slot").await;
    has(&b, &k, &[(0, a), (1, c)]).await;
    // Each of two owners has the slot that the other owner asks for. A refused extension frees the
    // slots of its owner, so in the end each has the slot that it asked for.
    b.expect(renew(&k, a, 1, t), Reply::NotOwner, "another owner keeps its slot").await;
    has(&b, &k, &[(1, c)]).await;
    b.expect(renew(&k, c, 0, t), Reply::Done, "the other one gets its own").await;
    b.expect(renew(&k, a, 1, t), Reply::Done, "and leaves that of the first").await;
    has(&b, &k, &[(0, c), (1, a)]).await;
}

async fn rule_5_a_release_frees_the_owners_slot_only(b: Bench) {
    let (k, a, c) = full(&b).await;
    b.expect(leave(&k, b.owner()), Reply::Absent, "who has nothing frees nothing").await;
    let named = on_slots(release(&k, b.owner()), TWO.exactly(1));
    b.expect(named, Reply::NotOwner, "another owner has the slot that is named").await;
    b.expect(leave(&k, a), Reply::Done, "the owner releases").await;
    b.expect(leave(&k, a), Reply::Absent, "once").await;
    has(&b, &k, &[(1, c)]).await;
    given(&b, ask(&k, b.owner()), 0).await;
}

/// The clients that wait, in the order of their requests. The second one has waited longest.
const WAITERS: [(u64, Duration); 3] =
    [(2, Duration::from_secs(20)), (1, Duration::from_secs(30)), (3, Duration::from_secs(10))];

/// Makes a full semaphore for which [`WAITERS`] wait.
async fn awaited(b: &Bench) -> (LockKeys, OwnerToken, OwnerToken) {
    let (k, a, c) = full(b).await;
    for waiter in WAITERS {
        let held = b.ask(wait(&k, b.owner(), waiter)).await;
        b.check(is_held(&held), "a full semaphore gives no permit", &held);
    }
    (k, a, c)
}

async fn rule_5_each_release_wakes_one_waiter(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut woken = Vec::new();
    for _ in 0..TRIES {
        let (k, a, c) = awaited(&b).await;
        woken.clear();
        for owner in [a, c] {
            b.expect(leave(&k, owner), Reply::Done, "the owner releases").await;
            while let Ok(Some(hint)) =
                tokio::time::timeout(HUSH, next_hint(&mut events, k.lock())).await
            {
                woken.extend(hint);
            }
        }
        if woken == [1, 2] {
            return;
        }
    }
    b.broken("the longest waiter is woken, then the next", &woken);
}

async fn rule_5_a_released_slot_is_reserved_for_the_waiter(b: Bench) {
    let mut events = b.events();
    // A slot is not reserved for a client (`Redlock` handle) that receives no wake-up message.
    listening(&b, &mut events).await;
    let (k, a, c) = awaited(&b).await;
    let [_, first, third] = WAITERS;
    let ops = vec![
        leave(&k, c),
        inspect(&k),
        ask(&k, b.owner()),
        wait(&k, b.owner(), third),
        wait(&k, b.owner(), first),
        ask(&k, b.owner()),
    ];
    let got = b.all(ops).await;
    let alone = matches!(&got[1], Reply::Permits(all) if all.len() == 1 && all[0].owner == a);
    b.check(alone, "what is reserved has no holder yet", &got);
    let refused = [&got[2], &got[3], &got[5]].into_iter().all(is_held);
    b.check(refused, "all others are refused", &got);
    b.check(slot(&got[4]) == Some(1), "the waiter gets the slot that was released", &got);
    if let Reply::Held { remaining: Some(rest), .. } = &got[2] {
        b.check(*rest <= RESERVED, "a reservation is short", rest);
    }
    // A reservation (a slot that is kept free for a waiter) ends if the waiter does not use it.
    let (k, _, c) = awaited(&b).await;
    b.expect(leave(&k, c), Reply::Done, "the owner releases").await;
    b.until("a reservation ends", ask(&k, b.owner()), |reply| slot(reply) == Some(1)).await;
}

async fn rule_5_what_is_given_back_goes_to_the_next_waiter(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let (k, _, c) = awaited(&b).await;
    let [second, first, _] = WAITERS;
    let ops = vec![
        leave(&k, c),
        leave(&k, OwnerToken::reserved_for(first.0)),
        ask(&k, b.owner()),
        wait(&k, b.owner(), second),
    ];
    let got = b.all(ops).await;
    b.check(got[1] == Reply::Done, "a waiter gives its turn back", &got);
    b.check(is_held(&got[2]), "it is reserved for the next", &got);
    b.check(slot(&got[3]) == Some(1), "… who gets the slot", &got);
}

async fn rule_5_a_release_wakes_who_watches(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    for _ in 0..TRIES {
        let (k, a, _) = full(&b).await;
        let held = b.ask(on_slots(acquire_watching(&k, b.owner()), TWO)).await;
        b.check(is_held(&held), "a full semaphore gives no permit", &held);
        b.expect(leave(&k, a), Reply::Done, "the owner releases").await;
        if next_hint(&mut events, k.lock()).await == Some(None) {
            return;
        }
    }
    b.broken("who watches is woken", &"no hint");
}

async fn rule_6_callers_may_know_different_numbers_of_slots(b: Bench) {
    let (k, a, c) = full(&b).await;
    let four = Slots::any(4);
    let (d, e) = b.owners();
    given(&b, on_slots(acquire(&k, d, LONG), four), 2).await;
    given(&b, on_slots(acquire(&k, e, LONG), four), 3).await;
    has(&b, &k, &[(0, a), (1, c), (2, d), (3, e)]).await;
    b.expect(leave(&k, d), Reply::Done, "who knows fewer slots releases any").await;
    let held = b.ask(ask(&k, b.owner())).await;
    b.check(is_held(&held), "who knows fewer slots gets none above them", &held);
    b.expect(leave(&k, a), Reply::Done, "the owner releases").await;
    let f = b.owner();
    given(&b, ask(&k, f), 0).await;
    has(&b, &k, &[(0, f), (1, c), (3, e)]).await;
    let most = Slots::any(Slots::MAX);
    let last = on_slots(acquire(&k, b.owner(), LONG), most.exactly(Slots::MAX - 1));
    given(&b, last, Slots::MAX - 1).await;
    let seen = permits(&b, &k).await;
    b.check(seen.len() == 4, "a semaphore grows", &seen);
}

async fn rule_9_a_node_in_quarantine_gives_no_slot(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = given(&b, ask(&k, a), 0).await;
    after(&b, b.hooks.restart_empty.as_ref()).await;
    let raised = on_slots(raise(&k, a, t), TWO.exactly(0));
    let ops = vec![ask(&k, b.owner()), move_to(&k, a, 1), renew(&k, a, 0, t), raised];
    let said = b.all(ops).await;
    let silent = said.iter().all(|reply| matches!(reply, Reply::Quarantined { .. }));
    b.check(silent, "a node that forgot gives and extends nothing", &said);
    b.expect(leave(&k, a), Reply::Absent, "releases go on").await;
    b.settle().await;
    let given = b.until("it gives after the quarantine", ask(&k, a), |r| slot(r).is_some()).await;
    let higher = matches!(given, Reply::Permit { fence, .. } if fence > t);
    b.check(higher, "with a token above those that it forgot", &given);
}

async fn rule_9_a_holder_names_the_quarantine(b: Bench) {
    let (k, gone, (a, c)) = (b.lock(), b.lock(), b.owners());
    let t = given(&b, ask(&k, a), 0).await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let Reply::Quarantined { id, .. } = b.ask(renew(&k, a, 0, t)).await else { return };
    let named = |keys: &LockKeys, owner, slot, id: QuarantineId| {
        on_slots(reassert(keys, owner, LONG, t, Some(id)), TWO.exactly(slot))
    };
    let other = QuarantineId { since: id.since + 1, ..id };
    let said = b.ask(named(&k, a, 0, other)).await;
    let silent = matches!(said, Reply::Quarantined { .. });
    b.check(silent, "the name of another quarantine does not count", &said);
    b.expect(named(&k, a, 0, id), Reply::Done, "a holder that names it is extended").await;
    b.expect(named(&gone, a, 0, id), Reply::Done, "or put back").await;
    b.expect(named(&gone, c, 0, id), Reply::NotOwner, "but not over another").await;
    b.expect(named(&gone, c, 1, id), Reply::Done, "beside another").await;
    has(&b, &gone, &[(0, a), (1, c)]).await;
}

async fn rule_9_a_slot_that_may_still_be_held_is_kept(b: Bench) {
    let b = slowly(b).await;
    let (k, a, c) = (b.lock(), b.owner(), b.owner());
    let begun = Instant::now();
    // The grant must be over when the new server takes over. This imitates a new server whose clock
    // is ahead, so that the grant ends too early.
    let brief = on_slots(acquire(&k, a, Duration::from_millis(10)), TWO.exactly(0));
    given(&b, brief, 0).await;
    let released = b.owner();
    given(&b, move_to(&k, released, 1), 1).await;
    b.expect(leave(&k, released), Reply::Done, "the owner releases").await;
    sleep(Duration::from_millis(20)).await;
    handed_over(&b).await;
    let apart = 2 * b.terms.clock_error;
    let kept = b.ask(move_to(&k, c, 0)).await;
    // On a slow machine, the planned handover may take so long that the node no longer keeps the
    // slot for its old holder.
    if slot(&kept).is_some() && begun.elapsed() >= apart {
        return;
    }
    b.check(is_held(&kept), "a slot that was held lately is kept", &kept);
    given(&b, ask(&k, c), 1).await;
    let t = b.high().await.get();
    b.expect(renew(&k, a, 0, t), Reply::Done, "its holder puts itself back").await;
    has(&b, &k, &[(0, a), (1, c)]).await;
}
