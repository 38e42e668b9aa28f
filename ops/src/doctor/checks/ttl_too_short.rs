//! A lease outlives a failover.

use std::time::Duration;

use super::super::facts::{Facts, Group};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::Drift;
use palisade::internal::ADVISED_DOWN_AFTER;
use palisade::internal::lasts;
use palisade::node::FailoverTimes;

pub(super) const CHECK: Check = Check {
    id: "ttl-too-short",
    severity: Severity::Warning,
    title: "the application's ttl (--ttl) outlives a failover",
    why: "a lease that is renewed has three quarters of its ttl left when the master dies at the \
          worst moment; that has to cover down-after, the promotion, and the time for which the \
          old master may go on granting, or every lock held is lost with each failover",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let Some(ttl) = facts.ttl else { return Vec::new() };
    let nodes = facts.groups.len() + facts.nodes.len();
    // While the others are a majority they renew leases, even if one node fails.
    let spared = nodes > nodes / 2 + 1;
    facts.groups.iter().map(|group| judge(group, ttl, spared)).collect()
}

fn judge(group: &Group, ttl: Duration, spared: bool) -> Finding {
    if spared {
        return Finding::fine(&group.name, "the other nodes are a majority and renew leases");
    }
    let Some((_, down_after)) = group.down_after() else {
        return Finding::unknown(&group.name, "no Sentinel reports down-after-milliseconds");
    };
    let window = match group.window() {
        Ok(window) => window,
        Err(why) => return Finding::unknown(&group.name, why),
    };
    let times = FailoverTimes { down_after, window };
    let (left, needed) = (lasts(ttl, Drift::DEFAULT), times.needed());
    let read = format!(
        "ttl {ttl:?}, of which {left:.1?} are left at the worst moment; a failover takes \
         {needed:?}: down-after {down_after:?}, {:?} for the promotion, and {window:?} for which \
         the old master may go on (min-replicas-max-lag + 2 s)",
        needed.saturating_sub(down_after).saturating_sub(window),
    );
    if left >= needed {
        return Finding::fine(&group.name, read);
    }
    let enough = times.shortest_ttl(Drift::DEFAULT).as_secs();
    let says = format!("a lease of {ttl:?} does not outlive a failover; {enough} s would");
    let mut mend = Vec::new();
    // Only down-after can be shortened, and not below what `min-replicas-lag` requires.
    let rest = left.saturating_sub(needed.saturating_sub(down_after)).as_secs();
    let rest = rest.min(ADVISED_DOWN_AFTER.as_secs());
    if Duration::from_secs(rest) >= window.max(Duration::from_secs(2)) {
        let set = format!("SENTINEL SET {} down-after-milliseconds {}", group.name, rest * 1_000);
        mend.extend(group.heard().map(|s| s.by_hand(&set)));
    } else {
        mend.push(format!("Redlock::builder().ttl(Duration::from_secs({enough}))"));
    }
    Finding::warning(&group.name, says, read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all_masters, broken, close_config, fine, unknown, with};
    use super::*;

    fn ttl(facts: &mut Facts, secs: u64) {
        facts.ttl = Some(Duration::from_secs(secs));
    }

    #[test]
    fn a_lease_that_a_failover_outlasts_is_reported_with_the_numbers() {
        // 15 s: the defaults.
        fine("ttl-too-short");
        let found = broken("ttl-too-short", |f| ttl(f, 10));
        assert_eq!(found.subject, "orders-a");
        for number in ["ttl 10s", "7.4s", "10.5s", "down-after 4s", "2.5s", "and 4s"] {
            assert!(found.read.contains(number), "{number} in {found:?}");
        }
        assert_eq!(found.says, "a lease of 10s does not outlive a failover; 15 s would");
        assert_eq!(found.mend, ["Redlock::builder().ttl(Duration::from_secs(15))"]);
    }

    #[test]
    fn a_long_down_after_is_shortened() {
        let found = broken("ttl-too-short", |f| {
            all_masters(f, "down-after-milliseconds", "12000");
            ttl(f, 20);
        });
        let to = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a";
        assert_eq!(found.mend[0], format!("{to} down-after-milliseconds 4000"));
        assert_eq!(found.mend.len(), 3);
    }

    #[test]
    fn who_says_no_ttl_or_has_more_nodes_is_not_asked() {
        with("ttl-too-short", |f| f.ttl = None, |all| assert!(all.is_empty()));
        let three = |f: &mut Facts| {
            ttl(f, 5);
            let more = f.groups[0].clone();
            f.groups.extend([more.clone(), more]);
        };
        with("ttl-too-short", three, |all| assert_eq!(all.len(), 3));
        let two = |f: &mut Facts| {
            ttl(f, 5);
            let more = f.groups[0].clone();
            f.groups.push(more);
        };
        broken("ttl-too-short", two);
        assert_eq!(unknown("ttl-too-short", close_config).says, "unknown (CONFIG not allowed)");
    }
}
