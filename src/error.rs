//! Errors: what happened, on which node, and what to do next.
//!
//! "Taken", "broken" and "unknown" are different answers. A refusal is a value of the verb
//! ([`Taken`]); a fault is an error that keeps the cause of every node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Passing trouble: try again after this long.
    RetryAfter(Duration),
    /// Trying again cannot help this call; its moment is over.
    GiveUp,
    /// The program has to be changed: what was asked for cannot be done where it was asked for
    /// (outside of a tokio runtime that has timers and IO).
    Rebuild,
    /// A person has to change a setting here or on a server.
    Misconfigured,
}

/// A setting that was refused, with the rule it broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {value}: {rule}")]
pub struct ConfigError {
    field: &'static str,
    value: String,
    rule: String,
}

impl ConfigError {
    /// A refusal of `field`, which has `value`, because of `rule`.
    pub fn new(field: &'static str, value: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { field, value: value.into(), rule: rule.into() }
    }

    /// The same refusal under the name that the user gave the setting.
    pub(crate) fn named(self, field: &'static str) -> Self {
        Self { field, ..self }
    }

    /// The setting's name, as the builder's method is called.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Always [`Advice::Misconfigured`].
    pub fn advice(&self) -> Advice {
        Advice::Misconfigured
    }
}

/// Why a node gave no answer that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NodeFault {
    /// No connection could be made.
    Unreachable,
    /// No answer before the deadline.
    Timeout,
    /// The connection broke while a request was under way.
    Disconnected,
    /// The server is a replica (`READONLY`, or ROLE says so).
    NotMaster,
    /// The server is still reading its data set (`LOADING`).
    Loading,
    /// The server's min-replicas guard refuses writes (`NOREPLICAS`).
    NoReplicas,
    /// Too few replicas have what was granted, by the deadline (the level that
    /// [`Durability`](crate::Durability) asks for): no vote, and it is rolled back.
    NotDurable,
    /// The min-replicas guard is absent or weaker than required, so the node does not vote.
    GuardMissing,
    /// The server deletes keys when its memory is full, so a lock could be gone while it is held;
    /// the node does not vote.
    Eviction,
    /// The TLS handshake failed, or the other side does not speak TLS.
    Tls,
    /// User name or password refused.
    Auth,
    /// The user lacks a permission (`NOPERM`).
    NoPermission,
    /// No Sentinel could be reached.
    NoSentinel,
    /// Sentinels answer, but none knows a master of that name.
    UnknownMaster,
    /// The address given as a Sentinel is not one.
    NotSentinel,
    /// Too few Sentinels agree on one master.
    NoAgreement,
    /// Two configured nodes are one and the same server process.
    SameServer,
    /// The request reached the server after its deadline, by the server's own clock, and was not
    /// executed.
    PastDeadline,
    /// The server's clock stepped; its vote is discounted for one `max_ttl`.
    ClockJump,
    /// The server granted a fencing token further ahead than honest clocks can bring it, so its
    /// grant does not count.
    TokenAhead,
    /// The server is of a kind or version that cannot serve.
    Unsupported,
    /// The server answered an error of its own.
    Server,
    /// The answer could not be understood.
    Protocol,
    /// So many requests wait for this node already that this one was refused at once.
    Busy,
    /// Nothing carries requests to this node: the verb was polled outside of a tokio runtime, or on
    /// one without timers.
    Closed,
}

/// A node's fault with its cause. Cheap to clone: one fault may answer a whole batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    fault: NodeFault,
    maybe_executed: bool,
    detail: Arc<str>,
}

