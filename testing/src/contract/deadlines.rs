//! Test cases for deadlines, by the node's clock.

use palisade::error::NodeFault;
use palisade::node::spi::{NotAfter, Reply};

use super::bench::{Bench, LONG};
use super::claims::absent;
use super::ops::{acquire, claim, complete, extend, extend_claim, inspect, raise, release, shared};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: what_comes_in_time_is_executed,
        Nothing: what_comes_late_is_not_executed,
        Nothing: a_deadline_by_the_clock_of_another_server_is_over,
        Nothing: releases_are_executed_at_any_time,
    ]
}

async fn what_comes_in_time_is_executed(b: Bench) {
    let facts = b.facts().await;
    let later = NotAfter { server: facts.identity, micros: facts.node_micros + 60_000_000 };
    let (k, a) = (b.lock(), b.owner());
    let replies = b.send_until(vec![acquire(&k, a, LONG)], Some(later)).await;
    let granted = matches!(replies.items[0], Ok(Reply::Granted { .. }));
    b.check(granted, "before its deadline a batch is executed", &replies.items);
}

async fn what_comes_late_is_not_executed(b: Bench) {
    let (k, held, r, known, a) = (b.lock(), b.lock(), b.key(), b.key(), b.owner());
    let t = b.granted(acquire(&held, a, LONG), "a free lock is granted").await;
    let ballot = b.granted(claim(&known, a, LONG), "an unused key is claimed").await;
    let facts = b.facts().await;
    let past = facts.node_micros - 1;
    let over = NotAfter { server: facts.identity, micros: past };
    let ops = vec![
        acquire(&k, a, LONG),
        acquire(&k, b.owner(), LONG),
        raise(&held, a, t),
        extend(&held, a, LONG, t),
        claim(&r, a, LONG),
        extend_claim(&known, a, ballot, LONG),
        complete(&known, a, ballot, b"v"),
        shared(acquire(&k, b.owner(), LONG)),
        shared(extend(&held, a, LONG, t)),
    ];
    let replies = b.send_until(ops, Some(over)).await;
    for item in &replies.items {
        let refused =
            item.as_ref().is_err_and(|e| e.fault() == NodeFault::PastDeadline && !e.is_ambiguous());
        b.check(refused, "after its deadline it is a fault that took no effect", item);
    }
    let clock = replies.facts.map(|f| f.node_micros);
    b.check(clock > Some(past), "the refusal reports the node's clock", &clock);
    b.expect(inspect(&k), Reply::Holder(None), "nothing was granted").await;
    absent(&b, &r, "nothing was claimed").await;
}

async fn a_deadline_by_the_clock_of_another_server_is_over(b: Bench) {
    let later = b.facts().await.node_micros + 60_000_000;
    let (k, a) = (b.lock(), b.owner());
    let elsewhere = NotAfter { server: "another server".into(), micros: later };
    let ops = vec![release(&k, a), acquire(&k, a, LONG)];
    let replies = b.send_until(ops, Some(elsewhere)).await;
    b.check(replies.items[0].is_ok(), "a release is right at any time", &replies.items);
    let refused = replies.items[1].as_ref().is_err_and(|e| e.fault() == NodeFault::PastDeadline);
    b.check(refused, "by another server's clock it is over", &replies.items);
    b.expect(inspect(&k), Reply::Holder(None), "nothing was granted").await;
}

async fn releases_are_executed_at_any_time(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let ops = vec![release(&k, a), acquire(&k, b.owner(), LONG)];
    let over = NotAfter { server: b.facts().await.identity, micros: 1 };
    let replies = b.send_until(ops, Some(over.clone())).await;
    b.check(replies.items[0] == Ok(Reply::Done), "a release is right at any time", &replies.items);
    b.expect(inspect(&k), Reply::Holder(None), "it was executed, and what was late was not").await;
    b.granted(shared(acquire(&k, a, LONG)), "a free lock is granted").await;
    let ops = vec![shared(release(&k, a)), shared(acquire(&k, b.owner(), LONG))];
    let replies = b.send_until(ops, Some(over)).await;
    b.check(replies.items[0] == Ok(Reply::Done), "so is one of a reader", &replies.items);
    b.expect(inspect(&k), Reply::Holder(None), "a reader that was late was not").await;
}
