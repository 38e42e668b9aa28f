//! Test cases for acquire, release and inspect of a lock, and for the raise of its fencing token.

use palisade::node::spi::{LockKeys, Reply};

use super::bench::{Bench, LONG, SHORT, TOKEN_MAX};
use super::ops::{acquire, acquire_at, extend, inspect, raise, release};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: free_lock_is_granted,
        Nothing: proposal_becomes_the_fence,
        Nothing: far_proposals_are_clamped,
        Nothing: every_grant_has_a_higher_fence,
        Nothing: same_owner_gets_the_same_answer,
        Nothing: another_owner_is_held_off,
        Nothing: a_lock_expires_and_its_fence_stays,
        Nothing: raise_sets_the_fence_and_repeats,
        Nothing: raise_needs_the_owner_and_a_fence_not_above,
        Nothing: raise_after_expiry_is_refused,
        Nothing: tokens_are_exact_up_to_the_largest,
        Nothing: release_frees_once,
        Nothing: release_by_another_changes_nothing,
        Nothing: late_release_spares_the_next_holder,
        Nothing: inspect_reads_the_holder,
        Nothing: odd_names_are_names,
        Foreign: a_foreign_lock_is_respected,
    ]
}

async fn free_lock_is_granted(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.check(fence > 0 && fence <= TOKEN_MAX, "a fence lies between 1 and 2^53 - 1", &fence);
}

async fn proposal_becomes_the_fence(b: Bench) {
    let low = b.low().await;
    let proposal = low.max(b.facts().await.node_micros) + 200_000;
    let (k, a) = (b.lock(), b.owner());
    let fence = b.granted(acquire_at(&k, a, LONG, proposal), "a free lock is granted").await;
    b.check(fence == proposal, "a proposal near the node's clock becomes the fence", &fence);
}

async fn far_proposals_are_clamped(b: Bench) {
    let (low, before) = (b.low().await, b.facts().await.node_micros);
    let error = b.terms.clock_error.as_micros() as u64;
    let far = b.granted(acquire_at(&b.lock(), b.owner(), LONG, TOKEN_MAX), "granted").await;
    let past = b.granted(acquire_at(&b.lock(), b.owner(), LONG, 1), "granted").await;
    let after = b.facts().await.node_micros;
    let high = (after + error).max(low);
    b.check(far <= high, "a proposal is clamped to TIME + E", &(far, high));
    b.check(far >= before, "a proposal above TIME + E becomes TIME + E", &(far, before));
    b.check(past >= before - error, "a proposal is clamped to TIME - E", &(past, before));
}

async fn every_grant_has_a_higher_fence(b: Bench) {
    let k = b.lock();
    let proposal = b.facts().await.node_micros + 500_000;
    let mut last = 0;
    for round in 0..5 {
        let (a, p) = (b.owner(), if round == 0 { proposal } else { 0 });
        let fence = b.granted(acquire_at(&k, a, LONG, p), "a released lock is granted").await;
        b.check(fence > last, "each grant's fence is above all before", &(last, fence));
        last = fence;
        b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    }
}

async fn same_owner_gets_the_same_answer(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let again = acquire_at(&k, a, LONG, fence + 100_000);
    b.expect(again, Reply::Granted { fence }, "a repeated acquire is granted the same fence").await;
}

async fn another_owner_is_held_off(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    for _ in 0..2 {
        match b.ask(acquire(&k, c, LONG)).await {
            Reply::Held { remaining: Some(rest), foreign: false } => {
                b.check(!rest.is_zero() && rest <= LONG, "Held reports the rest of the ttl", &rest);
            }
            other => b.broken("a held lock is not granted to another owner", &other),
        }
    }
}

async fn a_lock_expires_and_its_fence_stays(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let first = b.granted(acquire(&k, a, SHORT), "a free lock is granted").await;
    let got = b
        .until("a lock ends with its ttl", acquire(&k, c, LONG), |r| {
            matches!(r, Reply::Granted { .. })
        })
        .await;
    let Reply::Granted { fence } = got else { b.broken("granted", &got) };
    b.check(fence > first, "the fence outlives an expired lock", &(first, fence));
}

async fn raise_sets_the_fence_and_repeats(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let t = b.high().await.get();
    for _ in 0..2 {
        b.expect(raise(&k, a, t), Reply::Done, "the owner raises, and may repeat it").await;
    }
    b.expect(acquire(&k, a, LONG), Reply::Granted { fence: t }, "raise sets the fence").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    let next = b.granted(acquire(&k, c, LONG), "a released lock is granted").await;
    b.check(next > t, "the next fence is above a raised one", &(t, next));
}

async fn raise_needs_the_owner_and_a_fence_not_above(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.high().await.get();
    b.expect(raise(&k, a, t), Reply::NotOwner, "a lock without an owner is not raised").await;
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(raise(&k, c, t), Reply::NotOwner, "another owner does not raise").await;
    b.expect(raise(&k, a, fence - 1), Reply::NotOwner, "raise needs fence <= T").await;
    b.expect(acquire(&k, a, LONG), Reply::Granted { fence }, "a refusal changes nothing").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.expect(raise(&k, a, t), Reply::NotOwner, "a released lock is not raised").await;
}

