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
        /// What the handler returned.
        value: T,
        /// Which attempt this was; 1 unless earlier ones lapsed.
        attempt: u32,
        /// How durable the result is: whether it survives a failover.
        durability: Achieved,
        /// Whether the value is stored for later callers. A value above
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
        /// Pause before it is worth asking again: what handlers usually take, doubled with each
        /// answer for the key, up to 30 s or half a lease. With jitter.
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint. Nothing was run; retrying cannot help.
    Mismatch,
    /// An earlier attempt may have acted, or may have been forgotten; nothing was run.
    Parked(Parked),
}

impl<T> Outcome<T> {
    /// The result, if there is one: executed now or replayed.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// The result, if there is one: executed now or replayed.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// The result, or why there is none as an error, for callers to whom that is one.
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

    /// True if the handler ran in this call.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed { .. })
    }
}

advise!(NoValue);

/// Why a call gave no result, by [`Outcome::into_result`]. Its handler did not run in this call.
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
        /// Pause before it is worth asking again.
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
    /// The advice for callers.
    pub fn advice(&self) -> Advice {
        match self {
            Self::InFlight { retry_after } => Advice::RetryAfter(*retry_after),
            // Until an operator has decided about the loss.
            Self::Parked(parked) if parked.undecided => Advice::RetryAfter(Duration::from_secs(60)),
            _ => Advice::GiveUp,
        }
    }
}

/// Why a key is parked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// Which key.
    pub key: KeyName,
    /// How many attempts are known to have begun. Zero only for [`ParkedReason::Forgotten`].
    pub attempt: u32,
    /// What is not known.
    pub reason: ParkedReason,
    /// For how long the nodes cannot know, for keys without
    /// [`created_at`](crate::idempotency::Call::created_at), whether they were used before. Zero if
    /// they can.
    pub forgotten_for: Duration,
    /// The losses of the nodes' data for which the key is [`Forgotten`](ParkedReason::Forgotten);
    /// while that is `undecided`, those about which it is not decided yet.
    pub losses: Vec<Loss>,
    /// True if an operator may still decide about these losses, for all keys that they concern at
    /// once (`palisade idem decide`): ask again later. False if it was decided to park, and for
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

/// The losses in parentheses.
struct Spans<'a>(&'a [Loss]);

impl fmt::Display for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, loss) in self.0.iter().enumerate() {
            write!(f, "{}{loss}", if i == 0 { " (" } else { "; " })?;
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Instruction for the person who reads about a forgotten key.
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
            // `palisade idem rerun` changes a record, and no node has one.
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

/// What is not known about a parked key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkedReason {
    /// An attempt ended, or its lease did, without a result: it crashed, failed, or still hangs.
    Lapsed,
    /// A majority of the nodes cannot say "never seen": they are new or lost data, and the key may
    /// be older than that.
    Forgotten,
}

/// What a probe found out about the effect of earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed<T> {
    /// It took effect, with this result: store it and replay it.
    Found(T),
    /// It certainly took no effect and cannot any more: run the handler.
    NotFound,
    /// It is unknown now: park.
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
        /// When its lease ends if it is not renewed.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint than this call's.
    Mismatch,
}

/// The state of a key, by [`Call::lookup`](crate::idempotency::Call::lookup).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status<T> {
    /// Nothing: never used, given back, or older than the retention.
    Absent,
    /// No record on the nodes that answered, and too few of these know whether there was one: they
    /// are new or lost data, and the key may be older than that. A node that has its record may be
    /// one that gave no answer in time, so the next look may find a result. A call would be
    /// answered by its policy for forgotten keys.
    Forgotten {
        /// For how long this lasts for keys without
        /// [`created_at`](crate::idempotency::Call::created_at).
        remaining: Duration,
    },
    /// A handler runs, or an attempt to start one.
    Running {
        /// Which attempt.
        attempt: u32,
        /// When its lease ends if it is not renewed.
        remaining: Duration,
    },
    /// An attempt began and left no result.
    Lapsed {
        /// How many attempts began.
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
