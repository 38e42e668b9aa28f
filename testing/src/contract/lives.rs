//! A client with shorter leases never shortens what another client relies on.

use std::time::Duration;

use palisade::node::spi::{Claim, LockKeys, Op, OwnerToken, Reply};
use tokio::time::sleep;

use super::bench::{Bench, LONG, SHORT};
use super::hints::{TRIES, listening, next_hint};
use super::ops::{
    acquire, acquire_waiting, acquire_watching, claim, claim_terms, complete, extend, extend_claim,
    inspect, is_granted, is_held, on_slots, raise, release, shared, unclaim,
};
use super::semaphores::{TWO, given, slot};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_shorter_lease_does_not_shorten_a_permit,
        Nothing: a_shorter_lease_does_not_shorten_the_fence_of_readers,
        Nothing: a_shorter_lease_does_not_shorten_a_place_or_a_watch,
        Nothing: a_shorter_lease_does_not_shorten_a_promise,
        Nothing: readers_whose_grants_are_over_take_no_place,
    ]
}

const BRIEF: Duration = Duration::from_millis(90);
const EXACT: Duration = Duration::from_millis(7);

/// Returns another client, whose leases are shorter than those of the bench.
fn brief(b: &Bench) -> Bench {
    b.beside(BRIEF, EXACT)
}

/// Everything that the client of [`brief`] needs is over, and a fair waiter's place.
async fn outlive() {
    sleep(Duration::from_millis(3_200)).await;
}

async fn a_shorter_lease_does_not_shorten_a_permit(b: Bench) {
    let (c, mut all) = (brief(&b), Vec::new());
    let ask = |k: &LockKeys, owner| on_slots(acquire(k, owner, BRIEF), TWO);
    let leave = |k: &LockKeys, owner| on_slots(release(k, owner), TWO);
    let renew = |k: &LockKeys, owner, slot, token| {
        on_slots(extend(k, owner, BRIEF, token), TWO.exactly(slot))
    };
    let exactly = |k: &LockKeys, owner, slot| on_slots(acquire(k, owner, BRIEF), TWO.exactly(slot));
    for writes in 0..7 {
        let (k, (a, other)) = (b.lock(), b.owners());
        let token = given(&b, on_slots(acquire(&k, a, LONG), TWO), 0).await;
        let second = given(&c, ask(&k, other), 1).await;
        let op = match writes {
            0 => ask(&k, other),
            1 => leave(&k, other),
            2 => renew(&k, other, 1, second),
            3 => on_slots(raise(&k, other, second + 1), TWO.exactly(1)),
            4 => exactly(&k, other, 0),
            5 => renew(&k, other, 0, second),
            _ => on_slots(acquire_waiting(&k, b.owner(), (7, BRIEF)), TWO),
        };
        c.ask(op).await;
        all.push((k, a, token));
    }
    outlive().await;
    for (writes, (k, a, token)) in all.into_iter().enumerate() {
        let stranger = b.owner();
        let got = b.ask(on_slots(acquire(&k, stranger, LONG), TWO.exactly(0))).await;
        b.check(is_held(&got), "a slot is its owner's until its grant ends", &(writes, got));
        b.expect(leave(&k, a), Reply::Done, "its owner releases").await;
        let next = b.ask(on_slots(acquire(&k, stranger, LONG), TWO.exactly(0))).await;
        let above = matches!(next, Reply::Permit { fence, .. } if fence > token);
        b.check(above && slot(&next) == Some(0), "the slot keeps its fence", &(writes, next));
    }
}

