//! Test cases for steps in the record of an idempotency key.

use std::sync::Arc;

use palisade::FencingToken;
use palisade::node::spi::{ClaimEnd, Op, OwnerToken, RecordKey, Reply, StoredSteps};

use super::bench::{Bench, LONG, SHORT};
use super::claims::{state, take_over};
use super::ops::{
    claim, claim_print, complete, end_claim, raise_claim, steps, steps_print, unclaim,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: steps_are_shown_to_the_next_claim,
        Nothing: late_steps_below_the_promise_are_refused,
        Nothing: steps_of_an_equal_ballot_of_another_owner_are_refused,
        Nothing: repeated_steps_take_nothing_back,
        Nothing: steps_of_a_higher_ballot_replace_the_others,
        Nothing: a_result_ends_the_steps,
        Nothing: a_record_with_steps_is_never_as_new,
        Nothing: steps_of_another_request_are_a_mismatch,
        Nothing: steps_are_no_claim_that_can_be_given_back,
    ]
}

async fn shown(b: &Bench, key: &RecordKey, owner: OwnerToken) -> Option<StoredSteps> {
    let op = claim(key, owner, LONG);
    match b.until("a claim is granted", op, |r| matches!(r, Reply::Claimed { .. })).await {
        Reply::Claimed { steps, record: None, .. } => steps,
        other => b.broken("a record with steps has no result", &other),
    }
}

fn stored(token: u64, list: &[u8]) -> StoredSteps {
    StoredSteps { token: FencingToken::new(token), list: Arc::from(list) }
}

async fn lapse(b: &Bench, key: &RecordKey, owner: OwnerToken) {
    let end = end_claim(key, owner, ClaimEnd::Lapsed);
    b.expect(end, Reply::Done, "the owner ends its claim").await;
}

async fn steps_are_shown_to_the_next_claim(b: Bench) {
    let every: Vec<u8> = (0..=255).collect();
    for list in [&b""[..], b"one", &every] {
        let (r, (a, c)) = (b.key(), b.owners());
        let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
        b.expect(steps(&r, a, t, list), Reply::Done, "the owner stores steps").await;
        let s = state(&b, &r).await;
        let runs = s.record.is_none() && s.lease.is_some() && s.attempt == 1;
        b.check(runs, "steps are no result, and end no lease", &s);
        lapse(&b, &r, a).await;
        let got = shown(&b, &r, c).await;
        b.check(got == Some(stored(t, list)), "the next claim is shown the steps", &got);
    }
}

async fn late_steps_below_the_promise_are_refused(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let old = b.granted(claim(&r, a, SHORT), "an unused key is claimed").await;
    let (t, _) = take_over(&b, &r, c).await;
    b.expect(steps(&r, a, old, b"late"), Reply::NotOwner, "a lower ballot is refused").await;
    b.expect(steps(&r, c, t, b"new"), Reply::Done, "the last claimant stores steps").await;
    b.expect(steps(&r, a, old, b"late, longer"), Reply::NotOwner, "and again").await;
    lapse(&b, &r, c).await;
    let got = shown(&b, &r, a).await;
    b.check(got == Some(stored(t, b"new")), "a refusal stores nothing", &got);
}

async fn steps_of_an_equal_ballot_of_another_owner_are_refused(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(steps(&r, c, t, b"other"), Reply::NotOwner, "the owner is part of the ballot").await;
    lapse(&b, &r, a).await;
    b.expect(steps(&r, a, t, b"late"), Reply::NotOwner, "an ended claim stores nothing").await;
    let got = shown(&b, &r, c).await;
    b.check(got.is_none(), "a refusal stores nothing", &got);
}

async fn repeated_steps_take_nothing_back(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    for list in [&b"one"[..], b"one two", b"one", b"one two"] {
        b.expect(steps(&r, a, t, list), Reply::Done, "a repeat is done").await;
    }
    lapse(&b, &r, a).await;
    let got = shown(&b, &r, c).await;
    b.check(got == Some(stored(t, b"one two")), "the longest list of a ballot stays", &got);
}

async fn steps_of_a_higher_ballot_replace_the_others(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(steps(&r, a, t, b"a long list"), Reply::Done, "the owner stores steps").await;
    let higher = t + 7;
    b.expect(steps(&r, c, higher, b"short"), Reply::Done, "a higher ballot is accepted").await;
    b.expect(steps(&r, a, t, b"a longer list"), Reply::NotOwner, "the lower one is over").await;
    let raise = raise_claim(&r, a, higher);
    b.expect(raise, Reply::NotOwner, "the lower one's promise is over").await;
    lapse(&b, &r, c).await;
    let got = shown(&b, &r, a).await;
    b.check(got == Some(stored(higher, b"short")), "the higher ballot's list counts", &got);
}

async fn a_result_ends_the_steps(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(steps(&r, a, t, b"one"), Reply::Done, "the owner stores steps").await;
    b.expect(complete(&r, a, t, b"ok"), Reply::Done, "the owner completes").await;
    b.expect(steps(&r, a, t, b"one two"), Reply::NotOwner, "behind a result nothing comes").await;
    match b.ask(claim(&r, c, LONG)).await {
        Reply::Completed(record) => {
            let ok = record.value.as_deref() == Some(b"ok") && record.token.get() == t;
            b.check(ok, "the result is the owner's", &record);
        }
        other => b.broken("a claim of what is completed is answered", &other),
    }
}

async fn a_record_with_steps_is_never_as_new(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let print = [7; 32];
    let t = b.granted(claim_print(&r, a, LONG, print), "an unused key is claimed").await;
    b.expect(steps(&r, a, t, b"one"), Reply::Done, "the owner stores steps").await;
    let undone = end_claim(&r, a, ClaimEnd::Undone);
    b.expect(undone, Reply::Done, "the owner gives its claim back").await;
    let other = claim_print(&r, c, LONG, [8; 32]);
    b.expect(other, Reply::Mismatch, "the fingerprint stays with the steps").await;
    match b.ask(claim_print(&r, c, LONG, print)).await {
        Reply::Claimed { attempt: 1, steps, .. } => {
            b.check(steps == Some(stored(t, b"one")), "the steps stay", &steps);
        }
        other => b.broken("what was given back does not count", &other),
    }
}

async fn steps_of_another_request_are_a_mismatch(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim_print(&r, a, LONG, [7; 32]), "an unused key is claimed").await;
    let op: Op = steps_print(&r, a, t, b"one", [8; 32]);
    b.expect(op, Reply::Mismatch, "another fingerprint is a mismatch").await;
    b.expect(steps_print(&r, a, t, b"one", [7; 32]), Reply::Done, "its own is not").await;
}

async fn steps_are_no_claim_that_can_be_given_back(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let ballot = b.granted(claim(&b.key(), a, LONG), "an unused key is claimed").await;
    // A majority of other nodes may have granted the claim, without a request to this node.
    let stored = steps(&r, a, ballot, b"one");
    b.expect(stored, Reply::Done, "a node that missed the claim stores its steps").await;
    b.expect(unclaim(&r, a), Reply::NotOwner, "there is no claim to give back").await;
    let s = state(&b, &r).await;
    b.check(s.attempt == 1, "an attempt with steps stays one", &s);
}
