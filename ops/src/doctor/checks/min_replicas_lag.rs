//! The old master refuses writes before a new one is promoted.

use super::super::facts::{Facts, Group, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::internal::{ADVISED_DOWN_AFTER, ADVISED_LAG};

pub(super) const CHECK: Check = Check {
    id: "min-replicas-lag",
    severity: Severity::Error,
    title: "min-replicas-max-lag + 2 s is at most down-after-milliseconds",
    why: "otherwise a replaced master still takes writes when the new one begins: with a lag of 10 \
          s there were two masters for 4.9 s at down-after 5 s, and for 8.3 s at 1 s; with 2 s and \
          5 s never (measured)",
    run,
};

/// What is added to the lag: it is counted in whole seconds and looked at once a second.
const SLACK: u64 = 2;

fn run(facts: &Facts) -> Vec<Finding> {
    let all = facts.groups.iter().flat_map(|g| g.servers.iter().map(move |s| (g, s)));
    all.filter(|(_, s)| s.reached.is_ok()).map(|(g, s)| judge(g, s)).collect()
}

fn judge(group: &Group, server: &Server) -> Finding {
    let subject = format!("{} {}", group.name, server.at);
    let lag = match server.number("min-replicas-max-lag") {
        Ok(lag) => lag,
        Err(why) => return Finding::unknown(subject, why),
    };
    let Some((shortest, _)) = group.down_after() else {
        return Finding::unknown(subject, "no Sentinel reports down-after-milliseconds");
    };
    let down_after = u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX);
    let read = format!("min-replicas-max-lag {lag}, shortest down-after-milliseconds {down_after}");
    if lag.saturating_add(SLACK).saturating_mul(1_000) <= down_after {
        return Finding::fine(subject, read);
    }
    let says = format!("a lag of {lag} s + {SLACK} s is more than down-after");
    let finding = Finding::error(subject, says, read);
    match (down_after / 1_000).saturating_sub(SLACK).min(ADVISED_LAG.as_secs()) {
        enough if enough == 0 || lag <= ADVISED_LAG.as_secs() => {
            let advised = ADVISED_DOWN_AFTER.as_millis();
            let set = format!("SENTINEL SET {} down-after-milliseconds {advised}", group.name);
            finding.mend(group.heard().map(|s| s.by_hand(&set)))
        }
        enough => finding.mend(server.set("min-replicas-max-lag", &enough.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all_masters, broken, fine, set};

    #[test]
    fn the_rule_names_what_would_be_enough() {
        fine("min-replicas-lag");
        let found = broken("min-replicas-lag", |f| set(f, "min-replicas-max-lag", "10"));
        assert!(found.mend[0].ends_with("CONFIG SET min-replicas-max-lag 2"), "{found:?}");
        let found = broken("min-replicas-lag", |f| {
            all_masters(f, "down-after-milliseconds", "1000");
        });
        let mend = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a \
                    down-after-milliseconds 4000";
        assert_eq!(found.mend[0], mend);
    }
}
