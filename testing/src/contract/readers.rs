//! Test cases for shared grants: locks that are held for reading. The number in the name of a case
//! is that of its rule in `docs/design/readers.md`.

use std::time::{Duration, Instant};

use palisade::node::spi::{LockKeys, Op, OwnerToken, QuarantineId, Readers, Reply};
use tokio::time::sleep;

use super::bench::{Bench, LONG, ROUNDED, SHORT};
use super::crash::after;
use super::handover::{handed_over, slowly};
use super::hints::{HUSH, TRIES, awaited, listening, next_hint};
use super::ops::{
    RESERVED, acquire, acquire_at, acquire_waiting, extend, inspect, is_granted, is_held, raise,
    release, shared,
};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: rule_1_readers_are_granted_beside_readers,
        Nothing: rule_1_an_owner_keeps_readers_out,
        Foreign: rule_1_another_programs_value_keeps_readers_out,
        Nothing: rule_1_a_name_has_a_largest_number_of_readers,
        Nothing: rule_2_reading_does_not_raise_the_fence,
        Nothing: rule_2_a_first_reader_begins_the_fence,
        Nothing: rule_3_readers_keep_an_owner_out_until_the_last_one_ends,
        Nothing: rule_4_a_reader_that_asks_again_has_what_it_has,
        Nothing: rule_5_a_readers_token_is_raised,
        Nothing: rule_6_a_reader_extends_and_is_put_back,
        Nothing: rule_6_a_writer_becomes_a_reader,
        Nothing: rule_6_no_extension_makes_a_reader_a_writer,
        Nothing: rule_7_a_release_removes_its_reader_only,
        Nothing: rule_7_a_lock_ends_with_the_longest_reader_that_is_left,
        Nothing: rule_7_a_dead_reader_is_gone_with_the_last_live_one,
        Nothing: rule_7_a_shared_release_takes_back_an_exclusive_grant,
        RestartEmpty: rule_8_a_node_in_quarantine_grants_no_reader,
        RestartKeeping: rule_8_a_reader_names_the_quarantine,
        HandOver: rule_8_readers_that_may_still_be_there_keep_the_name,
        Nothing: rule_9_a_writer_that_waits_keeps_later_readers_out,
        Nothing: rule_9_a_reader_whose_grant_is_over_is_a_newcomer,
        Nothing: rule_9_a_writer_behind_keeps_no_reader_out,
        Nothing: rule_9_a_writer_that_asks_no_more_keeps_readers_out_for_a_moment,
        Nothing: rule_10_readers_at_the_head_are_woken_together,
        Nothing: rule_10_a_woken_writer_leaves_readers_behind_it,
        Nothing: rule_10_what_is_reserved_for_readers_keeps_writers_out,
        Nothing: rule_10_a_downgrade_wakes_the_readers_before_the_first_writer,
    ]
}

fn read(keys: &LockKeys, owner: OwnerToken, ttl: Duration) -> Op {
    shared(acquire(keys, owner, ttl))
}

fn renew(keys: &LockKeys, owner: OwnerToken, ttl: Duration, token: u64) -> Op {
    shared(extend(keys, owner, ttl, token))
}

fn leave(keys: &LockKeys, owner: OwnerToken) -> Op {
    shared(release(keys, owner))
}

/// Returns the readers of the lock, as the node reports them.
async fn readers(b: &Bench, k: &LockKeys) -> Readers {
    match b.ask(inspect(k)).await {
        Reply::Readers(readers) => readers,
        other => b.broken("the lock has readers", &other),
    }
}

async fn rule_1_readers_are_granted_beside_readers(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, LONG / 2), "a reader is granted beside another").await;
    let seen = readers(&b, &k).await;
    let owners: Vec<_> = seen.listed.iter().map(|reader| reader.owner).collect();
    b.check(seen.count == 2 && owners == [a, c], "both are shown, the longest first", &seen);
    let rest = seen.listed[1].remaining;
    b.check(rest <= LONG / 2 + ROUNDED && rest > LONG / 4, "each has its own end", &seen);
}

