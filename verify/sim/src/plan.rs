//! Plan of one run: all decisions of a seed, as a value that can be reduced. The theme of a seed
//! selects kinds of faults that belong together; most kinds are off in a single plan (swarm
//! testing).

mod actions;
mod clock;
mod clusters;
mod draw;
mod episodes;
mod faults;
mod fleet;
mod guarantees;
mod histories;
mod scenes;
mod show;

use std::time::Duration;

use palisade::Durability;
use palisade::node::spi::Terms;

pub(crate) use self::actions::{Decision, HandlerPlan, Parting, TaskPlan, Uses};
pub(crate) use self::clock::{ClockPlan, Truth, Wave, wall};
pub(crate) use self::clusters::{ClusterPlan, MoveEnd, Promotion, Shift};
use self::draw::Theme;
pub use self::fleet::Order;
pub(crate) use self::guarantees::{Clocks, Guarantees};
pub use self::scenes::Scene;
use crate::dice::Dice;

/// Time in milliseconds.
pub(crate) type Ms = u64;

/// One server of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    pub(crate) clock: Wave,
    /// L: time for which the server may still grant after it was replaced.
    pub(crate) window: Ms,
}

/// A node: a single server, or a group of servers with one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) servers: Vec<ServerPlan>,
    /// True if the node is known to be empty at the start of the run. Otherwise it may have lost
    /// earlier data.
    pub(crate) is_new: bool,
    /// True if the node is of another deployment. No client uses it, but the address of another
    /// node may lead to it.
    pub(crate) is_foreign: bool,
}

impl NodePlan {
    pub(crate) fn is_group(&self) -> bool {
        self.servers.len() > 1
    }

    pub(crate) fn window(&self) -> Ms {
        if !self.is_group() {
            return 0;
        }
        self.servers.iter().map(|s| s.window).max().unwrap_or(0)
    }
}

/// A client. It runs one process after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlan {
    pub(crate) clock: ClockPlan,
    /// Servers whose failover window (L) the client has read: one bit for each server of a group,
    /// the same bits for all groups.
    pub(crate) reads: u64,
    /// True if the client's second node is the first node with another name. This is a
    /// configuration error.
    pub(crate) twin: bool,
}

/// Settings of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ttl: Ms,
    pub(crate) max_ttl: Ms,
    pub(crate) clock_error: Ms,
    pub(crate) drift_ppm: u32,
    pub(crate) retention: Ms,
    /// Nodes that the client process uses, as bits.
    pub(crate) nodes: u64,
}

impl Settings {
    pub(crate) fn terms(&self) -> Terms {
        Terms { max_ttl: ms(self.max_ttl), clock_error: ms(self.clock_error) }
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        self.nodes >> node & 1 == 1
    }
}

/// Odds of faults, per thousand messages, and delays.
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

impl NetPlan {
    /// A network without faults and with small delays.
    pub(crate) const CALM: Self = Self {
        latency: (0, 2),
        late: 0,
        late_max: 0,
        lose_request: 0,
        lose_reply: 0,
        duplicate: 0,
        lose_hint: 0,
    };
}

/// Data that a server has when it starts after a crash or a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copy {
    /// The master's data as they were this time ago. Zero means all data. A replica of a replica is
    /// only longer behind, because all get one stream of writes, under one `replid`.
    Behind(Ms),
    /// No data, not even the marker.
    Empty,
    /// The promoted server's own data, if it was replaced but still calls itself master: its
    /// promotion changes nothing. Otherwise all data.
    Own,
}

/// Point at which a planned handover ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stops {
    /// The handover is completed.
    Done,
    /// The handover stops after the old master was closed, because the operator's program dies.
    Closed,
    /// The handover stops after the closing: the old master is opened again, and no server is
    /// promoted.
    Reopened,
    /// The handover stops after the promotion, because the operator's program dies. The old master
    /// does not become a replica.
    Promoted,
    /// The promoted server accepts requests before it has taken over the old master's data history.
    /// So it begins with a quarantine.
    Opened,
    /// The handover is completed, but the promoted server lacks the writes of this length of time
    /// just before the old master was closed.
    Behind(Ms),
    /// The last step of the handover comes after the time for which the server is closed has ended.
    Late,
}

