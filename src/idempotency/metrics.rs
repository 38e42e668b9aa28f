//! What the handles of one namespace have counted. Nothing is decided by these numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::policy::Doubt;
use super::{Effect, Outcome, ParkedReason, RunError};

/// What an [`Idempotency`](super::Idempotency) and its clones counted since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdempotencyMetrics {
    /// Handlers that ran and whose result is stored.
    pub executed: u64,
    /// Calls answered by a result that was there already, kept or not.
    pub replayed: u64,
    /// Calls that found somebody else's handler running.
    pub in_flight: u64,
    /// Calls whose key belongs to another request.
    pub mismatched: u64,
    /// Calls whose request is older than the retention.
    pub too_old: u64,
    /// Calls parked because an earlier attempt left no result.
    pub parked_lapsed: u64,
    /// Calls parked because too few nodes know whether the key was used before.
    pub parked_forgotten: u64,
    /// Handlers started although an earlier attempt had left no result: by policy, or because a
    /// probe found no effect.
    pub reruns: u64,
    /// Handlers started although too few nodes knew whether the key was used before.
    pub forgotten_runs: u64,
    /// Handlers that failed without effect, or that may be repeated.
    pub failed: u64,
    /// Handlers that failed, and may have taken effect.
    pub failed_unknown: u64,
    /// Handlers that ran and whose result is not known to be stored.
    pub not_recorded: u64,
}

/// The counters behind it.
#[derive(Debug, Default)]
pub(super) struct Counters {
    executed: AtomicU64,
    replayed: AtomicU64,
    in_flight: AtomicU64,
    mismatched: AtomicU64,
    too_old: AtomicU64,
    parked_lapsed: AtomicU64,
    parked_forgotten: AtomicU64,
    reruns: AtomicU64,
    forgotten_runs: AtomicU64,
    failed: AtomicU64,
    failed_unknown: AtomicU64,
    not_recorded: AtomicU64,
}

impl Counters {
    /// A call is over.
    pub(super) fn over<T>(&self, came_to: &Result<Outcome<T>, RunError>) {
        let counter = match came_to {
            Ok(Outcome::Executed { .. }) => &self.executed,
            Ok(Outcome::Replayed(_) | Outcome::NotKept) => &self.replayed,
            Ok(Outcome::InFlight { .. }) => &self.in_flight,
            Ok(Outcome::Mismatch) => &self.mismatched,
            Ok(Outcome::TooOld) => &self.too_old,
            Ok(Outcome::Parked(parked)) => match parked.reason {
                ParkedReason::Lapsed => &self.parked_lapsed,
                ParkedReason::Forgotten => &self.parked_forgotten,
            },
            Err(RunError::Handler { failed, .. }) => match failed.effect() {
                Effect::Unknown => &self.failed_unknown,
                Effect::None | Effect::Repeatable => &self.failed,
            },
            Err(RunError::NotRecorded(_)) => &self.not_recorded,
            Err(RunError::Config { .. } | RunError::NoQuorum { .. } | RunError::Codec { .. }) => {
                return;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A handler is started on a key whose past is not known in this way.
    pub(super) fn started(&self, doubt: &Doubt) {
        if doubt.lapsed > 0 {
            self.reruns.fetch_add(1, Ordering::Relaxed);
        }
        if doubt.forgotten.is_some() {
            self.forgotten_runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> IdempotencyMetrics {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        IdempotencyMetrics {
            executed: read(&self.executed),
            replayed: read(&self.replayed),
            in_flight: read(&self.in_flight),
            mismatched: read(&self.mismatched),
            too_old: read(&self.too_old),
            parked_lapsed: read(&self.parked_lapsed),
            parked_forgotten: read(&self.parked_forgotten),
            reruns: read(&self.reruns),
            forgotten_runs: read(&self.forgotten_runs),
            failed: read(&self.failed),
            failed_unknown: read(&self.failed_unknown),
            not_recorded: read(&self.not_recorded),
        }
    }
}
