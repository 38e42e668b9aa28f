//! Test cases for claims: claim, raise, extend and unclaim.

use palisade::error::NodeFault;
use palisade::node::spi::{
    ClaimEnd, Enlist, LockKeys, Op, OwnerToken, RecordKey, RecordState, Reply,
};

use super::bench::{Bench, LONG, SHORT, TOKEN_MAX};
use super::ops::{
    acquire, claim, claim_force, claim_print, complete, complete_with, end_claim, extend_claim,
    extend_claim_print, lookup, lookup_print, raise_claim, steps, unclaim,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_new_key_is_claimed,
        Nothing: a_repeated_claim_gets_the_same_answer,
        Nothing: a_running_lease_keeps_others_off,
        Nothing: a_lapsed_claim_stays_visible,
        Nothing: another_fingerprint_is_a_mismatch,
        Nothing: the_first_fingerprint_counts,
        Nothing: extensions_and_results_carry_the_fingerprint,
        Nothing: raise_claim_sets_the_promise_and_repeats,
        Nothing: raise_claim_needs_the_last_owner_and_a_promise_not_above,
        Nothing: extend_claim_prolongs_the_lease,
        Nothing: extend_claim_goes_by_the_ballot,
        Nothing: extend_claim_makes_an_absent_claim,
        Nothing: unclaim_leaves_no_trace_but_the_order,
        Nothing: unclaim_is_for_the_last_owner_only,
        Nothing: unclaim_takes_back_one_attempt,
        Nothing: what_is_extended_after_an_unclaim_is_an_attempt,
        Nothing: what_may_be_repeated_leaves_its_fingerprint,
        Nothing: a_claim_can_lapse_before_its_time,
        Nothing: ballots_are_exact_up_to_the_largest,
        Foreign: another_programs_value_is_no_record_and_stays,
    ]
}

pub(super) async fn state(b: &Bench, key: &RecordKey) -> RecordState {
    match b.ask(lookup(key)).await {
        Reply::Record { state: Some(state), .. } => state,
        other => b.broken("the key has a state", &other),
    }
}

pub(super) async fn absent(b: &Bench, key: &RecordKey, rule: &str) {
    let got = b.ask(lookup(key)).await;
    b.check(matches!(got, Reply::Record { state: None, .. }), rule, &got);
}

/// As soon as the present lease has ended. Returns the fencing token and the number of the attempt.
pub(super) async fn take_over(b: &Bench, key: &RecordKey, next: OwnerToken) -> (u64, u32) {
    let op = claim(key, next, LONG);
    match b
        .until("a lapsed lease lets others claim", op, |r| matches!(r, Reply::Claimed { .. }))
        .await
    {
        Reply::Claimed { fence, attempt, .. } => (fence, attempt),
        other => b.broken("claimed", &other),
    }
}

async fn another_programs_value_is_no_record_and_stays(b: Bench) {
    let Some(put) = b.hooks.put_foreign.clone() else { return };
    for ttl in [None, Some(2 * LONG)] {
        let (r, a, t) = (b.key(), b.owner(), b.low().await);
        put(r.to_string(), ttl).await;
        for op in [
            claim(&r, a, SHORT),
            claim_force(&r, a, SHORT),
            extend_claim(&r, a, t, SHORT),
            steps(&r, a, t, b"[]"),
            complete(&r, a, t, b"out"),
            raise_claim(&r, a, t),
            unclaim(&r, a),
            lookup(&r),
            Op::Enlist(Enlist { key: r.clone(), owner: a, ttl: SHORT, entry: None, news: false }),
        ] {
            match b.send(vec![op.clone()]).await.items.remove(0) {
                Err(e) if e.fault() == NodeFault::ForeignKey && !e.is_ambiguous() => {
                    b.check(e.to_string().contains(&*r), "the error names the key", &e);
                }
                other => b.broken("another program's value is no record", &(op, other)),
            }
        }
        // A lock of this name shows whether the value is there, and when it expires.
        match b.ask(acquire(&LockKeys::new(&r), a, SHORT)).await {
            Reply::Held { foreign: true, remaining } => {
                let is_kept = remaining.is_none() == ttl.is_none()
                    && remaining.is_none_or(|rest| rest > LONG);
                b.check(is_kept, "its expiry stays", &remaining);
            }
            other => b.broken("the value of another program stays", &other),
        }
    }
}

