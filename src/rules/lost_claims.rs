//! For how long a node may still lack a claim after a loss of data.
//!
//! Only times decide: a record may be an old copy that lacks a result that was stored later. All
//! lost writes lie between the two times of a loss (quarantine 13); these, the largest possible age
//! of the key, and the length of a loss that the caller accepts give the answer.

use std::sync::Arc;
use std::time::Duration;

use crate::op::{Began, Loss};

#[derive(Clone, Debug)]
pub(crate) struct LostClaims {
    losses: Arc<[Loss]>,
    began: Began,
    /// E.
    clock_error: Duration,
    /// The node's clock in milliseconds since 1970.
    now: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Unsure {
    /// Time after which the node certainly has every claim; zero if it already has.
    pub(crate) remaining: Duration,
    pub(crate) losses: Vec<Loss>,
    /// The data began empty, it is unknown if the node was new or had lost data, and it may lack a
    /// claim of the key.
    pub(crate) fresh: bool,
}

impl LostClaims {
    pub(crate) fn new(losses: Arc<[Loss]>, began: Began, clock_error: Duration, now: u64) -> Self {
        Self { losses, began, clock_error, now }
    }

    /// Only claims since `born` (milliseconds since 1970) count; without it, or if it is not later
    /// than the lost writes, all within the retention. Milliseconds are truncated, so an equal time
    /// is not later. Losses of at most `accepted` are ignored.
    pub(crate) fn unsure(
        &self,
        born: Option<u64>,
        retention: Duration,
        accepted: Duration,
    ) -> Unsure {
        let rest = |loss: &Loss| self.unsure_after(*loss, born, retention);
        let concerns = |loss: &&Loss| self.counts(**loss, accepted) && !rest(loss).is_zero();
        let losses: Vec<Loss> = self.losses.iter().filter(concerns).copied().collect();
        let remaining = losses.iter().map(rest).max().unwrap_or_default();
        let all = self.losses.first().filter(|loss| self.began == Began::Empty && loss.from == 0);
        Unsure { remaining, losses, fresh: all.is_some_and(|loss| !rest(loss).is_zero()) }
    }

    fn counts(&self, loss: Loss, accepted: Duration) -> bool {
        // Beginning and end may come from two clocks, which differ by at most 2E.
        let length = loss.length().map(|length| length.saturating_add(2 * self.clock_error));
        length.is_none_or(|length| length > accepted)
    }

