//! The pauses of callers whose key is in flight (idempotency 22).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::env;
use crate::sync::SyncMutex;
use crate::time::Moment;

pub(super) const WAIT: Duration = Duration::from_secs(1);
const UNKNOWN: Duration = Duration::from_secs(1);
/// A random part is subtracted later. At most half a lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
const MOST: usize = 10_000;
const GONE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// In microseconds; zero before the first run.
    usual: AtomicU64,
    /// The consecutive *in flight* results, and the time of the last.
    answered: SyncMutex<BTreeMap<Arc<str>, (u32, Moment)>>,
}

impl InFlight {
    pub(super) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2).max(1);
        // An update between this load and the store below is lost, which changes the mean little.
        let usual = match self.usual.load(Ordering::Relaxed) {
            0 => time,
            usual => usual - usual / 8 + time / 8,
        };
        self.usual.store(usual.max(1), Ordering::Relaxed);
    }

    /// A random part of at most half is subtracted. At most `rest`, the rest of the running claim's
    /// lease; zero if unknown.
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

    /// 0 if the table is full.
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
        let pause = |key: &str| of.pause(&Arc::from(key), (now, u128::MAX), (30 * S, 30 * S));
        assert!(pause("0") < pause("0"));
        assert_eq!(pause("other"), pause("other"));
        of.pause(&Arc::from("later"), (now + GONE, 0), (S, S));
        assert_eq!(of.answered.lock().len(), 1);
    }
}
