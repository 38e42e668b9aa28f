//! More scenes (plans of a simulated run that each test one rule): work that takes longer than a
//! lease, and access to the nodes without the library.

use super::scenes::{TTL, group, lock, lone, within};
use super::{
    Action, Birth, Copy, Decision, Fault, HandlerPlan, Ms, Parting, Plan, Policy, Settings, Uses,
    Wave,
};
use crate::dice::Dice;

pub(super) fn order(span: Ms, wait: Ms, fails: u64) -> Action {
    let handler = HandlerPlan { span, fails, polls: u32::MAX };
    Action::Order { key: 0, print: 0, wait, handler }
}

impl Plan {
    /// Sets three clients and one or three nodes. The clock errors are at most a tenth of a lease.
    pub(super) fn small_world(&mut self, d: &mut Dice) {
        let error = TTL / 10;
        let mut nodes = vec![lone(2 * TTL, false); d.pick(&[1, 3])];
        for server in nodes.iter_mut().flat_map(|node| &mut node.servers) {
            *server = within(error * 1_000, d.chance(500), 0);
        }
        self.settle(2 * TTL, nodes);
        (self.stages[0].clock_error, self.truth.error) = (error, error * 1_000);
        self.clients.resize(3, self.clients[0]);
        self.net.late_max = self.deadline;
        let some = d.pick(&[0, 0, 50, 150]);
        (self.net.late, self.net.lose_reply, self.net.duplicate) = (some, some, some);
    }

    pub(super) fn retention_runs_out(&mut self, d: &mut Dice) {
        self.small_world(d);
        let error = self.stages[0].clock_error;
        // Minimum time for which the nodes keep the record of a key.
        let kept = 2 * TTL + 4 * error + 1_000;
        let is_born = d.chance(500);
        self.stages[0].retention = if is_born { 2 * TTL + error } else { kept };
        self.orders.policy = Policy::Rerun;
        if is_born {
            let most = error as i64 * 1_000;
            let birth = Birth { at: d.range(0, TTL), error: d.pick(&[-most, 0, most]) };
            self.orders.births = vec![birth];
        }
        let (short, fails) = if is_born { (TTL, d.pick(&[0, 0, 1])) } else { (2 * kept, 0) };
        let span = d.pick(&[short, kept + TTL, 2 * kept]);
        let long = vec![order(span, TTL, fails)];
        // Client 0 runs a long handler, and the other clients call the same key. If the requests
        // have no creation time, the other clients' calls must not store a result, and must not
        // arrive after the result of the long handler has expired.
        let none = if is_born { 0 } else { 2 };
        let mut others = || {
            let until = if is_born { 3 * kept } else { span + kept / 4 };
            let (mut at, mut actions) = (0, Vec::new());
            while at < until {
                let pause = d.range(TTL / 2, kept / 2);
                actions.extend([Action::Think(pause), order(5, TTL / 4, none)]);
                at += pause + TTL / 2;
            }
            actions
        };
        let (second, third) = (others(), others());
        self.set_tasks([long, second, third]);
        if d.chance(500) {
            let stop = Fault::Pause { client: 0, span: d.range(5, TTL / 2), lag: 0 };
            self.faults = vec![(d.range(20, span), stop)];
        }
    }

