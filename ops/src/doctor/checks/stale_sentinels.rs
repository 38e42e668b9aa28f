//! No Sentinel remembers others that were removed for good.

use std::collections::BTreeMap;

use super::super::facts::{Facts, Fields, Group, Sentinel, flagged, place};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "stale-sentinels",
    severity: Severity::Warning,
    title: "no Sentinel remembers others that are gone for good",
    why: "a Sentinel never forgets another one by itself, and each one that it remembers raises \
          the majority that a failover needs",
    run,
};

/// Down for longer than any restart takes.
const GONE_MS: u64 = 600_000;

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let others = match sentinel.others.known() {
        Ok(others) => others,
        Err(why) => return Finding::unknown(subject, why),
    };
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for other in others.iter().filter_map(place) {
        *at.entry(other).or_default() += 1;
    }
    let mut stale: Vec<String> =
        others.iter().filter(|o| is_gone(o)).map(|o| place(o).unwrap_or_default()).collect();
    stale.extend(at.into_iter().filter(|(_, n)| *n > 1).map(|(at, n)| format!("{at} {n} times")));
    if stale.is_empty() {
        return Finding::fine(subject, format!("{} others, all of them present", others.len()));
    }
    let reset = sentinel.by_hand(&format!("SENTINEL RESET {}", group.name));
    Finding::warning(
        subject,
        "it remembers Sentinels that are gone; start them again, or let it forget them (one \
         Sentinel after the other, half a minute apart, while the master is well)",
        stale.join(", "),
    )
    .mend([reset])
}

/// Down for a long time, or its address was taken over by another one: then its port is 0.
pub(super) fn is_gone(other: &Fields) -> bool {
    let down = other.get("s-down-time").and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let moved = other.get("port").is_some_and(|port| port == "0");
    moved || flagged(other, "s_down") && down > GONE_MS
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, with};

    #[test]
    fn what_is_gone_for_long_is_told_with_the_reset() {
        fine("stale-sentinels");
        let down = |ms: &'static str| {
            move |f: &mut super::Facts| {
                let Read::Got(others) = &mut f.groups[0].sentinels[0].others else { return };
                others[1].insert("flags".into(), "s_down,sentinel,disconnected".into());
                others[1].insert("s-down-time".into(), ms.into());
            }
        };
        let found = broken("stale-sentinels", down("600001"));
        assert_eq!(found.read, "10.0.0.3:26379");
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.1 -p 26379 SENTINEL RESET orders-a"]);
        with("stale-sentinels", down("5000"), |_| {});
        let found = broken("stale-sentinels", |f| {
            let Read::Got(others) = &mut f.groups[0].sentinels[0].others else { return };
            let again = others[0].clone();
            others.push(again);
        });
        assert_eq!(found.read, "10.0.0.2:26379 2 times");
    }
}
