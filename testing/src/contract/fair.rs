//! Test cases for callers that wait for a fair lock. Each case has the number of its rule in
//! `docs/design/fair.md`.

use std::time::Duration;

use palisade::node::spi::{IfHeld, LockKeys, Op, OwnerToken, Place, Queued, Reply};

use super::bench::{Bench, LONG};
use super::hints::{TRIES, listening, next_hint};
use super::ops::{RESERVED, acquire, acquire_waiting, release, shared};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_1_a_refused_call_gets_a_ticket_after_all_that_wait,
        Nothing: rule_1_a_granted_call_leaves_no_place,
        Nothing: rule_2_a_place_moves_to_the_settled_ticket,
        Nothing: rule_2_a_ticket_of_the_far_future_does_not_count,
        Nothing: rule_2_equal_tickets_are_told_apart_by_the_handle,
        Nothing: rule_3_no_grant_passes_a_fresh_place,
        Nothing: rule_3_a_place_counts_for_three_seconds,
        Nothing: rule_3_a_repeated_request_has_what_it_has,
        Nothing: rule_4_a_grant_that_is_taken_back_keeps_the_place,
        Nothing: rule_4_only_its_handle_gives_a_place_up,
        Nothing: rule_5_a_waiter_that_is_woken_keeps_its_place,
        Nothing: rule_6_others_pass,
        Nothing: rule_6_readers_that_come_later_do_not_pass,
    ]
}

const A: u64 = 0xa;
const B: u64 = 0xb;

/// Zero `needs`: a released lock is not reserved for this client.
fn fair(k: &LockKeys, owner: OwnerToken, waiter: u64, ticket: Option<u64>) -> Op {
    let place = Place { waiter, waited: Duration::ZERO, needs: Duration::ZERO };
    with_place(k, owner, place, ticket)
}

fn with_place(k: &LockKeys, owner: OwnerToken, place: Place, ticket: Option<u64>) -> Op {
    let mut op = acquire(k, owner, LONG);
    if let Op::Acquire { if_held, .. } = &mut op {
        *if_held = Some(IfHeld::Fair { place, ticket });
    }
    op
}

fn leave(k: &LockKeys, waiter: u64) -> Op {
    release(k, OwnerToken::reserved_for(waiter))
}

impl Bench {
    async fn queued(&self, k: &LockKeys, waiter: u64, ticket: Option<u64>) -> Queued {
        match self.ask(fair(k, self.owner(), waiter, ticket)).await {
            Reply::Queued { queued, foreign: false, .. } => queued,
            other => self.broken("who is refused has a place", &other),
        }
    }

    async fn held(&self) -> (LockKeys, OwnerToken) {
        let (k, a) = (self.lock(), self.owner());
        self.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        (k, a)
    }
}

async fn rule_1_a_refused_call_gets_a_ticket_after_all_that_wait(b: Bench) {
    let before = b.facts().await.node_micros;
    let (k, _) = b.held().await;
    let first = b.queued(&k, A, None).await;
    b.check(first.ticket >= before && first.ahead == 0, "the first is next", &first);
    // Another node, whose clock is ahead, may have given this call a larger ticket.
    let ahead = first.ticket + 1_000_000;
    b.queued(&k, A, Some(ahead)).await;
    let second = b.queued(&k, B, None).await;
    b.check(second.ticket > ahead && second.ahead == 1, "the second comes after it", &second);
    let again = b.queued(&k, A, None).await;
    b.check(again.ticket > second.ticket, "another call of the first comes last", &again);
    b.check(again.ahead == 1, "a handle has one place", &again);
}

async fn rule_1_a_granted_call_leaves_no_place(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(fair(&k, a, A, None), "a free lock is granted").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.granted(fair(&k, b.owner(), B, None), "no other is ahead").await;
}

async fn rule_2_a_place_moves_to_the_settled_ticket(b: Bench) {
    let (k, _) = b.held().await;
    b.queued(&k, A, None).await;
    let second = b.queued(&k, B, None).await;
    let settled = second.ticket + 10;
    let moved = b.queued(&k, A, Some(settled)).await;
    b.check(moved == Queued { ticket: settled, ahead: 1 }, "the place has the ticket", &moved);
    let second = b.queued(&k, B, Some(second.ticket)).await;
    b.check(second.ahead == 0, "the other one is first", &second);
    // As on a node whose reply with the largest ticket came too late for the majority.
    let drawn = b.queued(&k, A, None).await;
    let settled = drawn.ticket - 5;
    let back = b.queued(&k, A, Some(settled)).await;
    b.check(back.ticket == settled, "the place has the ticket of the call", &back);
    let between = b.queued(&k, B, Some(settled + 1)).await;
    b.check(between.ahead == 1, "a larger ticket comes after it", &between);
}

async fn rule_2_a_ticket_of_the_far_future_does_not_count(b: Bench) {
    let (k, _) = b.held().await;
    let now = b.queued(&k, A, None).await.ticket;
    b.queued(&k, A, Some(now + 3_600_000_000)).await;
    let next = b.queued(&k, B, None).await;
    let is_now = next.ahead == 0 && next.ticket < now + 60_000_000;
    b.check(is_now, "no honest clock gives such a ticket", &next);
}

async fn rule_2_equal_tickets_are_told_apart_by_the_handle(b: Bench) {
    let (k, _) = b.held().await;
    let ticket = b.queued(&k, B, None).await.ticket;
    let (first, second) =
        (b.queued(&k, A, Some(ticket)).await, b.queued(&k, B, Some(ticket)).await);
    b.check(first.ahead == 0 && second.ahead == 1, "the smaller number is first", &second);
}

