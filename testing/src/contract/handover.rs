//! Test cases for a planned handover, after which a new data history begins without a loss of data.

use std::time::{Duration, Instant};

use palisade::error::NodeFault;
use palisade::node::spi::{Claim, Facts, Holder, Op, OwnerToken, Reply};
use tokio::time::sleep;

use super::bench::{Bench, LONG};
use super::ops::{
    acquire, acquire_waiting, claim, claim_terms, complete, extend, extend_claim, inspect,
    is_granted, is_held, lookup, release, shared, take,
};
use super::{Case, list};

/// Servers store whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(3);

pub(super) fn cases() -> Vec<Case> {
    list![
        Close: a_closed_node_answers_nothing_and_opens_by_itself,
        HandOver: a_node_that_takes_over_goes_on,
        HandOver: a_node_that_takes_over_knows_every_key,
        HandOver: a_lock_that_may_still_be_held_is_kept_for_a_while,
        HandOver: a_lock_that_may_still_be_held_is_kept_from_readers,
        HandOver: a_lock_with_several_readers_is_kept_when_one_of_them_leaves,
        HandOver: a_claim_that_may_still_run_is_kept_for_a_while,
    ]
}

pub(super) async fn handed_over(b: &Bench) -> Facts {
    // Only outside a quarantine the node's data certainly contain all leases.
    b.settle().await;
    if let Some(hook) = &b.hooks.hand_over {
        hook().await;
    }
    b.facts().await
}

/// Enough time even on a slow machine. After a handover the node settles for the longest lease, and
/// keeps a used name closed for twice `clock_error`.
pub(super) async fn slowly(b: Bench) -> Bench {
    let b = b.with_terms(Duration::from_secs(5), Duration::from_secs(1));
    b.settle().await;
    b
}

async fn a_closed_node_answers_nothing_and_opens_by_itself(b: Bench) {
    let (k, r, a) = (b.lock(), b.key(), b.owner());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let ballot = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let before = b.facts().await;
    if let Some(hook) = &b.hooks.close {
        hook().await;
    }
    let ops = vec![
        acquire(&b.lock(), a, LONG),
        extend(&k, a, LONG, t),
        claim(&b.key(), a, LONG),
        extend_claim(&r, a, ballot, LONG),
        complete(&r, a, ballot, b"v"),
        inspect(&k),
        lookup(&r),
    ];
    for item in b.send(ops).await.items {
        let closed =
            item.as_ref().is_err_and(|e| e.fault() == NodeFault::HandingOver && !e.is_ambiguous());
        b.check(closed, "a closed node executes nothing", &item);
    }
    let mut tries = 0;
    let after = loop {
        let replies = b.send(vec![lookup(&r)]).await;
        if let Some(facts) = replies.facts {
            break facts;
        }
        tries += 1;
        b.check(tries < 500, "a closed node opens by itself", &replies.items);
        sleep(Duration::from_millis(20)).await;
    };
    let same = (after.history_id, after.since) == (before.history_id, before.since);
    b.check(same && after.quarantine.is_zero(), "and goes on as before", &(before, after));
    b.expect(complete(&r, a, ballot, b"v"), Reply::Done, "the claimant completes").await;
    b.expect(extend(&k, a, LONG, t), Reply::Done, "the holder extends").await;
}