async fn a_new_key_is_claimed(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    absent(&b, &r, "an unused key has no state").await;
    match b.ask(claim(&r, a, LONG)).await {
        Reply::Claimed { fence, attempt: 1, record: None, .. } => {
            b.check(fence > 0 && fence <= TOKEN_MAX, "a ballot lies within 2^53", &fence);
            let s = state(&b, &r).await;
            let lease = s.lease.is_some_and(|l| !l.is_zero() && l <= LONG);
            let good = s.fence == fence && s.attempt == 1 && lease && s.record.is_none();
            b.check(good, "a lookup reports the claim", &s);
        }
        other => b.broken("an unused key is claimed as attempt 1 without a record", &other),
    }
}

async fn a_repeated_claim_gets_the_same_answer(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let claimed = |reply: Reply| match reply {
        Reply::Claimed { fence, attempt, record, .. } => (fence, attempt, record),
        other => b.broken("an unused key is claimed, by a repeat too", &other),
    };
    let first = claimed(b.ask(claim(&r, a, LONG)).await);
    let again = claimed(b.ask(claim(&r, a, LONG)).await);
    b.check(first == again, "a repeated claim hears the same", &(first.clone(), again.clone()));
}

async fn a_running_lease_keeps_others_off(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    for op in [claim(&r, c, LONG), claim_force(&r, c, LONG)] {
        match b.ask(op).await {
            Reply::InFlight { remaining } => {
                b.check(remaining <= LONG, "InFlight reports the rest of the lease", &remaining);
            }
            other => b.broken("a running lease keeps others off, with `force` too", &other),
        }
    }
    b.check(state(&b, &r).await.attempt == 1, "a refused claim does not count", &"attempt");
}

async fn a_lapsed_claim_stays_visible(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let first = b.granted(claim(&r, a, SHORT), "an unused key is claimed").await;
    let (fence, attempt) = take_over(&b, &r, c).await;
    b.check(attempt == 2, "the attempt after a lapsed one is the second", &attempt);
    b.check(fence > first, "each claim's ballot is above all before", &(first, fence));
}

async fn another_fingerprint_is_a_mismatch(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim_print(&r, a, LONG, [1; 32]), "an unused key is claimed").await;
    let other = claim_print(&r, c, LONG, [2; 32]);
    b.expect(other.clone(), Reply::Mismatch, "another fingerprint is a mismatch").await;
    for op in [claim_print(&r, c, LONG, [1; 32]), claim(&r, c, LONG)] {
        let got = b.ask(op).await;
        let good = matches!(got, Reply::InFlight { .. });
        b.check(good, "the same fingerprint or none is no mismatch", &got);
    }
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    b.expect(other, Reply::Mismatch, "another fingerprint never hears the result").await;
    let look = lookup_print(&r, [2; 32]);
    b.expect(look, Reply::Mismatch, "nor does it see the result").await;
    let got = b.ask(lookup_print(&r, [1; 32])).await;
    let seen = matches!(got, Reply::Record { state: Some(_), .. });
    b.check(seen, "the same fingerprint sees the result", &got);
    let got = b.ask(claim_print(&r, c, LONG, [1; 32])).await;
    b.check(matches!(got, Reply::Completed(_)), "the same fingerprint hears the result", &got);
}

async fn the_first_fingerprint_counts(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    b.granted(claim(&r, a, SHORT), "an unused key is claimed").await;
    let op = claim_print(&r, c, SHORT, [0xff; 32]);
    b.until("a lapsed lease lets others claim", op, |r| matches!(r, Reply::Claimed { .. })).await;
    let op = claim_print(&r, b.owner(), LONG, [0; 32]);
    b.expect(op, Reply::Mismatch, "the first fingerprint given is kept").await;
}

async fn extensions_and_results_carry_the_fingerprint(b: Bench) {
    let (mine, other) = ([1; 32], [2; 32]);
    // As if the node had missed the claim.
    let t = b.high().await.get();
    let (r, (a, c)) = (b.key(), b.owners());
    let extended = extend_claim_print(&r, a, t, mine);
    b.expect(extended, Reply::Done, "an absent claim is made").await;
    b.expect(claim_print(&r, c, LONG, other), Reply::Mismatch, "an extension's is kept").await;
    let wrong = extend_claim_print(&r, a, t, other);
    b.expect(wrong, Reply::Mismatch, "another request's claim is not extended").await;
    let wrong = complete_with(&r, a, t, Some(b"v"), Some(other));
    b.expect(wrong, Reply::Mismatch, "nor completed").await;
    let (r, (a, c)) = (b.key(), b.owners());
    let done = complete_with(&r, a, t, Some(b"v"), Some(mine));
    b.expect(done, Reply::Done, "a result is stored without a claim").await;
    b.expect(claim_print(&r, c, LONG, other), Reply::Mismatch, "a result's is kept").await;
    let wrong = complete_with(&r, c, t + 1, Some(b"w"), Some(other));
    b.expect(wrong, Reply::Mismatch, "another request's result is not replaced").await;
}

