//! Test cases for the rules quarantine 1 to 8 in docs/design, with hooks that restart or empty the
//! server.

use std::sync::Arc;
use std::time::Duration;

use palisade::node::spi::{Facts, QuarantineId, Reply};
use tokio::time::sleep;

use super::bench::{Bench, KEEP, LONG};
use super::claims::absent;
use super::ops::{
    acquire, acquire_at, claim, complete, extend, extend_claim, inspect, lookup, raise,
    raise_claim, reassert, reassert_claim, release, shared,
};
use super::{Case, Hook, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        RestartEmpty: a_restarted_node_grants_after_the_quarantine,
        RestartEmpty: an_emptied_node_does_not_claim_to_remember,
        RestartEmpty: a_forgotten_promise_is_not_completed,
        RestartEmpty: a_forgotten_lock_is_put_back_only_for_this_quarantine,
        RestartKeeping: a_restart_with_data_is_quarantined_too,
        RestartKeeping: a_promise_of_an_earlier_history_counts_as_the_floor,
        RestartKeeping: an_extension_after_the_quarantine_renews_no_earlier_promise,
        RestartKeeping: a_reader_of_a_new_history_is_not_below_the_floor,
        Flush: a_flushed_node_is_quarantined,
    ]
}

/// Returns the facts in the answer to the first batch afterwards.
pub(super) async fn after(b: &Bench, hook: Option<&Hook>) -> Facts {
    if let Some(hook) = hook {
        hook().await;
    }
    b.facts().await
}

async fn refuses_grants(b: &Bench) {
    for op in [acquire(&b.lock(), b.owner(), LONG), claim(&b.key(), b.owner(), LONG)] {
        match b.ask(op).await {
            Reply::Quarantined { remaining, .. } => {
                b.check(!remaining.is_zero(), "a quarantine has a rest", &remaining);
            }
            other => b.broken("nothing is granted in quarantine", &other),
        }
    }
}

async fn a_restarted_node_grants_after_the_quarantine(b: Bench) {
    let before = b.facts().await;
    let first = after(&b, b.hooks.restart_empty.as_ref()).await;
    b.check(first.new_history, "the first batch reports the new data history", &first);
    b.check(first.history_id != before.history_id, "a restart changes the generation", &first);
    b.check(first.identity != before.identity, "a restart changes the identity", &first);
    b.check(first.quarantine_len >= b.terms.max_ttl, "a quarantine spans max_ttl", &first);
    b.check(first.quarantine <= first.quarantine_len, "the rest is within it", &first);
    refuses_grants(&b).await;
    let (k, a) = (b.lock(), b.owner());
    b.expect(release(&k, a), Reply::Absent, "release is served in quarantine").await;
    b.expect(inspect(&k), Reply::Holder(None), "inspect is served in quarantine").await;
    absent(&b, &b.key(), "lookup is served in quarantine").await;
    let second = b.facts().await;
    b.check(!second.new_history, "a history_id is new once", &second);
    b.settle().await;
    let fence = b.granted(acquire(&k, a, b.terms.max_ttl), "after the quarantine: grants").await;
    // The floor is the node's clock at the first batch after the loss, plus 2E, plus one
    // quarantine.
    let lead = 2 * b.terms.clock_error + b.terms.max_ttl;
    let floor = before.node_micros + lead.as_micros() as u64;
    b.check(fence >= floor, "no fence below the floor", &(fence, floor));
}

async fn an_emptied_node_does_not_claim_to_remember(b: Bench) {
    after(&b, b.hooks.restart_empty.as_ref()).await;
    b.settle().await;
    let rule = "what a node may have forgotten it does not remember";
    match b.ask(claim(&b.key(), b.owner(), LONG)).await {
        Reply::Claimed { unsure, losses, .. } if !unsure.is_zero() => {
            b.check(!losses.is_empty(), "it names the losses", &losses);
            b.check(unsure <= KEEP + Duration::from_secs(60), "for a retention at most", &unsure);
        }
        other => b.broken(rule, &other),
    }
    match b.ask(lookup(&b.key())).await {
        Reply::Record { state: None, unsure, .. } if !unsure.is_zero() => (),
        other => b.broken(rule, &other),
    }
}

async fn a_forgotten_promise_is_not_completed(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    after(&b, b.hooks.restart_empty.as_ref()).await;
    for owner in [a, c] {
        let late = complete(&r, owner, t, b"late");
        b.expect(late, Reply::NotOwner, "a ballot below the floor is refused").await;
    }
    let above = b.facts().await.node_micros + 3_600_000_000;
    let fine = complete(&r, a, above, b"v");
    b.expect(fine, Reply::Done, "a ballot above the floor completes, in quarantine too").await;
}

fn named(b: &Bench, reply: &Reply) -> QuarantineId {
    match reply {
        Reply::Quarantined { id, .. } => *id,
        other => b.broken("in quarantine only who names it extends", other),
    }
}

fn others(id: QuarantineId) -> [QuarantineId; 2] {
    [QuarantineId { since: id.since - 1, ..id }, QuarantineId { history: !id.history, ..id }]
}

