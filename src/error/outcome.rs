//! Errors and refusals of calls, with the reply of each node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Advice, Began, Commands, ConfigError, NodeError, NodeFault, Resource};
use crate::op::{Holder, Queued, Reply};
use crate::token::OwnerToken;

/// Reply of one node to a call, for error reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The node granted the request.
    Granted,
    /// Another owner has the lock or key. The time is the rest of the ttl on the node; `None` if
    /// the key has no expiry.
    Held(Option<Duration>),
    /// The node is in quarantine: it may have lost earlier grants, so it grants nothing for some
    /// time.
    #[non_exhaustive]
    Quarantined {
        /// Time until the node grants again.
        remaining: Duration,
        /// State of the node's data. [`Began::Known`] means that the server was restarted, or that
        /// another server took its place.
        began: Began,
    },
    /// The node refused the request for another reason. The reason depends on the call.
    Refused,
    /// The node had not answered when the call ended. The call ended at its deadline, or earlier
    /// because the replies of the other nodes had decided the result.
    Silent,
    /// The node did not vote, because of this fault.
    Failed(NodeError),
}

impl NodeOutcome {
    pub(crate) fn no_answer() -> Self {
        Self::Failed(NodeError::maybe_executed(NodeFault::Timeout, ""))
    }

    pub(crate) fn of(answer: &Result<Reply, NodeError>) -> Self {
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => return Self::Failed(e.clone()),
        };
        match reply {
            Reply::Quarantined { remaining, began, .. } => Self::quarantined(*remaining, *began),
            Reply::Held { remaining, .. } | Reply::Queued { remaining, .. } => {
                Self::Held(*remaining)
            }
            Reply::InFlight { remaining } => Self::Held(Some(*remaining)),
            Reply::Holder(Some(Holder { owner: Some(owner), remaining, .. })) => match *owner {
                // A planned handover was a short time ago.
                OwnerToken::KEPT => Self::quarantined(remaining.unwrap_or_default(), Began::Known),
                _ => Self::Held(Some(remaining.unwrap_or_default())),
            },
            Reply::Record { .. } | Reply::Candidates(_) => Self::Granted,
            reply if reply.is_grant() => Self::Granted,
            _ => Self::Refused,
        }
    }

    pub(crate) fn quarantined(remaining: Duration, began: Began) -> Self {
        Self::Quarantined { remaining, began }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Quarantined { began: Began::Empty, .. })
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Held(Some(d)) => write!(f, "held by another owner for {d:?} at most"),
            Self::Held(None) => f.write_str("held by another owner without expiry"),
            Self::Quarantined { remaining, began: Began::Empty } => {
                write!(f, "never initialised: new, or emptied; grants begin in {remaining:?}")
            }
            Self::Quarantined { remaining, began: Began::Lost } => {
                write!(f, "its data are lost; grants begin in {remaining:?}")
            }
            Self::Quarantined { remaining, began: Began::Known } => {
                write!(
                    f,
                    "in quarantine after a restart or failover; grants begin in {remaining:?}"
                )
            }
            Self::Refused => f.write_str("refused"),
            Self::Silent => f.write_str("no answer until the call ended"),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

/// Error of a call for which too few nodes voted. So it is unknown if the lock, election or key is
/// free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoQuorum {
    /// Lock, election or key of the call.
    pub of: Option<Resource>,
    /// Number of votes that the call needed.
    pub needed: usize,
    /// Name and reply of every node.
    pub nodes: Vec<(Arc<str>, NodeOutcome)>,
    /// Time for which the call waited for enough replies; `None` for a call that does not wait.
    pub waited: Option<Duration>,
    /// The commands with which an operator acts on these nodes.
    pub commands: Commands,
}

impl NoQuorum {
    pub(crate) fn of(self, resource: Resource) -> Self {
        Self { of: Some(resource), ..self }
    }

    pub(crate) fn without_wait(&self) -> Self {
        Self { waited: None, ..self.clone() }
    }

    /// Returns the next step after the error. If the fault of one node is temporary, the advice is
    /// to retry after the shortest time of all temporary faults. Otherwise the advice is that for
    /// the last failed node.
    pub fn advice(&self) -> Advice {
        let mut wait: Option<Duration> = None;
        let mut seen = None;
        for (_, outcome) in &self.nodes {
            let advice = match outcome {
                NodeOutcome::Failed(e) => e.advice(),
                NodeOutcome::Quarantined { remaining, .. } => Advice::RetryAfter(*remaining),
                _ => continue,
            };
            if let Advice::RetryAfter(d) = advice {
                wait = Some(wait.map_or(d, |w| w.min(d)));
            }
            seen = Some(advice);
        }
        // The same advice as for a time-out.
        let silence = Advice::RetryAfter(Duration::from_millis(500));
        wait.map(Advice::RetryAfter).or(seen).unwrap_or(silence)
    }

