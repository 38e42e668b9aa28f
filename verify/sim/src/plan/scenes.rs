//! Scenes: plans of simulated runs that each test one rule. Most broken rules are found by plans
//! that a random seed draws. A rule has a scene if only several coincidences show that it is
//! broken. The seed draws the times of a scene.

use super::draw::ALWAYS;
use super::{
    Action, Copy, Fault, HandlerPlan, Ms, NetPlan, NodePlan, Order, OrdersPlan, Parting, Plan,
    Policy, ServerPlan, Settings, Steps, Stops, TaskPlan, Truth, Uses, Wave,
};
use crate::dice::Dice;

/// Scene of a plan: the tested rule and the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Replies are as late as permitted. The holders do not renew.
    SlowAnswers,
    /// A replaced master grants for longer than its leases last. The clocks differ as much as
    /// permitted.
    OldMaster,
    /// A node loses all data while a handler runs. Then a different request uses the key of the
    /// handler.
    Prints,
    /// An operator takes over a lock from a holder that sometimes pauses. Another client waits for
    /// the lock. The operator's messages may be lost, and the operator's call may be dropped at any
    /// time.
    TakeOvers,
    /// Planned handovers between servers whose clocks differ as much as permitted. A handover may
    /// stop in the middle, and the next handover may follow at once.
    Handovers,
    /// Handlers run for longer than the time for which a record is kept. Requests arrive after
    /// their retention has ended.
    Retention,
    /// Operators decide about keys whose handlers may still run.
    Operators,
    /// Another program acquires the same lock with `SET NX PX`.
    Classic,
    /// Servers restart or are promoted with older data or without data. Handlers of keys may run
    /// again after short losses of data.
    Losses,
    /// Three processes run a cron job with one tick per second. The processes pause and die, and
    /// the servers fail over and crash.
    Ticks,
    /// Readers and writers use one lock. Some of them have short leases. The network loses and
    /// delays messages.
    Readers,
    /// Clients hold permits of one semaphore, while the network loses and delays messages.
    Permits,
    /// Clients acquire one or all permits of one semaphore, while the network loses and delays
    /// messages.
    AllPermits,
    /// Processes hand locks over to each other with tickets. The processes pause and die, messages
    /// are lost, and tickets are delivered twice and late.
    HandOvers,
    /// Some callers acquire two locks together, while other callers hold each of the locks alone.
    Several,
    /// Callers wait for one fair lock. In half of the plans no message is lost.
    Fair,
    /// A master that was replaced is promoted again, without noticing either. Clients hear of it at
    /// different times.
    Returns,
    /// Servers get older data while they run, in one process: data are put back, the server follows
    /// another one, or it is emptied. They also rename data that lack nothing.
    PutBacks,
    /// The address of a node leads to another node for some time.
    Astray,
    /// The address of a node leads to a server of another deployment, while clients start that
    /// remember nothing.
    Newcomers,
    /// One client has much longer leases than the other clients, which use the same lock.
    Unequal,
    /// The slots of a cluster move to other masters, and come back.
    Slots,
    /// Masters of a cluster fail, and replicas take their place by the votes of the others.
    Shards,
    /// A slot of a cluster moves to another master, which is replaced, and moves back.
    ThereAndBack,
    /// A replica of a cluster takes the place of its master without a vote, during a cut.
    Takeovers,
    /// The address of a server of a cluster leads to another cluster.
    OtherClusters,
    /// A master of a cluster is replaced behind the back of a client whose failover window is
    /// longer than that of the others.
    LongWords,
    /// What the manual forbids: the move of a slot is broken off, and the source stays the owner
    /// without the keys that have moved.
    BrokenOffMoves,
    /// What the manual forbids: a takeover in a cut, beside a master that goes on, and clients that
    /// start meanwhile.
    TakeoversForNewcomers,
    /// Servers that were declared `durable` restart, and others with other clocks replace them,
    /// with all data. They are also emptied, and an address leads to another node.
    Declared,
}

