//! Nodes that break one rule about records or results. The suite has to find each of them.

use super::*;

#[tokio::test]
async fn wrong_rules_about_steps_are_caught() {
    caught(
        "stores steps under any ballot",
        |op| {
            if let Op::Steps { token, .. } = op {
                *token = palisade::FencingToken::new(token.get() + (1 << 20));
            }
        },
        truly,
        "late_steps_below_the_promise_are_refused",
    )
    .await;
    caught(
        "forgets steps",
        as_is,
        |_, reply| {
            if let Reply::Claimed { steps, .. } = reply {
                *steps = None;
            }
        },
        "steps_are_shown_to_the_next_claim",
    )
    .await;
}

#[tokio::test]
async fn wrong_rules_about_records_are_caught() {
    caught(
        "compares ballots by their number alone",
        |op| {
            if let Op::Complete { token, .. } = op {
                *token = palisade::FencingToken::new(token.get() + 1);
            }
        },
        truly,
        "an_equal_ballot_of_another_owner_is_refused",
    )
    .await;
    caught(
        "takes `force` for a licence to take over",
        as_is,
        |op, reply| {
            if let (Op::Claim(c), Reply::InFlight { .. }) = (op, &*reply)
                && c.force
            {
                let unsure = Duration::ZERO;
                let (record, steps, losses) = (None, None, Vec::new());
                let (fence, attempt, fresh) = (9, 2, false);
                *reply = Reply::Claimed { fence, attempt, record, steps, unsure, losses, fresh };
            }
        },
        "a_running_lease_keeps_others_off",
    )
    .await;
    caught(
        "does not compare fingerprints",
        |op| {
            if let Op::Claim(c) = op {
                c.fingerprint = None;
            }
        },
        truly,
        "another_fingerprint_is_a_mismatch",
    )
    .await;
    caught(
        "hides the record from a repair",
        as_is,
        |_, reply| {
            if let Reply::Claimed { record, .. } = reply {
                *record = None;
            }
        },
        "force_is_granted_on_top_of_a_result",
    )
    .await;
    caught(
        "cuts values at a zero byte",
        as_is,
        |_, reply| {
            if let Reply::Completed(StoredRecord { value, .. }) = reply {
                let cut = value.as_deref().map(|v| v.split(|b| *b == 0).next().unwrap().into());
                *value = cut;
            }
        },
        "values_keep_every_byte",
    )
    .await;
}

#[tokio::test]
async fn wrong_ends_of_claims_are_caught() {
    caught(
        "takes every end for an attempt that did nothing",
        |op| {
            if let Op::Unclaim { end, .. } = op {
                *end = ClaimEnd::Undone;
            }
        },
        truly,
        "a_claim_can_lapse_before_its_time",
    )
    .await;
    caught(
        "forgets the fingerprint of what may be repeated",
        |op| {
            if let Op::Unclaim { end: end @ ClaimEnd::Repeatable, .. } = op {
                *end = ClaimEnd::Undone;
            }
        },
        truly,
        "what_may_be_repeated_leaves_its_fingerprint",
    )
    .await;
    caught(
        "leaves the lease of an ended claim as it is",
        |op| {
            if let Op::Unclaim { key, end: ClaimEnd::Lapsed, .. } = op {
                let (key, retention) = (key.clone(), Duration::from_secs(1));
                *op = Op::Lookup {
                    key,
                    retention,
                    fingerprint: None,
                    born: None,
                    accepted: Duration::ZERO,
                };
            }
        },
        |op, reply| {
            if matches!(op, Op::Unclaim { .. }) {
                *reply = Reply::Done;
            }
        },
        "a_claim_can_lapse_before_its_time",
    )
    .await;
}

#[tokio::test]
async fn wrong_rules_about_memory_are_caught() {
    caught(
        "says of a key that it forgot that it was never there",
        as_is,
        |_, reply| {
            if let Reply::Record { unsure, .. } = reply {
                *unsure = Duration::ZERO;
            }
        },
        "an_emptied_node_does_not_claim_to_remember",
    )
    .await;
    caught(
        "says that it forgot, and not by which loss",
        as_is,
        |_, reply| {
            if let Reply::Claimed { losses, .. } = reply {
                losses.clear();
            }
        },
        "an_emptied_node_does_not_claim_to_remember",
    )
    .await;
    caught(
        "claims to remember after a loss",
        as_is,
        |_, reply| {
            if let Reply::Claimed { unsure, .. } = reply {
                *unsure = Duration::ZERO;
            }
        },
        "an_emptied_node_does_not_claim_to_remember",
    )
    .await;
}

/// A node may defer an op that returns a result. It must not defer all such ops of a batch, and
/// must not defer an op that it has executed.
#[tokio::test]
async fn wrong_ways_to_put_off_are_caught() {
    caught(
        "puts every result off",
        as_is,
        |_, reply| {
            if matches!(reply, Reply::Completed(_) | Reply::Record { state: Some(_), .. }) {
                *reply = Reply::Deferred;
            }
        },
        "many_large_results_are_shown_or_put_off",
    )
    .await;
    caught(
        "puts off what shows no result",
        as_is,
        |op, reply| {
            if let (Op::Lookup { .. }, Reply::Record { state: None, .. }) = (op, &*reply) {
                *reply = Reply::Deferred;
            }
        },
        "many_large_results_are_shown_or_put_off",
    )
    .await;
    caught(
        "puts off what it has executed",
        as_is,
        |_, reply| {
            let odd = |record: &StoredRecord| record.value.as_ref().is_some_and(|v| v[0] % 2 == 1);
            if matches!(reply, Reply::Claimed { record: Some(record), .. } if odd(record)) {
                *reply = Reply::Deferred;
            }
        },
        "what_is_put_off_was_not_executed",
    )
    .await;
}
