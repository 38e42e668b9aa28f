//! The failover window (DESIGN 5.5): for L after a new generation began, another server may still
//! grant what this one believes to be held.

use std::time::Duration;

use super::bench::{Bench, LONG, SHORT};
use super::ops::{
    acquire, claim, extend, extend_claim, inspect, lookup, raise_claim, reassert, reassert_claim,
};
use super::{Case, list};
use crate::op::{Holder, Op, Reply};

pub(super) fn cases() -> Vec<Case> {
    list![
        Window: what_outlasts_the_failover_window_is_extended,
        Window: what_ends_in_the_failover_window_is_not_extended_unasked,
        Window: a_claim_that_ends_in_the_failover_window_is_not_extended_unasked,
        Window: after_the_failover_window_all_is_extended,
    ]
}

/// Times that a lock may be gone before a slow server has restarted.
const TRIES: u32 = 20;

/// A ttl that at the begin of the window ends within it, if only just.
fn within(b: &Bench) -> Duration {
    b.hooks.failover_window.unwrap_or_default() * 9 / 10
}

/// The server begins a new life with all its data.
async fn restart(b: &Bench) {
    if let Some(hook) = &b.hooks.restart_keeping {
        hook().await;
    }
}

/// The same holder with the same words, for as long or, a moment later, a little shorter.
fn same(now: &Reply, before: &Reply) -> bool {
    let (Reply::Holder(Some(now)), Reply::Holder(Some(before))) = (now, before) else {
        return now == before;
    };
    let left = |h: &Holder| h.remaining.unwrap_or_default();
    let rest = (&now.owner, now.fence, &now.meta) == (&before.owner, before.fence, &before.meta);
    rest && left(now) <= left(before) && left(before).saturating_sub(left(now)) < SHORT
}

async fn what_outlasts_the_failover_window_is_extended(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    restart(&b).await;
    // Replaced or not, no server gives it away before the window is over.
    b.expect(extend(&k, a, LONG, t), Reply::Done, "what outlasts the window is extended").await;
    b.expect(extend(&k, c, LONG, t), Reply::NotOwner, "nobody else extends it").await;
}

async fn what_ends_in_the_failover_window_is_not_extended_unasked(b: Bench) {
    for _ in 0..TRIES {
        let (k, (a, c)) = (b.lock(), b.owners());
        let t = b.granted(acquire(&k, a, within(&b)), "a free lock is granted").await;
        restart(&b).await;
        // One batch, the first one: the window begins with it, and time stands still in it.
        let ask = [inspect(&k), extend(&k, a, LONG, t), extend(&k, c, LONG, t), inspect(&k)];
        let said = b.all(ask.to_vec()).await;
        if said[0] == Reply::Holder(None) {
            b.settle().await;
            continue;
        }
        let Reply::Quarantined { remaining, epoch } = said[1] else {
            b.broken("what ends in the window is not extended unasked", &said);
        };
        b.check(!remaining.is_zero(), "a quarantine has a rest", &said);
        b.check(said[2] == Reply::NotOwner, "to others it is another's", &said);
        b.check(same(&said[3], &said[0]), "a refused extension changes nothing", &said);
        let wrong = b.ask(reassert(&k, a, LONG, t, Some(epoch - 1))).await;
        let refused = matches!(wrong, Reply::Quarantined { .. });
        b.check(refused, "another quarantine's epoch puts nothing through", &wrong);
        let known = reassert(&k, a, LONG, t, Some(epoch));
        b.expect(known, Reply::Done, "who names the quarantine is let through").await;
        b.expect(extend(&k, a, LONG, t), Reply::Done, "and then needs not to name it").await;
        return;
    }
    b.broken("a restart is shorter than the failover window", &b.hooks);
}

async fn a_claim_that_ends_in_the_failover_window_is_not_extended_unasked(b: Bench) {
    let (short, long, (a, c)) = (b.key(), b.key(), b.owners());
    b.granted(claim(&short, a, within(&b)), "an unused key is claimed").await;
    b.granted(claim(&long, a, LONG), "an unused key is claimed").await;
    let above = b.facts().await.node_micros + 3_600_000_000;
    restart(&b).await;
    // A ballot above the floor makes the promises ones of this life; the leases are the old ones.
    let said = b
        .all(vec![
            raise_claim(&short, a, above),
            raise_claim(&long, a, above),
            extend_claim(&short, a, above, LONG),
            extend_claim(&long, c, above + 1, LONG),
            extend_claim(&long, a, above, LONG),
        ])
        .await;
    let raised = said[..2] == [Reply::Done, Reply::Done];
    b.check(raised, "a ballot above the floor is raised", &said);
    let Reply::Quarantined { epoch, .. } = said[2] else {
        b.broken("a lease that ends in the window is not extended unasked", &said);
    };
    let refused = matches!(said[3], Reply::Quarantined { .. });
    b.check(refused, "another's lease proves nothing", &said);
    b.check(said[4] == Reply::Done, "a lease that outlasts the window is extended", &said);
    let known = reassert_claim(&short, a, above, LONG, Some(epoch));
    b.expect(known, Reply::Done, "who names the quarantine is let through").await;
    b.expect(extend_claim(&short, a, above, LONG), Reply::Done, "and then needs not to").await;
}

async fn after_the_failover_window_all_is_extended(b: Bench) {
    let (k, r, a) = (b.lock(), b.key(), b.owner());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    restart(&b).await;
    b.settle().await;
    let above = b.facts().await.node_micros + 3_600_000_000;
    // Both leases are now too short for any window, and the second extension does not mind.
    let ops: [Op; 4] = [
        extend(&k, a, SHORT, t),
        extend(&k, a, LONG, t),
        extend_claim(&r, a, above, SHORT),
        extend_claim(&r, a, above, LONG),
    ];
    let said = b.all(ops.to_vec()).await;
    b.check(said.iter().all(|r| *r == Reply::Done), "the window ends", &said);
    b.check(b.ask(lookup(&r)).await != Reply::Record(None), "a claim stands", &said);
}
