//! Whatever a client believes of a semaphore, the reply and the slots are those of the rule, in at
//! most two round trips, if nobody else changes them meanwhile.

use std::fmt::Write as _;
use std::time::Duration;

use super::beliefs::Beliefs;
use super::lock::Shown;
use super::lock_tests::{World, named};
use super::planned::Judged;
use super::twin::{Setting, Twin, Value};
use super::write::Key;
use crate::fuzzing::Dice;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Op, Place, QuarantineId, Reply, Slots, Want};
use crate::rules::header::Header;
use crate::rules::locks::{Row, Slot, decide};
use crate::rules::tests::{header, owner};
use crate::token::{FencingToken, OwnerToken};

/// The slots of a semaphore, with one for each owner at most.
fn slots(dice: &mut Dice, now: u64) -> Vec<u8> {
    let mut owners = ["a", "b", "c"].map(|name| Some(owner(name))).to_vec();
    owners.extend([1, 2].map(|handle| Some(OwnerToken::reserved_for(handle))));
    let mut text = String::new();
    for _ in 0..=dice.below(3) {
        let own = if dice.below(3) == 0 {
            None
        } else {
            owners.remove(dice.below(owners.len() as u64) as usize)
        };
        let till = own.map_or(0, |_| now + dice.of(&[1, 5, 100, 2_000]) - dice.of(&[0, 0, 0, 50]));
        let near = now * 1_000 - 4_000 + dice.below(8) * 1_000;
        let fence = dice.of(&[0, near, now * 1_000 + 9_000_000]);
        text += own.as_ref().map_or("......................", OwnerToken::as_str);
        let _ = write!(text, "{till:013}{fence:016}");
    }
    text.into_bytes()
}

fn queue(dice: &mut Dice, now: u64) -> Vec<u8> {
    let mut text = dice.of(&["0", "1"]).to_owned();
    for waiter in 1..=dice.below(3) {
        let (since, known) = ((now - 50) * 1_000 + waiter, dice.below(4));
        let _ = write!(text, "{since:016}x{waiter:016x}09{known:013}");
    }
    text.into_bytes()
}

fn intrude(world: &mut World, dice: &mut Dice) {
    let (now, end) = (world.now, Some(world.now + dice.of(&[1, 100, 2_000])));
    let (key, value) = match dice.below(12) {
        0 => (Key::Main, None),
        1 => (Key::Main, Some((Value::Text(b"a stranger's".to_vec()), end))),
        2 => (Key::Main, Some((Value::Other, None))),
        3 => {
            let own = dice.of(&[owner("a"), OwnerToken::reserved_for(1)]);
            (Key::Main, Some((Value::Text(own.as_str().into()), end)))
        }
        4 => (Key::Main, Some((Value::Readers(vec![(owner("a"), now + 900)]), Some(now + 900)))),
        5 => (Key::Queue, None),
        6..8 => (Key::Queue, Some((Value::Text(queue(dice, now)), end))),
        _ => {
            let end = dice.of(&[end, end, Some(now + 900_000), None]);
            (Key::Main, Some((Value::Text(slots(dice, now)), end)))
        }
    };
    match value {
        Some(value) => _ = world.twin.keys.insert(named(key), value),
        None => _ = world.twin.keys.remove(&named(key)),
    }
}

