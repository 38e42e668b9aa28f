//! Time as values. No code here reads a clock: a [`Moment`] is the caller's reading of a monotonic
//! clock that continues while the machine is suspended (`CLOCK_BOOTTIME` on Linux).

mod utc;

use std::ops::{Add, Sub};
use std::time::Duration;

pub use self::utc::{AtMost, until_utc};
pub(crate) use self::utc::{span_utc, utc};

/// A reading of a local clock. The clock is monotonic and continues while the machine is suspended.
/// Only the difference between two readings has a meaning, and only within one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Makes a moment from its distance to the clock's zero, which is arbitrary.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's zero, which is arbitrary.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`; zero if `self` is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Bound on the error of a clock's *rate*, in parts per million. During a lease, a node's clock may
/// run faster than this machine's clock by at most this rate. The default is 10 000 (one per cent),
/// as in the description of the Redlock algorithm. That is far above the error of any healthy
/// oscillator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drift(u32);

impl Drift {
    /// The default bound on the error of a clock's rate: one per cent.
    pub const DEFAULT: Self = Self(10_000);

    /// Makes a bound on the error of a clock's rate, from parts per million.
    pub const fn from_ppm(ppm: u32) -> Self {
        Self(ppm)
    }

    /// Returns the bound in parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    pub(crate) fn of(self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

/// Time that is subtracted from each validity: 1 ms for the precision of Redis' expiry, and 1 ms
/// for the rounding of the ttl to whole milliseconds.
pub(crate) const EXPIRY_PRECISION: Duration = Duration::from_millis(2);

/// Added to every bound on fencing tokens, because parts of it are in whole milliseconds.
pub(crate) const FENCE_SLACK: Duration = Duration::from_secs(1);

/// 4E: the largest lead of a token over any clock with an error of at most E. A granted token is at
/// most 2E ahead of the node's own clock, which may be E ahead of true time, and the other E
/// behind.
pub(crate) const fn token_lead(clock_error: Duration) -> Duration {
    clock_error.saturating_mul(4)
}

/// The largest lead over a node's clock to which its fence may be raised. A client accepts tokens
/// up to 4E and a second ahead of its own clock, which may be 2E ahead of the node's.
pub(crate) const fn raise_lead(clock_error: Duration) -> Duration {
    clock_error.saturating_mul(6).saturating_add(FENCE_SLACK)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeClock {
    /// In microseconds since 1970.
    pub(crate) micros: u64,
    /// The node took the reading before.
    pub(crate) read: Moment,
}

impl NodeClock {
    /// A time that the node's clock certainly shows or has passed at `moment`, if its rate stays
    /// within `drift` and it does not step backwards.
    pub(crate) fn at(self, moment: Moment, drift: Drift) -> u64 {
        let span = moment.since(self.read);
        let span = span.saturating_sub(drift.of(span));
        self.micros.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Zero if that is negative.
pub(crate) fn validity(ttl: Duration, drift: Drift) -> Duration {
    ttl.saturating_sub(drift.of(ttl)).saturating_sub(EXPIRY_PRECISION)
}

/// A delay in the network or on the node can only make the expiry on the node later.
pub(crate) fn valid_until(sent: Moment, ttl: Duration, drift: Drift) -> Moment {
    sent + validity(ttl, drift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_leaves_drift_and_precision() {
        let ttl = Duration::from_secs(10);
        assert_eq!(validity(ttl, Drift::DEFAULT), Duration::from_millis(9_898));
        assert_eq!(validity(Duration::from_millis(1), Drift::DEFAULT), Duration::ZERO);
        let sent = Moment::from_nanos(5);
        assert_eq!(
            valid_until(sent, ttl, Drift::DEFAULT).since(sent),
            Duration::from_millis(9_898)
        );
    }

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        let m = Moment::from_nanos(3);
        assert_eq!(m.since(m + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(m - Duration::from_secs(1), Moment::from_nanos(0));
        assert!(m + Duration::MAX > m);
    }
}
