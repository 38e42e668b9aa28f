//! Faults of the data histories: a server whose data are not those that its clients used, though it
//! runs on, and a server whose data are, though it renames them.

use super::episodes::order;
use super::scenes::{TTL, group, lock, lone, within};
use super::{Action, Copy, Fault, Ms, NodePlan, Plan, Policy, Steps, Stops, Theme};
use crate::dice::Dice;

impl Plan {
    /// Adds faults of the data histories to one of ten plans. `d` is a stream of its own, so that
    /// the other plans stay as they are.
    pub(super) fn draw_histories(&mut self, d: &mut Dice) {
        let is_plain = self.steps == Steps::None && !self.apart && self.theme != Theme::Fleet;
        if !is_plain || !d.chance(100) {
            return;
        }
        for (_, fault) in &mut self.faults {
            if let Fault::Failover { copy, .. } = fault
                && d.chance(400)
            {
                *copy = Copy::Own;
            }
        }
        let horizon = self.faults.iter().map(|(at, _)| *at).max().unwrap_or(1_000);
        for _ in 0..d.range(1, 3) {
            let (at, node) = (d.range(0, horizon), d.range(0, self.nodes.len() as u64 - 1));
            let fault = self.of_history(d, node as usize);
            self.faults.push((at, fault));
        }
    }

    fn of_history(&self, d: &mut Dice, node: usize) -> Fault {
        let ttl = self.stages[0].ttl;
        // A copy of a closed server may be closed as well, and then refuses the client that knows
        // newer data.
        let is_closed = self.faults.iter().any(|(_, f)| matches!(f, Fault::Handover { .. }));
        match d.range(0, 3) {
            0 | 1 => Fault::Rename { node },
            2 => Fault::Detour { node, copy: self.copy(d), reset: d.chance(300) },
            _ if is_closed => Fault::Rename { node },
            _ => Fault::PutBack { node, age: d.pick(&[1, 20, ttl, 4 * ttl]), whole: false },
        }
    }

    /// Lets the Sentinels' epoch rise without a change in some of the plans with groups.
    pub(super) fn draw_epochs(&mut self, d: &mut Dice) {
        let is_plain = self.steps == Steps::None && !self.apart && self.theme != Theme::Fleet;
        let all = self.nodes.iter().enumerate();
        let groups: Vec<usize> = all.filter(|(_, n)| n.is_group()).map(|(i, _)| i).collect();
        if groups.is_empty() || !is_plain || !d.chance(200) {
            return;
        }
        let horizon = self.faults.iter().map(|(at, _)| *at).max().unwrap_or(1_000);
        for _ in 0..d.range(1, 2) {
            let fault = Fault::Epoch { node: d.pick(&groups), old: d.range(0, 15) };
            self.faults.push((d.range(0, horizon), fault));
        }
    }

    /// Puts back whole machines in the place of some data. In a group, the copy may be of another
    /// server's machine.
    pub(super) fn draw_snapshots(&mut self, d: &mut Dice) {
        for (_, fault) in &mut self.faults {
            if let Fault::PutBack { node, whole, .. } = fault {
                *whole = !self.nodes[*node].is_group() && d.chance(400);
            }
        }
    }

    fn lock_or_order(&mut self, d: &mut Dice) {
        self.orders.policy = d.pick(&[Policy::Once, Policy::Rerun]);
        let of_keys = d.chance(350);
        let acts = |d: &mut Dice| -> Vec<Action> {
            let act = |d: &mut Dice| {
                let (wait, span) = (d.pick(&[TTL / 2, 4 * TTL]), d.pick(&[5, TTL / 2, 3 * TTL]));
                if of_keys {
                    return order(span, wait, d.pick(&[0, 0, 1]));
                }
                lock(wait, span, d.chance(700))
            };
            (0..8).flat_map(|_| [Action::Think(d.range(0, TTL)), act(d)]).collect()
        };
        let tasks = [(); 3].map(|()| acts(d));
        self.set_tasks(tasks);
    }

