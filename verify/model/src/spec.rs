//! What a world is made of. One tick is a second.

use std::time::Duration;

use palisade::node::spi::{LockMode, Terms};
use palisade::{Drift, Moment};

use crate::bug::Bug;

/// Length of each lease, and the longest lease of any client: three ticks.
pub(crate) const TTL: Duration = Duration::from_secs(3);
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Time for an answer after the deadline of its request.
pub(crate) const GRACE: Duration = Duration::from_millis(100);
pub(crate) const TERMS: Terms = Terms { max_ttl: TTL, clock_error: Duration::from_secs(1) };
/// Longer than a world.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);
/// Tick zero, in seconds by true time.
pub(crate) const START: u64 = 1_000;
/// Number of nodes.
pub const NODES: usize = 3;
/// Most clients of a world.
pub const CLIENTS: usize = 3;

/// What a client may do.
#[derive(Clone, Debug)]
pub enum Role {
    /// It acquires a lock, once in each of these ways.
    Lock(Vec<Plan>),
    /// It calls the key this often.
    Key {
        /// Number of claims.
        calls: u8,
        /// Number of renewals of each claim.
        extends: u8,
        /// It runs the handler although an earlier attempt has begun.
        reruns: bool,
    },
}

/// One hold of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How it is acquired.
    pub mode: LockMode,
    /// Number of renewals.
    pub extends: u8,
    /// The writer may become a reader.
    pub downgrades: bool,
}

/// Faults that may happen, each for one of the world's number of faults.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub struct Faults {
    /// An answer comes late or never.
    pub late_reply: bool,
    /// A request is overtaken by later ones, and comes late or never.
    pub stray: bool,
    /// A client dies.
    pub crash: bool,
    /// A node loses its data.
    pub loss: bool,
    /// A node's clock gains a tick.
    pub gain: bool,
}

/// A world: all histories of it are explored.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Name in the report.
    pub name: &'static str,
    /// At most [`CLIENTS`].
    pub roles: Vec<Role>,
    /// The last tick.
    pub end: u8,
    /// A request may arrive in the tick after the one in which it was sent. Otherwise it arrives in
    /// the same tick or never, and releases always arrive in it.
    pub is_slow: bool,
    /// Clients read the answers to their releases.
    pub reads_releases: bool,
    /// So many clients acquire a lock or claim a key at the same time.
    pub at_once: usize,
    /// Number of faults in one history.
    pub faults: u8,
    /// Which.
    pub kinds: Faults,
    /// Ticks by which the nodes' clocks are ahead of true time.
    pub nodes_ahead: [i64; NODES],
    /// Ticks by which the clients' wall clocks are ahead of true time.
    pub walls_ahead: [i64; CLIENTS],
    /// Assumed error of the nodes' clock rate, in parts per million.
    pub drift: u32,
    /// The rule that is left out.
    pub bug: Option<Bug>,
}

impl Spec {
    /// The world with a bug.
    #[must_use]
    pub fn with(&self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self.clone() }
    }

    pub(crate) fn node_deadline(&self) -> Duration {
        if self.is_slow { TICK } else { TICK / 2 }
    }

    /// A history and the same with other numbers of the nodes are one.
    pub(crate) fn nodes_are_alike(&self) -> bool {
        self.nodes_ahead.iter().all(|ahead| *ahead == self.nodes_ahead[0])
    }

    /// The client and the one before it may do the same.
    pub(crate) fn is_like_the_last(&self, c: usize) -> bool {
        c > 0
            && format!("{:?}", self.roles[c]) == format!("{:?}", self.roles[c - 1])
            && self.walls_ahead[c] == self.walls_ahead[c - 1]
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn drift(&self) -> Drift {
        Drift::from_ppm(if self.has(Bug::NoDrift) { 0 } else { self.drift })
    }
}

pub(crate) fn moment(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

/// What a client is told with each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) me: usize,
    /// All that happens in a tick happens at its beginning.
    pub(crate) tick: Moment,
    /// Later if a timer was due before the next tick: only timers know that time has passed.
    pub(crate) at: Moment,
}

impl Now<'_> {
    pub(crate) fn deadline(&self) -> Moment {
        self.tick + self.spec.node_deadline()
    }

    /// A timer that is due at this time may be due before what comes in this tick. Other timers
    /// are due when the tick ends.
    pub(crate) fn is_soon(&self, at: Moment, wait: Moment) -> bool {
        at < wait && wait <= self.tick + GRACE
    }

    pub(crate) fn wall(&self) -> u64 {
        (self.tick.as_nanos() / 1_000)
            .saturating_add_signed(self.spec.walls_ahead[self.me] * 1_000_000)
    }

    /// (locks 4).
    pub(crate) fn proposal(&self, seen: Option<u64>) -> u64 {
        seen.map_or(self.wall(), |seen| self.wall().max(seen + 1))
    }

    pub(crate) fn saw(&self, seen: &mut Option<u64>, largest: Option<u64>, proposal: u64) {
        let Some(fence) = largest else { return };
        if fence > proposal || seen.is_some() {
            *seen = Some(fence).filter(|fence| *fence >= self.wall());
        }
    }
}