    pub(super) fn operators(&mut self, d: &mut Dice) {
        self.small_world(d);
        let call = |d: &mut Dice| order(d.pick(&[5, TTL, 2 * TTL]), TTL, d.pick(&[0, 1]));
        let mut works = || (0..4).flat_map(|_| [Action::Think(d.range(0, TTL)), call(d)]).collect();
        let (first, second): (Vec<Action>, Vec<Action>) = (works(), works());
        let decisions = [Decision::Rerun, Decision::Rerun, Decision::Purge, Decision::Resolve];
        let mut operator = Vec::new();
        for _ in 0..6 {
            operator.push(Action::Think(d.range(5, 2 * TTL)));
            let (later, decision) = (d.pick(&[0, 20, TTL]), d.pick(&decisions));
            operator.push(Action::Decide { key: 0, later, decision });
        }
        self.set_tasks([first, second, operator]);
        for _ in 0..d.range(1, 4) {
            let (client, span) = (d.range(0, 1) as usize, d.range(TTL, 3 * TTL));
            let stop = Fault::Pause { client, span, lag: d.pick(&[0, 20]) };
            self.faults.push((d.range(5, 8 * TTL), stop));
        }
        if d.chance(400) {
            let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
            let freeze = Fault::Freeze { node, server: 0, span: d.range(5, TTL) };
            self.faults.push((d.range(5, 8 * TTL), freeze));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn losses(&mut self, d: &mut Dice) {
        self.small_world(d);
        self.copy_every = 10;
        self.orders.policy = Policy::Once;
        let error = self.stages[0].clock_error;
        let is_group = d.chance(500);
        if is_group {
            self.nodes[0] = group(2 * TTL, false, d.pick(&[TTL / 4, TTL, 3 * TTL]));
            for server in &mut self.nodes[0].servers {
                *server = within(error * 1_000, d.chance(500), server.window);
            }
        }
        let mut works = || -> Vec<Action> {
            let call = |d: &mut Dice| {
                let (key, span) = (d.range(0, 2) as usize, d.pick(&[1, 20, TTL]));
                let handler = HandlerPlan { span, fails: d.pick(&[0, 0, 1]), polls: u32::MAX };
                Action::Order { key, print: 0, wait: TTL, handler }
            };
            (0..14).flat_map(|_| [Action::Think(d.range(0, 3 * TTL)), call(d)]).collect()
        };
        let (first, second, third) = (works(), works(), works());
        self.set_tasks([first, second, third]);
        for _ in 0..d.range(1, 4) {
            let at = d.range(200, 20 * TTL);
            let behind = Copy::Behind(d.pick(&[0, 20, TTL, 4 * TTL, 8 * TTL, 16 * TTL]));
            let copy = if d.chance(150) { Copy::Empty } else { behind };
            let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
            let fault = if self.nodes[node].is_group() && d.chance(600) {
                let (to, old) = (d.range(0, 1) as usize, d.range(0, 7));
                Fault::Failover { node, to, copy, old, freeze: 0 }
            } else {
                Fault::Crash { node, copy, down: d.pick(&[0, 20, 4 * TTL]) }
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
        if d.chance(600) {
            // The length of the loss that the keys accept must not be too short: the loss is
            // assumed to begin up to a second early, and it is longer by the clock error and the
            // failover window.
            self.orders.accepts = d.pick(&[1_200, 1_600, 2_000, 3_000]);
            return;
        }
        // The requests are created shortly before the loss of data, or in the time after it in
        // which the replaced master may still grant.
        let (first, most) = (self.faults[0].0.saturating_sub(3 * error), error as i64 * 1_000);
        let until = self.nodes[0].window() + 6 * error;
        let birth = |d: &mut Dice| Birth {
            at: first + d.range(0, until),
            error: d.pick(&[-most, 0, most]),
        };
        self.orders.births = (0..3).map(|_| birth(d)).collect();
    }

    pub(super) fn ticks(&mut self, d: &mut Dice) {
        self.small_world(d);
        self.orders.policy = d.pick(&[Policy::Once, Policy::Once, Policy::Rerun]);
        let error = self.stages[0].clock_error;
        // The creation time of a tick is its scheduled time, and the clients compare it with their
        // wall clocks. So these clocks are wrong by up to the clock error.
        let most = error as i64 * 1_000;
        for client in &mut self.clients {
            client.clock.wall = Wave::constant(error * 1_000, d.pick(&[-most, 0, most]));
        }
        if d.chance(500) {
            self.nodes[0] = group(2 * TTL, false, TTL);
            for server in &mut self.nodes[0].servers {
                *server = within(error * 1_000, d.chance(500), server.window);
            }
        }
        let job = Action::Tick { span: 9_000, takes: d.pick(&[0, 5, TTL, 4 * TTL]) };
        self.set_tasks([vec![job], vec![job], vec![job]]);
        for _ in 0..d.range(1, 5) {
            // Each fault happens shortly after the time of a tick.
            let at = 1_000 * d.range(0, 8) + d.range(0, TTL);
            let client = d.range(0, 2) as usize;
            let copy = d.pick(&[Copy::Behind(0), Copy::Behind(TTL / 4), Copy::Empty]);
            let old = d.range(0, 7);
            self.faults.push((
                at,
                match d.range(0, 3) {
                    0 if self.nodes[0].is_group() => {
                        let to = d.range(0, 1) as usize;
                        Fault::Failover { node: 0, to, copy, old, freeze: 0 }
                    }
                    0 => Fault::Crash { node: 0, copy, down: d.pick(&[0, 20]) },
                    1 => Fault::Kill { client },
                    _ => Fault::Pause { client, span: d.range(5, 12 * TTL), lag: 0 },
                },
            ));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn hand_overs(&mut self, d: &mut Dice) {
        self.small_world(d);
        self.net.lose_request = d.pick(&[0, 0, 100, 200]);
        let partings = [Parting::HandOver, Parting::HandOver, Parting::Release, Parting::Drop];
        let acts = |d: &mut Dice| -> Vec<Action> {
            let act = |d: &mut Dice| {
                let (hold, parting) = (d.pick(&[0, 5, TTL, 2 * TTL]), d.pick(&partings));
                if d.chance(400) {
                    let (uses, renew) = (Uses::Writes, d.chance(700));
                    let (wait, every) = (d.pick(&[0, TTL, 6 * TTL]), 9);
                    return Action::Lock { uses, name: 0, wait, hold, every, renew, parting };
                }
                let polls = if d.chance(200) { d.range(1, 9) as u32 } else { u32::MAX };
                let wait = d.pick(&[0, TTL / 2, 2 * TTL]);
                Action::Resume { name: 0, wait, hold, polls, parting }
            };
            (0..8).flat_map(|_| [Action::Think(d.range(0, TTL / 2)), act(d)]).collect()
        };
        let tasks = [(); 3].map(|()| acts(d));
        self.set_tasks(tasks);
        for _ in 0..d.range(0, 4) {
            let client = d.range(0, 2) as usize;
            let fault = match d.range(0, 5) {
                0 => Fault::Kill { client },
                1 => Fault::Crash {
                    node: 0,
                    copy: d.pick(&[Copy::Empty, Copy::Behind(0), Copy::Behind(TTL / 4)]),
                    down: d.range(0, TTL),
                },
                _ => Fault::Pause { client, span: d.range(TTL / 4, 2 * TTL), lag: 0 },
            };
            self.faults.push((d.range(20, 10 * TTL), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn several(&mut self, d: &mut Dice) {
        self.small_world(d);
        self.names = 2;
        self.net.lose_request = d.pick(&[0, 0, 100, 200]);
        let partings = [Parting::Release, Parting::Release, Parting::Drop, Parting::CutShort(2)];
        let acts = |d: &mut Dice| -> Vec<Action> {
            let act = |d: &mut Dice| {
                let (wait, hold) = (d.pick(&[0, TTL, 6 * TTL]), d.pick(&[0, 5, TTL / 2, 2 * TTL]));
                let (renew, parting) = (d.chance(700), d.pick(&partings));
                if d.chance(500) {
                    return Action::Several { wait, hold, renew, parting };
                }
                let (uses, name) =
                    (d.pick(&[Uses::Writes, Uses::Writes, Uses::Reads]), d.range(0, 1));
                let name = name as usize;
                Action::Lock { uses, name, wait, hold, every: 9, renew, parting }
            };
            (0..8).flat_map(|_| [Action::Think(d.range(0, TTL / 4)), act(d)]).collect()
        };
        let tasks = [(); 3].map(|()| acts(d));
        self.set_tasks(tasks);
        for _ in 0..d.range(0, 4) {
            let client = d.range(0, 2) as usize;
            let copies = [Copy::Empty, Copy::Behind(0), Copy::Behind(TTL / 4)];
            let (copy, down) = (d.pick(&copies), d.range(0, TTL));
            let fault = match d.range(0, 5) {
                0 => Fault::Kill { client },
                1 => Fault::Crash { node: 0, copy, down },
                _ => Fault::Pause { client, span: d.range(TTL / 4, 2 * TTL), lag: 0 },
            };
            self.faults.push((d.range(20, 10 * TTL), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn classic(&mut self, d: &mut Dice) {
        self.small_world(d);
        let hold = lock(8 * TTL, d.pick(&[5, TTL, 2 * TTL]), d.chance(500));
        let stranger = Action::Classic { name: 0, wait: 6 * TTL, hold: d.pick(&[2, TTL / 2, TTL]) };
        self.set_tasks([vec![hold; 4], vec![hold; 4], vec![stranger]]);
        for _ in 0..d.range(0, 3) {
            let (client, span) = (d.range(0, 2) as usize, d.range(TTL / 4, 2 * TTL));
            self.faults.push((d.range(20, 6 * TTL), Fault::Pause { client, span, lag: 0 }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    pub(super) fn unequal(&mut self, d: &mut Dice) {
        self.small_world(d);
        let (short, long) = (self.stages[0], 15 * TTL);
        self.stages.push(Settings { ttl: long, max_ttl: long, ..short });
        self.faults = vec![(1, Fault::Deploy { client: 0, stage: 1 })];
        let others = d.pick(&[Uses::Permit, Uses::Permit, Uses::Reads, Uses::Writes]);
        let first = if others == Uses::Permit { others } else { Uses::Reads };
        let hold = |uses, wait, hold| {
            let (renew, parting) = (false, Parting::Release);
            Action::Lock { uses, name: 0, wait, hold, every: hold, renew, parting }
        };
        let holds = (0..3).flat_map(|_| {
            let pause = Action::Think(d.range(5, TTL));
            [pause, hold(first, long, d.range(long / 2, long - TTL))]
        });
        let holds = holds.collect();
        // Between the rounds, all that the nodes keep for such short leases is over.
        let mut rounds = || {
            let round = |d: &mut Dice| {
                let mut round = vec![Action::Think(d.range(7 * TTL, 11 * TTL))];
                for _ in 0..d.range(1, 4) {
                    round.push(hold(others, TTL / 2, d.pick(&[0, 5, TTL / 2])));
                    round.push(Action::Think(d.range(0, TTL / 4)));
                }
                round
            };
            let begin = vec![Action::Think(d.range(20, TTL)), hold(others, TTL, 5)];
            begin.into_iter().chain((0..4).flat_map(|_| round(d))).collect()
        };
        let (second, third) = (rounds(), rounds());
        self.set_tasks([holds, second, third]);
    }
}
