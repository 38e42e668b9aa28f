//! Errors: what failed, on which node, and what to do next.
//!
//! A refusal and a fault are different answers. A refusal is a value that an operation returns
//! ([`Taken`]). A fault is an error, which keeps the cause of every node.
//!
//! The message of an error is a complete sentence and names the lock, election or key, so a program
//! that prints only the outermost error loses nothing. [`source`](std::error::Error::source) is the
//! error of the server, of the system or of another crate, if there was one and it quotes no
//! secret. All errors implement [`Advise`].

mod hand_over;
mod outcome;
mod resource;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::hand_over::{HandOverError, ResumeError};
pub use self::outcome::{AcquireError, ExtendError, NoQuorum, NodeOutcome, ReleaseError, Taken};
pub use self::resource::Resource;
pub use crate::op::Began;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// A temporary fault: try again after this time.
    RetryAfter(Duration),
    /// The same call cannot succeed if it is tried again.
    GiveUp,
    /// The program has to be changed, because the call was made outside of a tokio runtime with
    /// timers and IO, or on a closed handle.
    Rebuild,
    /// A person has to change a setting here or on a server.
    Misconfigured,
}

/// An error with advice on what to do about it. All errors of this crate implement it.
///
/// Each error has a method of the same name, too, so the trait is needed only by code for several
/// types of errors:
///
/// ```
/// use palisade::error::{Advice, Advise};
/// fn is_worth_a_retry(error: &impl Advise) -> bool {
///     matches!(error.advice(), Advice::RetryAfter(_))
/// }
/// ```
pub trait Advise: std::error::Error {
    /// Returns what to do about the error.
    fn advice(&self) -> Advice;
}

/// Implements [`Advise`] for errors that have a method `advice` of their own.
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

/// A setting that was refused, with the rule that it broke.
///
/// `Debug` is the same sentence as `Display`, because a `main` that returns this error prints
/// `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    of: Option<Resource>,
    field: Cow<'static, str>,
    value: Box<str>,
    rule: Box<str>,
}

impl ConfigError {
    /// Makes the error that the setting `field` has `value`, which breaks `rule`.
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        value: impl Into<String>,
        rule: impl Into<String>,
    ) -> Self {
        let (value, rule): (String, String) = (value.into(), rule.into());
        Self { of: None, field: field.into(), value: value.into(), rule: rule.into() }
    }

    /// Adds the lock, election or key that the setting belongs to.
    pub(crate) fn of(self, resource: Resource) -> Self {
        // If the setting is the name itself, the message contains it already, as far as it can be
        // shown.
        Self { of: Some(resource).filter(|_| self.field != "name"), ..self }
    }

    /// Replaces the field by the name that the user knows, for example that of an environment
    /// variable.
    pub(crate) fn named(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), ..self }
    }

    /// Returns the setting's name as the user wrote it: that of a builder's method, of an
    /// environment variable, or of a field in a file.
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

/// Kind of a fault: the reason for which a node gave no answer that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NodeFault {
    /// No connection to the server could be made.
    Unreachable,
    /// The node did not answer before the deadline.
    Timeout,
    /// The connection broke while a request was under way.
    Disconnected,
    /// The server is a replica (`READONLY`, or by `ROLE`).
    NotMaster,
    /// The server is still reading its data set (`LOADING`).
    Loading,
    /// The server refuses writes (`NOREPLICAS`), because too few of its replicas are connected and
    /// up to date.
    NoReplicas,
    /// The server answers nothing for some seconds, for a planned handover to another one
    /// (`HANDOVER`).
    HandingOver,
    /// Fewer replicas had the grant by the deadline than the [`Durability`](crate::Durability)
    /// level requires. So the answer is no vote, and the grant is rolled back.
    NotDurable,
    /// The server's min-replicas check (`min-replicas-to-write`) is off or weaker than required, so
    /// the node does not vote.
    MinReplicasMissing,
    /// The server deletes keys when its memory is full, so a lock could be deleted while it is
    /// held; the node does not vote.
    Eviction,
    /// The TLS handshake failed, or the server does not speak TLS.
    Tls,
    /// The server refused the user name or the password.
    Auth,
    /// The user lacks a permission (`NOPERM`).
    NoPermission,
    /// No Sentinel could be reached.
    NoSentinel,
    /// Sentinels answer, but none knows a master of the configured name.
    UnknownMaster,
    /// The server at an address that was given as a Sentinel's is no Sentinel.
    NotSentinel,
    /// Too few Sentinels agree on one master.
    NoAgreement,
    /// Two configured nodes are one and the same server process.
    SameServer,
    /// The request reached the server after its deadline, by the server's own clock, and was not
    /// executed.
    PastDeadline,
    /// The server's clock stepped; its grants do not count for one `max_ttl`.
    ClockJump,
    /// The server granted a fencing token that is further ahead than honest clocks can bring it, so
    /// its grant does not count.
    TokenAhead,
    /// The server is of a kind or version that is not supported.
    Unsupported,
    /// The server answered with an error for which there is no kind of its own here.
    Server,
    /// The answer could not be understood.
    Protocol,
    /// Too many requests of this handle are waiting, so the request was refused at once.
    Busy,
    /// The request cannot be sent: the handle was closed, or the call was polled outside of a tokio
    /// runtime or on one without timers.
    Closed,
}

