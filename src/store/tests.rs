//! Whatever a client believes of a record, the reply and the record are those of the rule, in at
//! most two round trips, if nobody else changes the record meanwhile.

mod interleaved;

use std::sync::Arc;
use std::time::Duration;

use super::planned::Judged;
use super::record::Shown;
use super::records::{Planned, judge, plan};
use super::twin::{Setting, Twin, Value};
use crate::fuzzing::Dice;
use crate::op::{Ballot, Claim, ClaimEnd, Op, QuarantineId, Reply};
use crate::rules::header::Header;
use crate::rules::records::{Row, Waiters, decide};
use crate::rules::tests::{header, owner};
use crate::token::{FencingToken, OwnerToken};

struct World {
    twin: Twin,
    h: Header,
    /// In ms.
    now: u64,
}

impl World {
    fn new(words: &str) -> Self {
        Self { twin: Twin::default(), h: header(words), now: 1_000_000 }
    }

    /// The node's header `ago` ms before its clock.
    fn header(&self, ago: u64) -> Header {
        let now = self.now - ago;
        let mut h = self.h.clone();
        (h.now, h.facts.node_micros) = (now * 1_000_000, now * 1_000);
        h
    }

    fn text(&self) -> Option<Vec<u8>> {
        match self.twin.keys.get("key")? {
            (Value::Text(text), _) => Some(text.clone()),
            _ => None,
        }
    }

    fn shown(&self) -> Option<Shown> {
        self.text().map(|text| Shown::parse(&text).expect("a record"))
    }

    fn trip(&mut self, planned: &Planned) -> (Judged, Option<Shown>) {
        let of = Setting { micros: self.now * 1_000, ..Setting::default() };
        let answer = self.twin.execute(of, &[("key", planned.write.clone())]).remove(0);
        judge(&self.header(0), planned, answer)
    }

    /// As a client does that has believed this. Returns the number of trips, too.
    fn ask(&mut self, op: &Op, believed: Option<Shown>, ago: u64) -> (Reply, usize) {
        let mut planned = plan(&self.header(ago), op, believed);
        for trip in 1..9 {
            match self.trip(&planned) {
                (Judged::Reply(reply), _) => return (reply.expect("ours"), trip),
                (Judged::Again, shown) => planned = plan(&self.header(0), op, shown),
                (Judged::Full, _) => unreachable!("there is memory"),
            }
        }
        panic!("no end of plans for {op:?}");
    }
}

fn claim(owner: OwnerToken, proposal: u64) -> Claim {
    Claim {
        key: "key".into(),
        owner,
        lease: Duration::from_millis(500),
        retention: Duration::from_secs(2),
        proposal,
        fingerprint: None,
        force: false,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    }
}

fn random_op(dice: &mut Dice, now: u64, believed: Option<&Row>) -> Op {
    let mut me = owner(dice.of(&["a", "b", "c"]));
    let mut token = FencingToken::new(now * 1_000 - 20_000 + dice.below(40) * 1_000);
    // Often the op of the owner that is believed, under its ballot.
    if let Some((row, own)) = believed.and_then(|row| Some((row, row.own?)))
        && dice.below(3) > 0
    {
        (me, token) = (own, FencingToken::new(row.fence));
    }
    let fingerprint = dice.of(&[None, None, Some([b'x'; 32]), Some([b'y'; 32])]);
    let retention = Duration::from_secs(2);
    let ballot = Ballot { key: "key".into(), owner: me, token, retention, fingerprint };
    let lease = Duration::from_millis(dice.of(&[1, 40, 500]));
    let bytes = |dice: &mut Dice| {
        let len = dice.of(&[0, 1, 2, 9, 3_000, 9_000]);
        Arc::<[u8]>::from(vec![b'v'; len])
    };
    match dice.below(12) {
        0..4 => Op::Claim(Claim {
            lease,
            fingerprint,
            force: dice.below(4) == 0,
            created: dice.of(&[None, None, Some(now - 1_900), Some(now - 2_100)]),
            wait: dice.below(2) == 0,
            ..claim(me, dice.of(&[token.get(), token.get(), 0, u64::MAX]))
        }),
        4 => Op::RaiseClaim { key: "key".into(), owner: me, token },
        5 | 6 => {
            let named = QuarantineId { history: dice.of(&[2, 3]), since: 0 };
            Op::ExtendClaim { ballot, lease, reassert: dice.of(&[None, Some(named)]) }
        }
        7 => Op::Complete { ballot, value: dice.of(&[None, Some(())]).map(|()| bytes(dice)) },
        8 | 9 => Op::Steps { ballot, list: bytes(dice) },
        10 => {
            let end = dice.of(&[ClaimEnd::Undone, ClaimEnd::Repeatable, ClaimEnd::Lapsed]);
            Op::Unclaim { key: "key".into(), owner: me, end }
        }
        _ => {
            let accepted = Duration::ZERO;
            Op::Lookup { key: "key".into(), retention, fingerprint, born: None, accepted }
        }
    }
}

/// A proposal out of range has become one in range.
fn as_granted(op: &Op, reply: &Reply) -> Op {
    match (op, reply) {
        (Op::Claim(c), Reply::Claimed { fence, .. }) => {
            Op::Claim(Claim { proposal: *fence, ..c.clone() })
        }
        _ => op.clone(),
    }
}

/// The row without the end of its life, which the server keeps.
fn timeless(row: Row) -> Row {
    Row { expires: 0, ..row }
}