    fn unsure_after(&self, loss: Loss, born: Option<u64>, retention: Duration) -> Duration {
        // The clocks of the server and of who made the request differ by at most 2E.
        let margin = millis(2 * self.clock_error);
        let lost_until = loss.to.saturating_add(margin);
        if born.is_some_and(|born| lost_until < born) {
            return Duration::ZERO;
        }
        let known_from = lost_until.saturating_add(millis(retention)).saturating_add(1);
        Duration::from_millis(known_from.saturating_sub(self.now))
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Duration = Duration::from_millis(250);
    const KEEP: Duration = Duration::from_secs(10);

    fn lost_claims(losses: &[(u64, u64)], now: u64) -> LostClaims {
        let losses = losses.iter().map(|&(from, to)| Loss::between(from, to)).collect();
        LostClaims::new(losses, Began::Empty, E, now)
    }

    fn unsure(losses: &[(u64, u64)], born: Option<u64>, now: u64) -> u64 {
        lost_claims(losses, now).unsure(born, KEEP, Duration::ZERO).remaining.as_millis() as u64
    }

    #[test]
    fn a_node_that_never_lost_anything_has_every_key() {
        assert_eq!(unsure(&[], None, 1), 0);
        assert_eq!(unsure(&[], Some(0), 1), 0);
    }

    #[test]
    fn a_birth_counts_when_it_lies_strictly_after_all_that_may_be_lost() {
        // The loss of data ends at 1000, and 2E (twice the clock error) is 500.
        let lost = [(0, 1_000)];
        assert_eq!(unsure(&lost, Some(1_501), 2_000), 0);
        assert!(unsure(&lost, Some(1_500), 2_000) > 0);
        assert!(unsure(&lost, Some(1), 2_000) > 0);
    }

    #[test]
    fn without_a_birth_it_lasts_for_one_retention() {
        let lost = [(900, 1_000)];
        assert_eq!(unsure(&lost, None, 2_000), 1_500 + 10_000 + 1 - 2_000);
        assert_eq!(unsure(&lost, None, 11_500), 1, "equal is not later");
        assert_eq!(unsure(&lost, None, 11_501), 0);
        assert_eq!(unsure(&lost, Some(1_500), 11_501), 0, "an old birth is as none");
        // For a request that was made (born) no later than the loss of data, the result is the same
        // as for one whose time is unknown.
        assert_eq!(unsure(&lost, Some(1_500), 2_000), unsure(&lost, None, 2_000));
    }

    #[test]
    fn the_losses_that_concern_a_key_are_named() {
        let lost = lost_claims(&[(0, 1_000), (5_000, 5_100)], 6_000);
        let named = |born, ms| {
            let unsure = lost.unsure(born, KEEP, Duration::from_millis(ms));
            unsure.losses.into_iter().map(|loss| loss.to).collect::<Vec<_>>()
        };
        assert_eq!(named(None, 0), [1_000, 5_100]);
        assert_eq!(named(Some(1_501), 0), [5_100], "born after the first");
        assert_eq!(named(None, 601), [1_000], "the short one is accepted");
        assert_eq!(named(Some(5_601), 0), [0; 0]);
        let later = lost_claims(&[(0, 1_000), (5_000, 5_100)], 11_501);
        assert_eq!(later.unsure(None, KEEP, Duration::ZERO).losses.len(), 1, "the first is over");
    }

    #[test]
    fn the_rest_of_each_loss_that_counts_follows_from_the_longest_rest() {
        // The last loss of data is short enough to be accepted. So it is not listed, and it does
        // not lengthen `rest`.
        let known = lost_claims(&[(1, 1_000), (2_000, 4_000), (5_000, 5_100)], 6_000);
        let accepted = Duration::from_millis(601);
        let Unsure { remaining, losses: named, .. } = known.unsure(None, KEEP, accepted);
        let end = named.iter().map(|loss| loss.to).max().unwrap();
        assert_eq!((named.len(), end), (2, 4_000));
        let rest = remaining.as_millis() as u64;
        for loss in named {
            assert_eq!(rest - (end - loss.to), unsure(&[(loss.from, loss.to)], None, 6_000));
        }
    }

    #[test]
    fn a_node_is_fresh_as_long_as_what_was_before_its_data_matters() {
        let lost = |began| {
            let losses = [Loss::between(0, 1_000), Loss::between(5_000, 6_000)];
            LostClaims::new(losses.into(), began, E, 7_000)
        };
        let fresh = |born| lost(Began::Empty).unsure(born, KEEP, E).fresh;
        assert!(fresh(None) && fresh(Some(1_500)));
        // The request was made after the first loss of data, so only the later loss concerns its
        // key.
        assert!(
            !fresh(Some(1_501))
                && !lost(Began::Empty).unsure(Some(1_501), KEEP, E).remaining.is_zero()
        );
        assert!(!lost_claims(&[(0, 1_000)], 11_501).unsure(None, KEEP, E).fresh, "it is over");
        assert!(!lost_claims(&[(5, 1_000)], 2_000).unsure(None, KEEP, E).fresh, "a loss of a part");
        for began in [Began::Known, Began::Lost] {
            assert!(!lost(began).unsure(None, KEEP, E).fresh);
        }
    }

    #[test]
    fn the_latest_loss_decides_and_short_ones_are_accepted() {
        let lost = lost_claims(&[(0, 1_000), (5_000, 5_100)], 6_000);
        let unsure = |ms| lost.unsure(None, KEEP, Duration::from_millis(ms)).remaining.as_millis();
        assert_eq!(unsure(0), 5_100 + 500 + 10_000 + 1 - 6_000);
        assert_eq!(unsure(600), unsure(0), "101 ms and 2E");
        assert_eq!(unsure(601), 1_000 + 500 + 10_000 + 1 - 6_000, "the loss of all stays");
        assert_eq!(unsure(u64::MAX / 2), unsure(601));
        let short = lost_claims(&[(900, 1_000)], 2_000);
        assert_eq!(short.unsure(None, KEEP, Duration::from_millis(601)).remaining, Duration::ZERO);
        assert_eq!(
            short.unsure(Some(1), KEEP, Duration::from_millis(601)).remaining,
            Duration::ZERO
        );
    }
}
