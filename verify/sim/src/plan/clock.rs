//! Clocks of simulated processes and servers, with their errors.

use crate::dice::Dice;

/// Start of the simulated wall clocks, in nanoseconds since 1970 (2020-09-13).
const EPOCH: u64 = 1_600_000_000_000_000_000;

/// Error of a synchronised wall clock. The error moves at a constant rate between `-bound` and
/// `bound`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wave {
    /// Largest error, in microseconds.
    pub(crate) bound: u64,
    /// Rate of change of the error, in parts per million.
    pub(crate) ppm: u64,
    /// Start of the error, in microseconds: 0 is the lower bound, and twice the bound is the upper
    /// bound. With a larger value, the error moves from the upper bound back to the lower bound.
    pub(crate) phase: u64,
}

impl Wave {
    /// A clock without error.
    pub(crate) const TRUE: Self = Self { bound: 0, ppm: 0, phase: 0 };

    /// Returns a clock with an `error` that does not change, in microseconds.
    pub(crate) fn constant(bound: u64, error: i64) -> Self {
        Self { bound, ppm: 0, phase: (bound as i64 + error) as u64 }
    }

    /// Returns the error of this clock at a true time of the simulation. Both are in nanoseconds.
    pub(crate) fn error(&self, nanos: u64) -> i64 {
        let bound = self.bound as i64 * 1_000;
        if bound == 0 {
            return 0;
        }
        let moved = (i128::from(nanos) * i128::from(self.ppm) / 1_000_000) as i64;
        let way = (self.phase as i64 * 1_000 + moved) % (4 * bound);
        if way < 2 * bound { way - bound } else { 3 * bound - way }
    }

    /// Returns the same clock after a step. The step happens at the true time `nanos`. After it,
    /// the error is `error`, in microseconds.
    pub(crate) fn stepped(self, nanos: u64, error: i64) -> Self {
        let round = 4 * self.bound as i64;
        if round == 0 {
            return self;
        }
        let moved = (i128::from(nanos) * i128::from(self.ppm) / 1_000_000_000) as i64;
        let phase = (error + self.bound as i64 - moved).rem_euclid(round);
        Self { phase: phase as u64, ..self }
    }
}

/// Returns the reading of a wall clock with this error, in nanoseconds since 1970.
pub(crate) fn wall(nanos: u64, error: i64) -> u64 {
    (EPOCH + nanos).saturating_add_signed(error)
}

/// The clocks of a client process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockPlan {
    /// Rate error of the monotonic clock, in parts per million.
    pub(crate) ppm: i64,
    /// Start value of the monotonic clock, in nanoseconds. Any value is possible.
    pub(crate) base: u64,
    pub(crate) wall: Wave,
}

impl ClockPlan {
    /// Returns the reading of the monotonic clock at a true time. Both are in nanoseconds.
    pub(crate) fn local(&self, nanos: u64) -> u64 {
        let error = i128::from(nanos) * i128::from(self.ppm) / 1_000_000;
        self.base + (i128::from(nanos) + error) as u64
    }

    /// Returns the reading of the wall clock in microseconds since 1970, at a true time in
    /// nanoseconds.
    pub(crate) fn wall_micros(&self, nanos: u64) -> u64 {
        wall(nanos, self.wall.error(nanos)) / 1_000
    }
}

/// Bounds for the errors of all clocks in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truth {
    /// Largest rate at which two clocks drift apart, in parts per million.
    pub(crate) drift_ppm: u32,
    /// Largest difference between a wall clock and the true time, in microseconds.
    pub(crate) error: u64,
}

impl Truth {
    /// Returns the largest rate error of one clock. It is a little less than half of the drift,
    /// because the fast clock gains more on the slow clock than the sum of both rate errors.
    fn half(self) -> u64 {
        u64::from(self.drift_ppm) * 48 / 100
    }

    pub(crate) fn wave(self, d: &mut Dice) -> Wave {
        let bound = self.error;
        let between = d.range(0, 4 * bound);
        let phase = d.pick(&[0, bound, 2 * bound, between]);
        let slow = d.range(0, self.half());
        let ppm = d.pick(&[0, slow, self.half(), self.half()]);
        // A constant error at a bound is the worst case. So some errors start at a bound and change
        // at the rate 0.
        Wave { bound, ppm, phase: if bound == 0 { 0 } else { phase % (4 * bound) } }
    }

    pub(crate) fn clock(self, d: &mut Dice) -> ClockPlan {
        let half = self.half() as i64;
        let between = d.range(0, 2 * self.half()) as i64 - half;
        let ppm = d.pick(&[-half, 0, half, between]);
        ClockPlan { ppm, base: d.range(1, 1 << 40), wall: self.wave(d) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_stays_within_its_bound_and_its_rate() {
        let wave = Wave { bound: 40_000, ppm: 39_200, phase: 70_000 };
        let mut last = wave.error(0);
        for ms in 1..20_000 {
            let error = wave.error(ms * 1_000_000);
            assert!(error.abs() <= 40_000_000, "{error} at {ms}");
            assert!((error - last).abs() <= 39_201, "{last} to {error} at {ms}");
            last = error;
        }
    }

    #[test]
    fn a_step_leaves_the_requested_error() {
        let wave = Wave { bound: 40_000, ppm: 39_200, phase: 3 };
        for error in [-40_000, -7, 0, 39_999] {
            let at = 1_234_567_890;
            let left = wave.stepped(at, error).error(at) - error * 1_000;
            assert!(left.abs() < 2_000, "{left} ns off");
        }
        assert_eq!(Wave::constant(9, -4).error(77), -4_000);
    }
}