async fn a_forgotten_lock_is_put_back_only_for_this_quarantine(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    after(&b, b.hooks.restart_empty.as_ref()).await;
    let now = named(&b, &b.ask(extend(&k, a, LONG, t)).await);
    for other in others(now) {
        let wrong = b.ask(reassert(&k, a, LONG, t, Some(other))).await;
        b.check(named(&b, &wrong) == now, "another quarantine's name re-creates nothing", &wrong);
    }
    b.expect(reassert(&k, a, LONG, t, Some(now)), Reply::Done, "the sitting holder re-asserts")
        .await;
    b.expect(reassert(&k, c, LONG, t, Some(now)), Reply::NotOwner, "no other owner does").await;
    let again = b.ask(extend(&k, a, LONG, t)).await;
    b.check(named(&b, &again) == now, "each extension names the quarantine", &again);
    b.settle().await;
    b.expect(extend(&k, a, LONG, t), Reply::Done, "after it none needs to").await;
    let held = b.ask(acquire(&k, c, LONG)).await;
    b.check(matches!(held, Reply::Held { .. }), "the sitting holder is respected", &held);
}

async fn a_restart_with_data_is_quarantined_too(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let facts = after(&b, b.hooks.restart_keeping.as_ref()).await;
    b.check(facts.new_history, "a restart is a new generation", &facts);
    refuses_grants(&b).await;
    let own = b.ask(acquire(&k, a, LONG)).await;
    let quarantined = matches!(own, Reply::Quarantined { .. });
    b.check(quarantined, "nothing is granted in quarantine, to the same owner neither", &own);
    let raised = b.ask(raise(&k, a, t)).await;
    let quarantined = matches!(raised, Reply::Quarantined { .. });
    b.check(quarantined, "nothing is raised in quarantine", &raised);
    let now = named(&b, &b.ask(extend(&k, a, LONG, t)).await);
    b.expect(reassert(&k, c, LONG, t, Some(now)), Reply::NotOwner, "no other owner extends").await;
    let known = reassert(&k, a, LONG, t, Some(now));
    b.expect(known, Reply::Done, "a sitting holder extends in quarantine").await;
    b.settle().await;
    let held = b.ask(acquire(&k, c, LONG)).await;
    b.check(matches!(held, Reply::Held { .. }), "the sitting holder is respected", &held);
    b.expect(release(&k, a), Reply::Done, "the sitting holder releases").await;
    let next = b.granted(acquire(&k, c, LONG), "a released lock is granted").await;
    b.check(next > t, "fences rise across a restart", &(t, next));
}

async fn a_promise_of_an_earlier_history_counts_as_the_floor(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let rule = "a promise of an earlier history counts as the floor";
    b.expect(complete(&r, a, t, b"late"), Reply::NotOwner, rule).await;
    let above = b.facts().await.node_micros + 3_600_000_000;
    for ballot in [t, above] {
        let late = raise_claim(&r, a, ballot);
        b.expect(late, Reply::NotOwner, "a raise renews no promise of an earlier history").await;
    }
    let now = named(&b, &b.ask(extend_claim(&r, a, t, LONG)).await);
    b.expect(complete(&r, a, t, b"late"), Reply::NotOwner, "extending alone lifts no floor").await;
    let again = reassert_claim(&r, a, t, LONG, Some(now));
    b.expect(again, Reply::Done, "the sitting claimant re-asserts").await;
    let unnamed = b.ask(extend_claim(&r, a, t, LONG)).await;
    b.check(named(&b, &unnamed) == now, "each extension names the quarantine", &unnamed);
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "and completes under its old ballot").await;
    let r = b.key();
    b.expect(complete(&r, a, above, b"v"), Reply::Done, "a ballot above the floor completes").await;
}

async fn an_extension_after_the_quarantine_renews_no_earlier_promise(b: Bench) {
    let (r, a) = (b.key(), b.owner());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    b.settle().await;
    b.expect(extend_claim(&r, a, t, LONG), Reply::Done, "outside a quarantine it is extended")
        .await;
    let rule = "a promise of an earlier history is not renewed into this one";
    b.expect(complete(&r, a, t, b"late"), Reply::NotOwner, rule).await;
    let above = b.facts().await.node_micros + 3_600_000_000;
    b.expect(complete(&r, a, above, b"v"), Reply::Done, "a ballot above the floor completes").await;
}

async fn a_flushed_node_is_quarantined(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(acquire(&k, a, b.terms.max_ttl), "a free lock is granted").await;
    let before = b.facts().await;
    let facts = after(&b, b.hooks.flush.as_ref()).await;
    b.check(facts.new_history, "a missing marker is a new generation", &facts);
    let same = Arc::ptr_eq(&facts.identity, &before.identity) || facts.identity == before.identity;
    b.check(same, "a flush keeps the process", &facts);
    refuses_grants(&b).await;
    b.settle().await;
    b.granted(acquire(&k, a, b.terms.max_ttl), "after the quarantine: grants").await;
}

async fn a_reader_of_a_new_history_is_not_below_the_floor(b: Bench) {
    let locks = [b.lock(), b.lock(), b.lock()];
    for k in &locks {
        let a = b.owner();
        b.granted(acquire(k, a, LONG), "a free lock is granted").await;
        b.expect(release(k, a), Reply::Done, "the owner releases").await;
    }
    let facts = after(&b, b.hooks.restart_keeping.as_ref()).await;
    // A server that this one replaced may have given tokens until the quarantine ends.
    let least = facts.node_micros + facts.quarantine.as_micros() as u64;
    b.settle().await;
    // When the clock is past the floor and E, and the client has just seen the marker, a node may
    // grant without any other check.
    b.low().await;
    sleep(2 * b.terms.clock_error).await;
    for k in &locks {
        let proposal = b.facts().await.node_micros;
        let op = shared(acquire_at(k, b.owner(), LONG, proposal));
        let token = b.granted(op, "a reader is granted").await;
        b.check(token >= least, "a reader's token is above all forgotten ones", &(token, least));
    }
}
