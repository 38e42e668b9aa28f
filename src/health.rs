//! The health of a handle and of its nodes, for readiness probes and for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::claim::DataLossTerms;
use crate::config::RETENTION;
use crate::error::{Commands, NodeOutcome, Reach};
use crate::node::{DURABLE_REFUTED, Loss};

use crate::quorum::majority;
use crate::redlock::Redlock;

/// State of the nodes of a handle. `Display` prints one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Number of nodes in a majority.
    pub needed: usize,
    /// Health of each node, in the order of the builder's nodes.
    pub nodes: Vec<NodeHealth>,
    /// Messages that the consumers of a namespace of idempotency keys leave at their broker until
    /// an operator has acted. Empty in the health of a whole handle, because only a namespace has
    /// messages.
    pub waiting: Vec<Waiting>,
    /// Number of existing [degraded guards](crate::DegradableGuard) of the handle. The work of a
    /// degraded guard runs without the lock.
    pub degraded: usize,
    /// The commands with which an operator acts on these nodes.
    pub commands: Commands,
}

/// Messages that the broker keeps until an operator has acted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// Number of messages that wait. Zero if the consumer takes no messages at all, because the
    /// deployment was never initialised (`palisade init`).
    pub messages: u64,
    /// Time for which messages have waited for the operator so far.
    pub waited: Duration,
    /// Cause of the wait, and the action that the operator has to take.
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
    /// The node's reply to a trial lock, which this health check acquired and released.
    pub outcome: NodeOutcome,
    /// Time until the node grants locks. The same time applies to claims of idempotency keys with a
    /// [`created_at`](crate::idempotency::Call::created_at) later than the node's last loss of
    /// data.
    pub locks: Ability,
    /// Time until a call for an idempotency key without `created_at` can run: until the node can
    /// confirm that the key was never used. In the health of a namespace, less if an operator has
    /// decided to run the keys that the node cannot confirm.
    pub new_keys: Ability,
    /// Losses of data: ranges of writes that the node's data may lack. They are in the order of
    /// time, and as the node last reported them. At most eight, including old losses that no longer
    /// matter. Empty before the first reply.
    pub losses: Arc<[Loss]>,
    /// Reason for which nobody can replace the node's server now if it fails: most of the group's
    /// Sentinels are in tilt, or they know no replica, or each that they know is down or has
    /// priority 0. `None` if there is none, if it is not known, and for a lone server.
    pub no_failover: Option<&'static str>,
    /// True if the server was declared [durable](crate::node::RedisNodeBuilder::durable), and this
    /// handle was the first to find that it lost data
    /// ([`DurableRefuted`](crate::node::NodeEvent::DurableRefuted)).
    pub durable_refuted: bool,
    /// Hash slots of a cluster that cannot be used now, and why. Names in other slots can:
    /// `outcome`, `locks` and `new_keys` are those of one slot. `None` if all can, or it is not
    /// known.
    pub troubles: Option<Arc<str>>,
}

/// Time until something is possible: now, later, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// Possible now.
    Now,
    /// Possible after this time, if the state does not change.
    After(Duration),
    /// Unknown, because nodes did not answer.
    Unknown,
}

impl Ability {
    /// Returns true for [`Now`](Self::Now): no wait is needed.
    pub fn is_now(self) -> bool {
        self == Self::Now
    }

    fn of(rest: Duration) -> Self {
        if rest.is_zero() { Self::Now } else { Self::After(rest) }
    }

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
            // Rounded up, so it is never too short.
            Self::After(rest) => write!(f, "in {} s", rest.as_secs() + 1),
            Self::Unknown => f.write_str("no"),
        }
    }
}

impl Health {
    /// Returns the time until locks can be acquired, elections won, and idempotency keys with
    /// [`created_at`](crate::idempotency::Call::created_at) claimed. All three need the grants of a
    /// majority of the nodes.
    pub fn locks(&self) -> Ability {
        self.majority(|node| node.locks)
    }

