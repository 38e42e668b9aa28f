//! Faults of a simulated run and their times.

use super::draw::ALWAYS;
use super::{Action, Copy, Fault, Ms, NetPlan, Plan, Steps, Stops, Theme, Wave};
use crate::dice::Dice;

/// A kind of fault. A seed turns each kind on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Crash,
    Failover,
    Handover,
    Flush,
    Freeze,
    Cut,
    Pause,
    Kill,
    Step,
}

impl Theme {
    fn kinds(self) -> &'static [(Kind, u64)] {
        use Kind::{Crash, Cut, Failover, Flush, Freeze, Handover, Kill, Pause};
        match self {
            Self::Mixed | Self::Fleet => &[
                (Crash, 350),
                (Flush, 100),
                (Freeze, 350),
                (Cut, 400),
                (Pause, 350),
                (Kill, 350),
                (Failover, 350),
            ],
            Self::Failovers => &[
                (Failover, 950),
                (Handover, 300),
                (Crash, 150),
                (Freeze, 250),
                (Cut, 250),
                (Pause, 250),
                (Kill, 150),
            ],
            Self::Tokens => &[(Failover, 900), (Crash, 400), (Flush, 100), (Cut, 100)],
            Self::Orders => &[
                (Crash, 500),
                (Failover, 500),
                (Handover, 300),
                (Flush, 100),
                (Freeze, 250),
                (Cut, 250),
                (Pause, 250),
                (Kill, 250),
            ],
            Self::Reruns => &[(Freeze, 400), (Cut, 500), (Pause, 500), (Kill, 400)],
            Self::Steps => &[],
            Self::Anything => &[
                (Crash, 350),
                (Failover, 350),
                (Handover, 300),
                (Flush, 100),
                (Freeze, 350),
                (Cut, 350),
                (Pause, 350),
                (Kill, 350),
            ],
        }
    }
}

impl Fault {
    /// Returns true if this fault may make a node lose a confirmed write.
    pub(super) fn loses(&self) -> bool {
        match *self {
            Self::Crash { copy, .. } => copy != Copy::Behind(0),
            Self::Failover { .. }
            | Self::Flush { .. }
            | Self::Evict { .. }
            | Self::PutBack { .. }
            | Self::Detour { .. } => true,
            Self::Handover { stops, .. } => matches!(stops, Stops::Behind(_)),
            _ => false,
        }
    }

    /// Returns the node that may begin a new data history after this fault, and its data then.
    pub(super) fn begins(&self) -> Option<(usize, Copy)> {
        match *self {
            Self::Crash { node, copy, .. }
            | Self::Failover { node, copy, .. }
            | Self::Detour { node, copy, .. } => Some((node, copy)),
            Self::Handover { node, stops: Stops::Behind(span), .. } => {
                Some((node, Copy::Behind(span)))
            }
            Self::Handover { node, .. } | Self::Epoch { node, .. } => Some((node, Copy::Behind(0))),
            Self::Evict { node } => Some((node, Copy::Own)),
            Self::PutBack { node, age, .. } => Some((node, Copy::Behind(age))),
            Self::Flush { node } => Some((node, Copy::Empty)),
            _ => None,
        }
    }
}

