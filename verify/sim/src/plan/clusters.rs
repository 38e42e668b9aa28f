//! Clusters: their plans and their faults, and the scenes that have one. A cluster is the only node
//! of its plan.

use super::episodes::order;
use super::scenes::{TTL, lock};
use super::{Action, Fault, Ms, OrdersPlan, Plan, Policy, Scene, Wave};
use crate::dice::Dice;

/// Number of masters.
const MASTERS: usize = 3;
/// Each master has two slots, so that one that gives a slot away still votes.
const SLOTS: u16 = 6;

/// A cluster with three masters, and one or two replicas of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterPlan {
    pub(crate) masters: usize,
    /// Clocks of the servers: of the masters first, then of a replica of each, and so on.
    pub(crate) clocks: Vec<Wave>,
    pub(crate) slots: u16,
    /// L of the clients.
    pub(crate) window: Ms,
    /// Clients with a longer L, as bits. Their program was told of a longer one.
    pub(crate) longer: u64,
    /// Time after which a silent server counts as failed.
    pub(crate) node_timeout: Ms,
    /// Number of messages per thousand that get lost between servers.
    pub(crate) lose: u64,
}

impl ClusterPlan {
    pub(crate) fn window_of(&self, client: usize) -> Ms {
        if self.longer >> client & 1 == 1 { 4 * self.window } else { self.window }
    }

    pub(crate) fn longest(&self) -> Ms {
        if self.longer == 0 { self.window } else { 4 * self.window }
    }
}

/// Way in which a replica takes the place of its master at the command of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Promotion {
    /// With all data, after votes.
    Graceful,
    /// As the replica's data are, after votes.
    Force,
    /// As the replica's data are, and nobody is asked.
    Takeover,
}

/// End of the move of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MoveEnd {
    /// The target owns the slot. The source may only hear of it.
    Done,
    /// The target takes the slot over with all its keys, in no time, and the source may only hear
    /// of it.
    AtOnce,
    /// All keys are moved back, and the source stays the owner.
    Back,
    /// The source stays the owner, and what was moved is lost.
    BrokenOff,
}

/// A fault of a cluster, or an act of its operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shift {
    /// A cut through the network. These servers and clients (bits) are on one side of it.
    Split {
        servers: u64,
        clients: u64,
        span: Ms,
    },
    Freeze {
        server: usize,
        span: Ms,
    },
    /// The process of a server dies, and is back after `down` with all data or none.
    Restart {
        server: usize,
        is_empty: bool,
        down: Ms,
    },
    /// A replica takes the place of its master.
    Promote {
        server: usize,
        how: Promotion,
    },
    /// A slot moves to another master. Its keys move one after the other; `first` are the ones that
    /// move before `takes` is over, as bits.
    Move {
        slot: u16,
        to: usize,
        takes: Ms,
        first: u8,
        end: MoveEnd,
    },
    /// A master takes a new epoch without any change.
    Bump {
        server: usize,
    },
    /// The address of a server leads to a server of another cluster.
    Foreign {
        server: usize,
        span: Ms,
    },
}

impl Plan {
    /// Gives a cluster to some of the plans.
    pub(super) fn may_have_cluster(&mut self) {
        let mut d = Dice::new(self.seed, 20);
        if d.chance(60) {
            self.set(d.pick(&Scene::CLUSTERS));
        }
    }

    fn cluster(&mut self, d: &mut Dice) -> Vec<Wave> {
        self.small_world(d);
        let error = self.stages[0].clock_error * 1_000;
        let servers = MASTERS * d.pick(&[2, 2, 3]);
        let clock = |d: &mut Dice| {
            let error = error as i64;
            Wave::constant(error as u64, d.pick(&[-error, 0, error]))
        };
        let clocks: Vec<Wave> = (0..servers).map(|_| clock(d)).collect();
        self.nodes.clear();
        self.stages[0].nodes = 1;
        self.names = d.range(2, 3) as usize;
        self.cluster = Some(ClusterPlan {
            masters: MASTERS,
            clocks: clocks.clone(),
            slots: SLOTS,
            window: d.pick(&[TTL, 2 * TTL]),
            longer: 0,
            node_timeout: d.pick(&[TTL / 4, TTL]),
            lose: d.pick(&[0, 0, 100, 300]),
        });
        self.names_in_use(d);
        clocks
    }