fn history(seed: u64) {
    let mut dice = Dice(seed);
    let words = dice.of(&["", "", "since=900", "floor=1000500000", "settling"]);
    let mut world = World::new(words);
    let mut beliefs: Vec<Option<Shown>> = vec![None];
    for _ in 0..40 {
        match dice.below(40) {
            0 => world.h.facts.history_id = dice.of(&[2, 3]),
            1 => world.h.facts.quarantine = Duration::from_secs(9),
            2..5 => world.h.facts.quarantine = Duration::ZERO,
            5 => {
                // It is gone, or another record is there.
                world.twin.keys.clear();
            }
            _ => world.now = world.now + dice.below(300) - dice.below(20),
        }
        let now = world.now;
        world.twin.keys.retain(|_, (_, end)| end.is_none_or(|end| end > now));
        let believed = dice.of(&beliefs);
        let op = random_op(&mut dice, world.now, believed.as_ref().map(|b| &b.row));
        let ago = dice.of(&[0, 0, 3, 400]);
        let (before, awaited) = (world.shown(), world.shown().is_some_and(|s| s.is_awaited));
        let (hints, text) = (world.twin.hints.len(), world.text());
        let row = before.as_ref().map(|shown| &shown.row);
        let (reply, trips) = world.ask(&op, believed.clone(), ago);
        let what = format!("seed {seed}: {op:?}\n on {before:?}\n believed {believed:?}");
        assert!(trips <= 2, "{trips} trips, {what}");
        let fence = match reply {
            Reply::Claimed { fence, .. } => Some(fence),
            _ => None,
        };
        let h = world.header(0);
        let expected = decide(&h, &as_granted(&op, &reply), row);
        assert_eq!(reply, expected.reply, "{what}");
        if let Some(fence) = fence {
            let least = row.map_or(0, |row| row.fence);
            let in_range = h.next_fence(0, fence) == fence || least + 1 >= fence;
            assert!(in_range, "{fence} is out of range, {what}");
        }
        let after = world.shown();
        match expected.row {
            Some(row) => {
                let found = after.clone().expect("it was written");
                assert_eq!(timeless(found.row), timeless(row), "{what}");
                let (_, end) = &world.twin.keys["key"];
                assert!(end.is_some_and(|end| end > world.now), "{what}");
            }
            None if expected.waiters == Waiters::Join => {
                assert!(after.as_ref().is_some_and(|after| after.is_awaited), "{what}");
                assert_eq!(after.as_ref().map(|after| &after.row), row, "{what}");
            }
            None => assert_eq!(world.text(), text, "{what}"),
        }
        let wakes = expected.waiters == Waiters::Wake && awaited;
        assert_eq!(world.twin.hints.len() - hints, usize::from(wakes), "{what}");
        beliefs.push(after);
    }
}

fn seeds() -> u64 {
    let more = std::env::var("PALISADE_BELIEFS").ok().and_then(|n| n.parse().ok());
    more.unwrap_or(300)
}

#[test]
fn whatever_is_believed_the_reply_and_the_record_are_those_of_the_rule() {
    (0..seeds()).for_each(history);
}

#[test]
fn a_new_key_a_replay_and_the_ops_of_a_holder_take_one_trip() {
    let mut world = World::new("");
    let (a, b) = (owner("a"), owner("b"));
    let now = world.now * 1_000;
    let (Reply::Claimed { fence, .. }, 1) = world.ask(&Op::Claim(claim(a, now)), None, 3) else {
        panic!("a new key")
    };
    let mine = || world_ballot(a, fence);
    let extend = Op::ExtendClaim { ballot: mine(), lease: Duration::from_secs(1), reassert: None };
    let held = world.shown();
    assert_eq!(world.ask(&extend, held.clone(), 0), (Reply::Done, 1));
    // The end of the lease and a waiter are not compared.
    let waits = Op::Claim(Claim { wait: true, ..claim(b, now) });
    assert!(matches!(world.ask(&waits, None, 0), (Reply::InFlight { .. }, 2)));
    assert!(matches!(world.ask(&waits, None, 0), (Reply::InFlight { .. }, 1)), "it waits already");
    let value = Some(Arc::from(&b"result"[..]));
    let complete = Op::Complete { ballot: mine(), value };
    assert_eq!(world.ask(&complete, held, 0), (Reply::Done, 1));
    assert_eq!(world.twin.hints, ["key"]);
    assert!(matches!(world.ask(&Op::Claim(claim(b, now)), None, 0), (Reply::Completed(_), 1)));
}

fn world_ballot(owner: OwnerToken, fence: u64) -> Ballot {
    let (token, retention) = (FencingToken::new(fence), Duration::from_secs(2));
    Ballot { key: "key".into(), owner, token, retention, fingerprint: None }
}

#[test]
fn a_record_of_another_form_is_foreign_and_stays() {
    let good = {
        let mut world = World::new("");
        world.ask(&Op::Claim(claim(owner("a"), 1_000_000_000)), None, 0);
        world.text().expect("it is there")
    };
    assert!(Shown::parse(&good).is_some());
    for at in 0..good.len() {
        assert!(Shown::parse(&good[..at]).is_none(), "{at} bytes");
        let mut bad = good.clone();
        bad[at] = b'\n';
        assert!(Shown::parse(&bad).is_none(), "byte {at}");
        let mut world = World::new("");
        world.twin.keys.insert("key".to_owned(), (Value::Text(bad.clone()), None));
        let planned = plan(&world.header(0), &Op::Claim(claim(owner("b"), 1_000_000_000)), None);
        let (judged, _) = world.trip(&planned);
        assert!(matches!(judged, Judged::Reply(Err(_))), "byte {at}: {judged:?}");
        assert_eq!(world.twin.keys["key"], (Value::Text(bad), None));
    }
}