impl Plan {
    pub(super) fn draw_faults(&mut self, d: &mut Dice) {
        if self.theme == Theme::Steps {
            self.draw_steps(d);
        }
        let kinds: Vec<Kind> = match self.steps {
            Steps::None => self.theme.kinds(),
            Steps::Noticed => &[],
            Steps::Small | Steps::Unnoticed => Theme::Anything.kinds(),
        }
        .iter()
        .filter(|(_, odds)| d.chance(*odds))
        .map(|(kind, _)| *kind)
        .collect();
        if !kinds.is_empty() {
            let horizon = d.pick(&[600, 1_500, 3_000]);
            for _ in 0..d.range(1, if self.theme == Theme::Tokens { 4 } else { 10 }) {
                let at = d.range(0, horizon);
                let kind = d.pick(&kinds);
                let fault = self.fault(d, kind);
                self.faults.push((at, fault));
                self.another(d, at, fault);
            }
        }
        self.draw_histories(&mut Dice::new(self.seed, 17));
        self.draw_epochs(&mut Dice::new(self.seed, 18));
        self.draw_snapshots(&mut Dice::new(self.seed, 19));
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Sometimes adds a second fault to the same node, so that it loses data again during or after
    /// the first quarantine.
    fn another(&mut self, d: &mut Dice, at: Ms, fault: Fault) {
        let (Fault::Failover { node, .. } | Fault::Crash { node, .. }) = fault else { return };
        let quarantine = self.most(|s| s.max_ttl) + self.nodes[node].window();
        if !d.chance(if self.theme == Theme::Tokens { 800 } else { 350 }) {
            return;
        }
        let around = d.range(quarantine * 9 / 10, quarantine * 11 / 10 + 10);
        let after = if d.chance(500) { around } else { d.range(0, 2 * quarantine) };
        let kind = if d.chance(800) { Kind::Failover } else { Kind::Crash };
        let again = self.fault_of(d, kind, node);
        self.faults.push((at + after, again));
    }

    pub(super) fn copy(&self, d: &mut Dice) -> Copy {
        let settings = &self.stages[0];
        let (ttl, long) = (settings.ttl, settings.max_ttl);
        let behind = d.pick(&[0, 0, 1, 5, 20, ttl / 3, ttl, 2 * long, 5 * long]);
        if d.chance(150) { Copy::Empty } else { Copy::Behind(behind) }
    }

    fn fault(&self, d: &mut Dice, kind: Kind) -> Fault {
        let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
        self.fault_of(d, kind, node)
    }

    fn fault_of(&self, d: &mut Dice, kind: Kind, node: usize) -> Fault {
        let (ttl, plan) = (self.stages[0].ttl, &self.nodes[node]);
        let client = d.range(0, self.clients.len() as u64 - 1) as usize;
        let server = d.range(0, plan.servers.len() as u64 - 1) as usize;
        let span = d.pick(&[5, self.deadline, 2 * self.deadline, ttl, 2 * ttl]);
        match kind {
            Kind::Failover if plan.is_group() => Fault::Failover {
                node,
                to: server,
                copy: self.copy(d),
                old: d.range(0, 15),
                freeze: d.pick(&[0, 0, 0, 20, plan.window(), 2 * ttl]),
            },
            // A planned handover is safe only if all clocks are within the clock error E.
            Kind::Handover if plan.is_group() && !self.apart && self.steps == Steps::None => {
                let takes = d.range(0, ttl);
                Fault::Handover { node, to: server, takes, stops: self.stops(d) }
            }
            Kind::Handover | Kind::Failover | Kind::Crash => {
                let copy = self.copy(d);
                let copy = d.pick(&[Copy::Behind(0), copy, Copy::Empty]);
                Fault::Crash { node, copy, down: d.pick(&[0, 0, 10, 100]) }
            }
            Kind::Flush => Fault::Flush { node },
            // The choice between a halt and a freeze has its own stream of random numbers, so it
            // does not change the other values that are drawn from the seed.
            Kind::Freeze if Dice::new(self.seed, 12).chance(300) => {
                Fault::Halt { node, server, span }
            }
            Kind::Freeze => Fault::Freeze { node, server, span },
            Kind::Cut => Fault::Cut { client, node, requests: d.chance(600), span },
            Kind::Pause => Fault::Pause { client, span, lag: d.pick(&[0, 0, 10, 60]) },
            Kind::Kill => Fault::Kill { client },
            Kind::Step => {
                let most = plan.servers[server].clock.bound as i64;
                let between = d.range(0, 2 * most as u64) as i64 - most;
                Fault::Step { node, server, to: d.pick(&[-most, most, between]) }
            }
        }
    }

    pub(super) fn stops(&self, d: &mut Dice) -> Stops {
        let ttl = self.stages[0].ttl;
        let behind = Stops::Behind(d.pick(&[1, 20, ttl, 2 * ttl]));
        if d.chance(500) {
            return Stops::Done;
        }
        d.pick(&[
            Stops::Closed,
            Stops::Reopened,
            Stops::Promoted,
            Stops::Opened,
            behind,
            Stops::Late,
        ])
    }

    fn draw_steps(&mut self, d: &mut Dice) {
        self.steps = d.pick(&[Steps::Small, Steps::Noticed, Steps::Noticed, Steps::Unnoticed]);
        match self.steps {
            Steps::None => {}
            Steps::Small => self.draw_small_steps(d),
            Steps::Noticed => self.draw_noticed_steps(d),
            Steps::Unnoticed => {
                for _ in 0..d.range(1, 6) {
                    let step = self.fault(d, Kind::Step);
                    self.faults.push((d.range(0, 2_500), step));
                }
            }
        }
    }

    /// Draws small clock steps. For a lease, they have the same effect as a wrong clock rate within
    /// the permitted drift of clocks.
    fn draw_small_steps(&mut self, d: &mut Dice) {
        for client in &mut self.clients {
            client.clock.quiet();
        }
        let settings = self.stages[0];
        // The rate errors of the clocks use half of the drift that is permitted during the shortest
        // lease. The other half remains for the clock steps.
        let most = settings.ttl * u64::from(settings.drift_ppm) / 2_000;
        for server in self.nodes.iter_mut().flat_map(|n| &mut n.servers) {
            let clock = &mut server.clock;
            let bound = clock.bound.saturating_sub(most);
            *clock = Wave { bound, ppm: clock.ppm / 4, phase: clock.phase.min(2 * bound) };
        }
        let every = 2 * (settings.max_ttl + self.window());
        let mut at = d.range(0, every);
        while at < 3_000 {
            let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
            let by = (d.range(0, 2 * most) as i64) - most as i64;
            // The clock step is reversed much later, by a separate step.
            self.faults.push((at, Fault::Wild { node, server: 0, by, span: every }));
            at += 2 * every;
        }
    }

    /// Draws large clock steps that each client notices. Clients send requests often while a clock
    /// is wrong, and no message is late or lost.
    fn draw_noticed_steps(&mut self, d: &mut Dice) {
        self.net = NetPlan { late: 0, lose_request: 0, lose_reply: 0, duplicate: 0, ..self.net };
        for task in &mut self.tasks {
            for action in &mut task.actions {
                if let Action::Think(span) = action {
                    *span %= 20;
                }
            }
            task.actions.insert(0, Action::GREETING);
        }
        let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
        let clock = &mut self.nodes[node].servers[0].clock;
        *clock = Wave::constant(clock.bound, 0);
        let (bound, long) = (clock.bound as i64, 4 * self.stages[0].max_ttl);
        let (mut at, mut error) = (d.range(150, 600), 0);
        for _ in 0..d.range(1, 3) {
            let span = d.range(long, 2 * long);
            let to = if error == bound { -bound } else { bound };
            let fault = if bound > 100_000 && d.chance(500) {
                error = to;
                Fault::Step { node, server: 0, to }
            } else {
                let by = d.pick(&[-1_500_000, -400_000, 250_000, 900_000, 2_000_000]);
                Fault::Wild { node, server: 0, by, span }
            };
            self.faults.push((at, fault));
            at += span + d.range(long, 2 * long);
        }
        if self.wildest() > 0 {
            // The clocks are wrong by more than the clock error, so the age of a request is
            // unknown.
            self.orders.births.clear();
            self.stages[0].retention = ALWAYS;
        }
    }
}
