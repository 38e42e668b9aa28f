//! Whatever a client believes of a lock, the reply and the lock are those of the rule, in at most
//! two round trips, if nobody else changes the lock meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::lock::Shown;
use super::locks::{judge, plan};
use super::planned::Judged;
use super::twin::{Setting, Twin, Value};
use super::write::{Extent, Key};
use crate::error::{NodeError, NodeFault};
use crate::fuzzing::Dice;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Op, Place, QuarantineId, Reply};
use crate::rules::header::Header;
use crate::rules::locks::{Held, Row, decide};
use crate::rules::tests::{header, owner};
use crate::token::{FencingToken, OwnerToken};

mod readers;

const QUEUE: &[u8] = b"1";

fn all(kept: bool) -> Extent {
    Extent { fence: true, all: true, kept, queue: true, reader: None }
}

struct World {
    twin: Twin,
    h: Header,
    /// In ms.
    now: u64,
}

fn named(key: Key) -> String {
    let keys = LockKeys::new("k");
    match key {
        Key::Main => keys.lock(),
        Key::Fence => keys.fence(),
        Key::Meta => keys.meta(),
        Key::Queue => keys.queue(),
    }
    .to_owned()
}

impl World {
    fn header(&self, ago: u64) -> Header {
        let now = self.now - ago;
        let mut h = self.h.clone();
        (h.now, h.facts.node_micros) = (now * 1_000_000, now * 1_000);
        h
    }

    fn setting(&self) -> Setting {
        Setting { micros: self.now * 1_000, ..Setting::default() }
    }

    /// As `window` in `src/node/redis/seen.rs`.
    fn is_outside(&self, op: &Op) -> bool {
        let h = self.header(0);
        let Op::Acquire { proposal, .. } = op else { return false };
        let apart = h.facts.node_micros.abs_diff(*proposal);
        h.settling || h.is_quarantined() || apart > h.clock_error()
    }

    /// All of it, with its metadata and whether it is watched.
    fn shown(&self) -> (Shown, Option<Arc<[u8]>>) {
        let shown = self.twin.lock(self.setting(), "k", all(self.h.settling));
        let meta = match self.twin.keys.get(&named(Key::Meta)) {
            Some((Value::Text(text), Some(_))) => Some(Arc::from(&text[..])),
            _ => None,
        };
        (shown, meta)
    }

    /// Metadata without a lock, which an extension brings back with it, are not the row's.
    fn row(&self, has_meta: bool) -> Row {
        let (shown, meta) = self.shown();
        let mut row = shown.row(&self.header(0));
        if let Some(held) = &mut row.held {
            held.meta = meta.filter(|_| has_meta);
        }
        row
    }

    /// As a client does that has believed this. Returns the number of trips, too.
    fn ask(
        &mut self,
        op: &Op,
        believed: Option<Shown>,
        ago: u64,
    ) -> (Result<Reply, NodeError>, usize) {
        let run = std::slice::from_ref(op);
        let believed = believed.map(|shown| vec![shown]);
        let mut planned = plan(&self.header(ago), run, believed).expect("a write");
        for trip in 1..9 {
            let of = Setting { is_outside: self.is_outside(op), ..self.setting() };
            let answer = self.twin.execute(of, &[("k", planned.write.clone())]).remove(0);
            match judge(&self.header(0), op, &planned, answer) {
                (Judged::Reply(reply), _) => return (reply, trip),
                (Judged::Again, shown) => {
                    planned = plan(&self.header(0), run, shown).expect("a write");
                }
                (Judged::Full, _) => unreachable!("there is memory"),
            }
        }
        panic!("no end of plans for {op:?}: {planned:?}\n{:?}\n{}", self.twin, self.now);
    }

    /// Somebody else writes one of the keys.
    fn intrude(&mut self, dice: &mut Dice) {
        let end = Some(self.now + dice.of(&[1, 100, 2_000]));
        let text = |text: &str, end| (Value::Text(text.into()), end);
        let own = owner(dice.of(&["a", "b"]));
        let (key, value) = match dice.below(16) {
            0..4 => (Key::Main, None),
            4..7 => (Key::Main, Some(text(own.as_str(), end))),
            7 => (Key::Main, Some(text("a stranger's", dice.of(&[None, end])))),
            8 => {
                let who = dice.of(&[OwnerToken::reserved_for(1), OwnerToken::READERS]);
                (Key::Main, Some(text(who.as_str(), end)))
            }
            9 => (Key::Main, Some((Value::Other, None))),
            10 => {
                let readers = vec![(owner("c"), self.now + 10), (own, self.now + 900)];
                (Key::Main, Some((Value::Readers(readers), Some(self.now + 900))))
            }
            11 => (Key::Fence, dice.of(&[None, Some((Value::Other, None))])),
            12 => {
                let number = self.now * 1_000 + dice.of(&[0, 5_000, 9_000_000]);
                (Key::Fence, Some(text(&number.to_string(), dice.of(&[None, end]))))
            }
            13 => (Key::Fence, Some(text(dice.of(&["", "no number", "007"]), None))),
            14 => (Key::Meta, dice.of(&[None, Some((Value::Other, None)), Some(text("m", None))])),
            _ => (Key::Queue, Some((Value::Text(QUEUE.to_vec()), None))),
        };
        match value {
            Some(value) => _ = self.twin.keys.insert(named(key), value),
            None => _ = self.twin.keys.remove(&named(key)),
        }
    }
}