fn random_op(dice: &mut Dice, now: u64) -> Op {
    let (keys, own) = (LockKeys::new("k"), owner(dice.of(&["a", "a", "b"])));
    let of = dice.of(&[1, 2, 2, 3, 4]);
    let (any, slot) = (Slots::any(of), dice.below(4) as u16);
    let exactly = LockMode::Slot(any.exactly(slot));
    let ahead = dice.of(&[0, 0, 0, 9_000_000]);
    let token = FencingToken::new(now * 1_000 - 4_000 + dice.below(8) * 1_000 + ahead);
    let ttl = Duration::from_millis(dice.of(&[40, 500]));
    match dice.below(12) {
        0 => Op::Raise { keys, owner: own, token, slot: Some(slot) },
        1..4 => {
            let owner = dice.of(&[own, own, OwnerToken::reserved_for(1)]);
            let mode = dice.of(&[LockMode::Slot(any), exactly]);
            Op::Release { mode, keys, owner, meta: false }
        }
        4..6 => {
            let named = QuarantineId { history: dice.of(&[2, 3]), since: 900 };
            let reassert = dice.of(&[None, Some(named)]);
            Op::Extend { mode: exactly, keys, owner: own, ttl, token, meta: None, reassert }
        }
        _ => {
            let place = Place {
                waiter: dice.of(&[1, 2, 3]),
                waited: Duration::from_millis(dice.of(&[0, 50, 4_000])),
                needs: Duration::from_millis(9),
            };
            let if_held = dice.of(&[None, Some(IfHeld::Watch), Some(IfHeld::Queue(place))]);
            let start = Slots { want: Want::First { start: slot % of, step: 1 }, ..any };
            let mode = dice.of(&[LockMode::Slot(start), LockMode::Slot(start), exactly]);
            let proposal = dice.of(&[now * 1_000, now * 1_000 - 3_000, token.get(), 0]);
            Op::Acquire { mode, keys, owner: own, ttl, proposal, if_held }
        }
    }
}

/// Who has which slot, until when, with which fence. One that is over is as good as free, and so is
/// one that is missing at the end (semaphore 1, 6).
fn taken(row: &Row, h: &Header) -> Vec<Slot> {
    let freed = |slot: &Slot| {
        let is_grant = slot.owner.is_some_and(|owner| !owner.is_ownerless());
        // (quarantine 11): 2E.
        let apart = if h.settling && is_grant { 10_000_000 } else { 0 };
        let is_free = slot.owner.is_none() || slot.till + apart <= h.now;
        if is_free { Slot { fence: slot.fence, ..Slot::default() } } else { *slot }
    };
    trimmed(row.slots.iter().map(freed).collect())
}

fn trimmed(mut slots: Vec<Slot>) -> Vec<Slot> {
    let used = slots.iter().rposition(|slot| *slot != Slot::default());
    slots.truncate(used.map_or(0, |last| last + 1));
    slots
}

fn waiters(row: &Row) -> Vec<(u64, u64)> {
    row.waiters().iter().map(|(since, _, waiter)| (*since, *waiter)).collect()
}

/// Those that are left when no handle has a connection: each that knows one of the freed slots is
/// called, and goes.
fn left(twin: &Twin, before: Vec<(u64, u64)>, freed: &[usize]) -> Vec<(u64, u64)> {
    let Some(lowest) = freed.first() else { return before };
    let text = String::from_utf8_lossy(twin.text(&named(Key::Queue)).unwrap_or_default());
    let knows = |waiter: u64| {
        let at = text.find(&format!("x{waiter:016x}")).expect("its place");
        text[at + 19..at + 32].parse::<usize>().expect("a number") > *lowest
    };
    before.into_iter().filter(|(_, waiter)| !knows(*waiter)).collect()
}

fn end(twin: &Twin) -> Option<u64> {
    twin.keys.get("k").and_then(|(_, end)| *end)
}