/// A node's fault with its cause. It is cheap to clone, because one fault may be the answer to all
/// requests of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    fault: NodeFault,
    maybe_executed: bool,
    detail: Arc<str>,
    cause: Option<Cause>,
}

/// Cause of a node's fault, for programs: the [`source`](std::error::Error::source) of a
/// [`NodeError`]. The message of the `NodeError` contains it, too.
///
/// It is not the error of the connection itself, because that may quote what was sent, including
/// passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Kind of an error that the operating system reported.
    Io(std::io::ErrorKind),
    /// Error of the server: the code with which it begins, as `NOPERM`.
    Server(Arc<str>),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(kind) => kind.fmt(f),
            Self::Server(code) => write!(f, "the server answered {code}"),
        }
    }
}

impl std::error::Error for Cause {}

impl NodeError {
    /// Makes the error of a request that certainly took no effect on the node.
    pub fn not_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: false, detail: detail.into(), cause: None }
    }

    /// Makes the error of a request that may have taken effect, or may still do so later, because a
    /// time-out does not cancel a request.
    pub fn maybe_executed(fault: NodeFault, detail: impl Into<Arc<str>>) -> Self {
        Self { fault, maybe_executed: true, detail: detail.into(), cause: None }
    }

    /// Makes the error with which a node answers a request that came after its deadline.
    pub(crate) fn past_deadline() -> Self {
        Self::not_executed(NodeFault::PastDeadline, "by the server's own clock")
    }

    /// Adds to the detail the server at which the fault occurred, and a hint what to check.
    pub(crate) fn at(self, place: &str, hint: &str) -> Self {
        Self { detail: format!("at {place}: {}{hint}", self.detail).into(), ..self }
    }

    /// Adds the error of the system or of the server that caused the fault.
    pub(crate) fn because(self, cause: Option<Cause>) -> Self {
        Self { cause, ..self }
    }

    /// Marks the error as one that came after the request had been executed.
    pub(crate) fn after_execution(self) -> Self {
        Self { maybe_executed: true, ..self }
    }

    /// Returns the kind of fault.
    pub fn fault(&self) -> NodeFault {
        self.fault
    }

    /// Returns true if the request may have run on the node, or may still run, for example when a
    /// frozen server resumes.
    pub fn is_ambiguous(&self) -> bool {
        self.maybe_executed
    }

    /// Returns the detail of the fault, as the server or the system reported it.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the server's or the system's error, if there was one.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// Returns what to do about the error.
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
            | F::NoAgreement => Advice::RetryAfter(Duration::from_millis(500)),
            F::NotMaster | F::Loading | F::NoReplicas | F::Server | F::Protocol => {
                Advice::RetryAfter(Duration::from_secs(1))
            }
            F::ClockJump | F::TokenAhead => Advice::RetryAfter(Duration::from_secs(5)),
            F::MinReplicasMissing
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
            F::NoPermission => "the ACL user lacks a permission; grant it",
            F::NoSentinel => "no Sentinel reachable; check their addresses and the network",
            F::UnknownMaster => "Sentinels know no master of this name; check the master name",
            F::NotSentinel => "this address is not a Sentinel; check host and port",
            F::NoAgreement => "too few Sentinels agree on a master; wait or check the Sentinels",
            F::SameServer => "two configured nodes are the same server; remove one",
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
            F::Server => "server answered with an error",
            F::Protocol => "answer not understood",
            F::Busy => {
                "too many requests wait for this node; send fewer at once, or try again later"
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