async fn rule_1_an_owner_keeps_readers_out(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let held = b.ask(read(&k, c, LONG)).await;
    b.check(is_held(&held), "an owner keeps readers out", &held);
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.granted(read(&k, c, LONG), "a released lock is granted to a reader").await;
}

async fn rule_1_another_programs_value_keeps_readers_out(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    if let Some(put) = &b.hooks.put_foreign {
        put(k.lock().to_owned(), Some(LONG)).await;
    }
    let held = b.ask(read(&k, a, LONG)).await;
    let foreign = matches!(held, Reply::Held { foreign: true, .. });
    b.check(foreign, "another program's value keeps readers out", &held);
    let said = b.all(vec![renew(&k, a, LONG, 1), leave(&k, a)]).await;
    let refused = said == [Reply::NotOwner, Reply::NotOwner];
    b.check(refused, "it is neither extended nor released", &said);
}

async fn rule_1_a_name_has_a_largest_number_of_readers(b: Bench) {
    let k = b.lock();
    let first = b.owner();
    b.granted(read(&k, first, LONG / 2), "a free lock is granted to a reader").await;
    for _ in 0..45 {
        let ops = (0..91).map(|_| read(&k, b.owner(), LONG)).collect();
        let got = b.all(ops).await;
        b.check(got.iter().all(is_granted), "readers are granted beside readers", &got);
    }
    // The lock has 4 096 readers now, which is the largest number. So a further reader is refused.
    let (last, again) =
        (b.ask(read(&k, b.owner(), LONG)).await, b.ask(read(&k, first, LONG)).await);
    let Reply::Held { remaining: Some(rest), foreign: false } = last else {
        b.broken("the next reader waits", &last)
    };
    b.check(rest <= LONG / 2 + ROUNDED, "it waits for the first reader's end", &rest);
    b.check(is_granted(&again), "a reader that has its grant keeps it", &again);
    let seen = readers(&b, &k).await;
    let full = (seen.count, seen.listed.len()) == (4_096, 64);
    b.check(full, "64 of all readers are shown", &(seen.count, seen.listed.len()));
    b.expect(leave(&k, first), Reply::Done, "a reader releases").await;
    b.granted(read(&k, b.owner(), LONG), "its place is free").await;
}

async fn rule_2_reading_does_not_raise_the_fence(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    let high = b.high().await.get();
    let proposal = |op| match op {
        Op::Acquire { mode, keys, owner, ttl, if_held, .. } => {
            Op::Acquire { mode, keys, owner, ttl, if_held, proposal: high }
        }
        other => other,
    };
    for owner in [a, c] {
        let fence = b.granted(proposal(read(&k, owner, LONG)), "a reader is granted").await;
        b.check(fence == t, "a reader gets the fence as it stands", &(t, fence));
    }
    b.all(vec![leave(&k, a), leave(&k, c)]).await;
    let next = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.check(next > t, "the next owner's fence is larger", &(t, next));
}

async fn rule_2_a_first_reader_begins_the_fence(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let low = b.low().await;
    let proposal = low.max(b.facts().await.node_micros) + 200_000;
    let op = shared(acquire_at(&k, a, LONG, proposal));
    let t = b.granted(op, "a reader is granted").await;
    b.check(t == proposal, "a new fence begins at the proposal", &(proposal, t));
    let same = b.granted(read(&k, c, LONG), "a second reader is granted").await;
    b.check(same == t, "and stays", &(t, same));
    let seen = readers(&b, &k).await;
    b.check(seen.fence == t, "the fence is shown", &seen);
}

async fn rule_3_readers_keep_an_owner_out_until_the_last_one_ends(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, SHORT), "a reader is granted beside another").await;
    let held = b.ask(acquire(&k, b.owner(), LONG)).await;
    let Reply::Held { remaining: Some(rest), foreign: false } = held else {
        b.broken("readers keep an owner out", &held)
    };
    b.check(rest > LONG / 2 && rest <= LONG + ROUNDED, "until the last one ends", &rest);
    b.expect(leave(&k, a), Reply::Done, "a reader releases").await;
    b.until("the name is free after the last reader", acquire(&k, a, LONG), is_granted).await;
}