fn history(seed: u64) {
    let mut dice = Dice(seed);
    let words = ["", "", "since=900", "since=900 quarantine=9", "settling"];
    let mut world = World { twin: Twin::default(), h: header(dice.of(&words)), now: 1_000_000 };
    world.h.settles_till = 9_000_000;
    let settles = world.h.settling;
    let mut beliefs: Vec<Option<Shown>> = vec![None, None];
    for _ in 0..40 {
        match dice.below(30) {
            0 => world.h.facts.history_id = dice.of(&[2, 3]),
            1 => world.h.facts.quarantine = dice.of(&[Duration::ZERO, Duration::from_secs(9)]),
            2 => world.h.settling ^= settles,
            _ => world.now = world.now + dice.below(60) - dice.below(5),
        }
        if dice.below(2) == 0 {
            intrude(&mut world, &mut dice);
        }
        let now = world.now;
        world.twin.keys.retain(|_, (_, end)| end.is_none_or(|end| end > now));
        // No program gives a string an end between two trips.
        let was_so = |shown: &Shown| shown.left != -1 || end(&world.twin).is_none();
        let believed = dice.of(&beliefs).filter(was_so);
        // What was shown is judged and planned by the clock that came with it.
        let has_believed = believed.is_some();
        let ago = if has_believed { 0 } else { dice.of(&[0, 3, 400]) };
        let op = random_op(&mut dice, now);
        let (h, before) = (world.header(0), world.twin.clone());
        let row = world.shown().0.row(&h);
        let what = format!("seed {seed}: {op:?}\n on {before:?}\n believed {believed:?}");
        let (reply, trips) = world.ask(&op, believed, ago);
        let reply = reply.unwrap_or_else(|e| panic!("{e}, {what}"));
        assert!(trips <= 2, "{trips} trips, {what}");
        let found = world.shown().0.row(&h);
        check(&h, &op, (&row, &before), (&reply, &found, &world.twin), has_believed, &what);
        beliefs.push(Some(world.shown().0));
    }
}

/// What the rule makes of the row, beside what became of it.
fn check(
    h: &Header,
    op: &Op,
    (row, before): (&Row, &Twin),
    (reply, found, after): (&Reply, &Row, &Twin),
    has_believed: bool,
    what: &str,
) {
    let mut asked = op.clone();
    if let Op::Acquire { proposal, .. } = &mut asked {
        // One out of range is planned as one that stays in range while the write is under way.
        *proposal = h.in_range_for_long(*proposal);
    }
    let mut expected = decide(h, &asked, vec![row.clone()]);
    let wake = expected.wakes.pop().unwrap_or_default();
    let mut right = expected.rows.remove(0);
    assert_eq!(reply, &expected.reply, "{what}");
    let changes = trimmed(right.slots.clone()) != trimmed(row.slots.clone());
    for slot in &wake.slots {
        // No handle has a connection, so none gets the reservation.
        right.slots[*slot].owner.take_if(|owner| owner.is_ownerless());
    }
    assert_eq!(taken(found, h), taken(&right, h), "{what}");
    let rest = |row: &Row| (row.held.clone(), row.readers.clone(), row.reserved);
    assert_eq!(rest(found), rest(row), "{what}");
    let is_kept = matches!(reply, Reply::Done) && !matches!(op, Op::Release { .. });
    if !changes && wake.slots.is_empty() && !is_kept {
        assert_eq!(after.keys.get("k"), before.keys.get("k"), "{what}");
    }
    // A release gives nothing for which the fence would have to live on.
    if changes && (is_kept || matches!(reply, Reply::Permit { .. })) {
        let end = end(after).expect("it expires");
        assert!(end * 1_000_000 >= h.fence_till(), "{what}");
    }
    if let Some(end_before) = end(before) {
        assert!(end(after).is_some_and(|end| end >= end_before), "{what}");
    }

    let if_held = match op {
        Op::Acquire { if_held, .. } => *if_held,
        _ => None,
    };
    let own = if_held.as_ref().and_then(IfHeld::place).map(|place| place.waiter);
    let waits = matches!(reply, Reply::Held { .. });
    let mut expected = left(before, waiters(row), &wake.slots);
    let mut there = waiters(found);
    if waits && own.is_some() {
        expected.retain(|(_, waiter)| Some(*waiter) != own);
        expected.extend(waiters(&right).iter().filter(|(_, waiter)| Some(*waiter) == own));
        expected.sort_unstable();
        there.sort_unstable();
    } else if has_believed {
        // Who believed that all slots are taken has a place, and may have the slot beside it.
        expected.retain(|(_, waiter)| Some(*waiter) != own);
        there.retain(|(_, waiter)| Some(*waiter) != own);
    }
    assert_eq!(there, expected, "{what}");
    let is_watcher = if_held == Some(IfHeld::Watch);
    if waits && is_watcher && !matches!(reply, Reply::Held { remaining: None, .. }) {
        assert!(after.text(&named(Key::Queue)).is_some_and(|text| text[0] == b'1'), "{what}");
    }
    let hints = after.hints.len() - before.hints.len();
    // Who believed so watches already, and is told of the slot that it frees itself.
    let told = usize::from(wake.watchers);
    let tells_itself = has_believed && is_watcher && !wake.slots.is_empty();
    assert!(hints == told || tells_itself && hints == 1, "{hints} hints, {what}");
}

