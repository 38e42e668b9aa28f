//! Error types. A refusal is a regular result of an operation ([`Taken`]); a fault is an error with
//! the cause for every node. A message is a complete sentence and names the lock, election or key,
//! so a program may print only the outermost error. [`source`](std::error::Error::source) contains
//! no secret.

mod commands;
mod hand_over;
mod outcome;
mod resource;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::commands::Commands;
pub(crate) use self::commands::quoted;
pub use self::hand_over::{HandOverError, ResumeError};
pub use self::outcome::{AcquireError, ExtendError, NoQuorum, NodeOutcome, ReleaseError, Taken};
pub use self::resource::Resource;
pub use crate::op::Began;

/// The next step after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The fault is temporary. Try again after this time.
    RetryAfter(Duration),
    /// A repetition of the same call cannot succeed.
    GiveUp,
    /// The program has to be changed: it made the call on a closed handle, or outside of a tokio
    /// runtime with timers and IO.
    Rebuild,
    /// A person has to change a setting of this program or of a server.
    Misconfigured,
}

/// An error with advice on the next step. All errors of this crate implement this trait.
///
/// Each error type also has its own method `advice`. So only code for several error types needs
/// this trait:
///
/// ```
/// use palisade::error::{Advice, Advise};
/// fn is_worth_a_retry(error: &impl Advise) -> bool {
///     matches!(error.advice(), Advice::RetryAfter(_))
/// }
/// ```
pub trait Advise: std::error::Error {
    /// Returns the next step after the error.
    fn advice(&self) -> Advice;
}

macro_rules! advise {
    ($($error:ty),+ $(,)?) => {
        $(impl $crate::error::Advise for $error {
            fn advice(&self) -> $crate::error::Advice {
                <$error>::advice(self)
            }
        })+
    };
}
pub(crate) use advise;

advise!(ConfigError, NodeError, NoQuorum, AcquireError, ExtendError, ReleaseError);
advise!(HandOverError, ResumeError);

/// Error of an invalid setting, with the rule that the setting breaks.
///
/// `Debug` prints the same sentence as `Display`, because a `main` that returns this error prints
/// `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    of: Option<Resource>,
    field: Cow<'static, str>,
    value: Box<str>,
    rule: Box<str>,
}

impl ConfigError {
    /// Makes an error for the setting `field`, whose `value` breaks `rule`.
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        value: impl Into<String>,
        rule: impl Into<String>,
    ) -> Self {
        let (value, rule): (String, String) = (value.into(), rule.into());
        Self { of: None, field: field.into(), value: value.into(), rule: rule.into() }
    }

    pub(crate) fn of(self, resource: Resource) -> Self {
        // The message of an invalid name already contains it.
        Self { of: Some(resource).filter(|_| self.field != "name"), ..self }
    }

    pub(crate) fn named(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), ..self }
    }

    pub(crate) fn with_rule(self, change: impl FnOnce(&str) -> String) -> Self {
        Self { rule: change(&self.rule).into(), ..self }
    }

    /// Returns the name of the setting in the user's source: a builder method, an environment
    /// variable, or a field of a file.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns [`Advice::Misconfigured`] for every such error.
    pub fn advice(&self) -> Advice {
        Advice::Misconfigured
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(of) = &self.of {
            write!(f, "{of}: ")?;
        }
        write!(f, "`{}` is {}: {}", self.field, self.value, self.rule)
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

/// Kind of a fault: the reason for a missing vote of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NodeFault {
    /// The connection to the server could not be made.
    Unreachable,
    /// The node did not answer before the deadline.
    Timeout,
    /// The connection broke during a request.
    Disconnected,
    /// The server is a replica. Its error `READONLY` or its reply to `ROLE` shows this.
    NotMaster,
    /// The server is still reading its data set (`LOADING`).
    Loading,
    /// The server refuses writes (`NOREPLICAS`), because too few of its replicas are connected and
    /// up to date.
    NoReplicas,
    /// The server is closed for some seconds during a planned handover to another server
    /// (`HANDOVER`).
    HandingOver,
    /// Too few replicas had the grant by the deadline for the required
    /// [`Durability`](crate::Durability) level. So the reply is no vote, and the grant is rolled
    /// back.
    NotDurable,
    /// The server's min-replicas check (`min-replicas-to-write`) is off or weaker than required. So
    /// the node does not vote.
    MinReplicasMissing,
    /// The server deletes keys when its memory is full, so it could delete a lock that is held. So
    /// the node does not vote.
    Eviction,
    /// The TLS handshake failed, or the server does not speak TLS.
    Tls,
    /// The server refused the user name or the password.
    Auth,
    /// The node's [provider of credentials](crate::node::CredentialsProvider) failed, or the server
    /// refused what it gave. It is asked again.
    Credentials,
    /// The user lacks a permission (`NOPERM`).
    NoPermission,
    /// No Sentinel could be reached.
    NoSentinel,
    /// Sentinels answer, but no Sentinel has a master of the configured name.
    UnknownMaster,
    /// The server at a configured Sentinel address is no Sentinel.
    NotSentinel,
    /// Too few Sentinels agree on one master and its configuration epoch, or too few masters of a
    /// cluster on the owner of a slot.
    NoAgreement,
    /// Two configured nodes are the same server process, or have the data of one vote.
    SameServer,
    /// The server has the data of another vote or another deployment. Nothing was written to it.
    ForeignData,
    /// The request reached the server after the request's deadline, by the server's clock. The
    /// server did not execute the request.
    PastDeadline,
    /// The server's clock stepped. The server's grants do not count for one `max_ttl`.
    ClockJump,
    /// The server granted a fencing token that is too far ahead of this machine's clock, so this
    /// grant does not count.
    TokenAhead,
    /// The kind or the version of the server is not supported.
    Unsupported,
    /// A key of the request holds another program's value, or a record of a newer version of this
    /// library. The value is left as it is.
    ForeignKey,
    /// The server answered with an error that has no own variant in this enum.
    Server,
    /// The library could not parse the server's reply to a request.
    Protocol,
    /// Too many requests of this handle wait for the node, so this request was refused and not
    /// sent.
    Busy,
    /// Other requests changed the record, the lock or the marker first, each time the request was
    /// sent. The server executed nothing of it.
    Contended,
    /// The request cannot be sent: the handle is closed, or the call was polled outside of a tokio
    /// runtime with timers.
    Closed,
}