/// A fault of a node, a connection or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The process of the master dies and returns after the time `down`.
    Crash { node: usize, copy: Copy, down: Ms },
    /// `FLUSHALL` runs on the master.
    Flush { node: usize },
    /// The master deletes all locks and records, because its memory is full.
    Evict { node: usize },
    /// A server is frozen. Requests that arrive meanwhile are executed after its thaw.
    Freeze { node: usize, server: usize, span: Ms },
    /// A server stops for at most `span`. It stops in the middle of the next batch with two or more
    /// ops.
    Halt { node: usize, server: usize, span: Ms },
    /// Messages in one direction are lost: to the node if `requests` is true, else from the node.
    Cut { client: usize, node: usize, requests: bool, span: Ms },
    /// The clock of a server steps to the error `to`, in microseconds.
    Step { node: usize, server: usize, to: i64 },
    /// The error of a server's clock is larger by `by` microseconds, for the time `span`.
    Wild { node: usize, server: usize, by: i64, span: Ms },
    /// Another server of the group is promoted. The clients in `old` stay connected to the replaced
    /// master until it refuses their requests. The replaced master freezes for the time `freeze`.
    Failover { node: usize, to: usize, copy: Copy, old: u64, freeze: Ms },
    /// A planned handover: the master is closed, another server is promoted after the time `takes`,
    /// and that server continues as the master. `stops` tells at which step the handover ends.
    Handover { node: usize, to: usize, takes: Ms, stops: Stops },
    /// The master gives its data another name, without a loss.
    Rename { node: usize },
    /// The Sentinels' epoch rises, and the master stays and loses nothing. The clients in `old` are
    /// not told.
    Epoch { node: usize, old: u64 },
    /// Data of this time ago are put in place of the running master's, just before a batch of a
    /// client that has seen the newest data. With `whole`, the process and the name of the data are
    /// those of then as well, as in a snapshot of a machine with its memory.
    PutBack { node: usize, age: Ms, whole: bool },
    /// The master follows another server, and is the master again with that server's data. With
    /// `reset`, its counters are then set to zero.
    Detour { node: usize, copy: Copy, reset: bool },
    /// The address of a node leads to the node `to`.
    Astray { node: usize, to: usize, span: Ms },
    /// A client process stops for `span`, as with `SIGSTOP`. After it continues, the library's
    /// timers run `lag` behind the user's code.
    Pause { client: usize, span: Ms, lag: Ms },
    /// A client process dies, and a new process replaces it.
    Kill { client: usize },
    /// A client process dies, and a new process with the settings `stages[stage]` of the plan
    /// replaces it.
    Deploy { client: usize, stage: usize },
    /// A fault of the cluster, or an act of its operators.
    Shift(Shift),
}

