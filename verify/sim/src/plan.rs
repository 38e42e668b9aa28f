//! The plan of one run: everything that a seed decides in advance, as a value that can be shrunk.
//!
//! Plans use swarm testing: a seed's theme selects the kinds of faults that belong together, and
//! most of these kinds are off in a given plan, so runs differ in kind and not only in detail.

mod actions;
mod clock;
mod draw;
mod episodes;
mod faults;
mod fleet;
mod scenes;
mod show;

use std::time::Duration;

use palisade::Durability;
use palisade::node::spi::Terms;

pub(crate) use self::actions::{Decision, HandlerPlan, Parting, TaskPlan, Uses};
pub(crate) use self::clock::{ClockPlan, Truth, Wave, wall};
use self::draw::Theme;
pub use self::fleet::Order;
pub use self::scenes::Scene;
use crate::dice::Dice;

/// Milliseconds.
pub(crate) type Ms = u64;

/// One server of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    pub(crate) clock: Wave,
    /// L: time for which the server may still grant after it was replaced.
    pub(crate) window: Ms,
}

/// A node: a lone server, or a group of servers with one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) servers: Vec<ServerPlan>,
    /// True if the node is known to be empty when the world begins; otherwise its past is unknown.
    pub(crate) is_new: bool,
}

impl NodePlan {
    pub(crate) fn is_group(&self) -> bool {
        self.servers.len() > 1
    }

    /// Returns the largest L of the node's servers.
    pub(crate) fn window(&self) -> Ms {
        if !self.is_group() {
            return 0;
        }
        self.servers.iter().map(|s| s.window).max().unwrap_or(0)
    }
}

/// A client: it runs one process after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlan {
    pub(crate) clock: ClockPlan,
    /// Servers of each group, as bits, whose L the client has read.
    pub(crate) reads: u64,
    /// True if the client's second node is, by mistake, another name of its first.
    pub(crate) twin: bool,
}

/// The configuration of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ttl: Ms,
    pub(crate) max_ttl: Ms,
    pub(crate) clock_error: Ms,
    pub(crate) drift_ppm: u32,
    pub(crate) retention: Ms,
    /// Nodes of the process, as bits.
    pub(crate) nodes: u64,
}

impl Settings {
    /// Returns the bounds that every batch carries.
    pub(crate) fn terms(&self) -> Terms {
        Terms { max_ttl: ms(self.max_ttl), clock_error: ms(self.clock_error) }
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        self.nodes >> node & 1 == 1
    }
}

/// Fault odds per thousand messages, and delays.
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
    /// A network on which nothing is lost or late.
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

/// Data with which a server starts after a crash or a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copy {
    /// The master's data of this time ago; zero: all of them.
    Behind(Ms),
    /// No data, not even the marker.
    Empty,
}

/// Point at which a planned handover stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stops {
    /// The handover is completed.
    Done,
    /// The operator's program dies after the closing.
    Closed,
    /// The old master is opened again; no server is promoted.
    Reopened,
    /// The operator's program dies after the promotion, before the old master becomes a replica.
    Promoted,
    /// The promoted server is opened instead of finishing the handover.
    Opened,
    /// The promoted server lacks the writes of this time before the closing.
    Behind(Ms),
    /// The last step happens after the closing has ended.
    Late,
}

/// A fault of a node, a connection or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The master's process dies and is back after `down`.
    Crash { node: usize, copy: Copy, down: Ms },
    /// `FLUSHALL` runs on the master.
    Flush { node: usize },
    /// A server is frozen; requests that arrive are executed when it thaws.
    Freeze { node: usize, server: usize, span: Ms },
    /// A server stops for at most `span`, in the middle of the next batch with two or more ops.
    Halt { node: usize, server: usize, span: Ms },
    /// Messages from a client to a node (`requests`), or back, are lost.
    Cut { client: usize, node: usize, requests: bool, span: Ms },
    /// A server's clock steps; afterwards its error is `to` µs.
    Step { node: usize, server: usize, to: i64 },
    /// For `span`, the error of a server's clock is larger by `by` µs.
    Wild { node: usize, server: usize, by: i64, span: Ms },
    /// Another server of the group is promoted. The clients in `old` stay connected to the replaced
    /// master until it refuses. The replaced master freezes for `freeze`.
    Failover { node: usize, to: usize, copy: Copy, old: u64, freeze: Ms },
    /// A planned handover: the master is closed, another server is promoted after `takes`, and
    /// continues in its place, unless the handover stops before.
    Handover { node: usize, to: usize, takes: Ms, stops: Stops },
    /// A client process stops; after it continues, the library's timers run `lag` later than the
    /// user's code.
    Pause { client: usize, span: Ms, lag: Ms },
    /// A client process dies, and a new one takes its place.
    Kill { client: usize },
    /// A client process dies, and a new one with the settings of `stage` takes its place.
    Deploy { client: usize, stage: usize },
}

