//! The delay of an attempt to become leader, in favour of candidates of higher priority (rule
//! election 12).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::Moment;

/// Delay of an attempt to become leader for each higher priority in the list of candidates: the ttl
/// divided by the first number, but at least the second value.
const STEP: (u32, Duration) = (16, Duration::from_millis(25));
/// Largest number of higher priorities that delay an attempt to become leader.
const STEPS_MAX: usize = 4;

/// A candidate of higher priority, and the time at which its entry in the list of candidates
/// expires.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rival {
    pub(super) priority: u8,
    pub(super) until: Moment,
}

/// Returns the delay at `now` of an attempt in favour of `rivals`, the candidates of higher
/// priority.
pub(super) fn hold_back(rivals: &[Rival], now: Moment, ttl: Duration) -> Duration {
    let live = rivals.iter().filter(|rival| rival.until > now).map(|rival| rival.priority);
    let steps = live.collect::<BTreeSet<_>>().len().min(STEPS_MAX);
    (ttl / STEP.0).max(STEP.1) * steps as u32
}