/// An action of a client's task. A task performs its actions one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Think(Ms),
    /// Acquires a lock, waiting at most `wait` (0 is one attempt). Holds it and writes to the
    /// resource.
    Lock {
        uses: Uses,
        name: usize,
        wait: Ms,
        hold: Ms,
        every: Ms,
        renew: bool,
        parting: Parting,
    },
    /// Acquires the first two locks of the plan together, holds them for `hold`, and writes to the
    /// resource of each.
    Several {
        wait: Ms,
        hold: Ms,
        renew: bool,
        parting: Parting,
    },
    /// Acquires all permits of a semaphore together, holds them for `hold`, and writes to the
    /// resource of each. The future is dropped after `polls` polls.
    AllPermits {
        name: usize,
        wait: Ms,
        hold: Ms,
        renew: bool,
        polls: u32,
        parting: Parting,
    },
    /// Makes a call with an idempotency key. `print` is the request's fingerprint (0 is none).
    Order {
        key: usize,
        print: u8,
        wait: Ms,
        handler: HandlerPlan,
    },
    /// Campaigns, publishes a new value after each time `every`, and gives the leadership up after
    /// `span`.
    Lead {
        seat: usize,
        wait: Ms,
        span: Ms,
        every: Ms,
        parting: Parting,
    },
    /// Observes an election for the time `span`.
    Watch {
        seat: usize,
        span: Ms,
    },
    /// Inspects a lock and takes it over. The future is dropped after `polls` polls.
    TakeOver {
        name: usize,
        ttl: Ms,
        wait: Ms,
        hold: Ms,
        polls: u32,
        parting: Parting,
    },
    /// Waits for a hand-over ticket of the lock for at most `wait`, takes the lock with it, and
    /// keeps the lock for `hold`. The future is dropped after `polls` polls.
    Resume {
        name: usize,
        wait: Ms,
        hold: Ms,
        polls: u32,
        parting: Parting,
    },
    /// Acquires the lock with `SET NX PX`, as another program does, and deletes it later.
    Classic {
        name: usize,
        wait: Ms,
        hold: Ms,
    },
    /// Runs a cron job with one tick per second. Each tick takes the time `takes`.
    Tick {
        span: Ms,
        takes: Ms,
    },
    /// Reads a key as an operator does. Decides about the key after the time `later`.
    Decide {
        key: usize,
        later: Ms,
        decision: Decision,
    },
    /// Acquires a lock. The future of this call is dropped after `polls` polls.
    Cancelled {
        name: usize,
        wait: Ms,
        polls: u32,
    },
}

/// Birth of a key's request: its creation time, and the clock error of the program that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) at: Ms,
    /// Error of the producer's clock, in microseconds.
    pub(crate) error: i64,
}

/// Settings of the calls with idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrdersPlan {
    /// Number of calls with idempotency keys, per thousand actions.
    pub(crate) share: u64,
    /// Birth of each key's request. Empty if the requests have no creation time.
    pub(crate) births: Vec<Birth>,
    /// True if different requests may use one key, each with its own fingerprint.
    pub(crate) prints: bool,
    /// Maximum size of a stored result, in bytes. Zero means no limit.
    pub(crate) max_result: usize,
    pub(crate) policy: Policy,
    /// Longest loss of data that the idempotency keys accept, in milliseconds. Zero means that they
    /// accept none.
    pub(crate) accepts: Ms,
}

/// Policy for a key whose earlier attempt left no result, or whose past the nodes may have lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// A key without a result or with a lost past is parked: its handler does not run again without
    /// a decision of an operator.
    #[default]
    Once,
    /// The handler of a lapsed key runs again. A forgotten key is parked, which means that an
    /// operator has to decide.
    Rerun,
    /// The handler of a key runs again in both cases, lapsed and forgotten.
    Least,
}

/// Clock steps of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Steps {
    #[default]
    None,
    /// Clock steps so small that their sum stays within the clock drift for which the library is
    /// set. Their effect on a lease is the same as that of a clock that runs too fast or too slow.
    Small,
    /// Large clock steps. Each client has read the server's clock shortly before a step, and so
    /// notices it.
    Noticed,
    /// Steps of any size. Clients may not notice them.
    Unnoticed,
}

/// Change of a plan, to test a mistake outside of the library or one certain rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// Every client uses the same owner token in all attempts.
    StuckDice,
    /// Settings are changed in an unsafe order.
    Unsafe(Order),
    /// The plan of the simulated run tests one certain rule.
    Scene(Scene),
}

