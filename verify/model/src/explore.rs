//! Explores all states of a world, those with short histories first.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use crate::spec::Spec;
use crate::world::{State, World};

/// What was found in a world.
#[derive(Debug)]
pub struct Explored {
    /// Number of different states.
    pub states: usize,
    /// Time that it took.
    pub took: Duration,
    /// What does not hold, and the shortest history after which it does not.
    pub violation: Option<Violation>,
    /// All states were explored.
    pub is_complete: bool,
}

/// A rule that does not hold.
#[derive(Debug)]
pub struct Violation {
    /// Which.
    pub what: String,
    /// The events, each with its tick.
    pub history: Vec<String>,
}

/// Explores a world, up to `most` states.
pub fn explore(spec: &Spec, most: usize) -> Explored {
    let began = Instant::now();
    let mut world = World::new(spec);
    let first = world.first();
    let mut states = vec![first];
    let mut parents = vec![0_u32];
    let hasher = RandomState::new();
    let mut seen: HashSet<u64> = HashSet::from([hasher.hash_one(first)]);
    let mut at = 0;
    while at < states.len() && states.len() < most {
        let state = states[at];
        for event in world.events(&state) {
            let (next, holds) = world.apply(&state, event);
            if let Err(what) = holds {
                let mut path = vec![next];
                let mut back = at;
                while back > 0 {
                    path.push(states[back]);
                    back = parents[back] as usize;
                }
                path.push(first);
                path.reverse();
                let history = history(&mut world, &path);
                let violation = Some(Violation { what, history });
                let (states, took) = (states.len(), began.elapsed());
                return Explored { states, took, violation, is_complete: false };
            }
            if seen.insert(hasher.hash_one(next)) {
                states.push(next);
                parents.push(at as u32);
            }
        }
        at += 1;
    }
    let is_complete = at == states.len();
    Explored { states: states.len(), took: began.elapsed(), violation: None, is_complete }
}

/// The events between these states.
fn history(world: &mut World<'_>, path: &[State]) -> Vec<String> {
    let mut lines = Vec::new();
    for pair in path.windows(2) {
        let events = world.events(&pair[0]);
        let event = events.into_iter().find(|event| world.apply(&pair[0], *event).0 == pair[1]);
        lines.extend(event.map(|event| world.tell_event(&pair[0], event, &pair[1])));
    }
    lines
}