impl Fault {
    /// Returns true if a node may lose a write that it has confirmed.
    fn loses(&self) -> bool {
        match *self {
            Self::Crash { copy, .. } => copy != Copy::Behind(0),
            Self::Failover { .. } | Self::Flush { .. } => true,
            Self::Handover { stops, .. } => matches!(stops, Stops::Behind(_)),
            _ => false,
        }
    }
}

/// An action of a client's task; a task performs its actions one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Think(Ms),
    /// Acquires a lock (for at most `wait`; 0 = one attempt), holds it for `hold`, and writes to
    /// the resource at intervals of `every`.
    Lock {
        uses: Uses,
        name: usize,
        wait: Ms,
        hold: Ms,
        every: Ms,
        renew: bool,
        parting: Parting,
    },
    /// Acquires the first two locks together, as `Lock` does one.
    Several {
        wait: Ms,
        hold: Ms,
        renew: bool,
        parting: Parting,
    },
    /// Makes a call under an idempotency key; `print` is the request's fingerprint, 0 = none.
    Order {
        key: usize,
        print: u8,
        wait: Ms,
        handler: HandlerPlan,
    },
    /// Campaigns, proclaims at intervals of `every`, and gives the leadership up after `span`.
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
    /// Inspects a lock, takes it from its holder for `ttl` and keeps it for `hold`; the future is
    /// dropped after `polls` polls.
    TakeOver {
        name: usize,
        ttl: Ms,
        wait: Ms,
        hold: Ms,
        polls: u32,
        parting: Parting,
    },
    /// Waits for a ticket of the lock for at most `wait`, redeems it, and keeps the lock for
    /// `hold`; the future is dropped after `polls` polls.
    Resume {
        name: usize,
        wait: Ms,
        hold: Ms,
        polls: u32,
        parting: Parting,
    },
    /// Acquires the lock as another program, by the `SET NX PX` of the Redlock text, and deletes
    /// it.
    Classic {
        name: usize,
        wait: Ms,
        hold: Ms,
    },
    /// Runs a job with a tick each second; each tick takes `takes`.
    Tick {
        span: Ms,
        takes: Ms,
    },
    /// Decides about a key as an operator, `later` after looking at it.
    Decide {
        key: usize,
        later: Ms,
        decision: Decision,
    },
    /// Acquires a lock with a future that is dropped after `polls` polls.
    Cancelled {
        name: usize,
        wait: Ms,
        polls: u32,
    },
}

/// Creation time of a key's request, and the clock error of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) at: Ms,
    /// Error of the producer's clock, in microseconds.
    pub(crate) error: i64,
}

/// Settings of the calls under idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrdersPlan {
    /// Number of actions per thousand that are calls under keys.
    pub(crate) share: u64,
    /// Birth of each key's request; empty: requests have no creation time.
    pub(crate) births: Vec<Birth>,
    /// True if different requests may use one key, each with its fingerprint.
    pub(crate) prints: bool,
    /// Largest result that is kept, in bytes; zero: no limit.
    pub(crate) max_result: usize,
    pub(crate) policy: Policy,
    /// Longest loss that is accepted, in milliseconds; zero: none.
    pub(crate) accepts: Ms,
}

/// Handling of a key whose past is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The key is parked.
    #[default]
    Once,
    /// The handler runs again after a lapsed attempt; the key is parked where an attempt may be
    /// forgotten.
    Rerun,
    /// The handler runs again in both cases.
    Least,
}

/// Clock steps of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Steps {
    #[default]
    None,
    /// Steps within the unused part of the drift; a lease cannot distinguish them from a wrong
    /// rate.
    Small,
    /// Steps so large that every client that has read the clock before notices them; every client
    /// has.
    Noticed,
    /// Arbitrary steps, which clients may not notice.
    Unnoticed,
}

/// Change of a plan, for bugs outside the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// Every client uses the same owner token in all attempts.
    StuckDice,
    /// Settings are changed in an unsafe order.
    Unsafe(Order),
    /// The plan makes one rule matter.
    Scene(Scene),
}

/// Everything that a seed decides about one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    theme: Theme,
    pub(crate) truth: Truth,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) clients: Vec<ClientPlan>,
    /// Settings of the processes: the first ones at the beginning, the others after deploys.
    pub(crate) stages: Vec<Settings>,
    pub(crate) names: usize,
    pub(crate) deadline: Ms,
    pub(crate) net: NetPlan,
    /// Interval between stored copies of a master's data, in milliseconds.
    pub(crate) copy_every: Ms,
    /// True if a replica may still follow a replaced master.
    pub(crate) cross: bool,
    pub(crate) steps: Steps,
    /// True if the server clocks are further apart than the configured clock error.
    pub(crate) apart: bool,
    pub(crate) faults: Vec<(Ms, Fault)>,
    pub(crate) tasks: Vec<TaskPlan>,
    pub(crate) orders: OrdersPlan,
    /// Number of actions per thousand that concern elections.
    elections: u64,
    /// Number of locks per thousand that are held by readers.
    readers: u64,
    /// Number of locks per thousand that are handed over to another process.
    hand_overs: u64,
    /// Number of locks per thousand that are two names at once.
    several: u64,
    pub(crate) durability: Durability,
    pub(crate) tamper: Option<Tamper>,
}