async fn a_shorter_lease_does_not_shorten_the_fence_of_readers(b: Bench) {
    let (c, mut all) = (brief(&b), Vec::new());
    for writes in 0..5 {
        let (k, (a, other)) = (b.lock(), b.owners());
        let token = b.granted(shared(acquire(&k, a, LONG)), "a reader is granted").await;
        let op = shared(acquire(&k, other, BRIEF));
        c.granted(op.clone(), "a reader is granted beside another").await;
        let op = match writes {
            0 => op,
            1 => shared(extend(&k, other, BRIEF, token)),
            2 => shared(extend(&k, other, BRIEF, token + 1)),
            3 => raise(&k, other, token + 1),
            _ => shared(release(&k, other)),
        };
        c.ask(op).await;
        all.push((k, a, token));
    }
    outlive().await;
    for (writes, (k, a, token)) in all.into_iter().enumerate() {
        let got = b.ask(inspect(&k)).await;
        let Reply::Readers(readers) = &got else { b.broken("a reader stays", &(writes, &got)) };
        let owners: Vec<OwnerToken> = readers.listed.iter().map(|one| one.owner).collect();
        let whole = owners == [a] && readers.fence >= token;
        b.check(whole, "with the fence of its lock", &(writes, readers));
    }
}

async fn a_shorter_lease_does_not_shorten_a_place_or_a_watch(b: Bench) {
    let (mut events, c) = (b.events(), brief(&b));
    listening(&b, &mut events).await;
    let watches = |k: &LockKeys, owner| match acquire_watching(k, owner) {
        Op::Acquire { mode, keys, owner, proposal, if_held, .. } => {
            Op::Acquire { mode, keys, owner, proposal, if_held, ttl: BRIEF }
        }
        other => other,
    };
    let mut got = Vec::new();
    for _ in 0..TRIES {
        let (k, queued, a) = (b.lock(), b.lock(), b.owner());
        for lock in [&k, &queued] {
            b.granted(acquire(lock, a, LONG), "a free lock is granted").await;
        }
        b.ask(acquire_watching(&k, b.owner())).await;
        b.ask(acquire_waiting(&queued, b.owner(), (1, Duration::from_secs(20)))).await;
        // The lease of the holder that the others see is shorter, too.
        let renew = |ttl| [&k, &queued].map(|lock| extend(lock, a, ttl, 1)).to_vec();
        b.all(renew(Duration::from_secs(2))).await;
        c.ask(watches(&k, b.owner())).await;
        c.ask(acquire_waiting(&queued, b.owner(), (2, BRIEF))).await;
        if b.all(renew(LONG)).await != [Reply::Done, Reply::Done] {
            continue; // the machine is slow, and the holder's lease was over
        }
        outlive().await;
        got.clear();
        for lock in [&k, &queued] {
            b.expect(release(lock, a), Reply::Done, "the owner releases").await;
            got.push(next_hint(&mut events, lock.lock()).await);
        }
        if got == [Some(None), Some(Some(1))] {
            return;
        }
    }
    b.broken("who watches and who waits longest is woken", &got);
}

async fn a_shorter_lease_does_not_shorten_a_promise(b: Bench) {
    let (c, r) = (brief(&b), b.key());
    let (a, other) = b.owners();
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(unclaim(&r, a), Reply::Done, "the claimant gives back").await;
    let terms = Claim { retention: BRIEF, ..claim_terms(&r, other, BRIEF, None, false) };
    c.granted(Op::Claim(terms), "a key that was given back is claimed").await;
    c.expect(unclaim(&r, other), Reply::Done, "the claimant gives back").await;
    outlive().await;
    for late in [extend_claim(&r, a, t, LONG), complete(&r, a, t, b"v")] {
        b.expect(late, Reply::NotOwner, "a late request of the first claimant is refused").await;
    }
}

async fn readers_whose_grants_are_over_take_no_place(b: Bench) {
    let k = b.lock();
    let read = |owner, ttl| shared(acquire(&k, owner, ttl));
    b.granted(read(b.owner(), LONG), "a free lock is granted to a reader").await;
    // 4 096 readers are the most that a lock has.
    for _ in 0..46 {
        b.all((0..91).map(|_| read(b.owner(), SHORT)).collect()).await;
    }
    sleep(SHORT + Duration::from_millis(20)).await;
    for _ in 0..46 {
        let got = b.all((0..80).map(|_| read(b.owner(), LONG)).collect()).await;
        b.check(got.iter().all(is_granted), "their places are free", &got);
    }
}
