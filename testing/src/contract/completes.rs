//! Test cases for completion and repair of a record, and for the end of its retention.

use std::sync::Arc;
use std::time::Duration;

use palisade::FencingToken;
use palisade::node::spi::{Ballot, Claim, Op, Reply, StoredRecord};

use super::bench::{Bench, LONG, SHORT};
use super::claims::{state, take_over};
use super::ops::{claim, claim_force, claim_terms, complete, complete_with, lookup, raise_claim};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_result_is_stored_and_replayed,
        Nothing: a_repeated_complete_is_done,
        Nothing: values_keep_every_byte,
        Nothing: a_late_complete_below_the_promise_is_refused,
        Nothing: an_equal_ballot_of_another_owner_is_refused,
        Nothing: a_higher_ballot_completes_without_a_claim,
        Nothing: a_result_ends_the_lease,
        Nothing: force_is_granted_on_top_of_a_result,
        Nothing: raise_claim_answers_the_record,
        Nothing: a_repair_replaces_the_ballot,
        Nothing: a_result_ends_with_its_retention,
        Nothing: a_claim_ends_with_its_retention,
        Nothing: a_shorter_retention_shortens_nothing,
        Nothing: a_promise_outlives_its_late_requests,
        Nothing: a_result_may_be_kept_without_its_value,
    ]
}

fn stored(token: u64, value: &[u8]) -> StoredRecord {
    StoredRecord { token: FencingToken::new(token), value: Some(Arc::from(value)) }
}

async fn a_result_is_stored_and_replayed(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"ok"), Reply::Done, "the claimant completes").await;
    for owner in [a, c] {
        let want = Reply::Completed(stored(t, b"ok"));
        b.expect(claim(&r, owner, LONG), want, "a claim of what is completed is answered").await;
    }
    let s = state(&b, &r).await;
    let good = s.fence == t && s.attempt == 1 && s.record == Some(stored(t, b"ok"));
    b.check(good, "a lookup shows the result; replays are no attempts", &s);
}

async fn a_repeated_complete_is_done(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    for _ in 0..3 {
        b.expect(complete(&r, a, t, b"ok"), Reply::Done, "a repeated complete is done").await;
    }
    let s = state(&b, &r).await;
    b.check(s.record == Some(stored(t, b"ok")), "a repeat changes nothing", &s);
}

async fn values_keep_every_byte(b: Bench) {
    let every: Vec<u8> = (0..=255).collect();
    for value in [&b""[..], b"\0", b"a\r\nb", b"nil", &every] {
        let (r, a) = (b.key(), b.owner());
        let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
        b.expect(complete(&r, a, t, value), Reply::Done, "any bytes are stored").await;
        let want = Reply::Completed(stored(t, value));
        b.expect(claim(&r, a, LONG), want, "a value keeps every byte").await;
    }
}

async fn a_late_complete_below_the_promise_is_refused(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let old = b.granted(claim(&r, a, SHORT), "an unused key is claimed").await;
    let (t, _) = take_over(&b, &r, c).await;
    b.expect(complete(&r, a, old, b"late"), Reply::NotOwner, "a lower ballot is refused").await;
    b.check(state(&b, &r).await.record.is_none(), "a refusal stores nothing", &"record");
    b.expect(complete(&r, c, t, b"new"), Reply::Done, "the last claimant completes").await;
    b.expect(complete(&r, a, old, b"late"), Reply::NotOwner, "a lower ballot is refused").await;
    let s = state(&b, &r).await;
    b.check(s.record == Some(stored(t, b"new")), "a result once stored stays", &s);
}

async fn an_equal_ballot_of_another_owner_is_refused(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let equal = complete(&r, c, t, b"other");
    b.expect(equal.clone(), Reply::NotOwner, "the whole ballot decides, not its number").await;
    b.expect(complete(&r, a, t, b"mine"), Reply::Done, "the claimant completes").await;
    b.expect(equal, Reply::NotOwner, "also when a result is stored").await;
    let s = state(&b, &r).await;
    b.check(s.record == Some(stored(t, b"mine")), "a result once stored stays", &s);
}

async fn a_higher_ballot_completes_without_a_claim(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.high().await.get();
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "a majority's result reaches all").await;
    let s = state(&b, &r).await;
    b.check(s.fence == t && s.attempt >= 1, "a result is a promise", &s);
    b.expect(complete(&r, c, t - 1, b"w"), Reply::NotOwner, "a lower ballot is refused").await;
    b.expect(complete(&r, c, t + 1, b"v"), Reply::Done, "a higher ballot is taken").await;
    let want = Reply::Completed(stored(t + 1, b"v"));
    b.expect(claim(&r, c, LONG), want, "the highest ballot's record is shown").await;
}

async fn a_result_ends_the_lease(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    let s = state(&b, &r).await;
    b.check(s.lease.is_none(), "a result ends the lease", &s);
}

