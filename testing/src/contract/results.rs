//! Test cases for many results in one batch. A node returns each, or defers its operation, which
//! then changes nothing.

use std::sync::Arc;

use palisade::node::spi::{Op, RecordKey, Reply, StoredRecord};

use super::bench::{Bench, LONG};
use super::ops::{acquire, claim, claim_force, complete, lookup};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: many_large_results_are_shown_or_put_off,
        Nothing: what_is_put_off_was_not_executed,
    ]
}

/// In bytes: the library's nodes never return two of this size in one answer.
const LARGE: usize = 600 * 1024;

async fn stored(b: &Bench) -> Vec<(RecordKey, Arc<[u8]>)> {
    let mut all = Vec::new();
    for i in 0..4_u8 {
        let (r, a, value) = (b.key(), b.owner(), vec![i; LARGE]);
        let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
        b.expect(complete(&r, a, t, &value), Reply::Done, "the claimant completes").await;
        all.push((r, value.into()));
    }
    all
}

fn result(reply: &Reply) -> Option<&StoredRecord> {
    match reply {
        Reply::Completed(record) => Some(record),
        Reply::Claimed { record, .. } => record.as_ref(),
        Reply::Record { state, .. } => state.as_ref()?.record.as_ref(),
        _ => None,
    }
}

fn outline(replies: &[Reply]) -> Vec<String> {
    let word = |r: &Reply| match result(r) {
        Some(record) => format!("{} bytes", record.value.as_ref().map_or(0, |v| v.len())),
        None => format!("{r:?}"),
    };
    replies.iter().map(word).collect()
}

/// In one batch. True for each op that the node deferred because the answer was full.
async fn ask(b: &Bench, all: &[(RecordKey, Arc<[u8]>)], ops: Vec<Op>) -> Vec<bool> {
    let replies = b.all(ops).await;
    let got = outline(&replies);
    for ((_, value), reply) in all.iter().zip(&replies) {
        let shown = result(reply).is_some_and(|record| record.value.as_ref() == Some(value));
        let rule = "a result is shown whole, or put off";
        b.check(shown || *reply == Reply::Deferred, rule, &got);
    }
    let put_off: Vec<bool> = replies.iter().map(|r| *r == Reply::Deferred).collect();
    b.check(put_off.contains(&false), "at least one result is shown", &got);
    put_off
}

async fn many_large_results_are_shown_or_put_off(b: Bench) {
    let all = stored(&b).await;
    let questions: [fn(&Bench, &RecordKey) -> Op; 2] =
        [|b, r| claim(r, b.owner(), LONG), |_, r| lookup(r)];
    for question in questions {
        let put_off = ask(&b, &all, all.iter().map(|(r, _)| question(&b, r)).collect()).await;
        for (one, _) in all.iter().zip(put_off).filter(|(_, put_off)| *put_off) {
            ask(&b, std::slice::from_ref(one), vec![question(&b, &one.0)]).await;
        }
    }
    // A node may defer only an op that returns a result.
    let mut ops: Vec<Op> = all.iter().map(|(r, _)| lookup(r)).collect();
    ops.extend([claim(&b.key(), b.owner(), LONG), acquire(&b.lock(), b.owner(), LONG)]);
    ops.push(lookup(&b.key()));
    let replies = b.all(ops).await;
    let others = matches!(
        replies[4..],
        [Reply::Claimed { .. }, Reply::Granted { .. }, Reply::Record { state: None, .. }]
    );
    b.check(others, "what shows no result is not put off", &outline(&replies));
}

async fn what_is_put_off_was_not_executed(b: Bench) {
    let all = stored(&b).await;
    let forced = all.iter().map(|(r, _)| claim_force(r, b.owner(), LONG)).collect();
    let put_off = ask(&b, &all, forced).await;
    for ((r, _), put_off) in all.iter().zip(put_off) {
        let state = b.ask(lookup(r)).await;
        let claims = match &state {
            Reply::Record { state: Some(state), .. } => state.attempt,
            _ => 0,
        };
        let rule = "what was put off left no trace, and what was granted did";
        b.check(claims == if put_off { 1 } else { 2 }, rule, &outline(&[state]));
    }
}
