//! The plan of one run: everything that a seed decides in advance, as a value that can be shrunk.
//!
//! Swarm testing: a seed's theme says which kinds of trouble belong together, and most of those are
//! switched off, so that runs differ in kind and not only in detail.

mod acts;
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

pub(crate) use self::acts::{Decision, HandlerPlan, Parting};
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
    /// L: how long it may go on after another took its place.
    pub(crate) window: Ms,
}

/// A node: a lone server, or a group of which one is the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) servers: Vec<ServerPlan>,
    /// Empty, and known to be so, when the world begins; else of unknown past.
    pub(crate) is_new: bool,
}

impl NodePlan {
    pub(crate) fn is_group(&self) -> bool {
        self.servers.len() > 1
    }

    /// The largest L of any of its servers.
    pub(crate) fn window(&self) -> Ms {
        if !self.is_group() {
            return 0;
        }
        self.servers.iter().map(|s| s.window).max().unwrap_or(0)
    }
}

/// A client: a place in the world for one process after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlan {
    pub(crate) clock: ClockPlan,
    /// The servers of each group, as bits, whose L it has read.
    pub(crate) reads: u64,
    /// By a mistake its second node is another name of its first.
    pub(crate) twin: bool,
}

/// What a client process is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ttl: Ms,
    pub(crate) max_ttl: Ms,
    pub(crate) clock_error: Ms,
    pub(crate) drift_ppm: u32,
    pub(crate) retention: Ms,
    /// Its nodes, as bits.
    pub(crate) nodes: u64,
}

impl Settings {
    /// The bounds that every batch carries.
    pub(crate) fn terms(&self) -> Terms {
        Terms { max_ttl: ms(self.max_ttl), clock_error: ms(self.clock_error) }
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        self.nodes >> node & 1 == 1
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

/// What a server begins with after a crash, or a replica that is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copy {
    /// What the master had so long ago; zero: all that it has.
    Behind(Ms),
    /// Nothing, not even the marker.
    Empty,
}

/// Where a planned handover stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stops {
    /// It does not.
    Done,
    /// The operator's program dies behind the closing.
    Closed,
    /// The old master is opened again in place of a promotion.
    Reopened,
    /// The operator's program dies behind the promotion, before the old master is a replica.
    Promoted,
    /// The promoted server is opened, not finished.
    Opened,
    /// Who was promoted lacks the writes of so long before the closing.
    Behind(Ms),
    /// The last step comes when the closing is over.
    Late,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The master's process dies and is back after `down`.
    Crash { node: usize, copy: Copy, down: Ms },
    /// Somebody runs `FLUSHALL` on the master.
    Flush { node: usize },
    /// A server is frozen; what arrives is executed when it thaws.
    Freeze { node: usize, server: usize, span: Ms },
    /// A server stops for at most `span` in the middle of the next batch that has two ops.
    Halt { node: usize, server: usize, span: Ms },
    /// Messages from a client to a node, or back, get lost.
    Cut { client: usize, node: usize, requests: bool, span: Ms },
    /// A server's clock steps, and is wrong by `to` µs afterwards.
    Step { node: usize, server: usize, to: i64 },
    /// A server's clock is wrong by so many µs more for a while.
    Wild { node: usize, server: usize, by: i64, span: Ms },
    /// Another server of the group is promoted; the clients in `old` keep talking to whom they
    /// talk to until that one refuses. The replaced master freezes for `freeze`.
    Failover { node: usize, to: usize, copy: Copy, old: u64, freeze: Ms },
    /// The master is closed, after `takes` another server of the group is promoted, and a little
    /// later that one goes on in its place; unless it stops on the way.
    Handover { node: usize, to: usize, takes: Ms, stops: Stops },
    /// A client process stops; the library's timers come back `lag` after the user's code.
    Pause { client: usize, span: Ms, lag: Ms },
    /// A client process dies, and a new one takes its place.
    Kill { client: usize },
    /// The same, and the new one has the settings of this stage.
    Deploy { client: usize, stage: usize },
}

impl Fault {
    /// Whether a node may forget something it has answered.
    fn loses(&self) -> bool {
        match *self {
            Self::Crash { copy, .. } => copy != Copy::Behind(0),
            Self::Failover { .. } | Self::Flush { .. } => true,
            Self::Handover { stops, .. } => matches!(stops, Stops::Behind(_)),
            _ => false,
        }
    }
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
    /// A call under an idempotency key; `print`: which request it is, 0 = it does not say.
    Order {
        key: usize,
        print: u8,
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
    /// Looks who holds a lock, takes it from that holder for `ttl` and keeps it for `hold`; the
    /// future is dropped after so many polls.
    TakeOver {
        name: usize,
        ttl: Ms,
        wait: Ms,
        hold: Ms,
        polls: u32,
        parting: Parting,
    },
    /// Another program takes the lock as the Redlock text says, by `SET NX PX`, and deletes it.
    Classic {
        name: usize,
        wait: Ms,
        hold: Ms,
    },
    /// Runs a job that ticks each second, each time for `takes`.
    Tick {
        span: Ms,
        takes: Ms,
    },
    /// An operator looks at a key, and after `later` decides about it.
    Decide {
        key: usize,
        later: Ms,
        decision: Decision,
    },
    /// An acquire whose future is dropped after so many polls.
    Cancelled {
        name: usize,
        wait: Ms,
        polls: u32,
    },
}

impl Act {
    /// Exchanges one message with every node.
    const GREETING: Self =
        Self::Lock { name: 0, wait: 0, hold: 0, every: 1, renew: false, parting: Parting::Release };
}

/// A task of a client process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskPlan {
    pub(crate) client: usize,
    pub(crate) acts: Vec<Act>,
}

