//! Counters of an idempotency handle's calls by outcome.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::unknown_past::Doubt;
use super::{Effect, Outcome, ParkedReason, RunError};
use crate::metrics::{Gauge, IDEMPOTENCY, Tally};

/// Counts of the calls of an [`Idempotency`](super::Idempotency) and its clones since this handle
/// was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdempotencyMetrics {
    /// Handlers that ran and whose results are stored.
    pub executed: u64,
    /// Calls that returned a stored result. Includes calls whose stored result was too large to be
    /// kept.
    pub replayed: u64,
    /// Calls that found a running handler of another caller.
    pub in_flight: u64,
    /// Calls with another fingerprint than the first request under the key.
    pub mismatched: u64,
    /// Calls that were not run because their request is older than the retention.
    pub too_old: u64,
    /// Calls whose handler did not run, because an earlier attempt left no result.
    pub parked_lapsed: u64,
    /// Calls whose handler did not run, because too few nodes could exclude an earlier use of the
    /// key.
    pub parked_forgotten: u64,
    /// Handlers that started after an earlier attempt without a result, because the policy for such
    /// keys allows it or because the caller's probe found no effect of that attempt.
    pub reruns: u64,
    /// Handlers that started although too few nodes could exclude an earlier use of the key.
    pub forgotten_runs: u64,
    /// Messages that consumers hold now: too few nodes can exclude that the message was handled
    /// before, and no operator has decided yet.
    pub held: u64,
    /// Handlers that failed without an effect, or with an effect that may be repeated.
    pub failed: u64,
    /// Handlers that failed and may have taken effect.
    pub failed_unknown: u64,
    /// Handlers that ran, but whose results may not be stored.
    pub not_recorded: u64,
    /// Calls whose handler did not run, because too few nodes answered.
    pub no_quorum: u64,
    /// Calls whose handler did not run, because too few nodes could exclude an earlier use of the
    /// key, and no operator has marked the new nodes as new.
    pub not_initialised: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    executed: Tally,
    replayed: Tally,
    in_flight: Tally,
    mismatched: Tally,
    too_old: Tally,
    parked_lapsed: Tally,
    parked_forgotten: Tally,
    failed: Tally,
    failed_unknown: Tally,
    not_recorded: Tally,
    no_quorum: Tally,
    not_initialised: Tally,
    reruns: Tally,
    forgotten_runs: Tally,
    held: AtomicU64,
    held_exported: Gauge,
    unknown_until: Gauge,
}

impl Counters {
    pub(super) fn new(namespace: &str) -> Self {
        let name = ("name", namespace);
        let calls = |outcome| Tally::new(&IDEMPOTENCY.calls, &[("outcome", outcome), name]);
        Self {
            executed: calls("executed"),
            replayed: calls("replayed"),
            in_flight: calls("in_flight"),
            mismatched: calls("mismatched"),
            too_old: calls("too_old"),
            parked_lapsed: calls("parked_lapsed"),
            parked_forgotten: calls("parked_forgotten"),
            failed: calls("failed"),
            failed_unknown: calls("failed_unknown"),
            not_recorded: calls("not_recorded"),
            no_quorum: calls("no_quorum"),
            not_initialised: calls("not_initialised"),
            reruns: Tally::new(&IDEMPOTENCY.reruns, &[name]),
            forgotten_runs: Tally::new(&IDEMPOTENCY.forgotten_runs, &[name]),
            held: AtomicU64::new(0),
            held_exported: Gauge::new(&IDEMPOTENCY.held, &[name]),
            unknown_until: Gauge::new(&IDEMPOTENCY.unknown_until, &[name]),
        }
    }

    pub(super) fn over<T>(&self, result: &Result<Outcome<T>, RunError>) -> &'static str {
        let (counter, outcome) = match result {
            Ok(Outcome::Executed { .. }) => (&self.executed, "executed"),
            Ok(Outcome::Replayed(_) | Outcome::NotKept) => (&self.replayed, "replayed"),
            Ok(Outcome::InFlight { .. }) => (&self.in_flight, "in_flight"),
            Ok(Outcome::Mismatch) => (&self.mismatched, "mismatched"),
            Ok(Outcome::TooOld) => (&self.too_old, "too_old"),
            Ok(Outcome::Parked(parked)) => match parked.reason {
                ParkedReason::Lapsed => (&self.parked_lapsed, "parked_lapsed"),
                ParkedReason::Forgotten => (&self.parked_forgotten, "parked_forgotten"),
            },
            Err(RunError::Handler { failed, .. }) => match failed.effect() {
                Effect::Unknown => (&self.failed_unknown, "failed_unknown"),
                Effect::None | Effect::Repeatable => (&self.failed, "failed"),
            },
            Err(RunError::NotRecorded(_)) => (&self.not_recorded, "not_recorded"),
            Err(RunError::NoQuorum { .. }) => (&self.no_quorum, "no_quorum"),
            Err(RunError::NotInitialised { .. }) => (&self.not_initialised, "not_initialised"),
            // A mistake in the program, so not counted.
            Err(RunError::Config { .. }) => return "config",
            Err(RunError::Codec { .. }) => return "codec",
        };
        counter.add(1);
        outcome
    }

    pub(super) fn started(&self, doubt: &Doubt) {
        self.reruns.add(u64::from(doubt.lapsed > 0));
        self.forgotten_runs.add(u64::from(doubt.forgotten.is_some()));
    }

    pub(super) fn holds(&self, more: i64) {
        if more != 0 {
            // In two's complement.
            self.held.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
            #[expect(clippy::cast_precision_loss, reason = "no more than are counted")]
            self.held_exported.add(more as f64);
        }
    }

    /// `now` is in µs since 1970.
    pub(super) fn keys_unknown_until(&self, now: u64, left: Duration) {
        self.unknown_until.set(Duration::from_micros(now).saturating_add(left).as_secs_f64());
    }

    pub(super) fn read(&self) -> IdempotencyMetrics {
        IdempotencyMetrics {
            executed: self.executed.get(),
            replayed: self.replayed.get(),
            in_flight: self.in_flight.get(),
            mismatched: self.mismatched.get(),
            too_old: self.too_old.get(),
            parked_lapsed: self.parked_lapsed.get(),
            parked_forgotten: self.parked_forgotten.get(),
            reruns: self.reruns.get(),
            forgotten_runs: self.forgotten_runs.get(),
            held: self.held.load(Ordering::Relaxed),
            failed: self.failed.get(),
            failed_unknown: self.failed_unknown.get(),
            not_recorded: self.not_recorded.get(),
            no_quorum: self.no_quorum.get(),
            not_initialised: self.not_initialised.get(),
        }
    }
}