    /// Even with the votes of all silent nodes, too few nodes could have voted.
    fn is_decided(&self) -> bool {
        let may = |outcome: &&(Arc<str>, NodeOutcome)| {
            !matches!(outcome.1, NodeOutcome::Failed(_) | NodeOutcome::Quarantined { .. })
        };
        self.nodes.iter().filter(may).count() < self.needed
    }

    /// Returns the time until enough nodes will grant again, if only quarantines prevent a quorum.
    /// Returns `None` if other faults prevent it.
    pub fn quarantine(&self) -> Option<Duration> {
        let (mut able, mut silent, mut shut) = (0, 0, Vec::new());
        for (_, outcome) in &self.nodes {
            match outcome {
                NodeOutcome::Granted | NodeOutcome::Held(_) | NodeOutcome::Refused => able += 1,
                NodeOutcome::Silent => silent += 1,
                NodeOutcome::Quarantined { remaining, .. } => shut.push(*remaining),
                NodeOutcome::Failed(_) => {}
            }
        }
        shut.sort_unstable();
        // A silent node counts as quarantined only if there are not enough others for a majority.
        let needed = self.needed.checked_sub(able)?;
        let last = needed.min(shut.len()).checked_sub(1)?;
        (shut.len() + silent >= needed).then(|| shut[last])
    }
}

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(of) = &self.of {
            write!(f, "{of}: ")?;
        }
        write!(f, "no quorum: {} of {} nodes needed", self.needed, self.nodes.len())?;
        let decided = self.is_decided();
        for (name, outcome) in &self.nodes {
            match outcome {
                NodeOutcome::Silent if decided => {
                    write!(f, "; {name}: not needed, the other nodes had decided")?;
                }
                outcome => write!(f, "; {name}: {outcome}")?,
            }
        }
        if self.nodes.iter().any(|(_, outcome)| outcome.is_empty()) {
            write!(f, "; {}", self.commands.first_step())?;
        }
        if let (Some(waited), Some(left)) = (self.waited, self.quarantine()) {
            let longer = Duration::from_secs((waited + left).as_secs() + 2);
            write!(
                f,
                "; waited {waited:?}, and the quarantine lasts {left:?} more: an \
                 `acquire_timeout` of {longer:?} would have outlasted it"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for NoQuorum {}

/// Refusal of a lock because another owner has the lock. A refusal is a regular reply and no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// Longest time until a majority of the nodes is free, if the holder neither renews nor
    /// releases the lock. Zero if several attempts competed and no owner has a majority. `None` if
    /// the key never expires.
    pub retry_after: Option<Duration>,
    /// True if the value of the key is of another type, or does not have the form of an owner
    /// token. Either the key belongs to another program, or readers hold the lock and this client's
    /// user lacks the permission to read them (`+zrange`).
    pub foreign: bool,
    /// Position of a [fair](crate::MutexBuilder::fair) caller among the waiting callers. `None` if
    /// the caller is not fair, or if no majority has given the caller a place.
    pub queued: Option<Queued>,
}

impl Taken {
    fn what_to_do(&self) -> &'static str {
        match (self.foreign, self.retry_after) {
            (false, Some(_)) => {
                "raise `acquire_timeout`, or look for a stuck holder; after a planned handover, a \
                 name that was used lately stays with its last holder for twice `clock_error`"
            }
            (false, None) => {
                "its key never expires, unlike any that palisade writes (PERSIST, RESTORE): delete \
                 the key if no process holds the lock"
            }
            (true, None) => {
                "another program's value is under its key: use another name or `prefix`, or delete \
                 the key if no program needs it"
            }
            // Keys with readers always expire.
            (true, Some(_)) => {
                "its key, which expires, holds another program's value (use another name or \
                 `prefix`) or readers of the lock, whom this client does not recognise if its user \
                 lacks +zrange or a newer version wrote them: do not delete the key"
            }
        }
    }

    pub(crate) fn advice(&self) -> Advice {
        match self.retry_after {
            Some(after) => Advice::RetryAfter(after),
            None if self.foreign => Advice::Misconfigured,
            None => Advice::GiveUp,
        }
    }
}

