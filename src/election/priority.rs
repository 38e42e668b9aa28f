//! The delay of an attempt in favour of candidates of higher priority (election 12).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::Moment;

/// Delay of an attempt for each higher priority in the list: the ttl divided by this number, but at
/// least this time.
const STEP: (u32, Duration) = (16, Duration::from_millis(25));
/// Largest number of higher priorities that delay one attempt.
const STEPS_MAX: usize = 4;

/// A candidate of higher priority, and the time until which its entry counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rival {
    pub(super) priority: u8,
    pub(super) until: Moment,
}

/// Returns for how long an attempt at `now` is delayed in favour of these candidates.
pub(super) fn hold_back(rivals: &[Rival], now: Moment, ttl: Duration) -> Duration {
    let live = rivals.iter().filter(|rival| rival.until > now).map(|rival| rival.priority);
    let steps = live.collect::<BTreeSet<_>>().len().min(STEPS_MAX);
    (ttl / STEP.0).max(STEP.1) * steps as u32
}