/// All decisions about one simulated run, which are drawn from one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    theme: Theme,
    pub(crate) truth: Truth,
    pub(crate) nodes: Vec<NodePlan>,
    /// A cluster instead of the nodes.
    pub(crate) cluster: Option<ClusterPlan>,
    pub(crate) clients: Vec<ClientPlan>,
    /// Settings of the processes: the first settings at the start, the others after deploys.
    pub(crate) stages: Vec<Settings>,
    pub(crate) names: usize,
    pub(crate) deadline: Ms,
    pub(crate) net: NetPlan,
    /// Interval between stored copies of a master's data, in milliseconds.
    pub(crate) copy_every: Ms,
    /// True if a replica may still follow a replaced master, and so get the replaced master's data.
    pub(crate) cross: bool,
    pub(crate) steps: Steps,
    /// True if the server clocks differ by more than the configured clock error.
    pub(crate) apart: bool,
    pub(crate) faults: Vec<(Ms, Fault)>,
    pub(crate) tasks: Vec<TaskPlan>,
    pub(crate) orders: OrdersPlan,
    /// Number of actions in elections, per thousand actions.
    elections: u64,
    /// Number of acquires per thousand that ask for a read-write lock.
    readers: u64,
    /// Number of acquires per thousand that ask for a permit of a semaphore instead of a lock.
    permits: u64,
    /// Number of acquires per thousand after which the lock is handed over to another process.
    hand_overs: u64,
    /// Number of acquires per thousand that ask for a fair lock, whose callers wait in the order of
    /// tickets.
    fair: u64,
    /// Number of acquires per thousand that ask for two locks together.
    several: u64,
    pub(crate) durability: Durability,
    pub(crate) tamper: Option<Tamper>,
}

impl Plan {
    /// Returns true if the clients declare that the nodes lose nothing that they confirmed.
    pub(crate) fn is_declared(&self) -> bool {
        self.tamper == Some(Tamper::Scene(Scene::Declared))
    }

    pub(crate) fn most(&self, of: impl Fn(&Settings) -> Ms) -> Ms {
        self.stages.iter().map(of).max().unwrap_or(0)
    }

    pub(crate) fn window(&self) -> Ms {
        let cluster = self.cluster.as_ref().map(ClusterPlan::longest);
        self.nodes.iter().map(NodePlan::window).chain(cluster).max().unwrap_or(0)
    }

    /// Returns the largest additional clock error that a fault adds, in microseconds.
    fn wildest(&self) -> u64 {
        let wild = |f: &(Ms, Fault)| match f.1 {
            Fault::Wild { by, .. } => by.unsigned_abs(),
            _ => 0,
        };
        self.faults.iter().map(wild).max().unwrap_or(0)
    }

    /// Returns the time for which a planned handover closes the old master, if the other server is
    /// promoted after the time `takes`.
    pub(crate) fn closed_for(&self, takes: Ms) -> Duration {
        ms(takes + takes / 4 + 20) + 4 * Duration::from_micros(self.truth.error)
    }

    pub(crate) fn longest_closing(&self) -> Duration {
        let closed = |f: &(Ms, Fault)| match f.1 {
            Fault::Handover { takes, .. } => self.closed_for(takes),
            _ => Duration::ZERO,
        };
        self.faults.iter().map(closed).max().unwrap_or_default()
    }

    /// Returns the additional time for which clock errors may make a server keep a key.
    pub(crate) fn clocks_apart(&self) -> Ms {
        let clocks = self.cluster.iter().flat_map(|cluster| &cluster.clocks);
        let servers = self.nodes.iter().flat_map(|n| &n.servers).map(|s| &s.clock);
        let widest = servers.chain(clocks).map(|clock| clock.bound).max();
        2 * (widest.unwrap_or(0) + self.wildest()) / 1_000 + 1
    }

    /// Returns the number of steps of each handler. Half of the plans have steps.
    pub(crate) fn handler_steps(&self) -> usize {
        if self.seed & 8 == 0 { 0 } else { 3 }
    }

    pub(crate) fn tampered(seed: u64, tamper: Option<Tamper>) -> Self {
        let unsafe_order = match tamper {
            Some(Tamper::Unsafe(order)) => Some(order),
            _ => None,
        };
        let mut plan = Self::drawn(seed, unsafe_order);
        match tamper {
            Some(Tamper::Scene(scene)) => plan.set(scene),
            None => plan.may_have_cluster(),
            _ => {}
        }
        Self { tamper, ..plan }
    }

    pub(crate) fn of(seed: u64) -> Self {
        Self::tampered(seed, None)
    }

    /// Returns the random number generator for one part of the run. Each part has its own `stream`,
    /// so other parts do not affect its numbers.
    pub(crate) fn dice(&self, stream: u64) -> Dice {
        Dice::new(self.seed, stream)
    }
}

pub(crate) fn ms(ms: Ms) -> Duration {
    Duration::from_millis(ms)
}