async fn rule_4_a_reader_that_asks_again_has_what_it_has(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = b.granted(read(&k, a, LONG / 2), "a free lock is granted to a reader").await;
    let again = b.granted(read(&k, a, LONG), "a repeated request is granted").await;
    b.check(t == again, "with the same fence", &(t, again));
    let seen = readers(&b, &k).await;
    let rest = seen.listed[0].remaining;
    b.check(seen.count == 1 && rest <= LONG / 2 + ROUNDED, "and the same end", &seen);
}

async fn rule_5_a_readers_token_is_raised(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.expect(raise(&k, a, t + 5), Reply::Done, "a reader's token is raised").await;
    b.expect(raise(&k, a, t + 4), Reply::NotOwner, "never downwards").await;
    b.expect(raise(&k, c, t + 9), Reply::NotOwner, "only for a reader").await;
    b.expect(leave(&k, a), Reply::Done, "the reader releases").await;
    b.expect(raise(&k, a, t + 9), Reply::NotOwner, "only while it reads").await;
    let next = b.granted(read(&k, c, LONG), "a free lock is granted to a reader").await;
    b.check(next == t + 5, "the fence is the raised token", &(t, next));
}

async fn rule_6_a_reader_extends_and_is_put_back(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(read(&k, a, LONG / 4), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, LONG / 2), "a reader is granted beside another").await;
    b.expect(renew(&k, a, LONG, t), Reply::Done, "a reader extends").await;
    let seen = readers(&b, &k).await;
    let first = seen.listed[0];
    b.check(first.owner == a && first.remaining > LONG / 2, "it lasts the new ttl", &seen);
    b.check(seen.fence == t, "an extension keeps the fence", &seen);
    b.expect(leave(&k, a), Reply::Done, "a reader releases").await;
    b.expect(renew(&k, a, LONG, t + 7), Reply::Done, "an absent reader is put back").await;
    let seen = readers(&b, &k).await;
    b.check((seen.count, seen.fence) == (2, t + 7), "the fence is lifted to its token", &seen);
}

async fn rule_6_a_writer_becomes_a_reader(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(renew(&k, c, LONG, t), Reply::NotOwner, "another's lock is not shared").await;
    b.expect(renew(&k, a, LONG, t), Reply::Done, "a writer becomes a reader").await;
    let same = b.granted(read(&k, c, LONG), "another reader is granted beside it").await;
    b.check(same == t, "with its token", &(t, same));
    let held = b.ask(acquire(&k, b.owner(), LONG)).await;
    b.check(is_held(&held), "no writer gets in between", &held);
    b.expect(leave(&k, a), Reply::Done, "it releases as a reader").await;
}

async fn rule_6_no_extension_makes_a_reader_a_writer(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    for owner in [a, c] {
        b.expect(extend(&k, owner, LONG, t), Reply::NotOwner, "readers are not replaced").await;
        b.expect(release(&k, owner), Reply::NotOwner, "nor released as an owner").await;
    }
    b.granted(read(&k, c, LONG), "it is still shared").await;
}

async fn rule_7_a_release_removes_its_reader_only(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.expect(leave(&k, a), Reply::Absent, "there is nothing to release").await;
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, LONG), "a reader is granted beside another").await;
    b.expect(leave(&k, b.owner()), Reply::Absent, "no other owner's is released").await;
    b.expect(leave(&k, a), Reply::Done, "a reader releases").await;
    b.expect(leave(&k, a), Reply::Absent, "once").await;
    let seen = readers(&b, &k).await;
    b.check(seen.count == 1 && seen.listed[0].owner == c, "the other stays", &seen);
    b.expect(leave(&k, c), Reply::Done, "a reader releases").await;
    b.expect(inspect(&k), Reply::Holder(None), "then it is free").await;
    b.granted(acquire(&k, a, LONG), "and granted").await;
    b.expect(leave(&k, c), Reply::NotOwner, "an owner's lock is not a reader's").await;
}

