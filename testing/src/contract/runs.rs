//! Test cases for runs, which a node may execute together: the effect must be the same as one by
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use palisade::node::spi::{IfHeld, LockKeys, LockMode, Op, OwnerToken, Place, Reply};

use super::bench::{Bench, LONG};
use super::ops::{acquire_at, inspect, release, shared};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: runs_mean_what_their_ops_mean,
        Nothing: each_of_a_run_has_its_own_ttl,
        Nothing: readers_of_a_run_come_and_go_as_if_alone,
    ]
}

/// Computed one operation at a time.
#[derive(Default)]
struct Books {
    held: BTreeMap<usize, (OwnerToken, u64)>,
    fences: BTreeMap<usize, u64>,
}

impl Books {
    /// Applies the operation to the expected state.
    fn fits(&mut self, name: usize, op: &Op, reply: &Reply) -> bool {
        let holder = self.held.get(&name).copied();
        match (op, reply, holder) {
            (Op::Acquire { owner, proposal, .. }, Reply::Granted { fence }, None) => {
                self.held.insert(name, (*owner, *fence));
                let before = self.fences.insert(name, *fence);
                *fence == before.map_or(*proposal, |before| (before + 1).max(*proposal))
            }
            (Op::Acquire { owner, .. }, Reply::Granted { fence }, Some(held)) => {
                (*owner, *fence) == held
            }
            (Op::Acquire { owner, .. }, Reply::Held { foreign: false, .. }, Some(held)) => {
                *owner != held.0
            }
            (Op::Release { owner, .. }, Reply::Done, Some(held)) => {
                self.held.remove(&name);
                *owner == held.0
            }
            (Op::Release { owner, .. }, Reply::NotOwner, Some(held)) => *owner != held.0,
            (Op::Release { .. }, Reply::Absent, None) => true,
            _ => false,
        }
    }
}

/// The same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % n
    }
}

async fn runs_mean_what_their_ops_mean(b: Bench) {
    let names: Vec<LockKeys> = (0..6).map(|_| b.lock()).collect();
    let owners = [b.owner(), b.owner(), b.owner()];
    let (mut books, mut dice) = (Books::default(), Dice(7));
    for _ in 0..60 {
        // All different, and near to the node's clock, so the node does not change a proposal.
        let mut proposal = b.low().await.max(b.facts().await.node_micros) + 800_000;
        let (mut asked, mut releasing) = (Vec::new(), false);
        for _ in 0..=dice.below(30) {
            // Rarely, so that runs are long.
            releasing ^= dice.below(4) == 0;
            let (name, owner) = (dice.below(names.len()), owners[dice.below(owners.len())]);
            proposal += 1;
            let place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };
            let waits = [IfHeld::Watch, IfHeld::Queue(place)][dice.below(2)];
            let (keys, seldom) = (names[name].clone(), dice.below(8) == 0);
            let ttl = if dice.below(5) == 0 { LONG } else { LONG / 2 };
            let op = if releasing {
                Op::Release { mode: LockMode::Exclusive, keys, owner, meta: seldom }
            } else {
                Op::Acquire {
                    mode: LockMode::Exclusive,
                    keys,
                    owner,
                    ttl,
                    proposal,
                    if_held: seldom.then_some(waits),
                }
            };
            asked.push((name, op));
        }
        let got = b.all(asked.iter().map(|(_, op)| op.clone()).collect()).await;
        for (at, ((name, op), reply)) in asked.iter().zip(&got).enumerate() {
            let right = books.fits(*name, op, reply);
            b.check(right, "an op of a run is answered as if it stood alone", &(at, &asked, &got));
        }
    }
}

async fn each_of_a_run_has_its_own_ttl(b: Bench) {
    let all: Vec<(LockKeys, OwnerToken, Duration)> =
        (1..6).map(|i| (b.lock(), b.owner(), LONG * i / 6)).collect();
    let acquire = |(keys, owner, ttl): &(LockKeys, OwnerToken, Duration)| Op::Acquire {
        mode: LockMode::Exclusive,
        keys: keys.clone(),
        owner: *owner,
        ttl: *ttl,
        proposal: 0,
        if_held: None,
    };
    b.all(all.iter().map(acquire).collect()).await;
    let inspect = |(keys, ..): &(LockKeys, _, _)| Op::Inspect { keys: keys.clone(), wait: false };
    let got = b.all(all.iter().map(inspect).collect()).await;
    for ((_, owner, ttl), reply) in all.iter().zip(&got) {
        let Reply::Holder(Some(holder)) = reply else {
            b.broken("each of a run is granted", reply)
        };
        let rest = holder.remaining.unwrap_or_default();
        // The two ttls differ by half of `LONG`.
        let right = holder.owner == Some(*owner) && rest <= *ttl && rest + LONG / 6 > *ttl;
        b.check(right, "each of a run has its own ttl", holder);
    }
}

async fn readers_of_a_run_come_and_go_as_if_alone(b: Bench) {
    let names = [b.lock(), b.lock()];
    let owners = [b.owner(), b.owner(), b.owner(), b.owner(), b.owner()];
    let mut reading = [BTreeSet::new(), BTreeSet::new()];
    let (mut fences, mut dice) = ([None; 2], Dice(11));
    for _ in 0..80 {
        let mut proposal = b.low().await.max(b.facts().await.node_micros) + 800_000;
        let (mut asked, mut leaving, mut name) = (Vec::new(), false, 0);
        for _ in 0..=dice.below(20) {
            // Rarely, so that runs are long.
            leaving ^= dice.below(6) == 0;
            name ^= usize::from(dice.below(6) == 0);
            let owner = owners[dice.below(owners.len())];
            proposal += 1;
            let ttl = if dice.below(8) == 0 { LONG / 2 } else { LONG };
            let op = if leaving {
                shared(release(&names[name], owner))
            } else {
                shared(acquire_at(&names[name], owner, ttl, proposal))
            };
            asked.push((name, owner, op));
        }
        let got = b.all(asked.iter().map(|(.., op)| op.clone()).collect()).await;
        for ((name, owner, op), reply) in asked.iter().zip(&got) {
            let right = match (op, reply) {
                (Op::Acquire { proposal, .. }, Reply::Granted { fence }) => {
                    reading[*name].insert(*owner);
                    *fence == *fences[*name].get_or_insert(*proposal)
                }
                (Op::Release { .. }, Reply::Done) => reading[*name].remove(owner),
                (Op::Release { .. }, Reply::Absent) => !reading[*name].contains(owner),
                _ => false,
            };
            b.check(right, "a reader of a run is answered as if it stood alone", &(op, &got));
        }
        let seen = b.all(names.iter().map(inspect).collect()).await;
        for (expected, reply) in reading.iter().zip(&seen) {
            let listed: BTreeSet<_> = match reply {
                Reply::Readers(readers) => readers.listed.iter().map(|r| r.owner).collect(),
                _ => BTreeSet::new(),
            };
            b.check(listed == *expected, "those who did not leave read", &(expected, reply));
        }
    }
}
