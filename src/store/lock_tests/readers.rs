//! Readers of one lock that are written together; and how many trips a holder's ops take.

use super::*;
use crate::store::beliefs::Beliefs;

fn readers(seed: u64) {
    let mut dice = Dice(seed);
    let h = header(dice.of(&["since=900", "settling"]));
    let mut world = World { twin: Twin::default(), h, now: 1_000_000 };
    world.h.settles_till = 9_000_000;
    let mut beliefs = Beliefs::default();
    let put = |world: &mut World, dice: &mut Dice| {
        let ends = world.now + 100;
        let some = |text: &[u8]| Some((Value::Text(text.into()), Some(ends)));
        let own = ["a", "b", "c", "d"].map(|name| (owner(name), ends));
        let from = dice.below(4) as usize;
        let readers = Some((Value::Readers(own[from..].to_vec()), Some(ends)));
        let reserved = some(OwnerToken::READERS.as_str().as_bytes());
        let writer = some(owner("w").as_str().as_bytes());
        let main = dice.of(&[None, reserved, writer, readers.clone(), readers]);
        // No reader is without one.
        let is_read = matches!(main, Some((Value::Readers(_), _)));
        let fence = some(b"1000000000").filter(|_| is_read || dice.below(3) > 0);
        // A writer that waits.
        let fresh = world.now + 2_000;
        let waits = format!("0{:016}x{:016x}00{fresh:013}", world.now * 1_000 - 5_000, 7);
        let queue = some(waits.as_bytes()).filter(|_| dice.below(3) == 0);
        for (key, value) in [(Key::Main, main), (Key::Fence, fence), (Key::Queue, queue)] {
            world.twin.keys.remove(&named(key));
            world.twin.keys.extend(value.map(|value| (named(key), value)));
        }
        world.twin.settled.clear();
    };
    put(&mut world, &mut dice);
    if dice.below(2) == 0 {
        beliefs.learn_lock(&LockKeys::new("k"), vec![world.shown().0]);
        put(&mut world, &mut dice);
    }
    let keys = LockKeys::new("k");
    let (mode, ttl, proposal) = (LockMode::Shared, Duration::from_millis(500), 1_000_000_000);
    let many = if dice.below(20) == 0 { 100 } else { 3 };
    let mut open: Vec<Op> = (0..many)
        .map(|n| {
            ["a", "b", "c"]
                .get(n)
                .map_or_else(|| OwnerToken::from_random(1_000 + n as u128), |name| owner(name))
        })
        .filter(|_| dice.below(3) > 0)
        .map(|owner| Op::Acquire { mode, keys: keys.clone(), owner, ttl, proposal, if_held: None })
        .collect();
    let h = world.header(0);
    let (mut row, before) = (world.row(true), world.twin.clone());
    let mut trips = 0;
    while !open.is_empty() {
        trips += 1;
        let what = format!("seed {seed}: {} of {open:?}\n on {before:?}", open.len());
        assert!(trips <= 6, "{trips} trips, {what}");
        let plans = beliefs.plan_all(&h, &open);
        let batch: Vec<_> =
            plans.iter().flatten().map(|planned| ("k", planned.write().clone())).collect();
        let of = Setting { is_outside: world.is_outside(&open[0]), ..world.setting() };
        let mut answers = world.twin.execute(of, &batch).into_iter();
        let (mut last, mut rest, mut behind) = (None, Vec::new(), false);
        for (op, planned) in open.iter().zip(&plans) {
            let was_behind = behind;
            if let Some(planned) = planned {
                last = answers.next().map(|answer| (planned, answer, was_behind));
            }
            let (planned, answer, was_behind) = last.clone().expect("the first has a plan");
            let judged = planned.judge((&h, op), (answer, was_behind), &mut beliefs);
            if let Judged::Reply(reply) = judged {
                assert!(rest.is_empty(), "overtaken, {what}");
                let ruling = decide(&h, op, vec![row]);
                assert_eq!(reply, Ok(ruling.reply), "{what}");
                row = ruling.rows.into_iter().next().expect("one");
            } else {
                rest.push(op.clone());
                behind = true;
            }
        }
        open = rest;
    }
    let found = world.row(true);
    let all = |row: &Row| {
        let mut all = row.readers.clone();
        all.sort_unstable();
        all
    };
    assert_eq!((all(&found), found.fence), (all(&row), row.fence), "seed {seed}: {before:?}");
}

#[test]
fn readers_that_are_written_together_are_readers() {
    (0..4_000).for_each(readers);
}

#[test]
fn the_ops_of_a_holder_take_one_trip() {
    let mut world = World { twin: Twin::default(), h: header("since=900"), now: 1_000_000 };
    let (own, token) = (owner("a"), FencingToken::new(1_000_000_000));
    let end = Some(world.now + 900);
    let lock = Value::Text(own.as_str().into());
    world.twin.keys.insert("k".to_owned(), (lock, end));
    let fence = Value::Text(b"1000000000".to_vec());
    world.twin.keys.insert(named(Key::Fence), (fence, end));
    let (mode, keys, ttl) = (LockMode::Exclusive, LockKeys::new("k"), Duration::from_millis(500));
    let extend = |meta: Option<&[u8]>| {
        let (keys, meta) = (keys.clone(), meta.map(Arc::from));
        Op::Extend { mode, keys, owner: own, ttl, token, meta, reassert: None }
    };
    for meta in [None, Some(&b"m"[..]), Some(b"m"), Some(b"mm"), None] {
        assert_eq!(world.ask(&extend(meta), None, 3), (Ok(Reply::Done), 1), "{meta:?}");
    }
    let token = FencingToken::new(1_000_000_001);
    let raise = Op::Raise { keys: keys.clone(), owner: own, token, slot: None };
    assert_eq!(world.ask(&raise, None, 3), (Ok(Reply::Done), 1));
    let release = Op::Release { mode, keys, owner: own, meta: true };
    assert_eq!(world.ask(&release, None, 3), (Ok(Reply::Done), 1));
    assert_eq!(world.ask(&release, None, 3), (Ok(Reply::Absent), 2));
    assert!(world.twin.keys.keys().eq(["{k}:fence"]));
}
