//! Several clients whose batches are planned, executed and answered in any order: each reply
//! and each record is the rule's, as of the moment of the execution.

use std::collections::{HashMap, VecDeque};

use super::super::beliefs::Beliefs;
use super::super::planned::Planned as AnyPlanned;
use super::super::write::{Answer, Write};
use super::*;

const KEYS: [&str; 2] = ["key", "other"];

struct Sent {
    ops: Vec<Op>,
    plans: Vec<Planned>,
    rounds: usize,
}

#[derive(Default)]
struct Client {
    beliefs: Beliefs,
    sent: VecDeque<Sent>,
    missing: VecDeque<Sent>,
}

fn at_key(op: Op, to: &str) -> Op {
    let mut op = op;
    match &mut op {
        Op::Claim(c) => c.key = to.into(),
        Op::RaiseClaim { key, .. } | Op::Unclaim { key, .. } | Op::Lookup { key, .. } => {
            *key = to.into();
        }
        Op::ExtendClaim { ballot, .. } | Op::Complete { ballot, .. } | Op::Steps { ballot, .. } => {
            ballot.key = to.into();
        }
        _ => unreachable!("a record's"),
    }
    op
}

fn plan_all(world: &World, client: &mut Client, ops: &[Op], ago: u64) -> Vec<Planned> {
    let h = world.header(ago);
    let record = |planned| match planned {
        Some(AnyPlanned::Record(planned)) => planned,
        _ => panic!("a record's"),
    };
    client.beliefs.plan_all(&h, ops).into_iter().map(record).collect()
}

fn compare(world: &World, key: &str, spec: Option<&Row>, what: &str) {
    match (spec, world.twin.keys.get(key)) {
        (None, None) => {}
        (Some(row), Some((Value::Text(text), end))) => {
            let shown = Shown::parse(text).expect("ours");
            assert!(shown.is_whole, "{what}");
            let in_ms = |row: &Row| Row {
                till: row.till.map(|till| till / 1_000_000),
                ..timeless(row.clone())
            };
            assert_eq!(in_ms(&shown.row), in_ms(row), "{what}");
            let ends = row.expires.div_ceil(1_000_000);
            assert!(end.expect("it ends").abs_diff(ends) <= 1, "{what}: {end:?} {ends}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn run(seed: u64, most: &mut usize) {
    let mut dice = Dice(seed);
    let words = dice.of(&["", "", "since=900", "floor=1000500000", "settling"]);
    let mut world = World::new(words);
    let mut spec: HashMap<&'static str, Row> = HashMap::new();
    let mut clients: Vec<Client> = (0..3).map(|_| Client::default()).collect();
    let shares = |a: &[Op], b: &[Op]| {
        a.iter().filter_map(Op::owner).any(|me| b.iter().any(|op| op.owner() == Some(me)))
    };
    for _ in 0..120 {
        world.now = (world.now + dice.below(60)).saturating_sub(dice.below(8));
        let now = world.now;
        world.twin.keys.retain(|_, (_, end)| end.is_none_or(|end| end > now));
        spec.retain(|_, row| row.expires.div_ceil(1_000_000) > now);
        let c = dice.below(3) as usize;
        if dice.below(2) == 0 && clients[c].sent.len() < 3 && clients[c].missing.is_empty() {
            let ops: Vec<Op> = (0..=dice.below(3))
                .map(|_| {
                    let key = dice.of(&KEYS);
                    let row = spec.get(key).cloned();
                    at_key(random_op(&mut dice, now, row.as_ref()), key)
                })
                .collect();
            let plans = plan_all(&world, &mut clients[c], &ops, dice.of(&[0, 1, 5]));
            clients[c].sent.push_back(Sent { ops, plans, rounds: 1 });
            continue;
        }
        let Some(sent) = clients[c].sent.pop_front() else { continue };
        let Sent { ops, plans, rounds } = sent;
        *most = rounds.max(*most);
        let batch: Vec<(&str, Write)> = ops
            .iter()
            .zip(&plans)
            .map(|(op, p)| (op.own_key().expect("one"), p.write.clone()))
            .collect();
        let of = Setting { micros: now * 1_000, ..Setting::default() };
        let answers = world.twin.execute(of, &batch);
        let h = world.header(0);
        let (mut again, mut rest, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for ((op, planned), answer) in ops.iter().zip(&plans).zip(answers) {
            let key = op.record_key().expect("one").clone();
            let name = KEYS.into_iter().find(|k| *k == &*key).expect("one");
            let waits = matches!(answer, Answer::Not(_)) && again.contains(&key);
            let ran = matches!(answer, Answer::Ran(_));
            let (judged, shown) = judge(&h, planned, answer);
            if waits {
                rest.push(op.clone());
                again.push(key);
                continue;
            }
            let next = matches!(judged, Judged::Again);
            clients[c].beliefs.learn(&key, shown, next);
            let reply = match judged {
                Judged::Reply(reply) => reply.expect("ours"),
                Judged::Full => unreachable!("there is memory"),
                Judged::Again => {
                    rest.push(op.clone());
                    again.push(key);
                    continue;
                }
            };
            if reply == Reply::Deferred {
                continue;
            }
            let what = format!("seed {seed}: {op:?}\n on {:?}\n {planned:?}", spec.get(name));
            let expected = decide(&h, &as_granted(op, &reply), spec.get(name));
            assert_eq!(reply, expected.reply, "{what}");
            if let Some(row) = expected.row {
                assert!(ran, "{what}");
                let kept = spec.get(name).map_or(0, |row| row.expires);
                spec.insert(name, Row { expires: row.expires.max(kept), ..row });
            }
            settled.push(op.clone());
        }
        for key in KEYS {
            compare(&world, key, spec.get(key), &format!("seed {seed}: {key}, {ops:?}"));
        }
        let client = &mut clients[c];
        client.missing.retain(|missing| !shares(&missing.ops, &settled));
        if !rest.is_empty() && rounds < 9 {
            let plans = plan_all(&world, client, &rest, 0);
            client.missing.push_back(Sent { ops: rest, plans, rounds: rounds + 1 });
        }
        if client.sent.is_empty() {
            client.sent.append(&mut client.missing);
        }
    }
}

#[test]
fn batches_of_several_clients_in_any_order_are_answered_by_the_rule() {
    let mut most = 0;
    (0..seeds()).for_each(|seed| run(seed, &mut most));
    assert!((2..9).contains(&most), "{most} rounds");
}
