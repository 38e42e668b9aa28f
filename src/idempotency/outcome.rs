//! The outcomes of the operations of a call.

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
    /// The handler ran in this call, and a majority of nodes has stored its result.
    Executed {
        /// Value that the handler returned.
        value: T,
        /// Number of this attempt; 1 unless earlier attempts began and left no result.
        attempt: u32,
        /// Number of replicas that have the result, on which depends whether it survives a
        /// failover.
        durability: Achieved,
        /// True if the value is stored for later callers. If it is larger than
        /// [`max_result`](crate::idempotency::IdempotencyBuilder::max_result), it is not stored,
        /// and later callers are answered [`NotKept`](Self::NotKept).
        kept: bool,
    },
    /// The result that the key has already: the handler ran before, a probe found the effect of an
    /// earlier attempt, or an operator stored the result.
    Replayed(T),
    /// The handler ran before, and its result was too large to be kept. The handler is not run
    /// again.
    NotKept,
    /// The request was made ([`created_at`](crate::idempotency::Call::created_at)) longer ago than
    /// the retention, so its record may be gone. The handler was not run, and a repeated call does
    /// not run it either.
    TooOld,
    /// Another caller's handler runs under this key, so nothing was run here. If the request came
    /// in a message, do not acknowledge the message.
    InFlight {
        /// Time after which it is worthwhile to call again: the usual run time of a handler,
        /// doubled with each such answer for the key, up to 30 s or half a lease, with jitter.
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint. Nothing was run, and to call again cannot
    /// help.
    Mismatch,
    /// Nothing was run, because an earlier attempt left no result and may have taken effect, or
    /// because too few nodes know whether there was an earlier attempt. A person or a probe has to
    /// decide.
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

    /// Returns the result, or an error if the outcome has none. For callers that treat every
    /// outcome without a result as an error.
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

/// The error of a call whose outcome has no result, made by [`Outcome::into_result`]. The handler
/// did not run in this call.
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
        /// Time after which it is worthwhile to call again.
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
    /// Returns what to do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::InFlight { retry_after } => Advice::RetryAfter(*retry_after),
            // An operator may still decide to run the keys that were forgotten because of the loss.
            Self::Parked(parked) if parked.undecided => Advice::RetryAfter(Duration::from_secs(60)),
            _ => Advice::GiveUp,
        }
    }
}

/// The report about a parked key, whose handler was not run because it may have taken effect
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// The parked key.
    pub key: KeyName,
    /// Number of attempts that are known to have begun without leaving a result. Zero only for
    /// [`ParkedReason::Forgotten`].
    pub attempt: u32,
    /// Gap in the knowledge about earlier attempts.
    pub reason: ParkedReason,
    /// Time until enough nodes know again whether a key without
    /// [`created_at`](crate::idempotency::Call::created_at) was used before. Zero if enough nodes
    /// know it now.
    pub forgotten_for: Duration,
    /// Losses of data because of which the key is [`Forgotten`](ParkedReason::Forgotten). If
    /// `undecided` is true, only the losses about which no operator has decided yet.
    pub losses: Vec<Loss>,
    /// True if an operator has not decided yet whether keys that were forgotten because of `losses`
    /// run (`palisade idem decide`), so that it is worthwhile to call again later. False if the
    /// decision was to park, and for [`Lapsed`](ParkedReason::Lapsed).
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

/// A list of losses of data, shown in parentheses.
struct Spans<'a>(&'a [Loss]);

impl fmt::Display for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, loss) in self.0.iter().enumerate() {
            write!(f, "{}{loss}", if i == 0 { " (" } else { "; " })?;
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Task of an operator about a forgotten key, shown as a part of the report's sentence.
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
            // The text does not name `palisade idem rerun`, because that command changes a record,
            // and a forgotten key has none.
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

/// Gap in the knowledge about the earlier attempts of a parked key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkedReason {
    /// It is unknown whether an earlier attempt took effect: the attempt failed, or its lease ended
    /// without a result, because it crashed or still hangs.
    Lapsed,
    /// It is unknown whether there was an earlier attempt: fewer nodes than a majority know of
    /// every use of the key, because the others are new or lost data.
    Forgotten,
}

/// Result of a probe about the effect of earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed<T> {
    /// An earlier attempt took effect, with this result. It is stored, and the call is answered
    /// [`Outcome::Replayed`].
    Found(T),
    /// No earlier attempt took effect, and none can any more, so the handler is run.
    NotFound,
    /// It is unknown whether an earlier attempt took effect, so the key is parked, unless it is
    /// only forgotten and an operator decided to run such keys.
    Unknown,
}

/// The outcome of [`Call::resolve`](crate::idempotency::Call::resolve).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only `Stored` means that the given result was stored"]
pub enum Resolved<T> {
    /// The given result is now the result of the key.
    Stored,
    /// The key has this other result already, which was not changed.
    AlreadyStored(T),
    /// The key has a result already, which was too large to be kept. The result was not changed.
    AlreadyStoredNotKept,
    /// The value is larger than
    /// [`max_result`](crate::idempotency::IdempotencyBuilder::max_result) bytes; nothing was
    /// stored.
    TooLarge,
    /// Another caller's handler runs, so nothing was stored. Wait until it has ended, or its lease
    /// has.
    InFlight {
        /// Time until the lease of the handler's claim ends if it is not renewed.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint than this call's; nothing was stored.
    Mismatch,
}

/// The state of a key as the nodes report it to [`Call::lookup`](crate::idempotency::Call::lookup).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status<T> {
    /// There is no record: the key was never used, it was released, or its record is older than the
    /// retention.
    Absent,
    /// The nodes that answered have no record, and too few of them know whether there was one,
    /// because they are new or lost data and the key may have been used before that. A node that
    /// gave no answer in time may have the record, so the next lookup may find a result.
    /// [`Call::run`](crate::idempotency::Call::run) would follow its policy for forgotten keys.
    Forgotten {
        /// Time until enough nodes know again whether a key without
        /// [`created_at`](crate::idempotency::Call::created_at) had a record.
        remaining: Duration,
    },
    /// A handler runs, or a caller has claimed the key and is about to start its handler.
    Running {
        /// Number of the attempt that runs.
        attempt: u32,
        /// Time until the lease of the attempt's claim ends if it is not renewed.
        remaining: Duration,
    },
    /// An earlier attempt began, has ended or lost its lease, and left no result.
    Lapsed {
        /// Number of attempts that began without leaving a result.
        attempt: u32,
    },
    /// A result is stored on fewer nodes than a majority. The next
    /// [`Call::run`](crate::idempotency::Call::run) completes it without running the handler.
    Unsettled,
    /// The key has this result.
    Stored(T),
    /// The key has a result, which was too large to be kept.
    NotKept,
    /// The key was used with another fingerprint than this call's.
    Mismatch,
}
