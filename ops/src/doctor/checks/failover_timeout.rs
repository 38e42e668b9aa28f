//! How soon is a failed failover tried again?

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

/// Longest `failover-timeout` in milliseconds that is not reported.
const LONG: u64 = 60_000;
/// What is proposed, as in `sentinel-conf`.
const PROPOSED: u64 = 15_000;

/// Sentinel's default of three minutes.
pub(super) const CHECK: Check = Check {
    id: "failover-timeout",
    severity: Severity::Warning,
    title: "a failover that got stuck is tried again within two minutes",
    why: "after a split vote, or if the chosen replica dies, Sentinel waits twice this before it \
          tries again: six minutes without a master with the default of 180 s",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (group, sentinel) in facts.watches() {
        let subject = format!("{} Sentinel {}", group.name, sentinel.at);
        if let Err(why) = sentinel.master.known() {
            found.push(Finding::unknown(subject, why));
        } else if let Some(ms) = sentinel.number("failover-timeout") {
            let read = format!("failover-timeout {ms}");
            if ms <= LONG {
                found.push(Finding::fine(subject, read));
                continue;
            }
            let again = ms.saturating_mul(2) / 1_000;
            let says = format!("a stuck failover of {} is tried again after {again} s", group.name);
            let set = format!("SENTINEL SET {} failover-timeout {PROPOSED}", group.name);
            let mend = [sentinel.by_hand(&set)];
            found.push(Finding::warning(subject, says, read).mend(mend));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all_masters, broken, fine};

    #[test]
    fn the_default_is_six_minutes() {
        fine("failover-timeout");
        let found = broken("failover-timeout", |f| all_masters(f, "failover-timeout", "180000"));
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
        assert!(found.says.ends_with("tried again after 360 s"), "{found:?}");
        let to = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a";
        assert_eq!(found.mend, [format!("{to} failover-timeout 15000")]);
    }
}
