//! The outcomes of the operations of a call under an idempotency key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::KeyName;
use crate::durability::Achieved;
use crate::error::Commands;
use crate::op::Loss;

/// The outcome of [`Call::run`](crate::idempotency::Call::run).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only some of these mean that the work is done"]
pub enum Outcome<T> {
    /// The handler ran in this call, and a majority of the nodes has stored its result.
    Executed {
        /// Value that the handler returned.
        value: T,
        /// Number of this attempt. It is 1 if no earlier attempt began without a result.
        attempt: u32,
        /// Number of replicas that have the result. The result survives a failover to one of these
        /// replicas.
        durability: Achieved,
        /// True if the value is stored for later callers. A value that is larger than
        /// [`max_result`](crate::idempotency::IdempotencyBuilder::max_result) is not stored. Later
        /// callers then get [`NotKept`](Self::NotKept).
        kept: bool,
    },
    /// The stored result of the key. Either the handler ran in an earlier call, or a probe found
    /// the effect of an earlier attempt, or an operator stored the result.
    Replayed(T),
    /// The handler ran in an earlier call, and its result was too large to be kept. The handler
    /// does not run again.
    NotKept,
    /// The request is older than the retention, by its
    /// [`created_at`](crate::idempotency::Call::created_at). So the record of its key may have
    /// expired. The handler did not run, and it will not run in later calls of this request either.
    TooOld,
    /// Another caller's handler runs under this key, so this call ran no handler. If the request is
    /// a message, do not acknowledge the message.
    InFlight {
        /// Advised pause before the next call. The pause begins at the usual run time of a handler.
        /// It doubles with each such outcome of the key, up to 30 s or half a lease, with jitter.
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint. The handler did not run, and every further
    /// call fails in the same way.
    Mismatch,
    /// The handler did not run. Either an earlier attempt left no result and may have taken effect,
    /// or too few nodes can exclude an earlier attempt. A person or a probe has to decide.
    Parked(Parked),
}

impl<T> Outcome<T> {
    /// Returns the result, executed now or replayed; `None` if the outcome has no result.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the result by value, executed now or replayed; `None` if the outcome has no result.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Executed { value, .. } | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }

    /// Returns true if the handler ran in this call.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed { .. })
    }
}

/// One line, without the result. That of a parked key has the command with which an operator acts.
impl<T> fmt::Display for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Executed { attempt: 1, .. } => f.write_str("executed"),
            Self::Executed { attempt, .. } => write!(f, "executed, as attempt {attempt}"),
            Self::Replayed(_) => f.write_str("executed by an earlier call"),
            Self::NotKept => f.write_str("executed by an earlier call; its result was too large"),
            Self::TooOld => f.write_str("not run: the request is older than the retention"),
            Self::InFlight { retry_after } => {
                write!(f, "another caller works on it: call again in {retry_after:?}")
            }
            Self::Mismatch => f.write_str("not run: the key belongs to another request"),
            Self::Parked(parked) => parked.fmt(f),
        }
    }
}

/// The report about a parked key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// The key.
    pub key: KeyName,
    /// Number of known attempts that began and left no result. Zero only for
    /// [`ParkedReason::Forgotten`].
    pub attempt: u32,
    /// Reason for which the handler may have taken effect before.
    pub reason: ParkedReason,
    /// Time for which keys without [`created_at`](crate::idempotency::Call::created_at) still count
    /// as forgotten. Zero if they do not now.
    pub forgotten_for: Duration,
    /// Losses of data because of which the key is [`Forgotten`](ParkedReason::Forgotten). If
    /// `undecided` is true, the list contains only the losses without an operator's decision.
    pub losses: Vec<Loss>,
    /// True if an operator can still decide about all keys that are forgotten because of the same
    /// `losses` of data (`palisade idem decide`). A later call may then have another outcome. False
    /// after a decision to park, and for [`Lapsed`](ParkedReason::Lapsed).
    pub undecided: bool,
    /// The commands with which an operator acts on the nodes.
    pub commands: Commands,
    /// Nodes that gave no grant and may remember the key, if that is the only reason: operators
    /// have decided to run the keys of all its losses. A later call runs when these nodes answer.
    pub unheard: Vec<Arc<str>>,
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
                self.spans(),
                self.next_step(),
                Duration::from_secs(self.forgotten_for.as_secs())
            ),
        }
    }
}

