//! The worlds that are explored.

use palisade::node::spi::{LockMode, Slots};

use crate::spec::{Faults, Plan, Role, Spec};

const NONE: Faults =
    Faults { late_reply: false, stray: false, crash: false, loss: false, gain: false };
const NETWORK: Faults = Faults { late_reply: true, stray: true, crash: true, ..NONE };

fn plan(mode: LockMode, extends: u8) -> Plan {
    Plan { mode, extends, downgrades: false }
}

fn world(name: &'static str, roles: Vec<Role>, end: u8, faults: u8, kinds: Faults) -> Spec {
    let (nodes_ahead, walls_ahead) = ([0; 3], [0; 3]);
    Spec {
        name,
        is_slow: false,
        reads_releases: false,
        at_once: 2,
        roles,
        end,
        faults,
        kinds,
        nodes_ahead,
        walls_ahead,
        drift: 0,
        bug: None,
    }
}

/// All worlds.
pub fn all() -> Vec<Spec> {
    let write = |extends| plan(LockMode::Exclusive, extends);
    let read = |extends| plan(LockMode::Shared, extends);
    let permit = || plan(LockMode::Slot(Slots::any(2)), 0);
    let key = |calls, extends, reruns| Role::Key { calls, extends, reruns };
    let downgraded = Plan { downgrades: true, ..write(0) };
    let permit_once = || Role::Lock(vec![permit()]);
    let held_once = || vec![Role::Lock(vec![write(1)]), Role::Lock(vec![write(0)])];
    let crash = Faults { crash: true, ..NONE };
    let loss = Faults { loss: true, ..NONE };
    vec![
        world(
            "mutex",
            vec![Role::Lock(vec![write(0)]), Role::Lock(vec![write(0), write(0)])],
            3,
            0,
            NONE,
        ),
        Spec { is_slow: true, ..world("mutex, a slow network", held_once(), 4, 0, NONE) },
        world("mutex, a faulty network", held_once(), 4, 1, NETWORK),
        world("mutex, a loss of data", held_once(), 5, 1, loss),
        Spec {
            drift: 333_333,
            reads_releases: true,
            ..world("mutex, a fast clock", held_once(), 4, 1, Faults { gain: true, ..NONE })
        },
        Spec {
            nodes_ahead: [1, 0, -1],
            walls_ahead: [-1, 1, 0],
            reads_releases: true,
            ..world("mutex, clocks that differ", held_once(), 4, 0, NONE)
        },
        world(
            "readers and a writer",
            vec![Role::Lock(vec![downgraded]), Role::Lock(vec![read(1)])],
            4,
            0,
            NONE,
        ),
        world(
            "readers, a faulty network",
            vec![Role::Lock(vec![downgraded]), Role::Lock(vec![read(0)])],
            3,
            1,
            NETWORK,
        ),
        Spec {
            at_once: 1,
            ..world("three and two permits", (0..3).map(|_| permit_once()).collect(), 1, 0, NONE)
        },
        world("two permits", vec![permit_once(), permit_once()], 3, 0, NONE),
        world("key", vec![key(1, 1, false), key(1, 0, false)], 3, 0, NONE),
        world("key, run again", vec![key(1, 0, true), key(1, 0, true)], 3, 0, NONE),
        world("key, a crash", vec![key(1, 0, false), key(1, 0, false)], 3, 1, crash),
        Spec {
            at_once: 1,
            ..world("key, a loss of data", vec![key(1, 0, false), key(1, 0, false)], 3, 1, loss)
        },
    ]
}