impl Scene {
    /// The scenes that have a cluster.
    pub const CLUSTERS: [Self; 6] = [
        Self::Slots,
        Self::Shards,
        Self::ThereAndBack,
        Self::Takeovers,
        Self::OtherClusters,
        Self::LongWords,
    ];
}

/// Length of a lease in the scenes (plans that each test one rule), in milliseconds.
pub(super) const TTL: Ms = 200;

impl Plan {
    /// Changes this plan to the scene.
    pub(super) fn set(&mut self, scene: Scene) {
        let mut d = Dice::new(self.seed, 10);
        self.faults.clear();
        self.orders = OrdersPlan::default();
        self.net = NetPlan { latency: (0, 2), ..NetPlan::CALM };
        (self.names, self.copy_every, self.cross, self.apart) = (1, 0, false, false);
        self.durability = palisade::Durability::Primary;
        self.steps = Steps::None;
        match scene {
            Scene::SlowAnswers => self.slow_answers(&mut d),
            Scene::OldMaster => self.old_master(&mut d),
            Scene::Prints => self.prints(&mut d),
            Scene::TakeOvers => self.take_overs(&mut d),
            Scene::Handovers => self.handovers(&mut d),
            Scene::Retention => self.retention_runs_out(&mut d),
            Scene::Operators => self.operators(&mut d),
            Scene::Classic => self.classic(&mut d),
            Scene::Losses => self.losses(&mut d),
            Scene::Ticks => self.ticks(&mut d),
            Scene::Readers => self.readers(&mut d),
            Scene::Permits => self.permits(&mut d),
            Scene::AllPermits => self.all_permits(&mut d),
            Scene::HandOvers => self.hand_overs(&mut d),
            Scene::Several => self.several(&mut d),
            Scene::Fair => self.fair(&mut d),
            Scene::Returns => self.returns(&mut d),
            Scene::PutBacks => self.put_backs(&mut d),
            Scene::Astray => self.astray(&mut d),
            Scene::Newcomers => self.newcomers(&mut d),
            Scene::Unequal => self.unequal(&mut d),
            Scene::Slots => self.slots(&mut d),
            Scene::Shards => self.shards(&mut d),
            Scene::ThereAndBack => self.there_and_back(&mut d),
            Scene::Takeovers => self.takeovers(&mut d),
            Scene::OtherClusters => self.other_clusters(&mut d),
            Scene::LongWords => self.long_words(&mut d),
            Scene::BrokenOffMoves => self.broken_off_moves(&mut d),
            Scene::TakeoversForNewcomers => self.takeovers_for_newcomers(&mut d),
            Scene::Declared => self.declared(&mut d),
        }
    }

    /// Sets the same lease length for all processes, constant clock errors, and two clients.
    pub(super) fn settle(&mut self, max_ttl: Ms, nodes: Vec<NodePlan>) {
        let (clock_error, drift_ppm) = ((max_ttl - 1) / 2, 10_000);
        let mask = (1 << nodes.len()) - 1;
        let settings = self.stages[0];
        self.stages =
            vec![Settings { ttl: TTL, max_ttl, clock_error, drift_ppm, nodes: mask, ..settings }];
        self.stages[0].retention = ALWAYS;
        self.truth = Truth { drift_ppm, error: clock_error * 1_000 };
        self.deadline = TTL / 5;
        self.nodes = nodes;
        self.clients.truncate(2);
        for client in &mut self.clients {
            client.clock.ppm = 0;
            (client.reads, client.twin) = (u64::MAX, false);
        }
    }

    pub(super) fn set_tasks<const N: usize>(&mut self, tasks: [Vec<Action>; N]) {
        let task = |(client, actions)| TaskPlan { client, actions };
        self.tasks = tasks.into_iter().enumerate().map(task).collect();
    }

