//! Test cases for batches, and for the facts that a node reports with its answer.

use palisade::node::spi::{Op, Reply};

use super::bench::{Bench, LONG};
use super::ops::{acquire, claim, complete, inspect, lookup, release};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: ops_take_effect_in_their_order,
        Nothing: one_key_many_times_is_granted_once,
        Nothing: a_batch_may_be_large,
        Nothing: kinds_may_be_mixed,
        Nothing: an_empty_batch_has_no_replies,
        Nothing: values_may_be_large,
        Nothing: facts_are_steady,
    ]
}

async fn ops_take_effect_in_their_order(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let ops = vec![
        acquire(&k, a, LONG),
        acquire(&k, c, LONG),
        release(&k, a),
        acquire(&k, c, LONG),
        release(&k, a),
        inspect(&k),
    ];
    let got = b.all(ops).await;
    let (Reply::Granted { fence: first }, Reply::Granted { fence: next }) = (&got[0], &got[3])
    else {
        b.broken("ops of one batch take effect in their order", &got)
    };
    b.check(next > first, "fences rise inside a batch", &(first, next));
    let held = matches!(got[1], Reply::Held { .. });
    let order = held && got[2] == Reply::Done && got[4] == Reply::NotOwner;
    b.check(order, "ops of one batch see those before them", &got);
    let last = matches!(&got[5], Reply::Holder(Some(h)) if h.owner == Some(c));
    b.check(last, "an inspect sees the batch's last owner", &got[5]);
}

async fn one_key_many_times_is_granted_once(b: Bench) {
    let k = b.lock();
    let got = b.all((0..128).map(|_| acquire(&k, b.owner(), LONG)).collect()).await;
    b.check(matches!(got[0], Reply::Granted { .. }), "the first is granted", &got[0]);
    let rest = got[1..].iter().all(|r| matches!(r, Reply::Held { foreign: false, .. }));
    b.check(rest, "all others of the batch are held off", &got);
}

async fn a_batch_may_be_large(b: Bench) {
    let locks: Vec<_> = (0..128).map(|_| (b.lock(), b.owner())).collect();
    let got = b.all(locks.iter().map(|(k, a)| acquire(k, *a, LONG)).collect()).await;
    let granted = got.iter().all(|r| matches!(r, Reply::Granted { .. }));
    b.check(granted, "128 names are granted in one batch", &got);
    let got = b.all(locks.iter().map(|(k, a)| release(k, *a)).collect()).await;
    b.check(got.iter().all(|r| *r == Reply::Done), "128 names are released in one batch", &got);
}

async fn kinds_may_be_mixed(b: Bench) {
    let (k, r, a) = (b.lock(), b.key(), b.owner());
    let t = b.high().await.get();
    let ops: Vec<Op> = vec![
        acquire(&k, a, LONG),
        claim(&r, a, LONG),
        inspect(&k),
        complete(&r, a, t, b"done"),
        release(&k, a),
        lookup(&r),
        claim(&r, b.owner(), LONG),
    ];
    let got = b.all(ops).await;
    let good = matches!(got[0], Reply::Granted { .. })
        && matches!(got[1], Reply::Claimed { attempt: 1, .. })
        && matches!(got[2], Reply::Holder(Some(_)))
        && got[3] == Reply::Done
        && got[4] == Reply::Done
        && matches!(&got[5], Reply::Record { state: Some(s), .. } if s.record.is_some())
        && matches!(&got[6], Reply::Completed(s) if s.value.as_deref() == Some(b"done"));
    b.check(good, "ops of different kinds keep their order in one batch", &got);
}

async fn an_empty_batch_has_no_replies(b: Bench) {
    let got = b.all(vec![]).await;
    b.check(got.is_empty(), "no op, no reply", &got);
}

async fn values_may_be_large(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim(&r, a, LONG), "a new key is claimed").await;
    let value: Vec<u8> =
        (0..1_048_576_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    b.expect(complete(&r, a, t, &value), Reply::Done, "a mebibyte is stored").await;
    match b.ask(lookup(&r)).await {
        Reply::Record { state: Some(s), .. }
            if s.record.as_ref().is_some_and(|s| s.value.as_deref() == Some(&value[..])) => {}
        Reply::Record { state, .. } => {
            b.broken("a stored value keeps every byte", &state.is_some())
        }
        other => b.broken("a lookup answers the record", &other),
    }
}

async fn facts_are_steady(b: Bench) {
    let first = b.facts().await;
    let next = b.facts().await;
    b.check(first.node_micros > 0, "a node reports its clock", &first);
    b.check(next.history_id == first.history_id, "the history_id stays", &(&first, &next));
    b.check(next.identity == first.identity, "the identity stays", &(&first, &next));
    b.check(!next.new_history, "a known history_id is not new", &next);
    b.check(next.quarantine.is_zero(), "a node that settled grants", &next);
    b.check(next.quarantine_len >= b.terms.max_ttl, "a quarantine spans max_ttl", &next);
}