/// The lock ends when the grants of the remaining readers end, and not when the grant of a reader
/// that has released would have ended.
async fn rule_7_a_lock_ends_with_the_longest_reader_that_is_left(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, SHORT), "a reader is granted beside another").await;
    b.expect(leave(&k, a), Reply::Done, "the longer one releases").await;
    let held = b.ask(acquire(&k, a, LONG)).await;
    if let Reply::Held { remaining: Some(rest), .. } = held {
        b.check(rest <= SHORT + ROUNDED, "the lock ends with the other", &rest);
    }
    b.until("the name is free then", acquire(&k, a, LONG), is_granted).await;
}

/// A reader that renews does not prolong the grant of another reader.
async fn rule_7_a_dead_reader_is_gone_with_the_last_live_one(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(read(&k, a, SHORT), "a free lock is granted to a reader").await;
    let t = b.granted(read(&k, c, LONG), "a reader is granted beside another").await;
    sleep(2 * SHORT).await;
    b.expect(renew(&k, c, LONG, t), Reply::Done, "a reader extends").await;
    let seen = readers(&b, &k).await;
    b.check(seen.count == 1, "the dead one is not shown", &seen);
    b.expect(raise(&k, a, t + 1), Reply::NotOwner, "nor raised").await;
    b.expect(leave(&k, c), Reply::Done, "the live one releases").await;
    b.granted(acquire(&k, b.owner(), LONG), "then the lock is free").await;
}

async fn rule_7_a_shared_release_takes_back_an_exclusive_grant(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(leave(&k, c), Reply::NotOwner, "another's lock is not released").await;
    b.expect(leave(&k, a), Reply::Done, "a downgrade did not reach this node").await;
    b.granted(acquire(&k, c, LONG), "the lock is free").await;
}

async fn rule_8_a_node_in_quarantine_grants_no_reader(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    after(&b, b.hooks.restart_empty.as_ref()).await;
    let said = b.all(vec![read(&k, b.owner(), LONG), renew(&k, a, LONG, t)]).await;
    let silent = said.iter().all(|reply| matches!(reply, Reply::Quarantined { .. }));
    b.check(silent, "a node that forgot grants and extends nothing", &said);
    b.expect(leave(&k, a), Reply::Absent, "releases go on").await;
    b.settle().await;
    b.until("it grants after the quarantine", read(&k, a, LONG), is_granted).await;
}

async fn rule_8_a_reader_names_the_quarantine(b: Bench) {
    let (k, gone, (a, c)) = (b.lock(), b.lock(), b.owners());
    let t = b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    let Reply::Quarantined { id, .. } = b.ask(renew(&k, a, LONG, t)).await else { return };
    let named = |keys: &LockKeys, owner, id: QuarantineId| {
        shared(super::ops::reassert(keys, owner, LONG, t, Some(id)))
    };
    let other = QuarantineId { since: id.since + 1, ..id };
    let said = b.ask(named(&k, a, other)).await;
    let silent = matches!(said, Reply::Quarantined { .. });
    b.check(silent, "the name of another quarantine does not count", &said);
    b.expect(named(&k, a, id), Reply::Done, "a reader that names it is extended").await;
    b.expect(named(&gone, a, id), Reply::Done, "or put back").await;
    b.expect(named(&gone, c, id), Reply::Done, "beside another").await;
    let seen = readers(&b, &gone).await;
    b.check(seen.count == 2, "both read", &seen);
}

