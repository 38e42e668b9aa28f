//! How long a waiter pauses before it asks again.

use std::time::Duration;

use crate::error::{NodeFault, NodeOutcome, Taken};
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::Delays;

/// Callers are brought apart over at most two to this power round trips.
const CROWD_MAX: u32 = 5;
/// First pause where requests pile up, and the most times that it is doubled.
const CROWDED: Duration = Duration::from_millis(50);
const CROWDED_MAX: u32 = 5;

/// The pauses of one caller.
pub(super) struct Pauses {
    delays: Delays,
    /// How often it was turned away because too much was queued.
    turned_away: u32,
}

impl Pauses {
    pub(super) fn new(delays: Delays) -> Self {
        Self { delays, turned_away: 0 }
    }

    /// How long to sleep if no hint comes. Once hints were asked for, a lock that a majority holds
    /// is looked at again when it could have expired; the growing delay alone serves everything
    /// else. Where more is queued than can be sent in time, those who ask again at once would only
    /// keep it so.
    pub(super) fn next(&mut self, loss: &Loss, asked: bool, random: u128) -> Duration {
        let delay = self.delays.next().unwrap_or(Duration::from_millis(250));
        match loss {
            // Asking for hints takes one refused attempt: make it at once.
            Loss::Taken(t) if !asked && t.retry_after != Some(Duration::ZERO) => Duration::ZERO,
            Loss::Taken(Taken { retry_after: Some(d), .. }) if !d.is_zero() => {
                // Hints can be lost, so never wait longer than a second for one.
                (*d + delay.min(Duration::from_millis(20))).min(Duration::from_secs(1).max(delay))
            }
            Loss::NoQuorum(outcomes) if outcomes.iter().any(is_crowded) => {
                let base = CROWDED * (1 << self.turned_away);
                self.turned_away = (self.turned_away + 1).min(CROWDED_MAX);
                delay.max(base / 2 + part(base, random))
            }
            _ => delay,
        }
    }
}

/// The request was not sent, because too many wait for the node.
fn is_crowded(outcome: &NodeOutcome) -> bool {
    let NodeOutcome::Failed(e) = outcome else { return false };
    matches!(e.fault(), NodeFault::Busy | NodeFault::Timeout) && !e.is_ambiguous()
}

/// Nobody holds a majority.
pub(super) fn is_split(loss: &Loss) -> bool {
    matches!(loss, Loss::Taken(Taken { retry_after: Some(Duration::ZERO), .. }))
}

/// A random part of as many round trips as there may be callers.
pub(super) fn spread(random: u128, round_trip: Duration, crowd: u32) -> Duration {
    part(round_trip.min(Duration::from_millis(20)) * (1 << crowd.clamp(1, CROWD_MAX)), random)
}

fn part(of: Duration, random: u128) -> Duration {
    of.mul_f64(f64::from(random as u32) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RetryPolicy;

    #[test]
    fn a_hint_is_never_waited_for_longer_than_a_second() {
        let mut pauses = Pauses::new(RetryPolicy::default().delays(1));
        for (rest, least, most) in
            [(300, 300, 320), (5_000, 1_000, 1_000), (3_600_000, 1_000, 1_000)]
        {
            let loss = Loss::Taken(Taken {
                retry_after: Some(Duration::from_millis(rest)),
                foreign: false,
            });
            let pause = pauses.next(&loss, true, 0).as_millis();
            assert!((least..=most).contains(&pause), "{rest}: {pause}");
            assert_eq!(pauses.next(&loss, false, 0), Duration::ZERO, "a hint is asked for first");
        }
    }
}
