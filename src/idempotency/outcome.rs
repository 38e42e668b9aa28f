//! The outcomes of a call.

use std::fmt;
use std::time::Duration;

use super::KeyName;
use crate::durability::Achieved;
use crate::error::{Advice, advise};
use crate::op::Loss;

/// The outcome of [`Call::run`](crate::idempotency::Call::run).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only some of these mean that the work is done"]
pub enum Outcome<T> {
    /// The handler ran now, and a majority of nodes has stored its result.
    Executed {
        /// Value that the handler returned.
        value: T,
        /// Number of this attempt; 1 unless earlier ones lapsed.
        attempt: u32,
        /// Durability of the result: whether it survives a failover.
        durability: Achieved,
        /// True if the value is stored for later callers. A value above
        /// [`max_result`](crate::idempotency::IdempotencyBuilder::max_result) is not: they are
        /// answered [`NotKept`](Self::NotKept).
        kept: bool,
    },
    /// The stored result: the handler ran before, or a probe found its effect.
    Replayed(T),
    /// The handler ran before, and its result was too large to be kept. It is not run again.
    NotKept,
    /// The request was made ([`created_at`](crate::idempotency::Call::created_at)) longer ago than
    /// the retention, so its record may be gone. The handler was not run, and a repeated call does
    /// not run it.
    TooOld,
    /// Another caller's handler runs. Nothing was run here; do not acknowledge the message.
    InFlight {
        /// Pause before the next call is worthwhile: the usual run time of a handler, doubled with
        /// each answer for the key, up to 30 s or half a lease, with jitter.
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint. Nothing was run; retrying cannot help.
    Mismatch,
    /// An earlier attempt may have acted, or may have been forgotten; nothing was run.
    Parked(Parked),
}

impl<T> Outcome<T> {
    /// Returns the result, if there is one: executed now or replayed.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the result by value, if there is one: executed now or replayed.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the result; an outcome without one becomes an error. For callers that treat these
    /// outcomes as errors.
    ///
    /// ```
    /// # async fn demo(orders: palisade::Idempotency) -> Result<(), Box<dyn std::error::Error>> {
    /// let outcome = orders.key("order:7").run(|_| async { Ok::<_, String>(42) }).await?;
    /// let receipt: i32 = outcome.into_result()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NoValue`], one variant for each outcome without a result.
    pub fn into_result(self) -> Result<T, NoValue> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Ok(value),
            Self::NotKept => Err(NoValue::NotKept),
            Self::TooOld => Err(NoValue::TooOld),
            Self::InFlight { retry_after } => Err(NoValue::InFlight { retry_after }),
            Self::Mismatch => Err(NoValue::Mismatch),
            Self::Parked(parked) => Err(NoValue::Parked(parked)),
        }
    }

    /// Returns true if the handler ran in this call.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed { .. })
    }
}

advise!(NoValue);

/// The error of a call without a result, made by [`Outcome::into_result`]. The handler did not run
/// in this call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoValue {
    /// As [`Outcome::NotKept`].
    #[error("the handler ran before, and its result was too large to be kept")]
    NotKept,
    /// As [`Outcome::TooOld`].
    #[error("the request is older than the retention, so its record may be gone; nothing was run")]
    TooOld,
    /// As [`Outcome::InFlight`].
    #[error("another caller's handler runs; ask again in {retry_after:?}")]
    InFlight {
        /// Pause before the next call is worthwhile.
        retry_after: Duration,
    },
    /// As [`Outcome::Mismatch`].
    #[error("the key was used before for another request; nothing was run")]
    Mismatch,
    /// As [`Outcome::Parked`].
    #[error("{0}")]
    Parked(Parked),
}

impl NoValue {
    /// Returns what to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::InFlight { retry_after } => Advice::RetryAfter(*retry_after),
            // An operator may still decide about the loss.
            Self::Parked(parked) if parked.undecided => Advice::RetryAfter(Duration::from_secs(60)),
            _ => Advice::GiveUp,
        }
    }
}