async fn rule_8_readers_that_may_still_be_there_keep_the_name(b: Bench) {
    let b = slowly(b).await;
    let (k, (a, c)) = (b.lock(), b.owners());
    let begun = Instant::now();
    // The grant must be over when the new server takes over. This imitates a new server whose clock
    // is ahead, so that the grant ends too early.
    b.granted(read(&k, a, Duration::from_millis(10)), "a free lock is granted to a reader").await;
    sleep(Duration::from_millis(20)).await;
    handed_over(&b).await;
    let apart = 2 * b.terms.clock_error;
    for op in [acquire(&k, c, LONG), read(&k, c, LONG)] {
        let kept = b.ask(op).await;
        // On a slow machine, the handover may last longer than the time for which the node counts a
        // name as recently used.
        if is_granted(&kept) && begun.elapsed() >= apart {
            return;
        }
        b.check(is_held(&kept), "a name that was read lately is kept for its readers", &kept);
    }
    let t = b.high().await.get();
    b.expect(renew(&k, a, LONG, t), Reply::Done, "the reader puts itself back").await;
    b.granted(read(&k, c, LONG), "and is no obstacle to others").await;
}

/// Returns a lock that a reader holds, and for which a writer has waited for `waited`.
async fn read_beside_a_writer(b: &Bench, waited: Duration) -> LockKeys {
    let (k, a) = (b.lock(), b.owner());
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    let held = b.ask(acquire_waiting(&k, b.owner(), (WRITER, waited))).await;
    b.check(is_held(&held), "a reader keeps a writer out", &held);
    k
}

async fn rule_9_a_writer_that_waits_keeps_later_readers_out(b: Bench) {
    let k = read_beside_a_writer(&b, Duration::from_secs(20)).await;
    let newcomer = read(&k, b.owner(), LONG);
    let later = shared(acquire_waiting(&k, b.owner(), (READERS[0], Duration::from_secs(10))));
    let earlier = shared(acquire_waiting(&k, b.owner(), (READERS[1], Duration::from_secs(30))));
    let got = b.all(vec![newcomer, later, earlier]).await;
    b.check(is_held(&got[0]), "a newcomer is refused", &got);
    b.check(is_held(&got[1]), "who waits for a shorter time is refused", &got);
    b.check(is_granted(&got[2]), "who waits for a longer time is not", &got);
    if let Reply::Held { remaining: Some(rest), .. } = &got[0] {
        b.check(*rest <= Duration::from_secs(3), "not for long", rest);
    }
}

async fn rule_9_a_reader_whose_grant_is_over_is_a_newcomer(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    b.granted(read(&k, a, LONG), "a free lock is granted to a reader").await;
    b.granted(read(&k, c, Duration::from_millis(10)), "and to another one").await;
    sleep(Duration::from_millis(20)).await;
    let writer = acquire_waiting(&k, b.owner(), (WRITER, Duration::from_secs(20)));
    let got = b.all(vec![writer, read(&k, c, LONG)]).await;
    b.check(is_held(&got[1]), "it had ended before the writer came", &got);
}

async fn rule_9_a_writer_behind_keeps_no_reader_out(b: Bench) {
    let k = read_beside_a_writer(&b, Duration::ZERO).await;
    let waits = shared(acquire_waiting(&k, b.owner(), (READERS[0], Duration::from_secs(10))));
    b.granted(waits, "a writer that began to wait later keeps no reader out").await;
}

async fn rule_9_a_writer_that_asks_no_more_keeps_readers_out_for_a_moment(b: Bench) {
    let k = read_beside_a_writer(&b, Duration::from_secs(20)).await;
    let begun = Instant::now();
    b.until("its place is stale after 3 s", read(&k, b.owner(), LONG), is_granted).await;
    b.check(begun.elapsed() > Duration::from_secs(2), "and not before", &begun.elapsed());
}

/// Ids of the clients (`Redlock` handles) of two readers. Other cases use the same clients, because
/// a node opens a new connection for each further client.
const READERS: [u64; 2] = [2, 3];
const WRITER: u64 = 1;

