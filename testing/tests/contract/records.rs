//! Nodes that break one rule about records or results: the suite has to find each.

use palisade::node::spi::Ballot;

use super::*;

#[tokio::test]
async fn wrong_rules_about_steps_are_caught() {
    asks!("stores steps under any ballot", "late_steps_below_the_promise_are_refused",
        Op::Steps { ballot: Ballot { token, .. }, .. } =>
            *token = FencingToken::new(token.get() + (1 << 20)));
    tells!("forgets steps", "steps_are_shown_to_the_next_claim",
        _, Reply::Claimed { steps, .. } => *steps = None);
}

#[tokio::test]
async fn wrong_rules_about_records_are_caught() {
    asks!("compares ballots by their number alone", "an_equal_ballot_of_another_owner_is_refused",
        Op::Complete { ballot: Ballot { token, .. }, .. } =>
            *token = FencingToken::new(token.get() + 1));
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
    asks!("does not compare fingerprints", "another_fingerprint_is_a_mismatch",
        Op::Claim(c) => c.fingerprint = None);
    asks!("takes another program's value for no record",
        "another_programs_value_is_no_record_and_stays",
        Op::Lookup { key, .. } => *key = format!("{key}'").into());
    tells!("hides the record from a repair", "force_is_granted_on_top_of_a_result",
        _, Reply::Claimed { record, .. } => *record = None);
    tells!("cuts values at a zero byte", "values_keep_every_byte",
    _, Reply::Completed(StoredRecord { value, .. }) => {
        let cut = value.as_deref().map(|v| v.split(|b| *b == 0).next().unwrap().into());
        *value = cut;
    });
}

#[tokio::test]
async fn wrong_ends_of_claims_are_caught() {
    asks!("takes every end for an attempt that did nothing", "a_claim_can_lapse_before_its_time",
        Op::Unclaim { end, .. } => *end = ClaimEnd::Undone);
    asks!("forgets the fingerprint of what may be repeated",
        "what_may_be_repeated_leaves_its_fingerprint",
        Op::Unclaim { end: end @ ClaimEnd::Repeatable, .. } => *end = ClaimEnd::Undone);
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
    tells!("says of a key that it forgot that it was never there",
        "an_emptied_node_does_not_claim_to_remember",
        _, Reply::Record { unsure, .. } => *unsure = Duration::ZERO);
    tells!("says that it forgot, and not by which loss",
        "an_emptied_node_does_not_claim_to_remember",
        _, Reply::Claimed { losses, .. } => losses.clear());
    tells!("claims to remember after a loss", "an_emptied_node_does_not_claim_to_remember",
        _, Reply::Claimed { unsure, .. } => *unsure = Duration::ZERO);
}

/// A node must not defer all ops of a batch, nor one that it has executed.
#[tokio::test]
async fn wrong_ways_to_put_off_are_caught() {
    tells!("puts every result off", "many_large_results_are_shown_or_put_off",
        _, reply @ (Reply::Completed(_) | Reply::Record { state: Some(_), .. }) =>
            *reply = Reply::Deferred);
    tells!("puts off what shows no result", "many_large_results_are_shown_or_put_off",
        Op::Lookup { .. }, reply @ Reply::Record { state: None, .. } => *reply = Reply::Deferred);
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
