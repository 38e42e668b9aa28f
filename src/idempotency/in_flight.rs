//! The pauses of callers whose key is in flight: another caller's handler runs under the key
//! (rule idempotency 22 in docs/design).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::env;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Default of the longest wait for another caller's handler.
pub(super) const WAIT: Duration = Duration::from_secs(1);
/// Assumed run time of a handler before the first run of a handler in this process.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Shortest and longest pause before the next try of a call. A random part of the pause is
/// subtracted later. A pause is at most half a lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Largest number of keys for which this process counts *in flight* results: answers that another
/// caller's handler runs under the key.
const MOST: usize = 10_000;
/// Time after the last *in flight* result of a key at which the count of the key starts at zero
/// again. An *in flight* result means that another caller's handler runs under the key.
const GONE: Duration = Duration::from_secs(120);

/// Mean run time of the handlers of a namespace, and the count of *in flight* results of each key.
/// Both affect only the pauses of callers.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Moving mean of the handlers' run times, in microseconds; zero before the first run.
    usual: AtomicU64,
    /// Count of consecutive *in flight* results (another caller's handler runs) of each key, and
    /// the time of the last such result.
    answered: SyncMutex<BTreeMap<Arc<str>, (u32, Moment)>>,
}

impl InFlight {
    /// Adds the run time of a handler to the moving mean.
    pub(super) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2).max(1);
        // Another thread may store a mean between this load and the store below. The update of that
        // thread is then lost, which changes the mean only a little.
        let usual = match self.usual.load(Ordering::Relaxed) {
            0 => time,
            usual => usual - usual / 8 + time / 8,
        };
        self.usual.store(usual.max(1), Ordering::Relaxed);
    }

    /// Counts an *in flight* result of the key: another caller's handler runs. Returns the pause
    /// before this caller's next try. The pause begins at the mean run time of a handler, and
    /// doubles with each such result of the key. A random part of at most half is subtracted. The
    /// pause is at most `rest`, the rest of the running claim's lease. A `rest` of zero means that
    /// the rest is unknown.
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

    /// Counts an *in flight* result of the key (another caller's handler runs), and returns the
    /// number of earlier such results. Returns 0 if the table of counts is full.
    fn count(&self, key: &Arc<str>, now: Moment) -> u32 {
        let mut answered = self.answered.lock();
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
        // A different key starts at the first pause. So does the same key after a long time.
        assert!(of.pause(&Arc::from("other"), (now, u128::MAX), (30 * S, 30 * S)) <= S / 5);
        assert!(of.pause(&key, (now + GONE, u128::MAX), (30 * S, 30 * S)) <= S / 5);
    }

    #[test]
    fn the_keys_that_are_counted_are_bounded() {
        let (of, now) = (InFlight::default(), Moment::from_nanos(1));
        for n in 0..MOST + 10 {
            of.pause(&Arc::from(n.to_string()), (now, 0), (S, S));
        }
        assert_eq!(of.answered.lock().len(), MOST);
        // In a full table the pauses of counted keys still grow.
        let pause = |key: &str| of.pause(&Arc::from(key), (now, u128::MAX), (30 * S, 30 * S));
        assert!(pause("0") < pause("0"));
        assert_eq!(pause("other"), pause("other"));
        of.pause(&Arc::from("later"), (now + GONE, 0), (S, S));
        assert_eq!(of.answered.lock().len(), 1);
    }
}