async fn force_is_granted_on_top_of_a_result(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    let first = b.ask(claim_force(&r, c, LONG)).await;
    match &first {
        Reply::Claimed { fence, attempt: 2, record: Some(found), .. } => {
            b.check(*fence > t, "a repair's ballot is above the record's", &(t, fence));
            b.check(*found == stored(t, b"v"), "a repair is shown the record", found);
        }
        other => b.broken("a repair is granted on top of a result", other),
    }
    b.expect(claim_force(&r, c, LONG), first, "a repeated repair hears the same").await;
    let want = Reply::Completed(stored(t, b"v"));
    b.expect(claim(&r, b.owner(), LONG), want, "a repair under way hides no result").await;
    let got = b.ask(claim_force(&r, b.owner(), LONG)).await;
    let granted = matches!(got, Reply::Claimed { record: Some(_), .. });
    b.check(granted, "a repair does not wait for another repair", &got);
}

async fn raise_claim_answers_the_record(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    let high = b.granted(claim_force(&r, c, LONG), "a repair is granted").await + 5;
    let want = Reply::Completed(stored(t, b"v"));
    b.expect(raise_claim(&r, c, high), want, "raise answers the record").await;
    b.check(state(&b, &r).await.fence == high, "raise sets the promise all the same", &high);
    let old = raise_claim(&r, a, high + 1);
    b.expect(old, Reply::NotOwner, "who is not the last owner does not raise").await;
}

async fn a_repair_replaces_the_ballot(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    let t2 = b.granted(claim_force(&r, c, LONG), "a repair is granted").await;
    let late = complete(&r, a, t, b"v");
    b.expect(late, Reply::NotOwner, "a repair's promise shuts out the old ballot").await;
    b.expect(complete(&r, c, t2, b"v"), Reply::Done, "the repair completes").await;
    let want = Reply::Completed(stored(t2, b"v"));
    b.expect(claim(&r, a, LONG), want, "the record carries the repair's ballot").await;
}

fn is_absent(reply: &Reply) -> bool {
    matches!(reply, Reply::Record { state: None, .. })
}

/// With short bounds the node soon removes a record.
fn forgetful(b: Bench) -> Bench {
    b.with_terms(2 * SHORT, Duration::from_millis(20))
}

async fn a_result_ends_with_its_retention(b: Bench) {
    let b = forgetful(b);
    let (r, (a, c)) = (b.key(), b.owners());
    let claimed = Op::Claim(Claim { retention: SHORT, ..claim_terms(&r, a, SHORT, None, false) });
    let t = b.granted(claimed, "an unused key is claimed").await;
    let op = |retention: Duration| {
        let (key, token, value) = (r.clone(), FencingToken::new(t), Some(Arc::from(*b"v")));
        Op::Complete {
            ballot: Ballot { key, owner: a, token, retention, fingerprint: None },
            value,
        }
    };
    b.expect(op(SHORT), Reply::Done, "the claimant completes").await;
    b.until("a result ends with its retention", lookup(&r), is_absent).await;
    match b.ask(claim(&r, c, LONG)).await {
        Reply::Claimed { attempt: 1, record: None, .. } => (),
        other => b.broken("after its retention a key is new", &other),
    }
}

async fn a_shorter_retention_shortens_nothing(b: Bench) {
    let b = forgetful(b);
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, SHORT), "an unused key is claimed").await;
    let op = Op::Complete {
        ballot: Ballot {
            key: r.clone(),
            owner: c,
            token: FencingToken::new(t + 1),
            retention: SHORT,
            fingerprint: None,
        },
        value: Some(Arc::from(*b"v")),
    };
    b.expect(op, Reply::Done, "a higher ballot completes").await;
    // Longer than the node keeps the record.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let s = state(&b, &r).await;
    b.check(s.record.is_some(), "what another keeps for longer is kept for longer", &s);
}

async fn a_promise_outlives_its_late_requests(b: Bench) {
    let b = forgetful(b);
    let (r, a) = (b.key(), b.owner());
    let op = Op::Claim(Claim { retention: SHORT, ..claim_terms(&r, a, SHORT, None, false) });
    b.granted(op, "an unused key is claimed").await;
    // A node keeps the ballot for one second longer, in order to refuse late requests (rule
    // idempotency 9 in docs/design).
    tokio::time::sleep(b.terms.max_ttl + 4 * b.terms.clock_error).await;
    let s = state(&b, &r).await;
    b.check(s.attempt == 1, "a promise is not forgotten with a short retention", &s);
}

async fn a_result_may_be_kept_without_its_value(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let done = complete_with(&r, a, t, None, None);
    b.expect(done, Reply::Done, "the claimant completes").await;
    let want = Reply::Completed(StoredRecord { token: FencingToken::new(t), value: None });
    b.expect(claim(&r, c, LONG), want.clone(), "the fact is kept").await;
    let t2 = b.granted(claim_force(&r, c, LONG), "a repair is granted").await;
    b.expect(complete(&r, c, t2, b""), Reply::Done, "an empty value is a value").await;
    let want = Reply::Completed(stored(t2, b""));
    b.expect(claim(&r, a, LONG), want, "and differs from none").await;
}

async fn a_claim_ends_with_its_retention(b: Bench) {
    let b = forgetful(b);
    let (r, a) = (b.key(), b.owner());
    let terms = claim_terms(&r, a, SHORT / 2, Some([7; 32]), false);
    let op = Op::Claim(Claim { retention: SHORT, ..terms });
    b.granted(op, "an unused key is claimed").await;
    b.until("a claim ends with its retention", lookup(&r), is_absent).await;
}
