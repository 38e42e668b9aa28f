//! Time as values: moments that the caller passes in, and the definition of how long a lease is
//! valid.
//!
//! No code here reads a clock. A [`Moment`] is a reading of the local clock that is monotonic and
//! continues while the machine is suspended (`CLOCK_BOOTTIME` on Linux), taken by the caller.

mod utc;

use std::ops::{Add, Sub};
use std::time::Duration;

pub use self::utc::{AtMost, until_utc};
pub(crate) use self::utc::{span_utc, utc};

/// A reading of the local clock that is monotonic and goes on while the machine is suspended. Only
/// differences between readings have a meaning, and only within one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Makes a moment from its distance to the clock's arbitrary zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds from the clock's arbitrary zero.
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

/// Bound on the error of a clock's *rate*, in parts per million: how much faster a node's clock may
/// run than this machine's while a lease lasts. 10 000 (one per cent) is the default, as in the
/// description of the Redlock algorithm, and far above the error of any healthy oscillator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drift(u32);

impl Drift {
    /// The default: one per cent.
    pub const DEFAULT: Self = Self(10_000);

    /// Makes a bound from parts per million.
    pub const fn from_ppm(ppm: u32) -> Self {
        Self(ppm)
    }

    /// Returns the bound in parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// Returns by how much `span` may end too early on a fast clock, rounded up.
    pub(crate) fn of(self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

/// Time that is subtracted from each validity, for the precision of Redis' expiry (1 ms) and for
/// rounding our ttl (1 ms).
pub(crate) const EXPIRY_PRECISION: Duration = Duration::from_millis(2);

/// Time that is added to every bound on fencing tokens, because some of its terms are counted in
/// whole milliseconds.
pub(crate) const FENCE_SLACK: Duration = Duration::from_secs(1);

/// Returns how far a fencing token can be ahead of any clock that is right within `clock_error`
/// (E): 4E. When a node grants, the token is ahead of the node's clock by at most E, or, if it is
/// at the floor, by at most 2E. (A floor is set further ahead, by the length of the quarantine, but
/// for that long nothing is granted.) The node's clock may be ahead of true time by E, and the
/// clock that is compared behind it by E.
pub(crate) const fn token_lead(clock_error: Duration) -> Duration {
    clock_error.saturating_mul(4)
}

/// Returns how far ahead of a node's clock a fence may be raised. It is the lead of the largest
/// token with which a client with a fast clock lets a grant count, as a node with a slow clock sees
/// it. No honest node gives a token beyond that, and if a lock had such a fence, it could be taken
/// only with tokens of the far future.
pub(crate) const fn raise_lead(clock_error: Duration) -> Duration {
    clock_error.saturating_mul(6).saturating_add(FENCE_SLACK)
}

/// Last reading of a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeClock {
    /// Value of that clock, in microseconds since 1970.
    pub(crate) micros: u64,
    /// Time at which the answer with the reading had arrived. The node's clock has been running at
    /// least since then.
    pub(crate) read: Moment,
}

impl NodeClock {
    /// Returns a reading that the node's clock has reached at `moment`, perhaps earlier, as long as
    /// its rate stays within `drift` and it does not step backwards.
    pub(crate) fn at(self, moment: Moment, drift: Drift) -> u64 {
        let span = moment.since(self.read);
        let span = span.saturating_sub(drift.of(span));
        self.micros.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Returns how long a holder may rely on a lease of this ttl: `ttl · (1 − drift) − 2 ms`, never
/// negative.
pub(crate) fn validity(ttl: Duration, drift: Drift) -> Duration {
    ttl.saturating_sub(drift.of(ttl)).saturating_sub(EXPIRY_PRECISION)
}

/// Returns the time until which a holder may rely on its lease. It counts from the moment
/// **before** the request was sent, so any delay in the network or on the node can only make the
/// node's expiry later than this.
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