impl Parked {
    /// In parentheses; an empty text if there are none.
    fn spans(&self) -> String {
        if self.losses.is_empty() {
            return String::new();
        }
        let losses: Vec<String> = self.losses.iter().map(Loss::to_string).collect();
        format!(" ({})", losses.join("; "))
    }

    fn next_step(&self) -> String {
        if self.losses.is_empty() {
            return "find out whether it took effect, then resolve the key or rerun it".to_owned();
        }
        let (namespace, losses) = (self.key.namespace(), Loss::names(&self.losses));
        if let Some(node) = self.unheard.first() {
            format!(
                "decided: run; but {} gave no answer, and may remember this key: it runs when all \
                 nodes answer (for one that is gone for good: `{} --without {node}`)",
                self.unheard.join(", "),
                self.commands.run(namespace, &losses)
            )
        } else if self.undecided {
            format!(
                "undecided, so it waits: if none of the requests that wait took effect, `{}`; if \
                 some did, or nobody can tell, let them wait, give the calls `created_at`, by \
                 which \
                 requests made after the loss run, and then decide about the rest: `{}` says how",
                self.commands.run(namespace, &losses),
                self.commands.incidents()
            )
        } else {
            // Not `palisade idem rerun`: it changes a record, and a forgotten key has none.
            format!(
                "decided: park; find out whether it took effect, then resolve the key or rerun it \
                 in its program, or have all such keys run: `{}`",
                self.commands.run_parked(namespace, &losses)
            )
        }
    }
}

/// Reason for which a parked key's handler may have taken effect before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkedReason {
    /// An earlier attempt may have taken effect. It failed, or its lease ended without a result
    /// because the attempt crashed or hangs.
    Lapsed,
    /// There may have been an earlier attempt. Too few nodes have the record of every use of the
    /// key, because the other nodes are new or have lost data.
    Forgotten,
}

/// Result of a probe about the effect of earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed<T> {
    /// An earlier attempt took effect, with this result. The result is stored, and the call returns
    /// [`Outcome::Replayed`].
    Found(T),
    /// No earlier attempt took effect, and none can take effect later. So the handler runs.
    NotFound,
    /// An earlier attempt may have taken effect, so the key is parked. There is one exception: the
    /// handler of a key that is only forgotten runs if an operator has decided so.
    Unknown,
}

/// The outcome of [`Call::resolve`](crate::idempotency::Call::resolve).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only `Stored` means that the given result was stored"]
pub enum Resolved<T> {
    /// The passed value is now the result of the key.
    Stored,
    /// The key already has this other result. It was not changed.
    AlreadyStored(T),
    /// The key already has a result, which was too large to be kept. It was not changed.
    AlreadyStoredNotKept,
    /// The value is larger than [`max_result`](crate::idempotency::IdempotencyBuilder::max_result)
    /// bytes, so it was not stored.
    TooLarge,
    /// Another caller's handler runs, so the value was not stored. Wait until the handler or its
    /// lease has ended.
    InFlight {
        /// Rest of the lease of the handler's claim. A renewal extends the lease.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint than that of this call, so the value was not
    /// stored.
    Mismatch,
}

/// The state of a key, as read from the nodes by
/// [`Call::lookup`](crate::idempotency::Call::lookup).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status<T> {
    /// There is no record. The key was never used, it was released, or its record has expired after
    /// the retention.
    Absent,
    /// The nodes that replied have no record of the key, and too few nodes can exclude that there
    /// was one. A node without a reply in time may have the record, so the next lookup may find a
    /// result. [`Call::run`](crate::idempotency::Call::run) would apply its policy for forgotten
    /// keys.
    Forgotten {
        /// Time for which keys without [`created_at`](crate::idempotency::Call::created_at) still
        /// count as forgotten.
        remaining: Duration,
    },
    /// A handler runs, or a caller has claimed the key and will start its handler.
    Running {
        /// Number of the running attempt.
        attempt: u32,
        /// Rest of the lease of the attempt's claim. A renewal extends the lease.
        remaining: Duration,
    },
    /// An earlier attempt began and left no result. The attempt or its lease has ended.
    Lapsed {
        /// Number of attempts that began and left no result.
        attempt: u32,
    },
    /// Fewer nodes than a majority have a result. The next
    /// [`Call::run`](crate::idempotency::Call::run) stores this result on a majority and runs no
    /// handler.
    Unsettled,
    /// The key has this result.
    Stored(T),
    /// The key has a result that was too large to be kept.
    NotKept,
    /// The key was used with another fingerprint than that of this call.
    Mismatch,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(reason: ParkedReason) -> Parked {
        let noon = 1_763_906_600_000;
        Parked {
            key: KeyName::new(&"orders".into(), &"7".into()),
            attempt: 2,
            reason,
            forgotten_for: Duration::from_millis(90_400),
            losses: vec![Loss::between(0, noon), Loss::between(noon, noon + 6)],
            undecided: false,
            commands: Commands::new([Arc::from("redis://a")].into_iter(), ""),
            unheard: Vec::new(),
        }
    }