async fn raise_claim_sets_the_promise_and_repeats(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let t = b.high().await.get();
    for _ in 0..2 {
        b.expect(raise_claim(&r, a, t), Reply::Done, "the last owner raises, twice too").await;
    }
    b.check(state(&b, &r).await.fence == t, "raise sets the promise", &t);
}

async fn raise_claim_needs_the_last_owner_and_a_promise_not_above(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.high().await.get();
    b.expect(raise_claim(&r, a, t), Reply::NotOwner, "a key without an owner is not raised").await;
    absent(&b, &r, "raise makes no state").await;
    let fence = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(raise_claim(&r, c, t), Reply::NotOwner, "another owner does not raise").await;
    let low = raise_claim(&r, a, fence - 1);
    b.expect(low, Reply::NotOwner, "a ballot below the promise is refused").await;
    b.check(state(&b, &r).await.fence == fence, "a refusal changes nothing", &fence);
}

async fn extend_claim_prolongs_the_lease(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG / 4), "an unused key is claimed").await;
    for _ in 0..2 {
        b.expect(extend_claim(&r, a, t, LONG), Reply::Done, "the claimant extends").await;
    }
    let s = state(&b, &r).await;
    b.check(s.lease > Some(LONG / 4), "an extended lease lasts longer", &s);
    b.check(s.attempt == 1 && s.fence == t, "an extension is no attempt", &s);
    b.expect(extend_claim(&r, a, t, SHORT), Reply::Done, "the claimant extends").await;
    let (_, attempt) = take_over(&b, &r, c).await;
    b.check(attempt == 2, "an extended lease lapses", &attempt);
}

async fn extend_claim_goes_by_the_ballot(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let low = extend_claim(&r, a, t - 1, LONG);
    b.expect(low, Reply::NotOwner, "a ballot below the promise is refused").await;
    let equal = extend_claim(&r, c, t, LONG);
    b.expect(equal, Reply::NotOwner, "an equal number of another owner is refused").await;
    let above = extend_claim(&r, c, t + 1, LONG);
    b.expect(above, Reply::Done, "a ballot above the promise is taken").await;
    let old = extend_claim(&r, a, t, LONG);
    b.expect(old, Reply::NotOwner, "the promise moved to the higher ballot").await;
    b.expect(complete(&r, c, t + 1, b"v"), Reply::Done, "the higher ballot completes").await;
    match b.ask(extend_claim(&r, c, t + 1, LONG)).await {
        Reply::Completed(s) if s.value.as_deref() == Some(b"v") && s.token.get() == t + 1 => (),
        other => b.broken("extending what is completed answers the record", &other),
    }
}

async fn extend_claim_makes_an_absent_claim(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.high().await.get();
    b.expect(extend_claim(&r, a, t, LONG), Reply::Done, "an absent claim is made").await;
    let s = state(&b, &r).await;
    b.check(s.fence == t && s.attempt >= 1 && s.lease.is_some(), "a claim was made", &s);
    let got = b.ask(claim(&r, c, LONG)).await;
    b.check(matches!(got, Reply::InFlight { .. }), "a claim made so keeps others off", &got);
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "its owner completes").await;
}

async fn unclaim_leaves_no_trace_but_the_order(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim_print(&r, a, LONG, [1; 32]), "an unused key is claimed").await;
    b.expect(unclaim(&r, a), Reply::Done, "the claimant gives back").await;
    let equal = complete(&r, a, t, b"v");
    b.expect(equal, Reply::NotOwner, "who gave back no longer completes").await;
    match b.ask(claim_print(&r, c, LONG, [2; 32])).await {
        Reply::Claimed { fence, attempt: 1, record: None, .. } => {
            b.check(fence > t, "the order of ballots survives", &(t, fence));
        }
        other => b.broken("a key given back is claimed at once, as attempt 1", &other),
    }
}

