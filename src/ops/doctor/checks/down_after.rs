//! A hiccup is no failover, and a failover comes before the locks run out.

use std::time::Duration;

use super::super::facts::{Facts, Group, Sentinel};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "down-after",
    severity: Severity::Warning,
    title: "down-after-milliseconds is at least 2 s and below the application's ttl (--ttl)",
    why: "a master that stutters for a second is replaced (down-after 1 s: promoted 1.5 s after \
          the cut, measured); longer than a lease, every lock held runs out before there is a new \
          master",
    run,
};

const LEAST: Duration = Duration::from_secs(2);

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel, facts.ttl)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel, ttl: Option<Duration>) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let Some(ms) = sentinel.number("down-after-milliseconds") else {
        let why = sentinel.master.known().err();
        return Finding::unknown(subject, why.unwrap_or_else(|| "it was not told".into()));
    };
    let span = Duration::from_millis(ms);
    let against = ttl.map(|ttl| format!(", ttl {ttl:?}")).unwrap_or_default();
    let read = format!("down-after-milliseconds {ms}{against}");
    let set = |ms: u128| {
        let set = format!("SENTINEL SET {} down-after-milliseconds {ms}", group.name);
        sentinel.by_hand(&set)
    };
    if span < LEAST {
        let says = "a pause of the server is taken for its death";
        return Finding::warning(subject, says, read).mend([set(5_000)]);
    }
    let Some(ttl) = ttl.filter(|ttl| span >= *ttl) else { return Finding::fine(subject, read) };
    let says = format!("a lease of {ttl:?} is over before anybody replaces the master");
    // Not below what the lag rule asks for: then it is the lease that has to be longer.
    let lags = group.servers.iter().filter_map(|s| s.number("min-replicas-max-lag").ok());
    let least = Duration::from_secs(lags.max().unwrap_or(2).saturating_add(2));
    let mend = if least < ttl {
        set((ttl / 2).max(least).min(Duration::from_secs(5)).as_millis())
    } else {
        format!("Redlock::builder().ttl(Duration::from_secs({}))", 2 * span.as_secs())
    };
    Finding::warning(subject, says, read).mend([mend])
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all_masters, broken, fine, with};
    use super::*;

    #[test]
    fn too_short_and_too_long_are_told() {
        fine("down-after");
        let found = broken("down-after", |f| all_masters(f, "down-after-milliseconds", "1999"));
        assert!(found.mend[0].ends_with("SENTINEL SET orders-a down-after-milliseconds 5000"));
        let long = |f: &mut Facts| all_masters(f, "down-after-milliseconds", "10000");
        let found = broken("down-after", long);
        assert_eq!(found.read, "down-after-milliseconds 10000, ttl 10s");
        assert!(found.mend[0].ends_with("SENTINEL SET orders-a down-after-milliseconds 5000"));
        let found = broken("down-after", |f| f.ttl = Some(Duration::from_secs(4)));
        assert_eq!(found.mend, ["Redlock::builder().ttl(Duration::from_secs(10))"]);
        // Without the application's ttl nothing is too long.
        let untold = |f: &mut Facts| {
            long(f);
            f.ttl = None;
        };
        with("down-after", untold, |_| {});
    }
}
