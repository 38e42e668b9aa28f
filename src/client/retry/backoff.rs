//! Length of the pauses between the attempts of one call.

use std::time::Duration;

use super::{Prospect, TICK};
use crate::env::Env;
use crate::error::{NodeFault, NodeOutcome};
use crate::quorum::backoff::{Delays, RetryPolicy};

/// Binary logarithm of the most round trips over which callers are spread.
const COLLISIONS_MAX: u32 = 5;
/// Longest round trip that is used for spreading callers.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(20);
/// First pause if too many requests wait at a node, and how often it is doubled at most.
const CROWDED: Duration = Duration::from_millis(50);
const CROWDED_MAX: u32 = 5;
/// Longest wait for a hint, which may have been lost.
const HINT_MAX: Duration = Duration::from_secs(1);
/// Longest time between the expiry of a name and the next attempt.
const LATE_MAX: Duration = Duration::from_millis(20);

/// State of the pauses of one call.
#[derive(Debug)]
pub(super) struct Backoff {
    policy: RetryPolicy,
    /// Growing delays; `None` before the first pause.
    delays: Option<Delays>,
    /// Number of attempts that were not sent because too many requests wait.
    crowded: u32,
}

impl Backoff {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Self { policy, delays: None, crowded: 0 }
    }

    /// Returns the time to wait if no hint comes. If hints were asked for (`registered`), a name
    /// that another owner has is tried again when it could have expired; in all other cases the
    /// pause is the growing delay. If more is queued than can be sent in time, the pause grows
    /// further, because callers that ask again at once would only keep the queue full.
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
            // Registering for hints takes one refused attempt, which is made at once.
            Prospect::Held(_) if !registered => Duration::ZERO,
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
            | Prospect::NoQuorum { .. } => delay,
        }
    }
}

/// Returns true if the request was not sent because too many wait for the node.
pub(crate) fn is_crowded(outcome: &NodeOutcome) -> bool {
    let NodeOutcome::Failed(e) = outcome else { return false };
    matches!(e.fault(), NodeFault::Busy | NodeFault::Timeout) && !e.is_ambiguous()
}

/// Returns a random part of as many round trips as there may be callers after this number of
/// collisions.
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
