//! Duration of a node's failover.

use std::time::Duration;

use crate::config::lasts;
use crate::time::Drift;

/// From the detection of a dead master to the first write on the new one. In groups of
/// `sentinel-conf` 0.8 s after a crash, and up to 2.3 s after a freeze.
const TAKEOVER: Duration = Duration::from_millis(2_500);

/// Durations of a node's failover, computed from its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverTimes {
    /// Time for which a master must not reply before it is replaced (`down-after-milliseconds`).
    pub down_after: Duration,
    /// L. The new master extends a lease only if the old master had confirmed the lease beyond this
    /// window.
    pub window: Duration,
}

impl FailoverTimes {
    /// Returns the time that a lease must last to outlive the failover, from the old master's last
    /// confirmation.
    pub fn needed(&self) -> Duration {
        self.down_after.saturating_add(TAKEOVER).saturating_add(self.window)
    }

    /// Returns the shortest ttl, in whole seconds, of a renewed lease that outlives any failover.
    pub fn shortest_ttl(&self, drift: Drift) -> Duration {
        let needed = self.needed();
        // At most 10 % of a ttl is lost to drift, and a quarter passes before the renewal, so twice
        // `needed` is always long enough.
        let (mut low, mut high) = (needed.as_secs(), needed.as_secs().saturating_mul(2));
        high = high.saturating_add(1);
        while low < high {
            let middle = low + (high - low) / 2;
            if lasts(Duration::from_secs(middle), drift) < needed {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Duration::from_secs(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn times(down_after: u64, window: u64) -> FailoverTimes {
        FailoverTimes { down_after: S(down_after), window: S(window) }
    }

    /// Max-lag 2 s, and the shortest down-after for this lag.
    #[test]
    fn the_defaults_outlive_a_failover_of_the_shipped_groups() {
        let shipped = times(4, 4);
        let ttl = crate::config::Config::default().ttl;
        assert!(lasts(ttl, Drift::DEFAULT) >= shipped.needed());
        assert_eq!(shipped.shortest_ttl(Drift::DEFAULT), S(15));
    }

    #[test]
    fn what_no_server_is_set_to_costs_no_time() {
        for secs in [u64::from(u32::MAX), u64::MAX / 1_000, u64::MAX] {
            let times = times(secs, secs);
            assert!(times.shortest_ttl(Drift::DEFAULT) >= times.needed().min(S(u64::MAX)));
        }
    }

    #[test]
    fn the_shortest_ttl_is_enough_and_one_second_less_is_not() {
        for (down_after, window) in [(2, 3), (3, 3), (5, 4), (12, 12), (30, 32)] {
            let times = times(down_after, window);
            for drift in [Drift::DEFAULT, Drift::from_ppm(0), Drift::from_ppm(100_000)] {
                let secs = times.shortest_ttl(drift).as_secs();
                assert!(lasts(S(secs), drift) >= times.needed());
                assert!(lasts(S(secs - 1), drift) < times.needed());
            }
        }
    }
}
