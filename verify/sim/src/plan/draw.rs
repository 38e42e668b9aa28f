//! Draws a plan from a seed: its theme, its nodes and its processes.

use palisade::Durability;

use super::clock::Truth;
use super::fleet::Order;
use super::{
    Birth, ClientPlan, ClockPlan, Ms, NetPlan, NodePlan, OrdersPlan, Plan, Policy, ServerPlan,
    Settings, Steps, TaskPlan, Wave,
};
use crate::dice::Dice;

/// Main subject of a run. The last three bits of the seed select the theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// Single servers that crash and freeze, and clients that stop and die.
    Mixed,
    /// Groups with failovers. Their servers have different clocks and different failover windows L
    /// (for L, a replaced master may still grant).
    Failovers,
    /// Two losses of data, one after the other, with the largest permitted clock errors.
    Tokens,
    /// Idempotency keys whose requests have a creation time, on nodes that lose data.
    Orders,
    /// Handlers that start again while an earlier handler still hangs.
    Reruns,
    /// Server clocks that step.
    Steps,
    /// Settings that change while all processes run.
    Fleet,
    /// All kinds of faults.
    Anything,
}

impl Theme {
    pub(super) fn of(seed: u64) -> Self {
        match seed % 8 {
            0 => Self::Mixed,
            1 => Self::Failovers,
            2 => Self::Tokens,
            3 => Self::Orders,
            4 => Self::Reruns,
            5 => Self::Steps,
            6 => Self::Fleet,
            _ => Self::Anything,
        }
    }

    fn nodes(self, d: &mut Dice) -> usize {
        let most: &[usize] = match self {
            Self::Mixed | Self::Reruns => &[1, 3, 3, 3, 3, 3, 3, 5],
            Self::Failovers | Self::Orders => &[1, 1, 3, 3],
            Self::Tokens => &[1, 1, 1, 3],
            Self::Steps | Self::Fleet => &[1, 3, 3],
            Self::Anything => &[1, 3, 3, 5],
        };
        d.pick(most)
    }

    /// Returns the share of nodes, per thousand, that are groups of servers and not single servers.
    fn groups(self) -> u64 {
        match self {
            Self::Mixed | Self::Reruns | Self::Steps => 0,
            Self::Failovers => 750,
            Self::Tokens => 600,
            Self::Orders => 450,
            Self::Fleet | Self::Anything => 300,
        }
    }

    /// Draws the clock error E, the largest error of any clock. `max_ttl` is the longest lease.
    fn error(self, d: &mut Dice, max_ttl: Ms) -> Ms {
        // E must be less than half of the longest lease, `max_ttl`.
        let most = (max_ttl - 1) / 2;
        match self {
            Self::Tokens => most,
            Self::Steps => d.pick(&[most / 2, most]),
            _ => d.pick(&[2, 40, most / 2, most]),
        }
    }

    fn orders(self, d: &mut Dice) -> u64 {
        match self {
            Self::Orders | Self::Reruns => 1_000,
            Self::Tokens => 0,
            Self::Failovers => d.pick(&[0, 0, 300, 1_000]),
            _ => d.pick(&[0, 0, 0, 300, 1_000]),
        }
    }

    fn elections(self, d: &mut Dice) -> u64 {
        match self {
            Self::Orders | Self::Tokens | Self::Reruns => 0,
            Self::Failovers => d.pick(&[0, 0, 0, 300]),
            _ => d.pick(&[0, 0, 300, 1_000]),
        }
    }
}

/// Time longer than any run, in milliseconds.
pub(super) const ALWAYS: Ms = 600_000;

