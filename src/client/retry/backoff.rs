//! Length of the pauses between the attempts of one call to get a lock or to claim a key.

use std::time::Duration;

use super::TICK;
use super::prospect::Prospect;
use crate::env::Env;
use crate::retry_policy::{Delays, RetryPolicy};

/// Each collision doubles the longest random delay, up to 32 round trips.
const COLLISIONS_MAX: u32 = 5;
const ROUND_TRIP_MAX: Duration = Duration::from_millis(20);
const CROWDED: Duration = Duration::from_millis(50);
const CROWDED_MAX: u32 = 5;
pub(super) const HINT_MAX: Duration = Duration::from_secs(1);
/// Longest time between the end of another owner's lease and the next attempt.
const LATE_MAX: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Backoff {
    policy: RetryPolicy,
    delays: Option<Delays>,
    crowded: u32,
}

impl Backoff {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Self { policy, delays: None, crowded: 0 }
    }

    /// Grows with a full node queue, because callers that try again at once would keep it full.
    pub(super) fn pause(
        &mut self,
        prospect: Prospect,
        registered: bool,
        env: &dyn Env,
    ) -> Duration {
        let policy = self.policy;
        let delays = self.delays.get_or_insert_with(|| policy.delays(env.random() as u64));
        let delay = delays.next().unwrap_or(Duration::from_millis(250));
        match prospect {
            // The nodes register a caller when they refuse it, so this attempt is made at once.
            Prospect::Held(_) if !registered => Duration::ZERO,
            Prospect::Ticketed => Duration::ZERO,
            Prospect::Held(Some(left)) => (left + delay.min(LATE_MAX)).min(HINT_MAX.max(delay)),
            Prospect::Settling(left) if !left.is_zero() => delay.min(left).max(TICK),
            Prospect::NoQuorum { crowded: true } => {
                let base = CROWDED * (1 << self.crowded);
                self.crowded = (self.crowded + 1).min(CROWDED_MAX);
                delay.max(base / 2 + part(base, env.random()))
            }
            Prospect::Held(None)
            | Prospect::Settling(_)
            | Prospect::Collided
            | Prospect::NotDurable
            | Prospect::NoQuorum { .. } => delay,
        }
    }
}

pub(super) fn spread(random: u128, round_trip: Duration, collisions: u32) -> Duration {
    part(round_trip.min(ROUND_TRIP_MAX) * (1 << collisions.clamp(1, COLLISIONS_MAX)), random)
}

fn part(of: Duration, random: u128) -> Duration {
    of.mul_f64(f64::from(random as u32) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SystemEnv;

    #[test]
    fn a_hint_is_never_waited_for_longer_than_a_second() {
        let mut backoff = Backoff::new(RetryPolicy::default());
        for (rest, least, most) in
            [(300, 300, 320), (5_000, 1_000, 1_000), (3_600_000, 1_000, 1_000)]
        {
            let held = Prospect::Held(Some(Duration::from_millis(rest)));
            let pause = backoff.pause(held, true, &SystemEnv).as_millis();
            assert!((least..=most).contains(&pause), "{rest}: {pause}");
            let first = backoff.pause(held, false, &SystemEnv);
            assert_eq!(first, Duration::ZERO, "a hint is asked for first");
        }
    }
}