impl NodeError {
    /// The request certainly took no effect on the node.
    pub fn not_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: false, detail: detail.into() }
    }

    /// The request may have taken effect, or may still: a time-out is not a cancellation.
    pub fn maybe_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: true, detail: detail.into() }
    }

    /// The answer of a node to what came after its deadline.
    pub(crate) fn past_deadline() -> Self {
        Self::not_executed(NodeFault::PastDeadline, "by the server's own clock")
    }

    /// The same, with where it happened before its words and what to change behind them.
    pub(crate) fn at(self, place: &str, hint: &str) -> Self {
        Self { detail: format!("at {place}: {}{hint}", self.detail).into(), ..self }
    }

    /// The kind of fault.
    pub fn fault(&self) -> NodeFault {
        self.fault
    }

    /// Whether the request may have run on the node (now, or later when it thaws).
    pub fn is_ambiguous(&self) -> bool {
        self.maybe_executed
    }

    /// The cause in the server's or the system's words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What to do about it.
    pub fn advice(&self) -> Advice {
        use NodeFault as F;
        match self.fault {
            F::Unreachable
            | F::Timeout
            | F::Disconnected
            | F::NotDurable
            | F::NoSentinel
            | F::PastDeadline
            | F::Busy
            | F::NoAgreement => Advice::RetryAfter(Duration::from_millis(500)),
            F::NotMaster | F::Loading | F::NoReplicas | F::Server | F::Protocol => {
                Advice::RetryAfter(Duration::from_secs(1))
            }
            F::ClockJump | F::TokenAhead => Advice::RetryAfter(Duration::from_secs(5)),
            F::GuardMissing
            | F::Eviction
            | F::Tls
            | F::Auth
            | F::NoPermission
            | F::UnknownMaster
            | F::NotSentinel
            | F::SameServer
            | F::Unsupported => Advice::Misconfigured,
            F::Closed => Advice::Rebuild,
        }
    }

    fn sentence(&self) -> &'static str {
        use NodeFault as F;
        match self.fault {
            F::Unreachable => "cannot connect; check address, network and that the server runs",
            F::Timeout => "no answer before the deadline; server frozen, overloaded or cut off",
            F::Disconnected => "connection lost during the request; it may have run",
            F::NotMaster => "server is a replica; a failover is under way or the address is wrong",
            F::Loading => "server is loading its data set; wait",
            F::NoReplicas => "server refuses writes for want of good replicas (NOREPLICAS)",
            F::NotDurable => {
                "too few replicas have it, so it does not count and is rolled back; bring the \
                 replicas up, or ask for a lower durability"
            }
            F::GuardMissing => "min-replicas guard absent or weaker than required; set it",
            F::Eviction => "server deletes keys when its memory is full, locks among them",
            F::Tls => "TLS refused; check CA, certificate name and that both sides speak TLS",
            F::Auth => "user name or password refused; check the credentials of this node",
            F::NoPermission => "the ACL user lacks a permission; grant it",
            F::NoSentinel => "no Sentinel reachable; check their addresses and the network",
            F::UnknownMaster => "Sentinels know no master of this name; check the master name",
            F::NotSentinel => "this address is not a Sentinel; check host and port",
            F::NoAgreement => "too few Sentinels agree on a master; wait or check the Sentinels",
            F::SameServer => "two configured nodes are the same server; remove one",
            F::PastDeadline => {
                "reached the server too late and was not executed; server or network is slow, or \
                 the server's clock stepped forward"
            }
            F::TokenAhead => {
                "granted a fencing token that lies in the future; check the clocks of this machine \
                 and of the server"
            }
            F::ClockJump => "the server's clock stepped; its vote is discounted for one max_ttl",
            F::Unsupported => "server kind or version cannot serve",
            F::Server => "server answered an error",
            F::Protocol => "answer not understood",
            F::Busy => "too many requests wait for this node; ask for fewer at once, or later",
            F::Closed => "no tokio runtime carries requests to this node",
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

impl std::error::Error for NodeError {}

/// What one node said, for error reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// Said yes.
    Granted,
    /// Held by somebody else for this long at most (`None`: without an expiry).
    Held(Option<Duration>),
    /// New generation: grants nothing for this long.
    Quarantined(Duration),
    /// Said no for another reason of the verb.
    Refused,
    /// Had not answered when the decision fell.
    Silent,
    /// Gave no answer that counts.
    Failed(NodeError),
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Held(Some(d)) => write!(f, "held by another for {d:?} at most"),
            Self::Held(None) => f.write_str("held by another without expiry"),
            Self::Quarantined(d) => {
                write!(f, "in quarantine for {d:?} after a restart or failover")
            }
            Self::Refused => f.write_str("refused"),
            Self::Silent => f.write_str("not yet answered"),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

/// Too few nodes gave an answer that counts; nobody can say whether the name is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoQuorum {
    /// How many nodes would have been enough.
    pub needed: usize,
    /// Every node by name, with what it said.
    pub nodes: Vec<(Arc<str>, NodeOutcome)>,
}

