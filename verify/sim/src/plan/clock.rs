//! How processes and servers read time.

use crate::dice::Dice;

/// 2020-09-13: where the wall clocks of a simulated world begin, nanoseconds since 1970.
const EPOCH: u64 = 1_600_000_000_000_000_000;

/// The error of a wall clock that is disciplined: it moves between the bounds at a constant rate,
/// there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wave {
    /// Largest error, in microseconds.
    pub(crate) bound: u64,
    /// How fast the error changes, in parts per million.
    pub(crate) ppm: u64,
    /// Where on its way it begins, in microseconds: 0 at the lower bound, twice the bound at the
    /// upper one, and from there back.
    pub(crate) phase: u64,
}

impl Wave {
    /// A clock without error.
    pub(crate) const TRUE: Self = Self { bound: 0, ppm: 0, phase: 0 };

    /// An error that does not change.
    pub(crate) fn constant(bound: u64, error: i64) -> Self {
        Self { bound, ppm: 0, phase: (bound as i64 + error) as u64 }
    }

    /// The error at a true moment, in nanoseconds.
    pub(crate) fn error(&self, nanos: u64) -> i64 {
        let bound = self.bound as i64 * 1_000;
        if bound == 0 {
            return 0;
        }
        let moved = (i128::from(nanos) * i128::from(self.ppm) / 1_000_000) as i64;
        let way = (self.phase as i64 * 1_000 + moved) % (4 * bound);
        if way < 2 * bound { way - bound } else { 3 * bound - way }
    }

    /// The same clock after a step at a true moment, which leaves this error (µs).
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

/// What a wall clock with this error shows, in nanoseconds since 1970.
pub(crate) fn wall(nanos: u64, error: i64) -> u64 {
    (EPOCH + nanos).saturating_add_signed(error)
}

/// The clocks of a client process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockPlan {
    /// Rate error of the monotonic clock in parts per million.
    pub(crate) ppm: i64,
    /// Its arbitrary zero, in nanoseconds.
    pub(crate) base: u64,
    pub(crate) wall: Wave,
}

impl ClockPlan {
    /// The monotonic clock at a true moment.
    pub(crate) fn local(&self, nanos: u64) -> u64 {
        let error = i128::from(nanos) * i128::from(self.ppm) / 1_000_000;
        self.base + (i128::from(nanos) + error) as u64
    }

    /// The wall clock at a true moment, microseconds since 1970.
    pub(crate) fn wall_micros(&self, nanos: u64) -> u64 {
        wall(nanos, self.wall.error(nanos)) / 1_000
    }
}

/// What is true of every clock of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truth {
    /// No two clocks drift apart faster.
    pub(crate) drift_ppm: u32,
    /// No wall clock is further from true time, in microseconds.
    pub(crate) error: u64,
}

impl Truth {
    /// Of the drift, each of two clocks may use up a little less than half: the fast one gains on
    /// the slow one by more than the sum.
    fn half(self) -> u64 {
        u64::from(self.drift_ppm) * 48 / 100
    }

    pub(crate) fn wave(self, d: &mut Dice) -> Wave {
        let bound = self.error;
        let between = d.range(0, 4 * bound);
        let phase = d.pick(&[0, bound, 2 * bound, between]);
        let slow = d.range(0, self.half());
        let ppm = d.pick(&[0, slow, self.half(), self.half()]);
        // One that stays at a bound is as wrong as it can be.
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
    fn a_step_leaves_the_error_that_was_asked_for() {
        let wave = Wave { bound: 40_000, ppm: 39_200, phase: 3 };
        for error in [-40_000, -7, 0, 39_999] {
            let at = 1_234_567_890;
            let left = wave.stepped(at, error).error(at) - error * 1_000;
            assert!(left.abs() < 2_000, "{left} ns off");
        }
        assert_eq!(Wave::constant(9, -4).error(77), -4_000);
    }
}