/// When the request with a key was made, and how wrong the clock of its producer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) at: Ms,
    /// In microseconds.
    pub(crate) error: i64,
}

/// What concerns idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrdersPlan {
    /// How many acts in a thousand are calls under keys.
    pub(crate) share: u64,
    /// By key; empty: nobody says when requests were made.
    pub(crate) births: Vec<Birth>,
    /// Some requests under one key differ, and say so.
    pub(crate) prints: bool,
    /// Largest result that is kept, in bytes; zero: all are.
    pub(crate) max_result: usize,
    pub(crate) policy: Policy,
    /// The longest loss that is accepted; zero: none is.
    pub(crate) accepts: Ms,
}

/// What becomes of a key whose past is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Parked.
    #[default]
    Once,
    /// Run again after a lapsed attempt, parked where one may be forgotten.
    Rerun,
    /// Run again in both cases.
    Least,
}

/// How the clocks of servers step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Steps {
    #[default]
    None,
    /// By no more than the drift leaves over: like a clock that runs wrong.
    Small,
    /// By so much that everybody notices who read the clock before, and everybody has.
    Noticed,
    /// As they like; nobody may have noticed.
    Unnoticed,
}

/// What a plan is changed into, for bugs that live outside the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// Every client has the same owner token in all attempts.
    StuckDice,
    /// Settings are changed in an order that is not safe.
    Unsafe(Order),
    /// Everything is as it must be for one rule to matter.
    Scene(Scene),
}

/// Everything about one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    theme: Theme,
    pub(crate) truth: Truth,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) clients: Vec<ClientPlan>,
    /// The settings that processes have one after the other; the first ones at the beginning.
    pub(crate) stages: Vec<Settings>,
    pub(crate) names: usize,
    pub(crate) deadline: Ms,
    pub(crate) net: NetPlan,
    /// How often a copy of a master is remembered.
    pub(crate) copy_every: Ms,
    /// A replica may still follow a replaced master.
    pub(crate) cross: bool,
    pub(crate) steps: Steps,
    /// Server clocks are further apart than anybody thinks.
    pub(crate) apart: bool,
    pub(crate) faults: Vec<(Ms, Fault)>,
    pub(crate) tasks: Vec<TaskPlan>,
    pub(crate) orders: OrdersPlan,
    /// How many acts in a thousand are about elections.
    elections: u64,
    pub(crate) durability: Durability,
    pub(crate) tamper: Option<Tamper>,
}

/// What is true of the clocks of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// All are within E of true time.
    Right,
    /// Not all are: there is one holder still, but tokens and terms may fall.
    Apart,
    /// They step unnoticed: a lease may end early.
    Step,
}

/// Which promises hold in a world, by its assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a promise of its own")]
pub(crate) struct Promises {
    pub(crate) clocks: Clocks,
    /// A parked key is not started again.
    pub(crate) once: bool,
    /// No forgotten key runs again, so no finished step does.
    pub(crate) steps: bool,
    /// Nobody is answered that a name is vacant while one has it: all ask the same nodes.
    pub(crate) vacant: bool,
    /// Keys run again after losses of at most this length.
    pub(crate) accepts: Ms,
    /// Longest time for which a replaced master goes on.
    pub(crate) window: Ms,
    /// A free name is served: no token is taken for one of the far future.
    pub(crate) served: bool,
}

impl Plan {
    /// The largest of a setting over all stages.
    pub(crate) fn most(&self, of: impl Fn(&Settings) -> Ms) -> Ms {
        self.stages.iter().map(of).max().unwrap_or(0)
    }

    /// The largest L of any server.
    pub(crate) fn window(&self) -> Ms {
        self.nodes.iter().map(NodePlan::window).max().unwrap_or(0)
    }

    /// Returns how far a server's clock is taken out of its bound, at most, in microseconds.
    fn wildest(&self) -> u64 {
        let wild = |f: &(Ms, Fault)| match f.1 {
            Fault::Wild { by, .. } => by.unsigned_abs(),
            _ => 0,
        };
        self.faults.iter().map(wild).max().unwrap_or(0)
    }

    /// How long a master is closed for a handover that takes so long to the promotion.
    pub(crate) fn closed_for(&self, takes: Ms) -> Duration {
        ms(takes + takes / 4 + 20) + 4 * Duration::from_micros(self.truth.error)
    }

    /// The longest of these.
    pub(crate) fn longest_closing(&self) -> Duration {
        let closed = |f: &(Ms, Fault)| match f.1 {
            Fault::Handover { takes, .. } => self.closed_for(takes),
            _ => Duration::ZERO,
        };
        self.faults.iter().map(closed).max().unwrap_or_default()
    }

    /// How much longer a server may keep a key because of its clock.
    pub(crate) fn clocks_apart(&self) -> Ms {
        let widest = self.nodes.iter().flat_map(|n| &n.servers).map(|s| s.clock.bound).max();
        2 * (widest.unwrap_or(0) + self.wildest()) / 1_000 + 1
    }

    /// What may be asked of this world.
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

    /// In how many steps a handler does its work: every other plan of a theme has some.
    pub(crate) fn handler_steps(&self) -> usize {
        if self.seed & 8 == 0 { 0 } else { 3 }
    }

    /// The plan, changed for a bug outside the library.
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

    /// The plan of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self::drawn(seed, None)
    }

    /// Dice for a part of the run, so that what is left out elsewhere does not shift them.
    pub(crate) fn dice(&self, stream: u64) -> Dice {
        Dice::new(self.seed, stream)
    }
}

pub(crate) fn ms(ms: Ms) -> Duration {
    Duration::from_millis(ms)
}