impl Plan {
    pub(super) fn drawn(seed: u64, unsafe_order: Option<Order>) -> Self {
        let mut d = Dice::new(seed, 1);
        let theme = if unsafe_order.is_some() { Theme::Fleet } else { Theme::of(seed) };
        let count = theme.nodes(&mut d);
        let ttl = d.pick(&[120, 200, 300, 450]);
        let max_ttl = if d.chance(600) { ttl } else { ttl * 2 };
        let drift_ppm = match theme {
            Theme::Tokens => d.pick(&[30_000, 80_000]),
            Theme::Steps => 10_000,
            _ => d.pick(&[10_000, 30_000, 80_000]),
        };
        let clock_error = theme.error(&mut d, max_ttl);
        let truth = Truth { drift_ppm, error: clock_error * 1_000 };
        let deadline = d.range(ttl / 24 + 3, ttl / 5);
        let settings = Settings {
            ttl,
            max_ttl,
            clock_error,
            drift_ppm,
            retention: ALWAYS,
            nodes: (1 << count) - 1,
        };
        let mut plan = Self {
            seed,
            theme,
            truth,
            nodes: Vec::new(),
            cluster: None,
            clients: Vec::new(),
            stages: vec![settings],
            names: d.pick(&[1, 1, 1, 2]),
            deadline,
            net: net(&mut d, deadline),
            copy_every: d.pick(&[0, 0, 5, 30]),
            cross: d.chance(150),
            steps: Steps::None,
            apart: false,
            faults: Vec::new(),
            tasks: Vec::new(),
            orders: OrdersPlan::default(),
            elections: theme.elections(&mut d),
            // Each of these values has its own stream of random numbers. So a change of one of them
            // leaves the other values of each seed the same.
            readers: Dice::new(seed, 12).pick(&[0, 0, 300, 700]),
            permits: Dice::new(seed, 13).pick(&[0, 0, 0, 400]),
            fair: Dice::new(seed, 16).pick(&[0, 0, 300, 800]),
            several: Dice::new(seed, 15).pick(&[0, 0, 0, 400]),
            hand_overs: Dice::new(seed, 14).pick(&[0, 0, 0, 400]),
            durability: durability(Dice::new(seed, 3).chance(125)),
            tamper: None,
        };
        if plan.several > 0 {
            plan.names = 2;
        }
        plan.draw_nodes(&mut Dice::new(seed, 4), count);
        plan.draw_clients(&mut Dice::new(seed, 5));
        plan.draw_orders(&mut Dice::new(seed, 6), unsafe_order.is_some_and(Order::is_about_keys));
        if theme == Theme::Fleet {
            plan.draw_fleet(&mut Dice::new(seed, 7), unsafe_order);
        }
        plan.draw_tasks(&mut Dice::new(seed, 8));
        plan.draw_faults(&mut Dice::new(seed, 9));
        if let Some(order @ (Order::MaxTtlUp | Order::MaxTtlDown)) = unsafe_order {
            plan.long_and_short(&mut Dice::new(seed, 11), order);
        }
        // With `Policy::Least`, a finished handler may run again if a node loses data or has an
        // unknown past. The user accepts this risk, but the rules would report it. So such plans
        // use `Policy::Rerun`.
        let loses = plan.faults.iter().any(|(_, f)| f.loses());
        let of_unknown_past = plan.nodes.iter().any(|node| !node.is_new);
        if plan.orders.policy == Policy::Least && (loses || of_unknown_past) {
            plan.orders.policy = Policy::Rerun;
        }
        plan
    }

    pub(super) fn node(&self, d: &mut Dice, servers: u64) -> NodePlan {
        let longest = self.stages[0].max_ttl;
        let server = |d: &mut Dice| ServerPlan {
            clock: self.truth.wave(d),
            window: if self.theme == Theme::Tokens {
                d.pick(&[1, 20, 60, longest / 2])
            } else {
                d.pick(&[10, 40, 100, 200, longest])
            },
        };
        let servers = (0..servers).map(|_| server(d)).collect();
        NodePlan { servers, is_new: true, is_foreign: false }
    }

    fn draw_nodes(&mut self, d: &mut Dice, count: usize) {
        for i in 0..count {
            let is_group = match self.theme {
                // A failover run needs at least one group.
                Theme::Failovers => i == 0 || d.chance(400),
                theme => d.chance(theme.groups()),
            };
            let servers = if is_group { d.range(2, 3) } else { 1 };
            let mut node = self.node(d, servers);
            if self.theme == Theme::Tokens {
                // The worst case: each clock is behind or ahead by the whole clock error E.
                for server in &mut node.servers {
                    server.clock.phase = d.pick(&[0, 2 * server.clock.bound]);
                }
            }
            self.nodes.push(node);
        }
        if self.theme == Theme::Failovers && d.chance(120) {
            self.apart = true;
            for server in self.nodes.iter_mut().flat_map(|n| &mut n.servers) {
                let most = 1_500_000;
                let error = d.range(0, 2 * most) as i64 - most as i64;
                server.clock = Wave::constant(most, error);
            }
        }
    }