    /// Lets a node lose all its data while one client has longer leases than the other client
    /// expects.
    pub(super) fn long_and_short(&mut self, d: &mut Dice, order: Order) {
        self.nodes = vec![lone(self.stages[0].max_ttl, d.chance(500))];
        self.clients.truncate(2);
        for stage in &mut self.stages {
            stage.nodes = 1;
        }
        self.names = 1;
        let long = self.most(|s| s.max_ttl);
        let hold = lock(10 * long, long, false);
        self.set_tasks([vec![hold; 3], vec![hold; 3]]);
        let crash = Fault::Crash { node: 0, copy: Copy::Empty, down: 0 };
        let client = usize::from(order != Order::MaxTtlUp);
        let (first, other) = (d.range(50, 200), 1 - client);
        self.faults = vec![
            (first, Fault::Deploy { client, stage: 1 }),
            (first + d.range(0, 2 * long), crash),
            (first + 4 * long, Fault::Deploy { client: other, stage: 1 }),
        ];
    }

    fn slow_answers(&mut self, d: &mut Dice) {
        let nodes = (0..d.pick(&[1, 1, 3])).map(|_| lone(TTL, d.chance(500))).collect();
        self.settle(TTL, nodes);
        (self.net.late, self.net.late_max) = (400, self.deadline * 3 / 4);
        let hold = lock(4 * TTL, 2 * TTL, false);
        self.set_tasks([vec![hold; 4], vec![hold; 4]]);
    }

    fn old_master(&mut self, d: &mut Dice) {
        let window = d.range(TTL / 2, 2 * TTL);
        self.settle(TTL, vec![group(TTL, d.chance(700), window)]);
        // The first client holds and renews the lock, and connects to the new master. The second
        // client stays at the old master and waits for the lock there.
        let later = Action::Think(d.range(10, TTL));
        let holder = lock(TTL, 6 * TTL, true);
        self.set_tasks([vec![holder], vec![later, lock(5 * TTL, TTL, true)]]);
        self.faults = vec![fails_over(d.range(20, 3 * TTL))];
    }

    fn prints(&mut self, d: &mut Dice) {
        self.settle(TTL, vec![lone(TTL, d.chance(500))]);
        let order = |print, span| Action::Order {
            key: 0,
            print,
            wait: 2 * TTL,
            handler: HandlerPlan { span, fails: 0, polls: u32::MAX },
        };
        let later = Action::Think(d.range(2 * TTL, 5 * TTL));
        self.set_tasks([vec![order(1, 2 * TTL)], vec![later, order(2, 1)]]);
        let crash = Fault::Crash { node: 0, copy: Copy::Empty, down: 0 };
        self.faults = vec![(d.range(20, 2 * TTL), crash)];
    }
}

