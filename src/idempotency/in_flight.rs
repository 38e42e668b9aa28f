//! The wait and the pauses of callers whose key is in flight, which means that another caller's
//! handler runs under it (idempotency 22).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::env;
use crate::time::Moment;

/// Default of the longest wait for the result of another caller's running handler.
pub(super) const WAIT: Duration = Duration::from_secs(1);
/// Assumed run time of a handler before one has run in this process.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Shortest and longest pause before a call is repeated, without the random part that is
/// subtracted. A pause is also no longer than half a lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Largest number of keys for which *in flight* answers are counted.
const MOST: usize = 10_000;
/// Time since the last *in flight* answer for a key after which the key's count starts again at
/// zero.
const GONE: Duration = Duration::from_secs(120);

/// Mean run time of the handlers of a namespace, and the number of *in flight* answers by key. Both
/// affect only how long callers are told to wait.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Moving mean of the handlers' run times in microseconds; zero before one has run.
    usual: AtomicU64,
    /// Number of consecutive *in flight* answers by key, and the time of the last one.
    answered: Mutex<BTreeMap<Arc<str>, (u32, Moment)>>,
}

impl InFlight {
    /// Adds the run time of a handler to the moving mean.
    pub(super) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2).max(1);
        // If another thread stores a mean between this load and the store below, its update is
        // lost. That changes the mean by little.
        let usual = match self.usual.load(Ordering::Relaxed) {
            0 => time,
            usual => usual - usual / 8 + time / 8,
        };
        self.usual.store(usual.max(1), Ordering::Relaxed);
    }

    /// Returns how long a caller has to wait before it tries a key in flight again, and counts the
    /// answer. The pause is at first the mean run time of a handler, doubled with each answer for
    /// the key, minus a random part of at most half. It is never longer than `rest`, the time until
    /// the lease of the running claim ends, unless `rest` is zero, which means unknown.
    pub(super) fn pause(
        &self,
        key: &Arc<str>,
        (now, random): (Moment, u128),
        (lease, rest): (Duration, Duration),
    ) -> Duration {
        let usual = match self.usual.load(Ordering::Relaxed) {
            0 => UNKNOWN,
            usual => Duration::from_micros(usual),
        };
        let longest = PAUSES.1.min(lease / 2);
        let pause = env::pause(random, self.count(key, now), (usual.max(PAUSES.0), longest));
        if rest.is_zero() { pause } else { pause.min(rest) }
    }

    /// Counts an *in flight* answer for the key, and returns the number of earlier answers; 0 if
    /// too many other keys are counted.
    fn count(&self, key: &Arc<str>, now: Moment) -> u32 {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() >= MOST && !answered.contains_key(key) {
            answered.retain(|_, (_, last)| now.since(*last) < GONE);
            if answered.len() >= MOST {
                return 0;
            }
        }
        let (count, last) = answered.entry(Arc::clone(key)).or_insert((0, now));
        if now.since(*last) >= GONE {
            *count = 0;
        }
        let before = *count;
        (*count, *last) = (before.saturating_add(1), now);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_from_the_usual_time_to_half_a_lease() {
        let (of, key) = (InFlight::default(), Arc::from("k"));
        for _ in 0..50 {
            of.took(S / 5);
        }
        let mut now = Moment::from_nanos(1);
        let mut last = Duration::ZERO;
        for n in 0..20 {
            now = now + S;
            let most = of.pause(&key, (now, u128::MAX), (30 * S, 30 * S));
            let full = (S / 5 * 2_u32.pow(n.min(10))).min(15 * S);
            assert!(most <= full && most + S / 100 >= full, "{n}: {most:?} of {full:?}");
            assert!(most >= last, "{n}: {most:?} after {last:?}");
            last = most;
        }
        assert!(of.pause(&key, (now, 0), (30 * S, 30 * S)) >= 7 * S);
        assert_eq!(of.pause(&key, (now, 0), (30 * S, S)), S, "the claim ends before");
        // A different key, or the same key much later, starts again at the first pause.
        assert!(of.pause(&Arc::from("other"), (now, u128::MAX), (30 * S, 30 * S)) <= S / 5);
        assert!(of.pause(&key, (now + GONE, u128::MAX), (30 * S, 30 * S)) <= S / 5);
    }

    #[test]
    fn the_keys_that_are_counted_are_bounded() {
        let (of, now) = (InFlight::default(), Moment::from_nanos(1));
        for n in 0..MOST + 10 {
            of.pause(&Arc::from(n.to_string()), (now, 0), (S, S));
        }
        assert_eq!(of.answered.lock().unwrap().len(), MOST);
        // When the table is full, the pauses of keys that are already counted still grow.
        let pause = |key: &str| of.pause(&Arc::from(key), (now, u128::MAX), (30 * S, 30 * S));
        assert!(pause("0") < pause("0"));
        assert_eq!(pause("other"), pause("other"));
        of.pause(&Arc::from("later"), (now + GONE, 0), (S, S));
        assert_eq!(of.answered.lock().unwrap().len(), 1);
    }
}
