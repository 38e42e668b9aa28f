//! A client with shorter leases never shortens what another client relies on.

use std::time::Duration;

use palisade::node::spi::{Claim, Facts, LockKeys, Op, OwnerToken, Reply};
use tokio::time::sleep;

use super::bench::{Bench, LONG, SHORT};
use super::hints::{TRIES, listening, next_hint};
use super::ops::{
    acquire, acquire_waiting, acquire_watching, claim, claim_terms, complete, extend, extend_claim,
    inspect, is_granted, is_held, on_slots, raise, release, shared, take, unclaim,
};
use super::semaphores::{TWO, given, slot};
use super::{Case, list, lists};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_shorter_lease_does_not_shorten_a_permit,
        Nothing: a_shorter_lease_does_not_shorten_the_fence_of_readers,
        Nothing: a_shorter_lease_does_not_shorten_the_fence_of_a_mutex,
        Nothing: a_shorter_lease_does_not_shorten_the_fences_of_a_multi_lock,
        Nothing: a_shorter_lease_does_not_shorten_the_list_of_candidates,
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

/// Waits until everything is over that the client of [`brief`] needs, and a fair waiter's place.
async fn outlive(b: &Bench) {
    // All clients keep a fence for 4E + 1 s by the largest E, so also this one.
    let fence = BRIEF + 4 * b.facts().await.clock_error + Duration::from_secs(1);
    sleep(fence.max(Duration::from_secs(3)) + Duration::from_millis(200)).await;
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
    outlive(&b).await;
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
    outlive(&b).await;
    for (writes, (k, a, token)) in all.into_iter().enumerate() {
        let got = b.ask(inspect(&k)).await;
        let Reply::Readers(readers) = &got else { b.broken("a reader stays", &(writes, &got)) };
        let owners: Vec<OwnerToken> = readers.listed.iter().map(|one| one.owner).collect();
        let whole = owners == [a] && readers.fence >= token;
        b.check(whole, "with the fence of its lock", &(writes, readers));
    }
}

/// Raises the fence to a token that the clock has passed only when a shortened life is over.
async fn ahead(b: &Bench, k: &LockKeys, owner: OwnerToken) -> u64 {
    let Facts { node_micros, clock_error, .. } = b.facts().await;
    let token = node_micros + 6 * clock_error.as_micros() as u64;
    b.expect(raise(k, owner, token), Reply::Done, "the owner raises").await;
    token
}

async fn a_shorter_lease_does_not_shorten_the_fence_of_a_mutex(b: Bench) {
    let (c, mut all) = (brief(&b), Vec::new());
    for writes in 0..5 {
        let (k, (a, other)) = (b.lock(), b.owners());
        let token = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
        let raised = ahead(&b, &k, a).await;
        let op = match writes {
            0 => extend(&k, a, BRIEF, token),
            1 => extend(&k, a, BRIEF, raised + 1),
            2 => raise(&k, a, raised + 1),
            3 => take(&k, other, a),
            _ => {
                b.expect(release(&k, a), Reply::Done, "the owner releases").await;
                acquire(&k, other, BRIEF)
            }
        };
        let got = c.ask(op).await;
        b.check(got == Reply::Done || is_granted(&got), "it is executed", &(writes, got));
        all.push((k, [a, other], raised));
    }
    outlive(&b).await;
    for (writes, (k, owners, raised)) in all.into_iter().enumerate() {
        b.all(owners.map(|owner| release(&k, owner)).to_vec()).await;
        let next = b.granted(acquire(&k, b.owner(), LONG), "a free lock is granted").await;
        b.check(next > raised, "the fence is kept", &(writes, next, raised));
    }
}

async fn a_shorter_lease_does_not_shorten_the_fences_of_a_multi_lock(b: Bench) {
    let (c, mut all) = (brief(&b), Vec::new());
    for writes in 0..4 {
        let (names, (a, other)) = ([b.lock(), b.lock()], b.owners());
        let both = LockKeys::many(names.to_vec());
        let token = b.granted(acquire(&both, a, LONG), "free locks are granted").await;
        let raised = ahead(&b, &both, a).await;
        let op = match writes {
            0 => extend(&both, a, BRIEF, token),
            1 => extend(&both, a, BRIEF, raised + 1),
            2 => raise(&both, a, raised + 1),
            _ => {
                b.expect(release(&both, a), Reply::Done, "the owner releases").await;
                acquire(&both, other, BRIEF)
            }
        };
        let got = c.ask(op).await;
        b.check(got == Reply::Done || is_granted(&got), "it is executed", &(writes, got));
        all.push((names, both, a, raised));
    }
    outlive(&b).await;
    for (writes, (names, both, a, raised)) in all.into_iter().enumerate() {
        b.ask(release(&both, a)).await;
        for k in names {
            let next = b.granted(acquire(&k, b.owner(), LONG), "a free lock is granted").await;
            b.check(next > raised, "the fence is kept", &(writes, next, raised));
        }
    }
}

async fn a_shorter_lease_does_not_shorten_the_list_of_candidates(b: Bench) {
    let (c, key, (a, other)) = (brief(&b), b.key(), b.owners());
    b.ask(lists::write(&key, a, LONG, b"long")).await;
    c.ask(lists::write(&key, other, BRIEF, b"brief")).await;
    outlive(&b).await;
    let listed = lists::owners(&lists::read(&b, &key).await);
    b.check(listed == [a], "a candidate stays for its own ttl", &listed);
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
        outlive(&b).await;
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
    outlive(&b).await;
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