/// State of the server clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// All clocks are within E of true time.
    Right,
    /// Some clocks are not within E: there is still only one holder, but tokens and terms may
    /// decrease.
    Apart,
    /// Clocks step unnoticed: a lease may end early.
    Step,
}

/// Promises that hold in a world with given assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a promise of its own")]
pub(crate) struct Promises {
    pub(crate) clocks: Clocks,
    /// A parked key is not started again.
    pub(crate) once: bool,
    /// No handler of a forgotten key runs again, and therefore no finished step.
    pub(crate) steps: bool,
    /// A name with a holder is never reported as vacant; requires that all processes use the same
    /// nodes.
    pub(crate) vacant: bool,
    /// Longest loss, in milliseconds, after which handlers may run again.
    pub(crate) accepts: Ms,
    /// Longest time, in milliseconds, for which a replaced master still grants.
    pub(crate) window: Ms,
    /// A free lock is granted: no token looks as if it came from the far future.
    pub(crate) served: bool,
}

impl Plan {
    /// Returns the largest value of a setting over all stages.
    pub(crate) fn most(&self, of: impl Fn(&Settings) -> Ms) -> Ms {
        self.stages.iter().map(of).max().unwrap_or(0)
    }

    /// Returns the largest L of any server.
    pub(crate) fn window(&self) -> Ms {
        self.nodes.iter().map(NodePlan::window).max().unwrap_or(0)
    }

    /// Returns the largest clock error that a fault adds beyond a server's bound, in microseconds.
    fn wildest(&self) -> u64 {
        let wild = |f: &(Ms, Fault)| match f.1 {
            Fault::Wild { by, .. } => by.unsigned_abs(),
            _ => 0,
        };
        self.faults.iter().map(wild).max().unwrap_or(0)
    }

    /// Returns the length of the closing for a handover that takes `takes` until the promotion.
    pub(crate) fn closed_for(&self, takes: Ms) -> Duration {
        ms(takes + takes / 4 + 20) + 4 * Duration::from_micros(self.truth.error)
    }

    /// Returns the longest closing of all planned handovers.
    pub(crate) fn longest_closing(&self) -> Duration {
        let closed = |f: &(Ms, Fault)| match f.1 {
            Fault::Handover { takes, .. } => self.closed_for(takes),
            _ => Duration::ZERO,
        };
        self.faults.iter().map(closed).max().unwrap_or_default()
    }

    /// Returns the additional time for which a server may keep a key because of its clock.
    pub(crate) fn clocks_apart(&self) -> Ms {
        let widest = self.nodes.iter().flat_map(|n| &n.servers).map(|s| s.clock.bound).max();
        2 * (widest.unwrap_or(0) + self.wildest()) / 1_000 + 1
    }

    /// Returns the promises that hold in this world.
    pub(crate) fn promises(&self) -> Promises {
        let unnoticed = self.steps == Steps::Unnoticed;
        // Small steps stay within the bound.
        let is_wild = self.apart || self.steps == Steps::Noticed && self.wildest() > 0;
        Promises {
            clocks: match (unnoticed, is_wild) {
                (true, _) => Clocks::Step,
                (false, true) => Clocks::Apart,
                (false, false) => Clocks::Right,
            },
            once: self.orders.policy == Policy::Once,
            accepts: self.orders.accepts,
            window: self.window(),
            steps: self.orders.policy != Policy::Least,
            vacant: self.stages.iter().all(|s| s.nodes == self.stages[0].nodes),
            served: !self.apart,
        }
    }

    /// Returns the number of steps of each handler; every second plan of a theme has some.
    pub(crate) fn handler_steps(&self) -> usize {
        if self.seed & 8 == 0 { 0 } else { 3 }
    }

    /// Returns the plan of a seed, changed for a bug outside the library.
    pub(crate) fn tampered(seed: u64, tamper: Option<Tamper>) -> Self {
        let unsafe_order = match tamper {
            Some(Tamper::Unsafe(order)) => Some(order),
            _ => None,
        };
        let mut plan = Self::drawn(seed, unsafe_order);
        if let Some(Tamper::Scene(scene)) = tamper {
            plan.set(scene);
        }
        Self { tamper, ..plan }
    }

    /// Returns the plan of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self::drawn(seed, None)
    }

    /// Returns the random number generator of one part of the run; other parts do not affect it.
    pub(crate) fn dice(&self, stream: u64) -> Dice {
        Dice::new(self.seed, stream)
    }
}

pub(crate) fn ms(ms: Ms) -> Duration {
    Duration::from_millis(ms)
}