/// Error of [`acquire`](crate::Mutex::acquire), [`try_acquire`](crate::Mutex::try_acquire) and
/// other calls that take a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Too few nodes voted. This caller does not hold the lock. Nodes that may have granted it are
    /// asked in the background to release it.
    #[error("not acquired: {0}")]
    NoQuorum(NoQuorum),
    /// Another owner held the lock until the deadline of the call, or another program's value was
    /// under the lock's key ([`Taken::foreign`]).
    #[error("{of}: still taken after waiting {waited:?}; {}", taken.what_to_do())]
    TimedOut {
        /// The lock that could not be acquired.
        of: Resource,
        /// Time for which the call waited.
        waited: Duration,
        /// Refusal that the last attempt received.
        taken: Taken,
    },
    /// [`Redlock::close`](crate::Redlock::close) was called. This caller does not hold the lock.
    #[error("{0}: not acquired, the handle was closed; build a new one")]
    Closed(Resource),
    /// This owner still has a guard of the same lock, and that guard is lost. Nothing was sent to
    /// the nodes. Occurs only with a [`ReentrantMutex`](crate::ReentrantMutex).
    #[error("{0}: lost while this owner held it; end its work, and then acquire again")]
    Lost(Resource),
    /// The name, a setting or an argument is invalid, and nothing was sent to the nodes. Occurs
    /// only if a [`MutexBuilder`](crate::MutexBuilder) is awaited, and in
    /// [`acquire_many`](crate::Semaphore::acquire_many) and
    /// [`try_acquire_many`](crate::Semaphore::try_acquire_many).
    #[error("not acquired: {0}")]
    Config(ConfigError),
}

impl From<NoQuorum> for AcquireError {
    fn from(error: NoQuorum) -> Self {
        Self::NoQuorum(error)
    }
}

impl AcquireError {
    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NoQuorum(e) => e.advice(),
            Self::TimedOut { taken, .. } => taken.advice(),
            Self::Closed(_) => Advice::Rebuild,
            Self::Lost(_) => Advice::GiveUp,
            Self::Config(e) => e.advice(),
        }
    }
}

/// Error of [`LockGuard::extend`](crate::LockGuard::extend).
/// [`LockGuard::is_valid`](crate::LockGuard::is_valid) reports if the lock is still held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost. Its deadline has passed, another owner has a majority of the nodes, or no
    /// majority can confirm the lock after a failover.
    #[error("{0}: lost; stop the work, a new holder may exist")]
    Lost(Resource),
    /// Too few nodes answered. The caller holds the lock until the old deadline.
    #[error("not extended, held until the old deadline: {0}")]
    Unknown(NoQuorum),
}

impl ExtendError {
    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Lost(_) => Advice::GiveUp,
            Self::Unknown(e) => e.advice(),
        }
    }
}

/// Error of a release. The call could not confirm that the lock was held until the release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease had ended before the release, or the lock was lost in another way. Another owner
    /// may have held the lock in between.
    #[error("{0}: lost before the release; only its fencing token protects what was written late")]
    Lost(Resource),
    /// The lease had ended, and another owner has acquired the lock on a majority of the nodes.
    #[error("{0}: taken by another owner; only its fencing token protects what was written late")]
    TakenByOther(Resource),
    /// Too few nodes answered. The lock was valid until the release, because its deadline had not
    /// passed. The release is repeated in the background until the nodes confirm it or the ttl ends
    /// the lock.
    #[error("release unconfirmed, clean-up goes on in the background: {0}")]
    Unconfirmed(NoQuorum),
}