async fn unclaim_is_for_the_last_owner_only(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    b.expect(unclaim(&r, a), Reply::Absent, "what was never claimed is absent").await;
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(unclaim(&r, c), Reply::NotOwner, "only the claimant gives back").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    b.expect(unclaim(&r, a), Reply::NotOwner, "a result is not given back").await;
    b.check(state(&b, &r).await.record.is_some(), "the result stays", &"no record");
}

async fn unclaim_takes_back_one_attempt(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    b.granted(claim_print(&r, a, SHORT, [1; 32]), "an unused key is claimed").await;
    let (_, attempt) = take_over(&b, &r, c).await;
    b.check(attempt == 2, "a second attempt", &attempt);
    b.expect(unclaim(&r, c), Reply::Done, "the claimant gives back").await;
    let s = state(&b, &r).await;
    b.check(s.attempt == 1 && s.lease.is_none(), "the first attempt stays visible", &s);
    let other = claim_print(&r, b.owner(), LONG, [2; 32]);
    b.expect(other, Reply::Mismatch, "the first attempt's fingerprint stays").await;
}

async fn what_is_extended_after_an_unclaim_is_an_attempt(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, c, LONG), "an unused key is claimed").await;
    b.expect(unclaim(&r, c), Reply::Done, "the claimant gives back").await;
    b.expect(extend_claim(&r, a, t + 1, LONG), Reply::Done, "a higher ballot extends").await;
    let s = state(&b, &r).await;
    b.check(s.attempt == 1, "a claim that runs is an attempt", &s);
}

async fn what_may_be_repeated_leaves_its_fingerprint(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    b.granted(claim_print(&r, a, LONG, [1; 32]), "an unused key is claimed").await;
    let end = end_claim(&r, a, ClaimEnd::Repeatable);
    b.expect(end.clone(), Reply::Done, "the claimant ends its claim").await;
    b.expect(end, Reply::NotOwner, "once").await;
    let other = claim_print(&r, c, LONG, [2; 32]);
    b.expect(other, Reply::Mismatch, "it may have acted, so no other request has the key").await;
    match b.ask(claim_print(&r, c, LONG, [1; 32])).await {
        Reply::Claimed { attempt: 1, .. } => (),
        other => b.broken("an attempt that may be repeated does not count", &other),
    }
}

async fn a_claim_can_lapse_before_its_time(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim_print(&r, a, LONG, [1; 32]), "an unused key is claimed").await;
    let stranger = end_claim(&r, c, ClaimEnd::Lapsed);
    b.expect(stranger, Reply::NotOwner, "only the claimant ends it").await;
    let end = end_claim(&r, a, ClaimEnd::Lapsed);
    b.expect(end.clone(), Reply::Done, "the claimant ends its claim").await;
    b.expect(end, Reply::NotOwner, "once").await;
    let s = state(&b, &r).await;
    b.check(s.attempt == 1 && s.lease.is_none(), "its attempt stays visible, lapsed", &s);
    let late = extend_claim(&r, a, t, LONG);
    b.expect(late, Reply::NotOwner, "what is under way does not prolong it").await;
    let other = claim_print(&r, c, LONG, [2; 32]);
    b.expect(other, Reply::Mismatch, "its fingerprint stays").await;
    match b.ask(claim_print(&r, c, LONG, [1; 32])).await {
        Reply::Claimed { fence, attempt: 2, .. } => {
            b.check(fence > t, "each claim's ballot is above all before", &(t, fence));
        }
        other => b.broken("others claim at once, and see the attempt", &other),
    }
}

async fn ballots_are_exact_up_to_the_largest(b: Bench) {
    for token in [TOKEN_MAX - 1, (1 << 52) + 1] {
        let (r, (a, c)) = (b.key(), b.owners());
        b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
        let far = raise_claim(&r, a, token);
        b.expect(far, Reply::NotOwner, "no raise into the far future").await;
        b.expect(extend_claim(&r, a, token, LONG), Reply::Done, "a large ballot extends").await;
        b.check(state(&b, &r).await.fence == token, "ballots keep every bit", &token);
        let low = complete(&r, c, token - 1, b"low");
        b.expect(low, Reply::NotOwner, "ballots that differ by one are not the same").await;
        b.expect(complete(&r, c, token + 1, b"v"), Reply::Done, "one above is taken").await;
        let s = state(&b, &r).await;
        let exact = s.record.is_some_and(|r| r.token.get() == token + 1);
        b.check(exact, "a record keeps every bit of its ballot", &s.fence);
    }
}