/// The report of a parked key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// The parked key.
    pub key: KeyName,
    /// Number of attempts that are known to have begun. Zero only for [`ParkedReason::Forgotten`].
    pub attempt: u32,
    /// The question that is open.
    pub reason: ParkedReason,
    /// Time for which the nodes cannot know, for keys without
    /// [`created_at`](crate::idempotency::Call::created_at), whether they were used before. Zero if
    /// they can.
    pub forgotten_for: Duration,
    /// Losses of the nodes' data for which the key is [`Forgotten`](ParkedReason::Forgotten); while
    /// `undecided` is true, those that are still undecided.
    pub losses: Vec<Loss>,
    /// True if an operator may still decide about these losses, for all keys that they concern at
    /// once (`palisade idem decide`): call again later. False if the decision was to park, and for
    /// [`Lapsed`](ParkedReason::Lapsed).
    pub undecided: bool,
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            ParkedReason::Lapsed => write!(
                f,
                "{}: attempt {} began and left no result; find out whether it took effect, then \
                 resolve the key or rerun it",
                self.key, self.attempt
            ),
            ParkedReason::Forgotten => write!(
                f,
                "{}: too few nodes know whether this key was used before, for they are new or \
                 lost data{}; {} (for another {:?} so are new keys without `created_at`)",
                self.key,
                Spans(&self.losses),
                Next(self),
                Duration::from_secs(self.forgotten_for.as_secs())
            ),
        }
    }
}

/// A list of losses, shown in parentheses.
struct Spans<'a>(&'a [Loss]);

impl fmt::Display for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, loss) in self.0.iter().enumerate() {
            write!(f, "{}{loss}", if i == 0 { " (" } else { "; " })?;
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// The instruction for an operator who reads about a forgotten key.
struct Next<'a>(&'a Parked);

impl fmt::Display for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parked = self.0;
        match parked.losses.first() {
            Some(loss) if parked.undecided => write!(
                f,
                "undecided: find out whether such keys took effect, then decide for all of them: \
                 `palisade idem decide --namespace {} --loss {} --reason '…' --park` (or `--run`, \
                 if none of them did), or resolve this key",
                parked.key.namespace(),
                loss.number()
            ),
            // `palisade idem rerun` changes a record, and here no node has one, so the text does
            // not name it.
            Some(_) => f.write_str(
                "decided: park; find out whether it took effect, then resolve the key or rerun it \
                 in its program, or have all such keys run by `palisade idem decide … --reason '…' \
                 --run --replace`",
            ),
            None => {
                f.write_str("find out whether it took effect, then resolve the key or rerun it")
            }
        }
    }
}

/// The open question about a parked key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkedReason {
    /// An attempt, or its lease, ended without a result: it crashed, failed, or still hangs.
    Lapsed,
    /// A majority of the nodes cannot say "never seen": they are new or lost data, and the key may
    /// be older than that.
    Forgotten,
}

/// Result of a probe about the effect of earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed<T> {
    /// An earlier attempt took effect, with this result: store it and replay it.
    Found(T),
    /// No earlier attempt took effect, and none can any more: run the handler.
    NotFound,
    /// It is unknown whether an earlier attempt took effect: park the key.
    Unknown,
}

/// The outcome of [`Call::resolve`](crate::idempotency::Call::resolve).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only `Stored` means that the given result was stored"]
pub enum Resolved<T> {
    /// The given result is now the result of the key.
    Stored,
    /// The key has another result already; it was not changed.
    AlreadyStored(T),
    /// The key has another result already, which was too large to be kept; it was not changed.
    AlreadyStoredNotKept,
    /// The value is larger than
    /// [`max_result`](crate::idempotency::IdempotencyBuilder::max_result) bytes; nothing was
    /// stored.
    TooLarge,
    /// A handler runs; wait for it or for its lease to end.
    InFlight {
        /// Time until its lease ends if it is not renewed.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint than this call's.
    Mismatch,
}

/// The state of a key, by [`Call::lookup`](crate::idempotency::Call::lookup).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status<T> {
    /// No record: never used, released, or older than the retention.
    Absent,
    /// No record on the nodes that answered, and too few of these know whether there was one: they
    /// are new or lost data, and the key may be older than that. A node that has its record may be
    /// one that gave no answer in time, so the next lookup may find a result. A call would be
    /// answered by its policy for forgotten keys.
    Forgotten {
        /// Time for which this lasts for keys without
        /// [`created_at`](crate::idempotency::Call::created_at).
        remaining: Duration,
    },
    /// A handler runs, or an attempt to start one.
    Running {
        /// Number of the attempt.
        attempt: u32,
        /// Time until its lease ends if it is not renewed.
        remaining: Duration,
    },
    /// An attempt began and left no result.
    Lapsed {
        /// Number of attempts that began.
        attempt: u32,
    },
    /// A result is on too few nodes to be certain; the next run completes it without running the
    /// handler.
    Unsettled,
    /// The result.
    Stored(T),
    /// There is a result, which was too large to be kept.
    NotKept,
    /// The key was used with another fingerprint than this call's.
    Mismatch,
}