impl ReleaseError {
    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Lost(_) | Self::TakenByOther(_) => Advice::GiveUp,
            Self::Unconfirmed(e) => e.advice(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_quorum(cells: &str) -> NoQuorum {
        let outcome = |cell: &str| match cell.parse() {
            Ok(secs) => NodeOutcome::quarantined(Duration::from_secs(secs), Began::Known),
            Err(_) => match cell {
                "g" => NodeOutcome::Granted,
                "h" => NodeOutcome::Held(None),
                "." => NodeOutcome::Silent,
                _ => NodeOutcome::Failed(NodeError::not_executed(NodeFault::Unreachable, "")),
            },
        };
        let nodes: Vec<_> = cells.split(' ').map(|cell| (Arc::from(cell), outcome(cell))).collect();
        let commands = Commands::new([Arc::from("redis://a")].into_iter(), "");
        NoQuorum { of: None, needed: nodes.len() / 2 + 1, nodes, waited: None, commands }
    }

    #[test]
    fn a_quarantine_ends_when_a_majority_can_grant() {
        for (cells, secs) in [
            ("5", Some(5)),
            ("x", None),
            (".", None),
            ("5 7 g", Some(5)),
            ("5 7 h", Some(5)),
            ("5 7 9", Some(7)),
            ("5 7 .", Some(7)),
            ("5 . .", Some(5)),
            ("5 x .", Some(5)),
            ("5 7 x", Some(7)),
            ("5 x g", Some(5)),
            ("5 x x", None),
            ("x x .", None),
            ("5 7 9 . g", Some(7)),
            ("g g 5", None),
        ] {
            let found = no_quorum(cells).quarantine().map(|d| d.as_secs());
            assert_eq!(found, secs, "{cells}");
        }
    }

    #[test]
    fn a_value_that_may_be_readers_is_not_to_be_deleted() {
        let advice = |retry_after| Taken { retry_after, foreign: true, queued: None }.what_to_do();
        assert!(advice(None).contains("or delete the key if no program needs it"));
        let may_be_readers = advice(Some(Duration::from_secs(9)));
        assert!(may_be_readers.ends_with("do not delete the key"), "{may_be_readers}");
        assert!(may_be_readers.contains("+zrange"), "{may_be_readers}");
    }

    #[test]
    fn a_silent_node_is_called_unneeded_only_where_the_others_had_decided() {
        for (cells, unneeded) in
            [(".", false), ("g . x", false), ("x x .", true), ("5 x .", true), ("5 . .", false)]
        {
            let text = no_quorum(cells).to_string();
            assert_eq!(text.contains("the other nodes had decided"), unneeded, "{text}");
            assert_eq!(text.contains("no answer until the call ended"), !unneeded, "{text}");
        }
    }

    #[test]
    fn a_wait_that_was_too_short_names_one_that_is_long_enough() {
        let mut e = no_quorum("5 7 9").of(Resource::Lock("a".into()));
        assert!(!e.to_string().contains("`acquire_timeout`"), "{e}");
        e.waited = Some(Duration::from_secs(2));
        let text = AcquireError::from(e).to_string();
        assert!(text.starts_with("not acquired: lock \"a\": no quorum: 2 of 3 nodes"), "{text}");
        assert!(
            text.ends_with("7s more: an `acquire_timeout` of 11s would have outlasted it"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_node_is_called_what_it_is() {
        let say = |began| NodeOutcome::quarantined(Duration::from_secs(10), began).to_string();
        assert_eq!(say(Began::Empty), "never initialised: new, or emptied; grants begin in 10s");
        let mut e = no_quorum("5 5");
        assert!(!e.to_string().contains("palisade init"), "{e}");
        e.nodes[1].1 = NodeOutcome::quarantined(Duration::from_secs(10), Began::Empty);
        let whole = "; if the whole deployment is new: `palisade init --new --node redis://a` (in \
                     tests: `trust_fresh(true)`); if it had data before, do not: `palisade idem \
                     incidents --node redis://a`";
        assert!(e.to_string().ends_with(whole), "{e}");
        assert_eq!(say(Began::Lost), "its data are lost; grants begin in 10s");
        let known = say(Began::Known);
        assert_eq!(known, "in quarantine after a restart or failover; grants begin in 10s");
    }

    #[test]
    fn an_error_has_its_cause_in_its_sentence_or_as_its_source_and_never_both() {
        let of = || Resource::Lock("a".into());
        let why = || no_quorum("x x .").of(of());
        let taken = Taken { retry_after: None, foreign: false, queued: None };
        let waited = Duration::from_secs(2);
        let all: [Box<dyn std::error::Error>; 8] = [
            Box::new(AcquireError::NoQuorum(why())),
            Box::new(AcquireError::TimedOut { of: of(), waited, taken }),
            Box::new(AcquireError::Closed(of())),
            Box::new(ExtendError::Lost(of())),
            Box::new(ExtendError::Unknown(why())),
            Box::new(ReleaseError::Lost(of())),
            Box::new(ReleaseError::TakenByOther(of())),
            Box::new(ReleaseError::Unconfirmed(why())),
        ];
        for e in all {
            assert!(e.to_string().contains("lock \"a\""), "{e} names no lock");
            assert!(e.source().is_none(), "{e} has a source besides");
        }
    }
}
