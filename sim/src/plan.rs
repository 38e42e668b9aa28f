//! The plan of one run: everything that a seed decides in advance, as a value that can be shrunk.
//!
//! Swarm testing: each seed switches most kinds of fault off and a few on, so that runs differ in
//! kind and not only in detail.

use std::time::Duration;

use palisade::Durability;
use palisade::op::Terms;

use crate::dice::Dice;

/// Milliseconds.
pub(crate) type Ms = u64;

/// How a process or server reads time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockPlan {
    /// Rate error of the monotonic clock in parts per million.
    pub(crate) ppm: i64,
    /// Its arbitrary zero, in nanoseconds.
    pub(crate) base: u64,
    /// Error of the wall clock in microseconds.
    pub(crate) wall_error: i64,
}

/// 2020-09-13: where the wall clocks of a simulated world begin, microseconds since 1970.
const EPOCH: i64 = 1_600_000_000_000_000;

impl ClockPlan {
    /// The monotonic clock at a true moment.
    pub(crate) fn local(&self, nanos: u64) -> u64 {
        let error = i128::from(nanos) * i128::from(self.ppm) / 1_000_000;
        self.base + (i128::from(nanos) + error) as u64
    }

    /// The wall clock at a true moment.
    pub(crate) fn wall(&self, nanos: u64) -> u64 {
        (EPOCH + (nanos / 1_000) as i64 + self.wall_error) as u64
    }
}

/// Odds per thousand messages, and delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetPlan {
    pub(crate) latency: (Ms, Ms),
    pub(crate) late: u64,
    pub(crate) late_max: Ms,
    pub(crate) lose_request: u64,
    pub(crate) lose_reply: u64,
    pub(crate) duplicate: u64,
    pub(crate) lose_hint: u64,
}

/// What a crash costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    Nothing,
    LastWrites,
    Everything,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The server process dies and is back after `down`.
    Crash { node: usize, loss: Loss, down: Ms },
    /// The server stands still; what arrives is executed when it thaws.
    Freeze { node: usize, span: Ms },
    /// Messages from a client to a node, or back, get lost.
    Cut { client: usize, node: usize, requests: bool, span: Ms },
    /// The server's clocks step forward.
    Jump { node: usize, by: Ms },
    /// The replica of a group is promoted; the clients in `old` keep talking to the old master
    /// until its window closes.
    Failover { node: usize, old: u64 },
    /// The former master, in step with the present one, is promoted again.
    Failback { node: usize },
    /// A client process stops; the library's timers come back `lag` after the user's code.
    Pause { client: usize, span: Ms, lag: Ms },
    /// A client process dies, and a new one takes its place.
    Kill { client: usize },
}

impl Fault {
    /// Whether a node may forget something it has answered.
    fn loses(&self) -> bool {
        match *self {
            Self::Crash { loss, .. } => loss != Loss::Nothing,
            Self::Failover { .. } | Self::Failback { .. } => true,
            _ => false,
        }
    }
}

/// How a holder parts with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parting {
    Release,
    Drop,
    Forget,
    /// Releases, and drops the future of the release after so many polls.
    CutShort(u32),
}

/// What becomes of a call under an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HandlerPlan {
    /// How long the handler runs.
    pub(crate) span: Ms,
    /// 0 returns a result, 1 fails, 2 fails and says that nothing was done.
    pub(crate) fails: u64,
    /// The call's future is dropped after so many polls.
    pub(crate) polls: u32,
}

/// What a task of a client does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Think(Ms),
    /// Acquires (`wait`: until when, 0 = one attempt), writes to the resource every `every`, for
    /// `hold`.
    Lock {
        name: usize,
        wait: Ms,
        hold: Ms,
        every: Ms,
        renew: bool,
        parting: Parting,
    },
    /// A call under an idempotency key.
    Order {
        key: usize,
        wait: Ms,
        handler: HandlerPlan,
    },
    /// Campaigns, proclaims every `every` and parts after `span`.
    Lead {
        seat: usize,
        wait: Ms,
        span: Ms,
        every: Ms,
        parting: Parting,
    },
    /// Observes an election.
    Watch {
        seat: usize,
        span: Ms,
    },
    /// An acquire whose future is dropped after so many polls.
    Cancelled {
        name: usize,
        wait: Ms,
        polls: u32,
    },
}

impl Act {
    /// A word with every node.
    const GREETING: Self =
        Self::Lock { name: 0, wait: 0, hold: 0, every: 1, renew: false, parting: Parting::Release };
}

/// A task of a client process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskPlan {
    pub(crate) client: usize,
    pub(crate) acts: Vec<Act>,
}