#[test]
fn whatever_is_believed_the_reply_and_the_slots_are_those_of_the_rule() {
    let more = std::env::var("PALISADE_BELIEFS").ok().and_then(|n| n.parse().ok());
    (0..more.unwrap_or(600)).for_each(history);
}

#[test]
fn the_ops_of_a_permit_take_one_trip() {
    let mut world = World { twin: Twin::default(), h: header("since=900"), now: 1_000_000 };
    let (own, other, keys) = (owner("a"), owner("b"), LockKeys::new("k"));
    let (ttl, proposal) = (Duration::from_millis(500), 1_000_000_000);
    let any = Slots::any(3);
    let acquire = |mode, owner| {
        let keys = keys.clone();
        Op::Acquire { mode: LockMode::Slot(mode), keys, owner, ttl, proposal, if_held: None }
    };
    let given = |fence, slot| (Ok(Reply::Permit { fence, slot }), 1);
    assert_eq!(world.ask(&acquire(any, own), None, 3), given(proposal, 0));
    assert_eq!(world.ask(&acquire(any, own), None, 3), given(proposal, 0));
    assert_eq!(world.ask(&acquire(any, other), None, 3), given(proposal, 1));
    assert_eq!(world.ask(&acquire(any.exactly(2), own), None, 3), given(proposal, 2));
    assert_eq!(world.ask(&acquire(any.exactly(0), other), None, 3), given(proposal + 1, 0));
    let (mode, token) = (LockMode::Slot(any.exactly(2)), FencingToken::new(proposal + 7));
    let raise = Op::Raise { keys: keys.clone(), owner: own, token, slot: Some(2) };
    assert_eq!(world.ask(&raise, None, 3), (Ok(Reply::Done), 1));
    let (meta, reassert) = (None, None);
    let extend = Op::Extend { mode, keys: keys.clone(), owner: own, ttl, token, meta, reassert };
    assert_eq!(world.ask(&extend, None, 3), (Ok(Reply::Done), 1));
    let release = Op::Release { mode, keys: keys.clone(), owner: own, meta: false };
    assert_eq!(world.ask(&release, None, 3), (Ok(Reply::Done), 1));
    assert_eq!(world.ask(&release, None, 3), (Ok(Reply::Absent), 1));
}

/// All permits of a handle are in one batch.
#[test]
fn the_permits_that_a_server_has_lost_are_restored_in_two_trips() {
    let (mut twin, mut beliefs) = (Twin::default(), Beliefs::default());
    let h = header("");
    let extend = |slot: u16| Op::Extend {
        mode: LockMode::Slot(Slots::any(60).exactly(slot)),
        keys: LockKeys::new("k"),
        owner: OwnerToken::from_random(slot.into()),
        ttl: Duration::from_millis(100),
        token: FencingToken::new(h.facts.node_micros),
        meta: None,
        reassert: None,
    };
    let mut ops: Vec<Op> = (0..60).rev().map(extend).collect();
    for _ in 0..2 {
        let plans: Vec<_> = beliefs.plan_all(&h, &ops).into_iter().flatten().collect();
        let of = Setting { micros: h.facts.node_micros, ..Setting::default() };
        let writes: Vec<_> = plans.iter().map(|plan| ("k", plan.write().clone())).collect();
        let (answers, mut again) = (twin.execute(of, &writes), Vec::new());
        for ((op, plan), answer) in ops.into_iter().zip(&plans).zip(answers) {
            match plan.judge((&h, &op), (answer, !again.is_empty()), &mut beliefs) {
                Judged::Reply(reply) => assert_eq!(reply.unwrap(), Reply::Done),
                _ => again.push(op),
            }
        }
        ops = again;
    }
    assert_eq!(ops, []);
}