    fn names_in_use(&mut self, d: &mut Dice) {
        self.orders.policy = d.pick(&[Policy::Once, Policy::Rerun]);
        let (of_keys, names) = (d.chance(350), self.names as u64);
        let acts = |d: &mut Dice| -> Vec<Action> {
            let act = |d: &mut Dice| {
                let (wait, span) = (d.pick(&[TTL / 2, 4 * TTL]), d.pick(&[5, TTL / 2, 3 * TTL]));
                if of_keys {
                    return order(span, wait, d.pick(&[0, 0, 1]));
                }
                let Action::Lock { uses, hold, every, renew, parting, .. } =
                    lock(wait, span, d.chance(700))
                else {
                    unreachable!("`lock` returns a lock")
                };
                let name = if d.chance(600) { 0 } else { d.range(0, names - 1) as usize };
                Action::Lock { uses, name, wait, hold, every, renew, parting }
            };
            // Each client knows the cluster before the first fault.
            let first = [lock(0, 0, false)].into_iter();
            first.chain((0..10).flat_map(|_| [Action::Think(d.range(0, TTL)), act(d)])).collect()
        };
        let tasks = [(); 3].map(|()| acts(d));
        self.set_tasks(tasks);
    }

    /// The first faults come when all clients know the cluster.
    fn shifts(&mut self, d: &mut Dice, most: u64, shift: impl Fn(&mut Dice) -> Vec<(Ms, Shift)>) {
        let mut at = d.range(150, 2 * TTL);
        for _ in 0..d.range(1, most) {
            for (after, shift) in shift(d) {
                self.faults.push((at + after, Fault::Shift(shift)));
            }
            at += d.pick(&[5, TTL / 4, TTL, 3 * TTL]) + d.range(0, TTL);
        }
        if d.chance(300) {
            let (client, span) = (d.range(0, 2) as usize, d.range(TTL / 4, 2 * TTL));
            self.faults.push((d.range(20, at), Fault::Pause { client, span, lag: 0 }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Slots move, with their keys or by name alone, and come back.
    pub(super) fn slots(&mut self, d: &mut Dice) {
        self.cluster(d);
        self.shifts(d, 5, |d| {
            let end = d.pick(&[MoveEnd::Done, MoveEnd::Done, MoveEnd::AtOnce, MoveEnd::Back]);
            let mut all = vec![(0, moves(d, end))];
            if d.chance(300) {
                let bump = Shift::Bump { server: d.range(0, 2) as usize };
                all.push((d.range(0, TTL), bump));
            }
            if d.chance(300) {
                all.push((d.range(0, TTL), split(d)));
            }
            all
        });
        if d.chance(300) {
            let kill = Fault::Kill { client: d.range(0, 2) as usize };
            self.faults.push((d.range(20, 12 * TTL), kill));
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    /// Masters fail, and their replicas take their place by the votes of the others.
    pub(super) fn shards(&mut self, d: &mut Dice) {
        let servers = self.cluster(d).len();
        let all = servers as u64 - 1;
        self.shifts(d, 4, |d| {
            let server = d.range(0, all) as usize;
            let span = d.pick(&[TTL / 4, 2 * TTL, 5 * TTL]);
            let how = d.pick(&[Promotion::Graceful, Promotion::Force]);
            vec![(
                0,
                match d.range(0, 5) {
                    0 | 1 => Shift::Freeze { server: d.range(0, 2) as usize, span },
                    2 => Shift::Restart { server, is_empty: d.chance(300), down: span },
                    3 => split(d),
                    4 => moves(d, MoveEnd::Done),
                    _ => Shift::Promote { server, how },
                },
            )]
        });
    }

    /// A slot moves to another master, which is replaced, and moves back: A → B → B′ → A.
    pub(super) fn there_and_back(&mut self, d: &mut Dice) {
        self.cluster(d);
        self.shifts(d, 2, |d| {
            let to = d.range(1, 2) as usize;
            let there = Shift::Move { slot: 0, to, takes: 0, first: 0, end: MoveEnd::AtOnce };
            // B goes on alone with a client, and what it writes does not reach B′.
            let (clients, span) = (d.range(1, 7), d.range(2 * TTL, 6 * TTL));
            let alone = Shift::Split { servers: 1 << to, clients, span };
            let replaces = Shift::Promote { server: to + MASTERS, how: Promotion::Force };
            let back = Shift::Move { slot: 0, to: 0, takes: 0, first: 0, end: MoveEnd::AtOnce };
            let cut = d.range(5, TTL);
            let later = cut + d.range(0, TTL);
            let moved = later + d.range(5, TTL / 2);
            vec![(0, there), (cut, alone), (later, replaces), (moved, back)]
        });
    }

    /// One replica takes the place of its master at a person's command, while the network is cut.
    pub(super) fn takeovers(&mut self, d: &mut Dice) {
        self.cluster(d);
        let shard = d.range(0, 2);
        let (own, other) = (1 << shard, 1 << ((shard + d.range(1, 2)) % 3));
        let span = d.range(2 * TTL, 8 * TTL);
        // The replaced master has a majority on its side, or not.
        let side = if d.chance(700) { own | other } else { own };
        let replicas = d.range(0, 63) << 3 & !(1 << (3 + shard));
        let clients = d.range(1, 6);
        let at = d.range(200, 3 * TTL);
        let take = Shift::Promote { server: 3 + shard as usize, how: Promotion::Takeover };
        let cut = Shift::Split { servers: side | replicas, clients, span };
        let after = d.range(0, 2 * TTL);
        self.faults = vec![(at, Fault::Shift(cut)), (at + after, Fault::Shift(take))];
        if d.chance(300) {
            let more = Shift::Freeze { server: d.range(0, 2) as usize, span: d.range(10, TTL) };
            self.faults.push((at + d.range(0, span), Fault::Shift(more)));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// A master goes on with a client alone, whose L is longer and which has not used the slot
    /// before, and the other masters replace it.
    pub(super) fn long_words(&mut self, d: &mut Dice) {
        self.cluster(d);
        if let Some(cluster) = &mut self.cluster {
            (cluster.longer, cluster.window) = (0b1, d.pick(&[TTL, 2 * TTL]));
            (cluster.node_timeout, cluster.lose) = (TTL / 4, 0);
        }
        (self.orders, self.names) = (OrdersPlan::default(), 2);
        let at = d.range(150, 3 * TTL);
        let span = d.range(4 * TTL, 10 * TTL);
        let cut = Shift::Split { servers: 0b1, clients: 0b1, span };
        self.faults = vec![(at, Fault::Shift(cut))];
        let brief = lock(TTL, d.range(5, TTL / 4), true);
        let waits = lock(10 * TTL, TTL, true);
        // It knows the cluster before.
        let Action::Lock { uses, wait, hold, every, renew, parting, .. } = brief else {
            unreachable!("`lock` returns a lock")
        };
        let greets = Action::Lock { uses, name: 1, wait, hold, every, renew, parting };
        let alone = vec![greets, Action::Think(at + d.range(0, 2 * TTL)), lock(TTL, 8 * TTL, true)];
        let later = Action::Think(at.saturating_sub(TTL / 2) + d.range(0, TTL));
        let others =
            [(); 2].map(|()| vec![Action::Think(d.range(0, TTL / 2)), brief, later, waits]);
        let [second, third] = others;
        self.set_tasks([alone, second, third]);
    }

    pub(super) fn broken_off_moves(&mut self, d: &mut Dice) {
        self.cluster(d);
        self.shifts(d, 3, |d| vec![(0, moves(d, MoveEnd::BrokenOff))]);
    }

    pub(super) fn takeovers_for_newcomers(&mut self, d: &mut Dice) {
        self.takeovers(d);
        let end = self.faults.last().map_or(0, |(at, _)| at + 4 * TTL);
        for client in 0..3 {
            self.faults.push((end + d.range(0, TTL), Fault::Kill { client }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// The address of a server leads to another cluster, whose epochs are higher. A client that
    /// starts while most addresses do cannot know it.
    pub(super) fn other_clusters(&mut self, d: &mut Dice) {
        self.cluster(d);
        let server = d.range(0, 2) as usize;
        self.shifts(d, 3, |d| {
            let span = d.range(TTL / 2, 5 * TTL);
            let mut all = vec![(0, Shift::Foreign { server, span })];
            if d.chance(500) {
                let span = d.range(10, TTL);
                all.push((d.range(0, TTL), Shift::Freeze { server: d.range(0, 2) as usize, span }));
            }
            all
        });
    }
}

fn moves(d: &mut Dice, end: MoveEnd) -> Shift {
    let (slot, to) = (d.pick(&[0, 0, 0, 1]), d.range(0, 2) as usize);
    Shift::Move { slot, to, takes: d.pick(&[0, 5, TTL / 4, TTL]), first: d.range(0, 15) as u8, end }
}

fn split(d: &mut Dice) -> Shift {
    let span = d.pick(&[TTL / 4, TTL, 4 * TTL]);
    Shift::Split { servers: d.range(1, 511), clients: d.range(0, 7), span }
}