    #[test]
    fn each_outcome_is_one_line_without_its_result() {
        let executed = |attempt| Outcome::Executed {
            value: "secret",
            attempt,
            durability: Achieved::default(),
            kept: true,
        };
        let retry_after = Duration::from_millis(1_500);
        for (outcome, line) in [
            (executed(1), "executed"),
            (executed(3), "executed, as attempt 3"),
            (Outcome::Replayed("secret"), "executed by an earlier call"),
            (Outcome::NotKept, "executed by an earlier call; its result was too large"),
            (Outcome::TooOld, "not run: the request is older than the retention"),
            (Outcome::InFlight { retry_after }, "another caller works on it: call again in 1.5s"),
            (Outcome::Mismatch, "not run: the key belongs to another request"),
            (
                Outcome::Parked(parked(ParkedReason::Lapsed)),
                "\"orders:7\": attempt 2 began and left no result; find out whether it took \
                 effect, then resolve the key or rerun it",
            ),
        ] {
            assert_eq!(format!("{outcome}"), line);
        }
    }

    #[test]
    fn the_line_of_a_forgotten_key_has_the_next_step() {
        let line = |parked: Parked| format!("{}", Outcome::<()>::Parked(parked));
        let forgotten = || parked(ParkedReason::Forgotten);
        let whose = "\"orders:7\": too few nodes know whether this key was used before, for they \
                     are new or lost data";
        let end = " (for another 90s so are new keys without `created_at`)";
        let losses = " (may have lost every write until 2025-11-23 14:03:20.0 UTC; lost at most \
                      0.1 s of writes, 2025-11-23 14:03:20.0–14:03:20.1 UTC)";
        let decide = |what: &str| {
            format!(
                "palisade idem decide --namespace orders --loss \
                 20251123-140320.000,20251123-140320.006 {what} --reason 'none took effect' --node \
                 redis://a"
            )
        };
        let find_out = "find out whether it took effect, then resolve the key or rerun it";
        assert_eq!(
            line(Parked { losses: Vec::new(), ..forgotten() }),
            format!("{whose}; {find_out}{end}")
        );
        assert_eq!(
            line(forgotten()),
            format!(
                "{whose}{losses}; decided: park; {find_out} in its program, or have all such keys \
                 run: `{}`{end}",
                decide("--run --replace")
            )
        );
        let undecided = line(Parked { undecided: true, ..forgotten() });
        let run = format!("if none of the requests that wait took effect, `{}`;", decide("--run"));
        for part in ["undecided, so it waits", &run, "`palisade idem incidents --node redis://a`"] {
            assert!(undecided.contains(part), "{part} in {undecided}");
        }
        let unheard = line(Parked { unheard: vec!["b".into(), "c".into()], ..forgotten() });
        let gone = format!("for one that is gone for good: `{} --without b`", decide("--run"));
        for part in ["decided: run; but b, c gave no answer", &gone] {
            assert!(unheard.contains(part), "{part} in {unheard}");
        }
        assert!([&undecided, &unheard].iter().all(|line| line.lines().count() == 1));
    }
}