/// Acquires a lock, and makes two readers and a writer wait for it. `readers` and `writer` are the
/// seconds for which they have already waited. Returns the lock and its owner.
async fn queue_for(b: &Bench, readers: [u64; 2], writer: u64) -> (LockKeys, OwnerToken) {
    let (k, a) = awaited(b, &[]).await;
    for (waiter, secs) in READERS.into_iter().zip(readers) {
        let waits = (waiter, Duration::from_secs(secs));
        let held = b.ask(shared(acquire_waiting(&k, b.owner(), waits))).await;
        b.check(is_held(&held), "an owner keeps readers out", &held);
    }
    b.ask(acquire_waiting(&k, b.owner(), (WRITER, Duration::from_secs(writer)))).await;
    (k, a)
}

/// Returns the clients that hints about the lock (messages that it may be free) wake, until no hint
/// arrives for a while.
async fn woken(
    events: &mut tokio::sync::broadcast::Receiver<palisade::node::spi::NodeSignal>,
    k: &LockKeys,
) -> Vec<u64> {
    let mut all = Vec::new();
    while let Ok(Some(hint)) = tokio::time::timeout(HUSH, next_hint(events, k.lock())).await {
        all.extend(hint);
    }
    all.sort_unstable();
    all
}

/// Checks that an operation of the owner wakes the clients `want`, if readers and a writer have
/// waited for these numbers of seconds. A wake-up message may be lost, so there are several
/// attempts.
async fn wakes(
    b: &Bench,
    (readers, writer): ([u64; 2], u64),
    op: impl Fn(&LockKeys, OwnerToken) -> Op,
    want: &[u64],
) {
    let mut events = b.events();
    listening(b, &mut events).await;
    let mut got = Vec::new();
    for _ in 0..TRIES {
        let (k, a) = queue_for(b, readers, writer).await;
        b.expect(op(&k, a), Reply::Done, "the owner's request is done").await;
        got = woken(&mut events, &k).await;
        if got == want {
            return;
        }
    }
    b.broken("the right waiters are woken", &(want, got));
}

async fn rule_10_readers_at_the_head_are_woken_together(b: Bench) {
    wakes(&b, ([30, 25], 10), release, &READERS).await;
    wakes(&b, ([30, 5], 10), release, &READERS[..1]).await;
}

async fn rule_10_a_woken_writer_leaves_readers_behind_it(b: Bench) {
    wakes(&b, ([30, 25], 40), release, &[WRITER]).await;
}

async fn rule_10_a_downgrade_wakes_the_readers_before_the_first_writer(b: Bench) {
    let downgrade = |k: &LockKeys, a| renew(k, a, LONG, 1);
    wakes(&b, ([30, 25], 10), downgrade, &READERS).await;
    wakes(&b, ([30, 5], 10), downgrade, &READERS[..1]).await;
    wakes(&b, ([30, 25], 40), downgrade, &[]).await;
}

async fn rule_10_what_is_reserved_for_readers_keeps_writers_out(b: Bench) {
    let mut events = b.events();
    // A lock is not reserved for a client (`Redlock` handle) that receives no wake-up message.
    listening(&b, &mut events).await;
    let (k, a) = queue_for(&b, [30, 25], 10).await;
    let waits = |waiter, secs| acquire_waiting(&k, b.owner(), (waiter, Duration::from_secs(secs)));
    let ops = vec![
        release(&k, a),
        inspect(&k),
        acquire(&k, b.owner(), LONG),
        waits(WRITER, 10),
        shared(waits(READERS[0], 30)),
        shared(waits(READERS[1], 25)),
        acquire(&k, b.owner(), LONG),
    ];
    let got = b.all(ops).await;
    b.check(got[1] == Reply::Holder(None), "it has no holder yet", &got);
    b.check(is_held(&got[2]) && is_held(&got[3]), "writers are refused", &got);
    b.check(is_granted(&got[4]) && is_granted(&got[5]), "readers are granted", &got);
    b.check(is_held(&got[6]), "and keep writers out themselves", &got);
    if let Reply::Held { remaining: Some(rest), .. } = &got[2] {
        b.check(*rest <= RESERVED, "a reservation is short", rest);
    }
}