async fn rule_3_no_grant_passes_a_fresh_place(b: Bench) {
    let (k, owner) = b.held().await;
    let first = b.queued(&k, A, None).await;
    let second = b.queued(&k, B, None).await;
    b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
    for ticket in [Some(second.ticket), None] {
        let refused = b.ask(fair(&k, b.owner(), B, ticket)).await;
        let Reply::Queued { remaining: Some(rest), queued, .. } = refused else {
            b.broken("a free lock is not granted past a place", &refused)
        };
        b.check(rest <= Duration::from_secs(3) && !rest.is_zero(), "for 3 s at most", &rest);
        b.check(queued.ahead == 1, "one is ahead", &queued);
    }
    b.granted(fair(&k, b.owner(), A, Some(first.ticket)), "the first is granted").await;
}

async fn rule_3_a_place_counts_for_three_seconds(b: Bench) {
    let (k, owner) = b.held().await;
    b.queued(&k, A, None).await;
    let ticket = b.queued(&k, B, None).await.ticket;
    b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
    let granted = |reply: &Reply| matches!(reply, Reply::Granted { .. });
    let ask = fair(&k, b.owner(), B, Some(ticket));
    b.until("who does not ask any more keeps out no other", ask, granted).await;
}

async fn rule_3_a_repeated_request_has_what_it_has(b: Bench) {
    let (k, owner) = b.held().await;
    let first = b.queued(&k, A, None).await;
    let again = fair(&k, owner, B, Some(first.ticket + 1));
    b.granted(again, "the owner is granted what it has").await;
}

async fn rule_4_a_grant_that_is_taken_back_keeps_the_place(b: Bench) {
    // In the second round the grant itself puts A into the queue, as on a node that granted the
    // first request of a call.
    for asks in [true, false] {
        let (k, owner) = b.held().await;
        let ticket = b.facts().await.node_micros;
        if asks {
            b.queued(&k, A, Some(ticket)).await;
        }
        let other = b.queued(&k, B, Some(ticket + 1)).await;
        let a = b.owner();
        let got = b
            .all(vec![
                release(&k, owner),
                fair(&k, a, A, Some(ticket)),
                release(&k, a),
                fair(&k, b.owner(), B, Some(other.ticket)),
                leave(&k, A),
                fair(&k, b.owner(), B, Some(other.ticket)),
            ])
            .await;
        let granted = |reply: &Reply| matches!(reply, Reply::Granted { .. });
        b.check(granted(&got[1]) && got[2] == Reply::Done, "a grant is taken back", &got);
        b.check(matches!(got[3], Reply::Queued { .. }), "… and the place is kept", &got);
        b.check(granted(&got[5]), "the place goes when its handle gives it up", &got);
    }
}

async fn rule_4_only_its_handle_gives_a_place_up(b: Bench) {
    let (k, owner) = b.held().await;
    b.queued(&k, A, None).await;
    b.ask(leave(&k, B)).await;
    b.ask(release(&k, b.owner())).await;
    let second = b.queued(&k, B, None).await;
    b.check(second.ahead == 1, "the place of another handle stays", &second);
    b.expect(leave(&k, A), Reply::NotOwner, "the lock stays its owner's").await;
    let second = b.queued(&k, B, Some(second.ticket)).await;
    b.check(second.ahead == 0, "a place is given up while the lock is held", &second);
    b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
}

async fn rule_5_a_waiter_that_is_woken_keeps_its_place(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut woken = Vec::new();
    for _ in 0..TRIES {
        let (k, owner) = b.held().await;
        let place = Place { waiter: A, waited: Duration::ZERO, needs: RESERVED };
        let ticket = b.facts().await.node_micros;
        b.ask(with_place(&k, b.owner(), place, Some(ticket))).await;
        let second = Place { waiter: B, ..place };
        b.ask(with_place(&k, b.owner(), second, Some(ticket + 1))).await;
        b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
        woken = vec![next_hint(&mut events, k.lock()).await];
        tokio::time::sleep(2 * RESERVED).await;
        // The lock is free, and no longer reserved.
        let refused = b.ask(with_place(&k, b.owner(), second, Some(ticket + 1))).await;
        let is_behind = matches!(refused, Reply::Queued { queued: Queued { ahead: 1, .. }, .. });
        b.check(is_behind, "who was woken is still ahead", &refused);
        b.ask(leave(&k, A)).await;
        woken.push(next_hint(&mut events, k.lock()).await);
        if woken == [Some(Some(A)), Some(Some(B))] {
            return;
        }
    }
    b.broken("the next is woken when the first gives its place up", &woken);
}

async fn rule_6_others_pass(b: Bench) {
    let (k, owner) = b.held().await;
    b.queued(&k, A, None).await;
    b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
    let a = b.owner();
    b.granted(acquire(&k, a, LONG), "who is not fair is granted a free lock").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    let waits = acquire_waiting(&k, b.owner(), (B, Duration::ZERO));
    b.granted(waits, "who waits otherwise, too").await;
}

async fn rule_6_readers_that_come_later_do_not_pass(b: Bench) {
    let (k, owner) = b.held().await;
    let ticket = b.facts().await.node_micros - 10_000_000;
    b.queued(&k, A, Some(ticket)).await;
    b.expect(release(&k, owner), Reply::Done, "the owner releases").await;
    let later = b.ask(shared(acquire(&k, b.owner(), LONG))).await;
    b.check(matches!(later, Reply::Held { .. }), "a reader that comes later waits", &later);
    let earlier = acquire_waiting(&k, b.owner(), (B, Duration::from_secs(20)));
    b.granted(shared(earlier), "a reader that waited longer is granted").await;
}