fn random_op(dice: &mut Dice, now: u64) -> Op {
    let (keys, owner) = (LockKeys::new("k"), owner(dice.of(&["a", "a", "b"])));
    let ahead = dice.of(&[0, 0, 0, 9_000_000]);
    let token = FencingToken::new(now * 1_000 - 4_000 + dice.below(8) * 1_000 + ahead);
    match dice.below(14) {
        9.. => {
            let mode = dice.of(&[LockMode::Exclusive, LockMode::Shared]);
            let place = Place {
                // No handle waits as a writer and as a reader.
                waiter: dice.of(&[1, 2, 3]) + if mode.is_shared() { 10 } else { 0 },
                waited: Duration::from_millis(dice.of(&[0, 50, 4_000, 3_700_000])),
                needs: Duration::from_millis(9),
            };
            let ticket = dice.of(&[None, Some(now * 1_000 - 5_000), Some(now * 1_000)]);
            let fair = IfHeld::Fair { place, ticket };
            let if_held = Some(dice.of(&[IfHeld::Watch, IfHeld::Queue(place), fair]));
            let ttl = Duration::from_millis(dice.of(&[40, 500]));
            let proposal = dice.of(&[now * 1_000, now * 1_000 - 30_000, token.get(), 0]);
            Op::Acquire { mode, keys, owner, ttl, proposal, if_held }
        }
        6..9 => {
            let from = dice.of(&["a", "b", "c"]);
            let from = crate::rules::tests::owner(from);
            let only = IfHeld::TakeOnly { from, token };
            let if_held = Some(dice.of(&[IfHeld::TakeFrom(from), only]));
            let (mode, ttl) = (LockMode::Exclusive, Duration::from_millis(dice.of(&[40, 500])));
            let proposal = dice.of(&[token.get(), now * 1_000, 0, u64::MAX]);
            Op::Acquire { mode, keys, owner, ttl, proposal, if_held }
        }
        0 => Op::Raise { keys, owner, token, slot: None },
        1 | 2 => Op::Release { mode: LockMode::Exclusive, keys, owner, meta: true },
        3 => Op::Inspect { keys, wait: false },
        _ => {
            let named = QuarantineId { history: dice.of(&[2, 3]), since: 900 };
            let meta = dice.of(&[None, Some(&b"m"[..]), Some(b"mm"), Some(b"")]).map(Arc::from);
            let reassert = dice.of(&[None, Some(named)]);
            let mode = dice.of(&[LockMode::Exclusive, LockMode::Exclusive, LockMode::Shared]);
            let ttl = Duration::from_millis(dice.of(&[40, 500]));
            let meta = meta.filter(|_| mode == LockMode::Exclusive);
            Op::Extend { mode, keys, owner, ttl, token, meta, reassert }
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one kind of reply after the other")]
fn history(seed: u64) {
    let mut dice = Dice(seed);
    let words = ["", "", "since=900", "since=900 quarantine=9", "settling", "settling"];
    let mut h = header(dice.of(&words));
    h.settles_till = 9_000_000;
    h.is_young = dice.below(2) == 0;
    let settles = h.settling;
    let mut world = World { twin: Twin::default(), h, now: 8_000_000 };
    let mut beliefs: Vec<Option<Shown>> = vec![None, None];
    for _ in 0..40 {
        match dice.below(30) {
            0 => world.h.facts.history_id = dice.of(&[2, 3]),
            1 => world.h.facts.quarantine = dice.of(&[Duration::ZERO, Duration::from_secs(9)]),
            2 => world.h.settling ^= settles,
            3 => world.twin.settled.clear(),
            _ => world.now = world.now + dice.below(60) - dice.below(5),
        }
        if dice.below(2) == 0 {
            world.intrude(&mut dice);
        }
        let now = world.now;
        world.twin.keys.retain(|_, (_, end)| end.is_none_or(|end| end > now));
        let (mut believed, ago) = (dice.of(&beliefs), dice.of(&[0, 0, 3, 400]));
        if let (0, Some(shown), Some(other)) = (dice.below(4), &mut believed, dice.of(&beliefs)) {
            // Of different times.
            (shown.fence, shown.kept) = (other.fence, other.kept);
        }
        let op = random_op(&mut dice, now);
        let (before, mut row) = (world.twin.clone(), world.row(true));
        let fence = world.shown().0.fence();
        let h = world.header(0);
        if let Op::Inspect { .. } = op {
            row = world.shown().0.row(&h);
            // It is shown until it is over, though the node may have settled since.
            if let Some((kept @ OwnerToken::KEPT, till)) = row.reserved {
                let meta = world.shown().0.meta.as_deref().map(Arc::from);
                row.held = Some(Held { owner: Some(kept), till: Some(till), meta });
            }
        }
        if let Op::Inspect { .. } | Op::Acquire { .. } = op {
            row.fence = fence.unwrap_or(0);
        }
        let (reply, trips) = world.ask(&op, believed.clone(), ago);
        // Readers whose grants are over may go.
        let mut before = before;
        let mut most = 2;
        for keys in [&mut world.twin.keys, &mut before.keys] {
            if let Some((Value::Readers(all), _)) = keys.get_mut("k") {
                most += usize::from(all.iter().any(|(_, till)| *till <= now));
                all.retain(|(_, till)| *till > now);
            }
        }
        let mut asked = op.clone();
        // A proposal out of range has become one in range.
        if let (Op::Acquire { proposal, .. }, Ok(Reply::Granted { fence: given })) =
            (&mut asked, &reply)
            && *given > row.fence
            && row.fence <= now * 1_000 + 1_040_000
        {
            let in_range = h.next_fence(row.fence, *given) == *given;
            assert!(in_range, "{given} is out of range, seed {seed}");
            *proposal = *given;
        }
        let mut expected = decide(&h, &asked, vec![row.clone()]);
        // A fence that no correct clock gave was lowered by an earlier clock.
        if let (Ok(Reply::Granted { fence: given }), Reply::Granted { fence: right }) =
            (&reply, &mut expected.reply)
            && world.header(ago).honest(row.fence) < row.fence
            && (1..=400_001).contains(&right.saturating_sub(*given))
        {
            expected.rows[0].fence = *given;
            *right = *given;
        }
        let what = format!("seed {seed}: {op:?}\n on {before:?}\n believed {believed:?}");
        let mut drawn = None;
        // Who has a place already draws a new ticket.
        if let (Ok(Reply::Queued { queued, .. }), Reply::Queued { queued: had, .. }) =
            (&reply, &mut expected.reply)
            && let Op::Acquire { if_held: Some(IfHeld::Fair { place, ticket: None }), .. } = op
        {
            let waiters = world.row(true).waiters();
            let own = waiters.iter().find(|w| w.2 == place.waiter).expect("it waits");
            assert!(own.0 == queued.ticket && queued.ticket >= had.ticket, "{what}");
            had.ticket = queued.ticket;
            drawn = Some(place.waiter);
        }
        assert!(trips <= most, "{trips} trips, {what}");
        let after = &expected.rows[0];
        match reply {
            Err(e) => {
                assert_eq!(e.fault(), NodeFault::ForeignKey, "{what}");
                let is_spoiled = fence.is_none() || expected.reply == Reply::Granted { fence: 0 };
                assert!(is_spoiled && expected.reply.is_grant(), "{what}");
                // Who believed that somebody has the lock waits.
                world.twin.keys.remove(&named(Key::Queue));
                let mut keys = before.keys.clone();
                keys.remove(&named(Key::Queue));
                let place = match &op {
                    Op::Acquire { if_held: Some(then), .. } => then.place(),
                    _ => None,
                };
                let own = place.map(|place| OwnerToken::reserved_for(place.waiter));
                if own.is_some() && row.reserved.map(|(value, _)| value) == own {
                    // For the caller, which has had it.
                    world.twin.keys.remove("k");
                    keys.remove("k");
                }
                assert_eq!(world.twin.keys, keys, "{what}");
            }
            // Only another program deletes the fence of a reader, who may be given a new one.
            Ok(Reply::Granted { fence: given })
                if expected.reply == (Reply::Granted { fence: 0 }) =>
            {
                assert!(h.next_fence(0, given) == given && fence == Some(0), "{what}");
                assert_eq!(world.shown().0.fence(), Some(given), "{what}");
                let is_live = |(_, till): &(OwnerToken, u64)| *till > h.now;
                row.readers.retain(is_live);
                assert_eq!(world.row(true).readers, row.readers, "{what}");
            }
            Ok(reply) if matches!(op, Op::Release { .. }) => {
                assert_eq!(reply, expected.reply, "{what}");
                let mut keys = before.keys.clone();
                if reply == Reply::Done {
                    keys.remove("k");
                    keys.remove(&named(Key::Meta));
                }
                // Whom it wakes is compared with the script.
                keys.remove(&named(Key::Queue));
                world.twin.keys.remove(&named(Key::Queue));
                let foreign = before.keys.get(&named(Key::Meta));
                if let Some(foreign @ ((Value::Other, _) | (_, None))) = foreign {
                    keys.insert(named(Key::Meta), foreign.clone());
                }
                assert_eq!(world.twin.keys, keys, "{what}");
            }
            Ok(reply @ (Reply::Held { .. } | Reply::Queued { .. }))
                if expected.rows[0].kept != row.kept =>
            {
                assert_eq!(reply, expected.reply, "{what}");
                let kept = OwnerToken::KEPT.as_str().as_bytes().to_vec();
                assert_eq!(world.twin.keys["k"].0, Value::Text(kept), "{what}");
                assert!(world.twin.settled.contains_key("k"), "{what}");
            }
            Ok(reply) if !reply.is_grant() || expected.rows[0].is_as(&row) => {
                assert_eq!(reply, expected.reply, "{what}");
                let queue = named(Key::Queue);
                let mut keys = (world.twin.keys.clone(), before.keys.clone());
                keys.0.remove(&queue);
                keys.1.remove(&queue);
                if !keys.1.contains_key("k") && !reply.is_grant() && row.kept_lately(&h).is_some() {
                    // It is marked again.
                    keys.0.remove("k");
                }
                if reply.is_grant() && keys.0.contains_key(&named(Key::Fence)) {
                    // Who reads already, and did not know it, has prolonged the fence.
                    assert_eq!(world.shown().0.fence(), fence, "{what}");
                    let end = |keys: &BTreeMap<_, (Value, Option<u64>)>| keys[&named(Key::Fence)].1;
                    let shorter = end(&keys.0).unwrap_or(u64::MAX) < end(&keys.1).unwrap_or(0);
                    assert!(!shorter, "{what}");
                    keys.0.remove(&named(Key::Fence));
                    keys.1.remove(&named(Key::Fence));
                }
                assert_eq!(keys.0, keys.1, "{what}");
                // Who asks again for what it has may have a place beside it.
                if !reply.is_grant() {
                    let others = |row: &Row| {
                        let mut all = row.waiters();
                        all.iter_mut().filter(|w| Some(w.2) == drawn).for_each(|w| w.0 = 0);
                        all
                    };
                    assert_eq!(others(&world.row(true)), others(after), "{what}");
                }
            }
            Ok(reply) => {
                assert_eq!(reply, expected.reply, "{what}");
                let had = row.held.is_some() || matches!(&op, Op::Extend { meta: Some(_), .. });
                let found = world.row(had);
                assert_eq!(found.held, after.held, "{what}");
                let current = |row: &Row| {
                    let mut all = row.readers.clone();
                    all.retain(|(_, till)| *till > h.now);
                    all.sort_unstable();
                    all
                };
                assert_eq!(current(&found), current(after), "{what}");
                assert_eq!((found.fence, found.reserved), (after.fence, after.reserved), "{what}");
                let end_of = |key| world.twin.keys.get(&named(key)).and_then(|(_, end)| *end);
                let life = end_of(Key::Fence).expect("it expires") * 1_000_000;
                assert!(life >= h.fence_till(), "{what}");
            }
        }
        let told = expected.wakes.first().is_some_and(|wake| wake.watchers);
        let queue = before.keys.get(&named(Key::Queue)).map(|(value, _)| value);
        let is_watched = matches!(queue, Some(Value::Text(text)) if text.starts_with(b"1"));
        let hints = world.twin.hints.len() - before.hints.len();
        let meta = before.keys.get(&named(Key::Meta)).map(|(value, _)| value);
        let told = told || matches!(op, Op::Release { .. }) && !world.twin.keys.contains_key("k");
        let told = told || expected.reply == Reply::Done && fence.is_some() && changes(&op, meta);
        assert_eq!(hints, usize::from(told && is_watched), "{what}");
        beliefs.push(Some(world.shown().0));
    }
}

fn changes(op: &Op, meta: Option<&Value>) -> bool {
    let Op::Extend { meta: Some(new), .. } = op else { return false };
    !matches!(meta, Some(Value::Text(text)) if text[..] == new[..])
}

#[test]
fn whatever_is_believed_the_reply_and_the_lock_are_those_of_the_rule() {
    let more = std::env::var("PALISADE_BELIEFS").ok().and_then(|n| n.parse().ok());
    (0..more.unwrap_or(600)).for_each(history);
}