impl NoQuorum {
    /// The most useful advice among the nodes': a passing fault can heal by itself, so retrying is
    /// worth while unless every failed node needs a person.
    pub fn advice(&self) -> Advice {
        let mut wait: Option<Duration> = None;
        let mut seen = None;
        for (_, outcome) in &self.nodes {
            let advice = match outcome {
                NodeOutcome::Failed(e) => e.advice(),
                NodeOutcome::Quarantined(d) => Advice::RetryAfter(*d),
                _ => continue,
            };
            if let Advice::RetryAfter(d) = advice {
                wait = Some(wait.map_or(d, |w| w.min(d)));
            }
            seen = Some(advice);
        }
        // Only silence: as a time-out.
        let silence = Advice::RetryAfter(Duration::from_millis(500));
        wait.map(Advice::RetryAfter).or(seen).unwrap_or(silence)
    }
}

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no quorum: {} of {} nodes needed", self.needed, self.nodes.len())?;
        for (name, outcome) in &self.nodes {
            write!(f, "; {name}: {outcome}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NoQuorum {}

/// Somebody else holds the name. A value, not a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// When a majority could be free at the latest, if the holder neither renews nor releases.
    /// Zero when nobody holds a majority (several attempts met); `None` if the key never expires.
    pub retry_after: Option<Duration>,
    /// The holder is another program's lock (wrong type or not our kind of token).
    pub foreign: bool,
}

/// Why `acquire` or `try_acquire` failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A setting of this lock is out of range.
    #[error("lock cannot be acquired: {0}")]
    Config(#[from] ConfigError),
    /// Too few nodes answered. Nothing is held; what may have been granted is being released.
    #[error("lock state unknown: {0}")]
    NoQuorum(#[from] NoQuorum),
    /// The waiting deadline passed while somebody else held the lock.
    #[error("still taken after waiting {waited:?}; raise `wait`, or look for a stuck holder")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// The last refusal.
        taken: Taken,
    },
}

impl AcquireError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::NoQuorum(e) => e.advice(),
            Self::TimedOut { taken, .. } => {
                taken.retry_after.map_or(Advice::GiveUp, Advice::RetryAfter)
            }
        }
    }
}

/// Why an extension did not succeed. The guard itself says whether the lock is still held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost: its deadline passed, a majority of nodes belongs to somebody else, or so
    /// many forgot it after a failover that no majority can confirm it any more.
    #[error("the lock is lost; stop the work, a new holder may exist")]
    Lost,
    /// Too few nodes answered; the old deadline stands and the lock is held until then.
    #[error("not extended, the old deadline stands: {0}")]
    Unknown(NoQuorum),
}

impl ExtendError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Lost => Advice::GiveUp,
            Self::Unknown(e) => e.advice(),
        }
    }
}

/// What a release found.
///
/// An outcome, and by [`into_result`](Self::into_result) an error for whoever wants `?`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[must_use = "only `Released` says that the lock was held until the end"]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// A majority still held our token and deleted it.
    #[error("released")]
    Released,
    /// The key was gone on a majority: the lease had run out before.
    #[error("the lease had run out before the release; what was done late needs its fencing token")]
    AlreadyExpired,
    /// A majority belongs to somebody else: the lease had run out and the name was taken.
    #[error("somebody else holds the name already; what was done late needs its fencing token")]
    TakenByOther,
    /// Too few nodes answered; clean-up goes on in the background, at the latest the ttl ends it.
    #[error("released as far as can be told; clean-up goes on in the background: {0}")]
    Unknown(NoQuorum),
}

impl ReleaseOutcome {
    /// True if the lock was provably held until this release.
    pub fn is_released(&self) -> bool {
        matches!(self, Self::Released)
    }

    /// `Ok` for [`Released`](Self::Released), anything else as an error.
    ///
    /// # Errors
    /// The outcome itself.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_released() { Ok(()) } else { Err(self) }
    }
}
