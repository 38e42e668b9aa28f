//! Whether a node knows of every claim of a key that it does not have.
//!
//! Only time decides: a record that is here may be an old copy of itself, without the result it
//! had. So it depends on when the node's data history began, which each answer of the node says,
//! and on how old the key is at most.

use std::time::Duration;

/// What a node may have forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    /// Until when claims may have been lost, in milliseconds since 1970; `None`: never.
    lost_until: Option<u64>,
    /// The node's clock in milliseconds since 1970.
    now: u64,
}

impl Recall {
    /// `since`: when the history began by the node's clock in milliseconds; zero if the node never
    /// lost anything. `window` (L): how long a server that it replaced may have taken claims since.
    pub(crate) fn new(since: u64, window: Duration, clock_error: Duration, now: u64) -> Self {
        // The clocks of servers, and of the maker of a request, differ by up to twice E.
        let lost_until =
            since.saturating_add(millis(window)).saturating_add(millis(2 * clock_error));
        #[cfg(feature = "sim-bugs")]
        let lost_until =
            if crate::bugs::on(crate::bugs::Bug::BirthsWithoutMargin) { since } else { lost_until };
        Self { lost_until: (since > 0).then_some(lost_until), now }
    }

    /// Zero if the node knows of every claim of a key that nobody asked for before `born`
    /// (milliseconds since 1970), or else within the retention. If it does not: for how long that
    /// will be so of keys without `born`. Milliseconds are truncated, so equal is not later.
    pub(crate) fn unsure(self, born: Option<u64>, retention: Duration) -> Duration {
        let Some(lost_until) = self.lost_until else { return Duration::ZERO };
        if born.is_some_and(|born| lost_until < born) {
            return Duration::ZERO;
        }
        let known_from = lost_until.saturating_add(millis(retention)).saturating_add(1);
        Duration::from_millis(known_from.saturating_sub(self.now))
    }
}

/// Whole milliseconds, rounded up.
fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const L: Duration = Duration::from_millis(400);
    const E: Duration = Duration::from_millis(50);
    const KEEP: Duration = Duration::from_secs(10);

    fn unsure(since: u64, born: Option<u64>, now: u64) -> u64 {
        Recall::new(since, L, E, now).unsure(born, KEEP).as_millis() as u64
    }

    #[test]
    fn a_node_that_never_lost_anything_knows_every_key() {
        assert_eq!(unsure(0, None, 1), 0);
        assert_eq!(unsure(0, Some(0), 1), 0);
    }

    #[test]
    fn a_birth_counts_when_it_lies_strictly_after_all_that_may_be_lost() {
        // 1000 + L + 2E
        assert_eq!(unsure(1_000, Some(1_501), 2_000), 0);
        assert!(unsure(1_000, Some(1_500), 2_000) > 0);
        assert!(unsure(1_000, Some(1), 2_000) > 0);
    }

    #[test]
    fn without_a_birth_it_lasts_for_one_retention() {
        assert_eq!(unsure(1_000, None, 2_000), 1_500 + 10_000 + 1 - 2_000);
        assert_eq!(unsure(1_000, None, 11_500), 1, "equal is not later");
        assert_eq!(unsure(1_000, None, 11_501), 0);
        assert_eq!(unsure(1_000, Some(1_500), 11_501), 0, "an old birth is as none");
        // With a birth that does not help, the answer for keys without one is the same.
        assert_eq!(unsure(1_000, Some(1_500), 2_000), unsure(1_000, None, 2_000));
    }
}