    fn draw_clients(&mut self, d: &mut Dice) {
        let count = if self.theme == Theme::Tokens { d.range(2, 3) } else { d.range(2, 4) };
        let everything = (1 << 3) - 1;
        for _ in 0..count {
            let clock = self.truth.clock(d);
            let reads = if d.chance(600) { everything } else { d.range(0, everything) };
            self.clients.push(ClientPlan { clock, reads, twin: false });
        }
        if self.nodes.len() == 3 && matches!(self.theme, Theme::Mixed | Theme::Anything) {
            let one = d.range(0, count - 1) as usize;
            self.clients[one].twin = d.chance(60);
        }
        if self.theme == Theme::Tokens {
            for client in &mut self.clients {
                let bound = client.clock.wall.bound;
                let phase = d.pick(&[0, 2 * bound]);
                client.clock.wall = Wave { bound, ppm: 0, phase };
                if d.chance(400) {
                    // The nodes correct the times that a client proposes, so even a very wrong wall
                    // clock of a client does no harm.
                    let (wrong, by) = (900_000, d.pick(&[-900_000, 900_000]));
                    client.clock.wall = Wave::constant(wrong, by);
                }
            }
        }
    }

    fn draw_orders(&mut self, d: &mut Dice, must_be_born: bool) {
        let settings = &mut self.stages[0];
        let (ttl, error) = (settings.ttl, settings.clock_error);
        self.orders.share = if must_be_born { 1_000 } else { self.theme.orders(d) };
        self.orders.prints = d.chance(300);
        self.orders.max_result = usize::from(d.chance(250));
        let again = self.theme == Theme::Reruns || d.chance(600);
        let again_policy = d.pick(&[Policy::Rerun, Policy::Least]);
        self.orders.policy = if again { again_policy } else { Policy::Once };
        let odds = match self.theme {
            Theme::Orders => 750,
            Theme::Reruns => 0,
            _ if self.apart => 0,
            _ => 400,
        };
        let born = must_be_born || d.chance(odds);
        if self.orders.share == 0 || !born {
            return;
        }
        if must_be_born || !d.chance(350) {
            self.orders.policy = Policy::Once;
        }
        let birth = |d: &mut Dice| {
            let most = error as i64 * 1_000;
            let between = d.range(0, 2 * most as u64) as i64 - most;
            Birth { at: d.range(0, 4 * ttl), error: d.pick(&[-most, most, between]) }
        };
        self.orders.births = (0..super::actions::KEYS).map(|_| birth(d)).collect();
        // The nodes keep a record for at least `max_ttl + 4E + 1 s`, where E is the clock error,
        // even if the retention is shorter.
        let short = 2 * ttl + error;
        settings.retention = d.pick(&[short, short + 1_000, 2_600, 4_000]);
    }

    fn draw_tasks(&mut self, d: &mut Dice) {
        let per_client = d.pick(&[1, 1, 2]);
        for client in 0..self.clients.len() {
            for task in 0..per_client {
                let actions = self.draw_actions(client, task);
                self.tasks.push(TaskPlan { client, actions });
            }
        }
    }
}

fn durability(all: bool) -> Durability {
    if all { Durability::AllReplicas } else { Durability::Primary }
}

fn net(d: &mut Dice, deadline: Ms) -> NetPlan {
    let slowest = d.pick(&[1, 2, 5, deadline / 3]).max(1);
    let mut odds = |most: u64| if d.chance(350) { d.range(1, most) } else { 0 };
    NetPlan {
        latency: (0, slowest),
        late: odds(150),
        late_max: deadline * 4,
        lose_request: odds(150),
        lose_reply: odds(150),
        duplicate: odds(200),
        lose_hint: odds(1_000),
    }
}

impl ClockPlan {
    /// Reduces the rate errors of the clocks. So clients notice large steps of server clocks, and
    /// small steps do not exceed the permitted drift.
    pub(super) fn quiet(&mut self) {
        self.ppm /= 4;
        self.wall.ppm /= 4;
    }
}