async fn raise_after_expiry_is_refused(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.granted(acquire(&k, a, SHORT), "a free lock is granted").await;
    b.until("a lock ends with its ttl", inspect(&k), |r| *r == Reply::Holder(None)).await;
    let t = b.high().await.get();
    b.expect(raise(&k, a, t), Reply::NotOwner, "an expired lock is not raised").await;
    b.expect(inspect(&k), Reply::Holder(None), "raise never makes a lock").await;
}

async fn tokens_are_exact_up_to_the_largest(b: Bench) {
    for token in [TOKEN_MAX, TOKEN_MAX - 1, (1 << 52) + 1] {
        let (k, a) = (b.lock(), b.owner());
        b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        b.expect(raise(&k, a, token), Reply::NotOwner, "no raise into the far future").await;
        b.expect(extend(&k, a, LONG, token), Reply::Done, "a large token extends").await;
        let want = Reply::Granted { fence: token };
        b.expect(acquire(&k, a, LONG), want, "tokens keep every bit").await;
        match b.ask(inspect(&k)).await {
            Reply::Holder(Some(h)) if h.fence == token => (),
            other => b.broken("inspect reports every bit of a token", &other),
        }
    }
}

async fn release_frees_once(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.expect(release(&k, a), Reply::Absent, "what was never there is absent").await;
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.expect(release(&k, a), Reply::Absent, "a repeated release finds nothing").await;
    b.granted(acquire(&k, c, LONG), "a released lock is free").await;
}

async fn release_by_another_changes_nothing(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(release(&k, c), Reply::NotOwner, "only the owner releases").await;
    let want = Reply::Granted { fence };
    b.expect(acquire(&k, a, LONG), want, "a refused release leaves the lock").await;
}

async fn late_release_spares_the_next_holder(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, SHORT), "a free lock is granted").await;
    b.until("a lock ends with its ttl", acquire(&k, c, LONG), |r| {
        matches!(r, Reply::Granted { .. })
    })
    .await;
    b.expect(release(&k, a), Reply::NotOwner, "a late release is not the owner's").await;
    match b.ask(inspect(&k)).await {
        Reply::Holder(Some(h)) if h.owner == Some(c) => (),
        other => b.broken("a late release leaves the next holder's lock", &other),
    }
}

async fn inspect_reads_the_holder(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    b.expect(inspect(&k), Reply::Holder(None), "a free lock has no holder").await;
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    match b.ask(inspect(&k)).await {
        Reply::Holder(Some(h)) => {
            b.check(h.owner == Some(a), "inspect reports the owner", &h);
            b.check(h.fence == fence, "inspect reports the fence", &h);
            b.check(h.meta.is_none(), "nothing was said by the holder", &h);
            let rest = h.remaining.unwrap_or_default();
            b.check(!rest.is_zero() && rest <= LONG, "inspect reports the rest of the ttl", &h);
        }
        other => b.broken("a held lock has a holder", &other),
    }
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.expect(inspect(&k), Reply::Holder(None), "a released lock has no holder").await;
}

async fn odd_names_are_names(b: Bench) {
    for odd in ["{tag}:x", "a{}b", "}{", "with space", "q'\"\\`$(x)", "\u{43a}\u{1f512}", "*?[a]"] {
        let (k, (a, c)) = (LockKeys::new(&format!("{odd}{}", b.key())), b.owners());
        b.granted(acquire(&k, a, LONG), "any text is a name").await;
        let held = b.ask(acquire(&k, c, LONG)).await;
        b.check(matches!(held, Reply::Held { .. }), "any text is one name", &held);
        b.expect(release(&k, a), Reply::Done, "any text is released").await;
    }
}

async fn a_foreign_lock_is_respected(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let Some(put) = b.hooks.put_foreign.clone() else { return };
    put(k.lock().to_owned(), Some(LONG)).await;
    match b.ask(acquire(&k, a, LONG)).await {
        Reply::Held { foreign: true, remaining: Some(rest) } => {
            b.check(rest <= LONG, "a foreign lock's rest is reported", &rest);
        }
        other => b.broken("another program's lock is held and foreign", &other),
    }
    let t = b.high().await.get();
    b.expect(raise(&k, a, t), Reply::NotOwner, "a foreign lock is not raised").await;
    b.expect(extend(&k, a, LONG, t), Reply::NotOwner, "a foreign lock is not extended").await;
    b.expect(release(&k, a), Reply::NotOwner, "a foreign lock is not released").await;
    match b.ask(inspect(&k)).await {
        Reply::Holder(Some(h)) if h.owner.is_none() => (),
        other => b.broken("a foreign holder has no owner token", &other),
    }
    let endless = b.lock();
    put(endless.lock().to_owned(), None).await;
    let want = Reply::Held { remaining: None, foreign: true };
    b.expect(acquire(&endless, a, LONG), want, "a lock without an end is held").await;
}