    /// Returns when calls for new idempotency keys can run their handlers, if the calls state no
    /// creation time (`created_at`): now, after some time, or not. A majority of the nodes must
    /// grant locks, and must have the records of all keys within the retention. Until then the
    /// policy for [forgotten](crate::Forgotten) keys decides about these calls.
    pub fn new_keys(&self) -> Ability {
        self.majority(|node| node.new_keys)
    }

    /// Returns true if [`locks`](Self::locks) is [`Ability::Now`]. For a readiness probe of a
    /// program that needs locks.
    pub fn is_ready(&self) -> bool {
        self.locks().is_now()
    }

    fn said(&self, ability: Ability, of: impl Fn(&NodeHealth) -> Ability) -> String {
        let unasked = |node: &NodeHealth| match &node.outcome {
            NodeOutcome::Failed(why) => why.reach() == Reach::NotAsked,
            _ => false,
        };
        let may = |node: &&NodeHealth| unasked(node) || of(node) != Ability::Unknown;
        let is_open = self.nodes.iter().filter(may).count() >= self.needed;
        if ability == Ability::Unknown && is_open && self.nodes.iter().any(unasked) {
            return "not known (nodes were not asked)".into();
        }
        ability.to_string()
    }

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
        write!(f, "locks: {}", self.said(self.locks(), |node| node.locks))?;
        write!(f, "; new keys: {}", self.said(self.new_keys(), |node| node.new_keys))?;
        for node in &self.nodes {
            write!(f, "; {}: {}", node.name, node.outcome)?;
            if let (false, Some(loss)) = (node.new_keys.is_now(), node.losses.last()) {
                write!(f, ", {loss}")?;
            }
            if let Some(why) = node.no_failover {
                write!(f, ", nobody can fail it over: {why}")?;
            }
            if node.durable_refuted {
                write!(f, ", {DURABLE_REFUTED}")?;
            }
            if let Some(why) = &node.troubles {
                write!(f, ", {why}")?;
            }
        }
        if self.nodes.iter().any(|node| node.outcome.is_empty()) {
            write!(f, "; {}", self.commands.first_step())?;
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
    /// Reads the state of every node. Returns after the `node_deadline` at the latest,
    /// approximately.
    ///
    /// On each node this function acquires and releases a lock with the name `palisade:health`. So
    /// the result also shows failures of writes, such as too few replicas or a missing permission.
    /// Each call costs each node a request: call this function every few seconds, and not for each
    /// request to your own program.
    ///
    /// For keys without `created_at` this function assumes a retention of 24 hours;
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
    /// May be dropped at any time. Acquired locks are then released in the background.
    pub async fn health(&self) -> Health {
        health(self, RETENTION, DataLossTerms::default()).await.0
    }
}

/// `retention` and `loss` are those of a namespace of idempotency keys. Also returns, for each
/// node, the losses because of which it cannot decide if a key is new.
pub(crate) async fn health(
    redlock: &Redlock,
    retention: Duration,
    loss: DataLossTerms,
) -> (Health, Vec<Vec<Loss>>) {
    let reports = redlock.core.health(retention, loss).await;
    let mut causes = Vec::new();
    let node = |report: crate::client::health::NodeReport| {
        let locks = match &report.lock {
            NodeOutcome::Granted | NodeOutcome::Held(_) => Ability::Now,
            NodeOutcome::Quarantined { remaining, .. } => Ability::of(*remaining),
            _ => Ability::Unknown,
        };
        let (forgets, losses) = match report.forgets {
            Ok((rest, losses)) => (Ability::of(rest), losses),
            Err(_) => (Ability::Unknown, Vec::new()),
        };
        causes.push(losses);
        let new_keys = locks.and(forgets);
        NodeHealth {
            name: report.name,
            outcome: report.lock,
            locks,
            new_keys,
            losses: report.losses,
            no_failover: report.no_failover,
            durable_refuted: report.durable_refuted,
            troubles: report.troubles,
        }
    };
    let nodes: Vec<_> = reports.into_iter().map(node).collect();
    let degraded = redlock.core.outage().guards();
    let commands = redlock.core.commands.clone();
    let needed = majority(nodes.len());
    (Health { needed, nodes, waiting: Vec::new(), degraded, commands }, causes)
}