/// Everything about one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: Vec<ClockPlan>,
    pub(crate) clients: Vec<ClockPlan>,
    pub(crate) names: usize,
    pub(crate) ttl: Ms,
    pub(crate) max_ttl: Ms,
    pub(crate) deadline: Ms,
    pub(crate) drift_ppm: u32,
    pub(crate) clock_error: Ms,
    pub(crate) net: NetPlan,
    /// L of each group; zero: the nodes are single servers.
    pub(crate) window: Ms,
    /// How far a replica, or a disk, lags behind.
    pub(crate) copy_every: Ms,
    pub(crate) faults: Vec<(Ms, Fault)>,
    pub(crate) tasks: Vec<TaskPlan>,
    /// How many acts in a thousand are calls under idempotency keys.
    pub(crate) orders: u64,
    /// The same of elections.
    pub(crate) elections: u64,
    /// Run again after a lapsed attempt; else it is parked.
    pub(crate) rerun: bool,
    /// Every client has the same owner token in all attempts (a known bug).
    pub(crate) stuck_dice: bool,
}

impl Plan {
    /// Whether everybody asks for all replicas: one seed in eight. From dice of its own, so that
    /// the other seeds stay what they were.
    pub(crate) fn durability(&self) -> Durability {
        let all = Dice::new(self.seed, 3).chance(125);
        if all { Durability::AllReplicas } else { Durability::Primary }
    }