    pub(super) fn returns(&mut self, d: &mut Dice) {
        self.small_world(d);
        let error = self.stages[0].clock_error * 1_000;
        self.nodes.truncate(1);
        self.stages[0].nodes = 1;
        self.nodes[0] = group(2 * TTL, false, d.pick(&[TTL / 4, TTL, 2 * TTL]));
        for server in &mut self.nodes[0].servers {
            *server = within(error, d.chance(500), server.window);
        }
        self.lock_or_order(d);
        let (mut at, mut to) = (d.range(20, 4 * TTL), 1);
        for _ in 0..d.range(2, 4) {
            let copy = if to == 0 || d.chance(300) { Copy::Own } else { Copy::Behind(0) };
            let fault = Fault::Failover { node: 0, to, copy, old: d.range(0, 7), freeze: 0 };
            self.faults.push((at, fault));
            at += d.pick(&[5, TTL / 2, 2 * TTL, 5 * TTL]) + d.range(0, TTL);
            to = 1 - to;
        }
        if d.chance(400) {
            let (takes, stops) = (d.pick(&[0, TTL / 4]), Stops::Done);
            self.faults.push((at, Fault::Handover { node: 0, to, takes, stops }));
        }
        if d.chance(300) {
            let (client, span) = (d.range(0, 2) as usize, d.range(TTL / 4, 2 * TTL));
            self.faults.push((d.range(20, at), Fault::Pause { client, span, lag: 0 }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn put_backs(&mut self, d: &mut Dice) {
        self.small_world(d);
        self.copy_every = d.pick(&[0, 0, 10]);
        self.lock_or_order(d);
        for _ in 0..d.range(1, 5) {
            let age = d.pick(&[1, 5, TTL / 2, 2 * TTL, 8 * TTL]);
            let copy = if d.chance(100) { Copy::Empty } else { Copy::Behind(age) };
            let client = d.range(0, 2) as usize;
            let fault = match d.range(0, 9) {
                0..4 => Fault::PutBack { node: 0, age, whole: false },
                4 | 5 => Fault::Detour { node: 0, copy, reset: d.chance(500) },
                6 | 7 => Fault::Rename { node: 0 },
                8 => Fault::Flush { node: 0 },
                _ => Fault::Kill { client },
            };
            self.faults.push((d.range(20, 12 * TTL), fault));
        }
        if d.chance(300) {
            // A new client comes first to a server that was emptied, and gives its data no name.
            let (at, client) = (d.range(TTL, 4 * TTL), d.range(0, 2) as usize);
            let after = d.pick(&[2, 10, TTL, 4 * TTL, 6 * TTL]);
            let back = Fault::PutBack { node: 0, age: d.range(0, after + 20), whole: false };
            let emptied = [Fault::Kill { client }, Fault::Flush { node: 0 }];
            self.faults.extend(emptied.map(|fault| (at, fault)));
            self.faults.push((at + after, back));
        }
        // Here no process ends that has evicted, which nobody would notice (quarantine 21).
        for _ in 0..d.pick(&[0, 0, 1, 2]) {
            self.faults.push((d.range(20, 12 * TTL), Fault::Evict { node: 0 }));
        }
        self.draw_snapshots(&mut Dice::new(self.seed, 19));
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn declared(&mut self, d: &mut Dice) {
        self.small_world(d);
        // A lease may last as long as a quarantine, and clocks may be far apart.
        self.stages[0].max_ttl = TTL;
        self.stages[0].clock_error = TTL / 3;
        let error = self.stages[0].clock_error * 1_000;
        self.truth.error = error;
        for node in &mut self.nodes {
            *node = group(2 * TTL, false, 0);
            let is_ahead = d.chance(500);
            node.servers = [is_ahead, !is_ahead].map(|ahead| within(error, ahead, 0)).into();
        }
        self.lock_or_order(d);
        let count = self.nodes.len();
        let mut masters = vec![0; count];
        let mut at = d.range(20, 2 * TTL);
        for _ in 0..d.range(2, 6) {
            let (node, client) = (d.range(0, count as u64 - 1) as usize, d.range(0, 2) as usize);
            let span = d.range(TTL / 4, 2 * TTL);
            let mut replace = |d: &mut Dice| {
                masters[node] = 1 - masters[node];
                let (to, copy, old) = (masters[node], Copy::Behind(0), d.range(0, 7));
                Fault::Failover { node, to, copy, old, freeze: 0 }
            };
            let fault = match d.range(0, 9) {
                0..5 => replace(d),
                5 | 6 => Fault::Crash { node, copy: Copy::Behind(0), down: d.range(1, TTL) },
                7 if count > 1 => Fault::Astray { node, to: (node + 1) % count, span },
                7 => Fault::Rename { node },
                8 => {
                    self.faults.push((at, Fault::Flush { node }));
                    at += d.range(1, TTL / 2);
                    replace(d)
                }
                _ if d.chance(500) => Fault::Kill { client },
                _ => Fault::Pause { client, span, lag: 0 },
            };
            self.faults.push((at, fault));
            at += d.pick(&[5, TTL / 2, 2 * TTL, 5 * TTL]) + d.range(0, TTL);
        }
    }

    pub(super) fn astray(&mut self, d: &mut Dice) {
        let max_ttl: Ms = TTL;
        let nodes = (0..3).map(|_| lone(max_ttl, d.chance(500))).collect();
        self.settle(max_ttl, nodes);
        self.clients.resize(3, self.clients[0]);
        self.lock_or_order(d);
        for _ in 0..d.range(1, 3) {
            let node = d.range(0, 2) as usize;
            let to = (node + d.range(1, 2) as usize) % 3;
            let fault = Fault::Astray { node, to, span: d.range(TTL / 2, 4 * TTL) };
            self.faults.push((d.range(20, 12 * TTL), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn newcomers(&mut self, d: &mut Dice) {
        let max_ttl: Ms = TTL;
        let nodes = (0..3).map(|_| lone(max_ttl, d.chance(500))).collect();
        self.settle(max_ttl, nodes);
        self.nodes.push(NodePlan { is_foreign: true, ..lone(max_ttl, d.chance(500)) });
        self.clients.resize(3, self.clients[0]);
        self.lock_or_order(d);
        let newcomer = d.range(0, 2) as usize;
        // It asks again as soon as it can.
        self.tasks[newcomer].actions.retain(|action| !matches!(action, Action::Think(_)));
        let mut at = d.range(20, 4 * TTL);
        for _ in 0..d.range(1, 3) {
            // A holder has the nodes `node` and `other`, and `late` knows nothing of it.
            let node = d.range(0, 2) as usize;
            let (other, late) = if d.chance(500) { (1, 2) } else { (2, 1) };
            let (other, late) = ((node + other) % 3, (node + late) % 3);
            let before = d.range(5, TTL);
            let freeze = |node, span| Fault::Freeze { node, server: 0, span };
            self.faults.push((at, freeze(late, before)));
            at += before;
            let span = d.range(TTL / 2, 4 * TTL);
            self.faults.push((at, Fault::Astray { node, to: 3, span }));
            self.faults.push((at + d.range(0, 10), freeze(other, d.range(5, 2 * TTL))));
            self.faults.push((at + d.range(0, 20), Fault::Kill { client: newcomer }));
            at += span + d.range(5, 2 * TTL);
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}
