//! The health of a handle, node by node: for readiness probes and for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::claim::DataLossTerms;
use crate::config::RETENTION;
use crate::error::NodeOutcome;
use crate::node::Loss;
use crate::quorum::majority::majority;
use crate::redlock::Redlock;

/// State of the nodes of a handle. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Number of nodes that make a majority.
    pub needed: usize,
    /// Health of each node, in the order in which they were added.
    pub nodes: Vec<NodeHealth>,
    /// Messages that the consumers of a namespace hold in this process until an operator decides.
    /// Empty in the health of a whole handle, because messages belong to a namespace.
    pub waiting: Vec<Waiting>,
    /// Number of [degraded guards](crate::DegradableGuard) of the handle that exist now: their work
    /// runs without its lock.
    pub degraded: usize,
}

/// Messages that stay with their broker and are not handled until an operator has acted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// Number of messages that are held; zero if the consumer takes none at all, because the
    /// deployment was never initialised.
    pub messages: u64,
    /// Time for which the messages have waited until now.
    pub waited: Duration,
    /// Cause of the wait, and what the operator has to do.
    pub why: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, why) = (self.waited.as_secs(), &self.why);
        match self.messages {
            0 => write!(f, "no messages are taken since {waited} s: {why}"),
            1 => write!(f, "1 message is held since {waited} s: {why}"),
            n => write!(f, "{n} messages are held since {waited} s: {why}"),
        }
    }
}

/// State of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's name.
    pub name: Arc<str>,
    /// Answer of the node to a trial lock that was acquired and released.
    pub outcome: NodeOutcome,
    /// Ability of the node to grant locks, and claims of idempotency keys with a
    /// [`created_at`](crate::idempotency::Call::created_at) later than its last loss of data.
    pub locks: Ability,
    /// Ability of the node to tell that an idempotency key without `created_at` was never used.
    pub new_keys: Ability,
    /// Ranges of writes that the node's data may lack, as of the node's last answer, the latest
    /// last. There are at most eight, including those that concern no key any more. Empty until the
    /// node has answered.
    pub losses: Arc<[Loss]>,
}

/// The ability to do something: now, after a time, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// It is possible now.
    Now,
    /// It is possible after this time, unless the state changes.
    After(Duration),
    /// It is unknown, because nodes failed to answer.
    Unknown,
}

impl Ability {
    /// Returns true if the ability is [`Now`](Self::Now).
    pub fn is_now(self) -> bool {
        self == Self::Now
    }

    fn of(rest: Duration) -> Self {
        if rest.is_zero() { Self::Now } else { Self::After(rest) }
    }

    /// Returns the later of two abilities.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Now, later) | (later, Self::Now) => later,
            (Self::After(one), Self::After(two)) => Self::After(one.max(two)),
        }
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("yes"),
            // Rounded up, so that the shown time is never too short.
            Self::After(rest) => write!(f, "in {} s", rest.as_secs() + 1),
            Self::Unknown => f.write_str("no"),
        }
    }
}

impl Health {
    /// Returns whether locks can be acquired, elections won and idempotency keys with
    /// [`created_at`](crate::idempotency::Call::created_at) claimed, for which a majority of the
    /// nodes must grant.
    pub fn locks(&self) -> Ability {
        self.majority(|node| node.locks)
    }

    /// Returns whether handlers run for idempotency keys without `created_at` that were never used.
    /// For this a majority of the nodes must grant, and must know of all keys within the retention.
    /// If not, the policy for [forgotten](crate::Forgotten) keys decides about such calls.
    pub fn new_keys(&self) -> Ability {
        self.majority(|node| node.new_keys)
    }

    /// Returns true if locks can be acquired now ([`locks`](Self::locks)), for a readiness probe of
    /// a program that needs locks.
    pub fn is_ready(&self) -> bool {
        self.locks().is_now()
    }

    /// Returns when a majority of the nodes has the ability that `of` reads from each node.
    fn majority(&self, of: impl Fn(&NodeHealth) -> Ability) -> Ability {
        let rank = |ability: &Ability| match ability {
            Ability::Now => Duration::ZERO,
            Ability::After(rest) => *rest,
            Ability::Unknown => Duration::MAX,
        };
        let mut all: Vec<Ability> = self.nodes.iter().map(of).collect();
        all.sort_by_key(rank);
        all.get(self.needed - 1).copied().unwrap_or(Ability::Unknown)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "locks: {}; new keys: {}", self.locks(), self.new_keys())?;
        for node in &self.nodes {
            write!(f, "; {}: {}", node.name, node.outcome)?;
            if let (false, Some(loss)) = (node.new_keys.is_now(), node.losses.last()) {
                write!(f, ", {loss}")?;
            }
        }
        self.waiting.iter().try_for_each(|waiting| write!(f, "; {waiting}"))?;
        match self.degraded {
            0 => Ok(()),
            1 => f.write_str("; 1 guard is degraded: its work runs without the lock"),
            n => write!(f, "; {n} guards are degraded: their work runs without the locks"),
        }
    }
}

impl Redlock {
    /// Asks every node for its state. Returns within about the `node_deadline`.
    ///
    /// On each node a lock with the name `palisade:health` is acquired and released, so that
    /// failures of writes are seen, too, such as too few replicas or a missing permission. This
    /// costs each node a request, so call it every few seconds, and not for each request of your
    /// own.
    ///
    /// Keys without `created_at` are judged for a retention of 24 hours;
    /// [`Idempotency::health`](crate::Idempotency::health) uses the retention of its namespace.
    ///
    /// ```
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = palisade::Redlock::from_urls("memory://")?;
    /// let health = redlock.health().await;
    /// let status = if health.is_ready() { 200 } else { 503 };
    /// println!("{status} {health}");
    /// # assert_eq!(status, 200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because the locks that were acquired are released in the
    /// background.
    pub async fn health(&self) -> Health {
        health(self, RETENTION, DataLossTerms::default()).await
    }
}

/// Asks every node as [`Redlock::health`] does. `retention` and `loss` describe the idempotency
/// keys that are judged: how long their results are kept, since when such keys exist, and which
/// loss of data they accept.
pub(crate) async fn health(redlock: &Redlock, retention: Duration, loss: DataLossTerms) -> Health {
    let reports = redlock.core.health(retention, loss).await;
    let node = |report: crate::client::health::NodeReport| {
        let locks = match &report.lock {
            NodeOutcome::Granted | NodeOutcome::Held(_) => Ability::Now,
            NodeOutcome::Quarantined { remaining, .. } => Ability::of(*remaining),
            _ => Ability::Unknown,
        };
        let forgets = report.forgets.map_or(Ability::Unknown, Ability::of);
        let new_keys = locks.and(forgets);
        NodeHealth {
            name: report.name,
            outcome: report.lock,
            locks,
            new_keys,
            losses: report.losses,
        }
    };
    let nodes: Vec<_> = reports.into_iter().map(node).collect();
    let degraded = redlock.core.outage().guards();
    Health { needed: majority(nodes.len()), nodes, waiting: Vec::new(), degraded }
}