impl Plan {
    fn handovers(&mut self, d: &mut Dice) {
        let max_ttl = TTL;
        let mut nodes = vec![group(max_ttl, d.chance(500), d.pick(&[20, TTL]))];
        for _ in 0..d.pick(&[0, 0, 2]) {
            nodes.push(lone(max_ttl, d.chance(500)));
        }
        self.settle(max_ttl, nodes);
        self.clients.resize(3, self.clients[0]);
        (self.orders.policy, self.copy_every) = (Policy::Rerun, 5);
        let (renew, holds_long) = (d.chance(500), d.chance(500));
        let hold = lock(8 * TTL, if holds_long { 3 * TTL } else { TTL }, renew);
        let order = Action::Order {
            key: 0,
            print: 0,
            wait: 4 * TTL,
            handler: HandlerPlan { span: 2 * TTL, fails: 1, polls: u32::MAX },
        };
        let actions = if d.chance(500) { vec![hold; 4] } else { vec![order; 4] };
        self.set_tasks([actions.clone(), actions.clone(), actions]);
        let (mut at, mut to) = (d.range(20, 3 * TTL), 1);
        for _ in 0..d.range(1, 4) {
            let takes = d.pick(&[0, 5, TTL / 4]);
            let stops = self.stops(d);
            self.faults.push((at, Fault::Handover { node: 0, to, takes, stops }));
            to = 1 - to;
            at += takes + d.pick(&[2, 20, TTL, 3 * TTL]);
        }
        if d.chance(500) {
            let client = d.range(0, 2) as usize;
            let span = d.range(TTL / 4, TTL);
            self.faults.push((d.range(20, 3 * TTL), Fault::Pause { client, span, lag: 0 }));
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    fn readers(&mut self, d: &mut Dice) {
        let max_ttl = TTL;
        let mut nodes = vec![lone(max_ttl, d.chance(500)); d.pick(&[1, 3, 3])];
        if d.chance(300) {
            nodes[0] = group(max_ttl, d.chance(500), d.pick(&[20, TTL]));
        }
        self.settle(max_ttl, nodes);
        self.clients.resize(3, self.clients[0]);
        self.net.late_max = self.deadline;
        let some = d.pick(&[0, 100, 300]);
        (self.net.late, self.net.lose_request) = (some, some);
        self.net.lose_reply = some;
        let partings = [Parting::Release, Parting::Release, Parting::Drop, Parting::CutShort(2)];
        // In half of the plans, the clients use the lock at the same time as often as possible, so
        // that the nodes have different fences.
        let busy = d.chance(500);
        let acts = |d: &mut Dice| {
            let mut acts = Vec::new();
            for _ in 0..if busy { 15 } else { 6 } {
                acts.push(Action::Think(d.range(0, if busy { 4 } else { TTL / 2 })));
                acts.push(Action::Lock {
                    uses: d.pick(&[
                        Uses::Writes,
                        Uses::Reads,
                        Uses::ReadsBriefly,
                        Uses::Downgrades,
                    ]),
                    name: 0,
                    wait: d.pick(&[0, TTL, 6 * TTL]),
                    hold: d.pick(if busy { &[0, 3, 6] } else { &[5, TTL / 2, 3 * TTL] }),
                    every: d.range(3, TTL / 4),
                    renew: d.chance(500),
                    parting: d.pick(&partings),
                });
            }
            acts
        };
        let tasks = [(); 3].map(|()| acts(d));
        self.set_tasks(tasks);
        for _ in 0..d.range(0, 3) {
            let (client, span) = (d.range(0, 2) as usize, d.range(TTL / 4, 2 * TTL));
            self.faults.push((d.range(20, 8 * TTL), Fault::Pause { client, span, lag: 0 }));
        }
        if d.chance(300) {
            let copy = d.pick(&[Copy::Empty, Copy::Behind(0), Copy::Behind(TTL / 4)]);
            let crash = Fault::Crash { node: 0, copy, down: d.range(0, TTL) };
            self.faults.push((d.range(20, 6 * TTL), crash));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn permits(&mut self, d: &mut Dice) {
        self.readers(d);
        let actions = self.tasks.iter_mut().flat_map(|task| &mut task.actions);
        for action in actions {
            if let Action::Lock { uses, .. } = action {
                *uses = Uses::Permit;
            }
        }
    }

    fn all_permits(&mut self, d: &mut Dice) {
        self.permits(d);
        for action in self.tasks.iter_mut().flat_map(|task| &mut task.actions) {
            action.may_want_all_permits(d);
        }
    }

    fn fair(&mut self, d: &mut Dice) {
        self.readers(d);
        let mut longest = 5 * TTL;
        if d.chance(500) {
            // Without faults, a free lock that stays without a holder means that the callers block
            // each other. The calls wait long enough to show this.
            longest = 40 * TTL;
            self.net = NetPlan { latency: self.net.latency, ..NetPlan::CALM };
            self.faults.clear();
        }
        for action in self.tasks.iter_mut().flat_map(|task| &mut task.actions) {
            if let Action::Lock { uses, wait, hold, .. } = action {
                (*uses, *wait, *hold) = (Uses::WritesFairly, longest, d.pick(&[0, 3, TTL / 2]));
            }
        }
    }

    fn take_overs(&mut self, d: &mut Dice) {
        let (max_ttl, error) = (2 * TTL, TTL / 10);
        let mut nodes = vec![lone(max_ttl, false); d.pick(&[1, 1, 3])];
        let is_group = d.chance(500);
        if is_group {
            nodes[0] = group(max_ttl, d.chance(500), TTL);
        }
        for server in nodes.iter_mut().flat_map(|node| &mut node.servers) {
            *server = within(error * 1_000, d.chance(500), server.window);
        }
        self.settle(max_ttl, nodes);
        (self.stages[0].clock_error, self.truth.error) = (error, error * 1_000);
        self.clients.resize(3, self.clients[0]);
        self.net.late_max = self.deadline;
        let some = d.pick(&[0, 50, 200]);
        (self.net.late, self.net.lose_request) = (some, some);
        (self.net.lose_reply, self.net.duplicate) = (some, some);
        let partings = [Parting::Release, Parting::Drop, Parting::CutShort(2)];
        let mut operator = Vec::new();
        for _ in 0..3 {
            operator.push(Action::Think(d.range(5, 2 * TTL)));
            operator.push(Action::TakeOver {
                name: 0,
                ttl: d.pick(&[TTL / 4, TTL]),
                wait: d.pick(&[TTL, 4 * TTL]),
                hold: d.pick(&[0, 5, TTL, 4 * TTL]),
                polls: if d.chance(300) { d.range(1, 12) as u32 } else { u32::MAX },
                parting: d.pick(&partings),
            });
        }
        let hold = lock(8 * TTL, 2 * TTL, d.chance(500));
        self.set_tasks([vec![hold; 4], vec![hold; 4], operator]);
        for _ in 0..d.range(1, 4) {
            let (client, span) = (d.range(0, 1) as usize, d.range(TTL / 4, 2 * TTL));
            self.faults.push((d.range(20, 10 * TTL), Fault::Pause { client, span, lag: 0 }));
        }
        if d.chance(300) {
            self.faults.push((d.range(20, 10 * TTL), Fault::Kill { client: 2 }));
        }
        if is_group {
            let handover =
                Fault::Handover { node: 0, to: 1, takes: d.range(1, TTL / 2), stops: Stops::Done };
            self.faults.push((d.range(20, 10 * TTL), handover));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// Returns a server whose clock is behind or ahead by the whole clock error E (nearly half of
/// `max_ttl`).
fn server(max_ttl: Ms, is_ahead: bool, window: Ms) -> ServerPlan {
    within((max_ttl - 1) / 2 * 1_000, is_ahead, window)
}

/// Returns a server whose clock is behind or ahead by `bound`, in microseconds.
pub(super) fn within(bound: u64, is_ahead: bool, window: Ms) -> ServerPlan {
    let error = if is_ahead { bound as i64 } else { -(bound as i64) };
    ServerPlan { clock: Wave::constant(bound, error), window }
}

pub(super) fn lone(max_ttl: Ms, is_ahead: bool) -> NodePlan {
    let servers = vec![server(max_ttl, is_ahead, 0)];
    NodePlan { servers, is_new: true, is_foreign: false }
}

pub(super) fn group(max_ttl: Ms, is_ahead: bool, window: Ms) -> NodePlan {
    let servers = [is_ahead, !is_ahead].map(|ahead| server(max_ttl, ahead, window));
    NodePlan { servers: servers.into(), is_new: true, is_foreign: false }
}

pub(super) fn lock(wait: Ms, hold: Ms, renew: bool) -> Action {
    let parting = Parting::Release;
    let every = if renew { 9 } else { hold };
    Action::Lock { uses: Uses::Writes, name: 0, wait, hold, every, renew, parting }
}

/// Returns a failover to the second server, which has all data. The second client stays connected
/// to the old master.
fn fails_over(at: Ms) -> (Ms, Fault) {
    let copy = Copy::Behind(0);
    (at, Fault::Failover { node: 0, to: 1, copy, old: 0b10, freeze: 0 })
}
