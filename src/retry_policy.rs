//! Pauses between the attempts of one caller. The seed of the random part is an argument, so that
//! tests can repeat the pauses.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

use crate::error::ConfigError;

/// Pauses between attempts that grow exponentially and have a random part (jitter).
///
/// By default the first pause is 2 ms, and each further pause is twice as long, up to 250 ms. A
/// random part of up to the same length is added to each pause. So if two callers made their
/// attempts at the same time, their next attempts are at different times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    min: Duration,
    max: Duration,
    factor: f32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { min: Duration::from_millis(2), max: Duration::from_millis(250), factor: 2.0 }
    }
}

impl RetryPolicy {
    /// Makes a policy with growing pauses. The first pause is `min`. Each further pause is longer
    /// by the factor `factor`, up to `max`. A random part is always added.
    ///
    /// # Errors
    /// [`ConfigError`] unless `0 < min ≤ max ≤ 60 s` and `1 ≤ factor ≤ 100`.
    pub fn exponential(min: Duration, max: Duration, factor: f32) -> Result<Self, ConfigError> {
        if min.is_zero() || min > max || max > Duration::from_secs(60) {
            let value = format!("{min:?}..{max:?}");
            return Err(ConfigError::new("retry", value, "0 < min ≤ max ≤ 60 s"));
        }
        if !(1.0..=100.0).contains(&factor) {
            return Err(ConfigError::new("retry", format!("factor {factor}"), "1 ≤ factor ≤ 100"));
        }
        Ok(Self { min, max, factor })
    }

    pub(crate) fn delays(&self, seed: u64) -> Delays {
        let builder = ExponentialBuilder::default()
            .with_min_delay(self.min)
            .with_max_delay(self.max)
            .with_factor(self.factor)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(seed);
        Delays { inner: builder.build(), max: self.max }
    }
}

#[derive(Debug)]
pub(crate) struct Delays {
    inner: ExponentialBackoff,
    max: Duration,
}

impl Iterator for Delays {
    type Item = Duration;
    fn next(&mut self) -> Option<Duration> {
        Some(self.inner.next().unwrap_or(self.max))
    }
}

#[cfg(feature = "backoff")]
impl TryFrom<backoff::ExponentialBackoff> for RetryPolicy {
    type Error = ConfigError;

    /// The limit of the elapsed time is not used; set the lock's `acquire_timeout` instead. Nor is
    /// the random part; this crate adds its own.
    fn try_from(b: backoff::ExponentialBackoff) -> Result<Self, ConfigError> {
        let ceiling = b.max_interval.min(Duration::from_secs(60));
        Self::exponential(b.initial_interval, ceiling, b.multiplier as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_ceiling_and_repeat_by_seed() {
        let p = RetryPolicy::default();
        let a: Vec<_> = p.delays(7).take(20).collect();
        assert_eq!(a, p.delays(7).take(20).collect::<Vec<_>>());
        assert_ne!(a, p.delays(8).take(20).collect::<Vec<_>>());
        assert!(a.iter().all(|d| *d >= Duration::from_millis(2) && *d <= 2 * p.max));
        assert!(a[19] >= p.max);
    }

    #[test]
    fn the_bounds_themselves_are_allowed() {
        for (min, max, factor) in [(1, 1, 1.0), (1, 60_000, 100.0), (60_000, 60_000, 2.0)] {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
            let policy = RetryPolicy::exponential(min, max, factor);
            assert_eq!(policy, Ok(RetryPolicy { min, max, factor }));
        }
    }

    #[cfg(feature = "backoff")]
    #[test]
    fn a_policy_of_backoff_keeps_its_numbers() {
        let theirs = backoff::ExponentialBackoff {
            initial_interval: Duration::from_millis(3),
            max_interval: Duration::from_secs(600),
            multiplier: 1.5,
            ..Default::default()
        };
        let (min, max) = (Duration::from_millis(3), Duration::from_secs(60));
        assert_eq!(RetryPolicy::try_from(theirs), Ok(RetryPolicy { min, max, factor: 1.5 }));
    }

    #[test]
    fn bad_policies_are_refused() {
        let ms = Duration::from_millis;
        for (min, max, factor) in [
            (ms(0), ms(1), 2.0),
            (ms(2), ms(1), 2.0),
            (ms(1), ms(60_001), 2.0),
            (ms(1), ms(2), 0.5),
        ] {
            assert!(RetryPolicy::exponential(min, max, factor).is_err());
        }
    }
}