async fn a_node_that_takes_over_goes_on(b: Bench) {
    let (k, freed, (a, c)) = (b.lock(), b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let old = b.granted(acquire(&freed, a, LONG), "a free lock is granted").await;
    let r = b.key();
    let ballot = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    let before = b.facts().await;
    let after = handed_over(&b).await;
    b.check(after.history_id == before.history_id, "a handover keeps the history", &after);
    b.check(after.since == before.since, "what it knows goes back as far as before", &after);
    b.check(after.quarantine.is_zero(), "there is no quarantine", &after);
    let new = b.granted(acquire(&b.lock(), c, LONG), "an unused name is granted at once").await;
    b.check(new < after.node_micros + 60_000_000, "its token is of the present", &new);
    let held = b.ask(acquire(&k, c, LONG)).await;
    b.check(matches!(held, Reply::Held { .. }), "a held lock is held", &held);
    b.expect(extend(&k, a, LONG, t), Reply::Done, "its holder extends without naming anything")
        .await;
    b.expect(extend_claim(&r, a, ballot, LONG), Reply::Done, "so does a claimant").await;
    b.expect(complete(&r, a, ballot, b"v"), Reply::Done, "and completes").await;
    b.expect(release(&freed, a), Reply::Done, "a holder releases").await;
    let free = |reply: &Reply| matches!(reply, Reply::Granted { .. });
    let next = b.until("a released lock is granted soon", acquire(&freed, c, LONG), free).await;
    let above = matches!(next, Reply::Granted { fence } if fence > old);
    b.check(above, "fences rise across a handover", &(old, next));
}

async fn a_node_that_takes_over_knows_every_key(b: Bench) {
    let remembers = async |key, born| {
        let terms = claim_terms(&key, b.owner(), LONG, None, false);
        match b.ask(Op::Claim(Claim { born, ..terms })).await {
            Reply::Claimed { unsure, .. } => unsure.is_zero(),
            other => b.broken("an unused key is claimed at once", &other),
        }
    };
    let now = b.facts().await.node_micros / 1_000;
    let all = [None, Some(now)];
    let mut before = Vec::new();
    for born in all {
        before.push(remembers(b.key(), born).await);
    }
    let (done, a) = (b.key(), b.owner());
    let t = b.granted(claim(&done, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&done, a, t, b"v"), Reply::Done, "the claimant completes").await;
    handed_over(&b).await;
    for (born, knew) in all.into_iter().zip(before) {
        let knows = remembers(b.key(), born).await;
        b.check(knows == knew, "what was remembered is remembered", &(born, knew, knows));
    }
    let reply = b.ask(claim(&done, b.owner(), LONG)).await;
    b.check(matches!(reply, Reply::Completed(_)), "results are shown", &reply);
}

async fn a_lock_that_may_still_be_held_is_kept_for_a_while(b: Bench) {
    let b = slowly(b).await;
    let (k, (a, c)) = (b.lock(), b.owners());
    let begun = Instant::now();
    // As if the new server's clock was ahead: the lease ends too early.
    b.granted(acquire(&k, a, Duration::from_millis(10)), "a free lock is granted").await;
    sleep(Duration::from_millis(20)).await;
    handed_over(&b).await;
    let shown = b.ask(inspect(&k)).await;
    let is_kept = |shown: &Reply| {
        matches!(shown, Reply::Holder(Some(Holder { owner: Some(owner), .. }))
            if *owner == OwnerToken::KEPT)
    };
    let late = begun.elapsed() >= b.terms.max_ttl;
    b.check(is_kept(&shown) || late, "it is shown as kept before any client asks for it", &shown);
    let asked = Instant::now();
    let kept = b.ask(acquire(&k, c, LONG)).await;
    let apart = 2 * b.terms.clock_error;
    match kept {
        Reply::Held { remaining: Some(rest), .. } => {
            let least = apart.saturating_sub(asked.elapsed() + ROUNDED);
            let right = (least..=apart).contains(&rest);
            b.check(right, "for as long as clocks differ", &(least, rest));
        }
        // On a slow machine the node may no longer count the name as recently used.
        Reply::Granted { .. } if begun.elapsed() >= b.terms.max_ttl => return,
        other => b.broken("a name that was used lately is kept for its holder", &other),
    }
    let shown = b.ask(inspect(&k)).await;
    let late = begun.elapsed() >= 2 * b.terms.clock_error;
    b.check(is_kept(&shown) || late, "it is shown as kept, and not as anybody's", &shown);
    let given_back = b.ask(release(&k, a)).await;
    b.check(given_back == Reply::Absent, "there is nothing to release", &given_back);
    let got = b.ask(take(&k, b.owner(), OwnerToken::KEPT)).await;
    let over = matches!(got, Reply::Granted { .. }) && begun.elapsed() >= 2 * b.terms.clock_error;
    b.check(over || matches!(got, Reply::Held { .. }), "a kept name cannot be taken over", &got);
    if over {
        return;
    }
    let free = |reply: &Reply| matches!(reply, Reply::Granted { .. });
    b.until("and granted then", acquire(&k, c, LONG), free).await;
    b.expect(release(&k, c), Reply::Done, "it is released").await;
    b.granted(acquire(&k, a, LONG), "once is enough").await;
}

async fn a_lock_that_may_still_be_held_is_kept_from_readers(b: Bench) {
    let b = slowly(b).await;
    let k = b.lock();
    let begun = Instant::now();
    b.granted(acquire(&k, b.owner(), Duration::from_millis(10)), "a free lock is granted").await;
    sleep(Duration::from_millis(20)).await;
    handed_over(&b).await;
    let (asked, apart) = (Instant::now(), 2 * b.terms.clock_error);
    let read = || shared(acquire(&k, b.owner(), LONG));
    let first = b.ask(read()).await;
    if is_granted(&first) && begun.elapsed() >= b.terms.max_ttl {
        return;
    }
    let Reply::Held { remaining: Some(rest), foreign: false } = first else {
        b.broken("a reader that asks first is refused", &first)
    };
    let least = apart.saturating_sub(asked.elapsed() + ROUNDED);
    b.check((least..=apart).contains(&rest), "for as long as clocks differ", &(least, rest));
    for op in [acquire(&k, b.owner(), LONG), read()] {
        let next = b.ask(op).await;
        let late = is_granted(&next) && asked.elapsed() >= apart;
        b.check(is_held(&next) || late, "and so is who comes after it", &next);
    }
    b.until("it is granted then", read(), is_granted).await;
    b.check(asked.elapsed() + ROUNDED >= apart, "not before", &asked.elapsed());
}

async fn a_lock_with_several_readers_is_kept_when_one_of_them_leaves(b: Bench) {
    let b = slowly(b).await;
    let (k, all) = (b.lock(), [b.owner(), b.owner(), b.owner()]);
    let begun = Instant::now();
    let mut token = 0;
    for reader in all {
        let op = shared(acquire(&k, reader, Duration::from_millis(10)));
        token = b.granted(op, "a reader is granted beside others").await;
    }
    sleep(Duration::from_millis(20)).await;
    handed_over(&b).await;
    let (asked, apart) = (Instant::now(), 2 * b.terms.clock_error);
    let first = b.ask(acquire(&k, b.owner(), LONG)).await;
    if is_granted(&first) && begun.elapsed() >= b.terms.max_ttl {
        return;
    }
    b.check(is_held(&first), "a name that was read lately is kept", &first);
    // A client that takes the clocks to be closer to each other shortens nothing.
    let exact = b.beside(b.terms.max_ttl, b.terms.clock_error / 50);
    for reader in &all[..2] {
        b.expect(shared(extend(&k, *reader, LONG, token)), Reply::Done, "a reader extends").await;
        let waits = acquire_waiting(&k, b.owner(), (1, Duration::from_secs(10)));
        let held = b.ask(waits).await;
        b.check(is_held(&held), "it keeps a writer out", &held);
        let left = b.ask(shared(release(&k, *reader))).await;
        b.check(left == Reply::Done, "it releases", &left);
        let shown = b.ask(inspect(&k)).await;
        let is_kept = matches!(shown, Reply::Holder(Some(Holder { owner: Some(owner), .. }))
            if owner == OwnerToken::KEPT);
        b.check(is_kept || asked.elapsed() >= apart, "the lock is shown as kept", &shown);
        let asks = [
            (&b, acquire(&k, b.owner(), LONG)),
            (&b, acquire_waiting(&k, b.owner(), (1, Duration::from_secs(10)))),
            (&exact, acquire(&k, b.owner(), LONG)),
            (&exact, shared(acquire(&k, b.owner(), LONG))),
        ];
        for (client, op) in asks {
            let next = client.ask(op).await;
            if is_granted(&next) {
                b.check(asked.elapsed() >= apart, "other readers may be there", &asked.elapsed());
                return;
            }
            b.check(is_held(&next), "it is kept for the readers that are left", &next);
        }
    }
    b.until("it is granted then", acquire(&k, b.owner(), LONG), is_granted).await;
    b.check(asked.elapsed() + ROUNDED >= apart, "not before", &asked.elapsed());
}

async fn a_claim_that_may_still_run_is_kept_for_a_while(b: Bench) {
    let b = slowly(b).await;
    let (r, (a, c)) = (b.key(), b.owners());
    let (lease, apart) = (Duration::from_millis(10), 2 * b.terms.clock_error);
    let begun = Instant::now();
    b.granted(Op::Claim(claim_terms(&r, a, lease, None, false)), "an unused key is claimed").await;
    let granted = Instant::now();
    sleep(2 * lease).await;
    handed_over(&b).await;
    let asked = Instant::now();
    let kept = b.ask(claim(&r, c, LONG)).await;
    let rule = "a claim that ended lately lasts for as long as clocks differ";
    match kept {
        Reply::InFlight { remaining } => {
            let at_least = (lease + apart).saturating_sub(begun.elapsed() + ROUNDED);
            let most = (lease + apart + ROUNDED).saturating_sub(asked - granted);
            b.check((at_least..=most).contains(&remaining), rule, &(at_least, remaining, most));
        }
        // On a slow machine the node may no longer keep the claim.
        Reply::Claimed { attempt: 2, .. } if begun.elapsed() >= lease + apart => return,
        other => b.broken(rule, &other),
    }
    let taken = |reply: &Reply| matches!(reply, Reply::Claimed { attempt: 2, .. });
    b.until("and is taken over then", claim(&r, c, LONG), taken).await;
}