/// How far a request with a fault came, which says what the fault proves about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reach {
    /// Nothing answered.
    Unreachable,
    /// The node serves requests, and answered this one with an error.
    Answered,
    /// This process did not send the request, so the fault proves nothing about the node.
    NotAsked,
    /// The node answered, and it grants nothing to anybody until its state or a setting changes.
    /// What it has granted may still be held.
    Refused,
}

/// A node's fault with its cause. Cloning is cheap, because all requests of a batch may fail with
/// the same fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    fault: NodeFault,
    maybe_executed: bool,
    detail: Arc<str>,
    cause: Option<Cause>,
}

/// Cause of a node's fault, in a form for programs: the [`source`](std::error::Error::source) of a
/// [`NodeError`]. The message of the `NodeError` also contains the cause.
///
/// This type replaces the error of the connection, because that error may contain sent data such as
/// passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Error of the operating system, by its kind.
    #[error("{0}")]
    Io(std::io::ErrorKind),
    /// Error of the server, by the code at its start, for example `NOPERM`.
    #[error("the server answered {0}")]
    Server(Arc<str>),
}

impl NodeError {
    /// Makes the error of a request that certainly had no effect on the node.
    pub fn not_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: false, detail: detail.into(), cause: None }
    }

    /// Makes the error of a request with an unknown effect. The node may have executed the request,
    /// or may still execute it, because a time-out does not cancel a request.
    pub fn maybe_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: true, detail: detail.into(), cause: None }
    }

    pub(crate) fn foreign(key: &str) -> Self {
        let detail = format!("WRONGTYPE: {key:?}; if a newer palisade wrote it, upgrade this one");
        Self::not_executed(NodeFault::ForeignKey, detail)
    }

    pub(crate) fn past_deadline() -> Self {
        Self::not_executed(NodeFault::PastDeadline, "by the server's own clock")
    }

    pub(crate) fn at(self, place: &str, hint: &str) -> Self {
        Self { detail: format!("at {place}: {}{hint}", self.detail).into(), ..self }
    }

    pub(crate) fn because(self, cause: Option<Cause>) -> Self {
        Self { cause, ..self }
    }

    pub(crate) fn after_execution(self) -> Self {
        Self { maybe_executed: true, ..self }
    }

    /// Returns the kind of fault.
    pub fn fault(&self) -> NodeFault {
        self.fault
    }

    /// Returns how far the request came.
    pub fn reach(&self) -> Reach {
        use NodeFault as F;
        match self.fault {
            F::Unreachable | F::Timeout | F::Disconnected | F::NoSentinel | F::NoAgreement => {
                Reach::Unreachable
            }
            F::NoPermission | F::ForeignKey | F::Server | F::Protocol | F::Contended => {
                Reach::Answered
            }
            // After the grant, on a connection of its own.
            F::Credentials if self.maybe_executed => Reach::Unreachable,
            F::Busy | F::Closed | F::Credentials => Reach::NotAsked,
            F::NotMaster
            | F::Loading
            | F::NoReplicas
            | F::HandingOver
            | F::NotDurable
            | F::MinReplicasMissing
            | F::Eviction
            | F::Tls
            | F::Auth
            | F::UnknownMaster
            | F::NotSentinel
            | F::SameServer
            | F::ForeignData
            | F::PastDeadline
            | F::ClockJump
            | F::TokenAhead
            | F::Unsupported => Reach::Refused,
        }
    }

    /// Returns true if the node may have executed the request, or may still execute it, for example
    /// when a frozen server resumes.
    pub fn is_ambiguous(&self) -> bool {
        self.maybe_executed
    }

    /// Returns the text that the server or the system gave with the fault.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the error of the server or of the system, if there is one.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        use NodeFault as F;
        match self.fault {
            F::Unreachable
            | F::Timeout
            | F::Disconnected
            | F::HandingOver
            | F::NotDurable
            | F::NoSentinel
            | F::PastDeadline
            | F::Busy
            | F::Contended
            | F::NoAgreement => Advice::RetryAfter(Duration::from_millis(500)),
            F::NotMaster
            | F::Loading
            | F::NoReplicas
            | F::Server
            | F::Protocol
            | F::Credentials => Advice::RetryAfter(Duration::from_secs(1)),
            F::ClockJump | F::TokenAhead => Advice::RetryAfter(Duration::from_secs(5)),
            F::MinReplicasMissing
            | F::Eviction
            | F::Tls
            | F::Auth
            | F::NoPermission
            | F::UnknownMaster
            | F::NotSentinel
            | F::SameServer
            | F::ForeignData
            | F::ForeignKey
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
            F::NoReplicas => "server refuses writes because too few replicas are good (NOREPLICAS)",
            F::HandingOver => "server is closed for a planned handover; try again in a moment",
            F::NotDurable => {
                "not enough replicas confirmed the write, so it was rolled back; bring the \
                 replicas up, or use a lower durability"
            }
            F::MinReplicasMissing => "min-replicas check off or too weak; set it",
            F::Eviction => {
                "server deletes keys when its memory is full, and a lock may be one of them"
            }
            F::Tls => "TLS refused; check CA, certificate name and that both sides speak TLS",
            F::Auth => "user name or password refused; check the credentials of this node",
            F::Credentials => {
                "no credentials, or the server refused them; look at this node's provider and at \
                 what it asks"
            }
            F::NoPermission => "the ACL user lacks a permission; grant it",
            F::NoSentinel => "no Sentinel reachable; check their addresses and the network",
            F::UnknownMaster => "Sentinels know no master of this name; check the master name",
            F::NotSentinel => "this address is not a Sentinel; check host and port",
            F::NoAgreement => {
                "too few Sentinels, or masters of the cluster, agree on a master and its epoch; \
                 wait or check them"
            }
            F::SameServer => {
                "two configured nodes are the same server, or have the data of one vote; remove one"
            }
            F::ForeignData => "server has the data of another vote or deployment",
            F::PastDeadline => {
                "the request reached the server after its deadline and was not executed; server or \
                 network is slow, its clock stepped forward, or it has just replaced another one"
            }
            F::TokenAhead => {
                "server granted a fencing token of the far future; check the clocks of this \
                 machine and of the server"
            }
            F::ClockJump => "the server's clock stepped; its grants do not count for one max_ttl",
            F::Unsupported => "server kind or version is not supported",
            F::ForeignKey => {
                "another program's value is under this key: use another namespace, name or \
                 `prefix`, or delete the key if its value is not needed"
            }
            F::Server => "server answered with an error",
            F::Protocol => "answer not understood",
            F::Busy => {
                "too many requests wait for this node; send fewer at once, or try again later"
            }
            F::Contended => {
                "other requests were executed first each time, and nothing of this one; try again, \
                 and use a key in fewer callers at once if that lasts"
            }
            F::Closed => "no tokio runtime with timers runs this call; await it inside one",
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

impl std::error::Error for NodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}
