//! The delay of an attempt in favour of candidates of higher priority (election 12).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::Moment;

/// The ttl divided by the first, but at least the second.
const STEP: (u32, Duration) = (16, Duration::from_millis(25));
const STEPS_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rival {
    pub(super) priority: u8,
    pub(super) until: Moment,
}

pub(super) fn hold_back(rivals: &[Rival], now: Moment, ttl: Duration) -> Duration {
    let live = rivals.iter().filter(|rival| rival.until > now).map(|rival| rival.priority);
    let steps = live.collect::<BTreeSet<_>>().len().min(STEPS_MAX);
    (ttl / STEP.0).max(STEP.1) * steps as u32
}