    /// The plan of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut d = Dice::new(seed, 1);
        let nodes = d.pick(&[1, 3, 3, 3, 3, 3, 3, 5]);
        let clients = d.range(2, 4) as usize;
        let ttl = d.pick(&[120, 200, 300, 450]);
        let max_ttl = if d.chance(600) { ttl } else { ttl * 2 };
        let drift_ppm = d.pick(&[10_000, 30_000, 80_000]);
        let deadline = d.range(ttl / 24 + 3, ttl / 5);
        let jumpy = d.chance(80);
        let most = max_ttl / 2 - 1;
        let clock_error = d.pick(&[2, 40, most, most]);
        let grouped = d.chance(250);
        let window = if grouped { d.range(20, 200) } else { 0 };
        let mut plan = Self {
            seed,
            nodes: (0..nodes).map(|_| clock(&mut d, drift_ppm, clock_error)).collect(),
            clients: (0..clients).map(|_| clock(&mut d, drift_ppm, clock_error)).collect(),
            names: d.pick(&[1, 1, 1, 2]),
            ttl,
            max_ttl,
            deadline,
            drift_ppm,
            clock_error,
            net: net(&mut d, deadline),
            window,
            copy_every: d.pick(&[0, 5, 30, 120]),
            faults: Vec::new(),
            tasks: Vec::new(),
            orders: d.pick(&[0, 0, 300, 1_000]),
            elections: 0,
            rerun: false,
            stuck_dice: false,
        };
        if jumpy {
            // A step is noticed by whoever read the clock before; everybody has by then.
            plan.net = NetPlan { late: 0, lose_request: 0, lose_reply: 0, ..plan.net };
        }
        plan.elections = d.pick(&[0, 0, 300, 1_000]);
        let per_client = d.pick(&[1, 1, 2]);
        for client in 0..clients {
            for task in 0..per_client {
                plan.tasks.push(plan.task(client, task));
                if jumpy {
                    plan.tasks.last_mut().expect("just pushed").acts.insert(0, Act::GREETING);
                }
            }
        }
        plan.faults = plan.some_faults(&mut d, jumpy);
        // Where a node may forget, running again is the user's risk and no promise of ours: those
        // who remember may be too few among those who answer (DESIGN 5.7).
        plan.rerun = d.chance(700) && !plan.faults.iter().any(|(_, f)| f.loses());
        plan
    }

    fn task(&self, client: usize, task: u64) -> TaskPlan {
        let mut d = Dice::new(self.seed, 100 + 10 * client as u64 + task);
        let rounds = d.range(3, 7);
        let busy = d.chance(500);
        let acts = (0..rounds).flat_map(|_| [self.pause(&mut d, busy), self.act(&mut d)]).collect();
        TaskPlan { client, acts }
    }

    fn pause(&self, d: &mut Dice, busy: bool) -> Act {
        // Once in a while long enough for the fences to be forgotten.
        let span = match d.range(0, 19) {
            0 => self.max_ttl + 4 * self.clock_error + 1_000,
            n if busy || n < 8 => d.range(0, 20),
            _ => d.range(0, self.ttl),
        };
        Act::Think(span)
    }

    fn act(&self, d: &mut Dice) -> Act {
        if d.chance(self.orders) {
            let wait = d.pick(&[0, self.ttl / 2, 2 * self.ttl]);
            let span = d.pick(&[0, 3, self.ttl / 3, self.ttl, 2 * self.ttl]);
            let fails = d.pick(&[0, 0, 0, 1, 2]);
            let polls = if d.chance(200) { d.range(1, 14) as u32 } else { u32::MAX };
            let handler = HandlerPlan { span, fails, polls };
            return Act::Order { key: d.range(0, 3) as usize / 2, wait, handler };
        }
        if d.chance(self.elections) {
            if d.chance(400) {
                return Act::Watch { seat: 0, span: d.range(self.ttl / 2, 4 * self.ttl) };
            }
            let wait = d.pick(&[self.ttl, 3 * self.ttl]);
            let span = d.pick(&[5, self.ttl, 3 * self.ttl]);
            let every = d.range(3, self.ttl);
            let parting = d.pick(&[Parting::Release, Parting::Drop, Parting::CutShort(2)]);
            return Act::Lead { seat: 0, wait, span, every, parting };
        }
        let name = d.range(0, self.names as u64 - 1) as usize;
        let wait = d.pick(&[0, self.ttl, 3 * self.ttl, 6 * self.ttl]);
        if d.chance(150) {
            return Act::Cancelled { name, wait, polls: d.range(1, 12) as u32 };
        }
        let hold = d.pick(&[0, 5, self.ttl / 2, self.ttl * 3 / 2, self.ttl * 3]);
        let parting = match d.range(0, 9) {
            0..=5 => Parting::Release,
            6 | 7 => Parting::Drop,
            8 => Parting::CutShort(d.range(0, 5) as u32),
            _ => Parting::Forget,
        };
        let every = d.range(3, self.ttl / 4);
        Act::Lock { name, wait, hold, every, renew: d.chance(800), parting }
    }

    fn some_faults(&self, d: &mut Dice, jumpy: bool) -> Vec<(Ms, Fault)> {
        let kinds: Vec<u64> = (0..7).filter(|_| d.chance(350)).collect();
        if kinds.is_empty() {
            return Vec::new();
        }
        let horizon = d.pick(&[600, 1_500, 3_000]);
        let count = d.range(1, 10);
        let mut faults = Vec::new();
        for _ in 0..count {
            let at = d.range(if jumpy { 150 } else { 0 }, horizon);
            let node = d.range(0, self.nodes.len() as u64 - 1) as usize;
            let client = d.range(0, self.clients.len() as u64 - 1) as usize;
            let span = d.pick(&[5, self.deadline, 2 * self.deadline, self.ttl, 2 * self.ttl]);
            let fault = match d.pick(&kinds) {
                // A new process of a client or a server knows no earlier clock reading, so a step
                // of a clock goes unnoticed: excluded by the assumptions (DESIGN 6).
                _ if jumpy => Fault::Jump { node: 0, by: d.range(10, 90) },
                0 | 6 if self.window > 0 => {
                    if d.chance(350) {
                        Fault::Failback { node }
                    } else {
                        Fault::Failover { node, old: d.range(0, 15) }
                    }
                }
                0 | 1 => Fault::Crash {
                    node,
                    loss: d.pick(&[Loss::Nothing, Loss::LastWrites, Loss::Everything]),
                    down: d.pick(&[0, 0, 10, 100]),
                },
                2 => Fault::Freeze { node, span },
                3 => Fault::Cut { client, node, requests: d.chance(500), span },
                4 => Fault::Pause { client, span, lag: d.pick(&[0, 0, 10, 60]) },
                5 => Fault::Kill { client },
                _ => Fault::Cut { client, node, requests: true, span },
            };
            faults.push((at, fault));
        }
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// The bounds that every batch carries.
    pub(crate) fn terms(&self) -> Terms {
        Terms { max_ttl: ms(self.max_ttl), clock_error: ms(self.clock_error) }
    }
}

/// A clock within the bounds: of the drift each side may use up a little less than half.
fn clock(d: &mut Dice, drift_ppm: u32, error: Ms) -> ClockPlan {
    let half = i64::from(drift_ppm) * 49 / 100;
    let between = d.range(0, 2 * half as u64) as i64 - half;
    let rate = d.pick(&[-half, 0, half, between]);
    // Two wall clocks are each within E of true time.
    let most = (error * 950) as i64;
    let between = d.range(0, 2 * most as u64) as i64 - most;
    let wall = d.pick(&[-most, 0, most, between]);
    ClockPlan { ppm: rate, base: d.range(1, 1 << 40), wall_error: wall }
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

pub(crate) fn ms(ms: Ms) -> Duration {
    Duration::from_millis(ms)
}
