//! Every address that the user or a Sentinel names can be reached and accepts our login.

use super::super::facts::{Facts, Group, Sentinel, flagged, place};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "unreachable",
    severity: Severity::Error,
    title: "every server and Sentinel that was named answers and accepts the login",
    why: "a server that does not answer neither votes nor takes over, and no other check could \
          examine it",
    run,
};

/// How many of the addresses that were not examined are listed.
const LISTED: usize = 16;

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        for s in &group.sentinels {
            let subject = format!("{} Sentinel {}", group.name, s.at);
            let mode = s.info.ok().and_then(|info| info.get("redis_mode"));
            if let Some(mode) = mode.filter(|mode| *mode != "sentinel") {
                let says = "this is a data server, not a Sentinel; give it as --node, or leave it \
                            out";
                let ask = s.by_hand("INFO server");
                let read = format!("redis_mode:{mode}");
                found.push(Finding::error(subject, says, read).mend([ask]));
                continue;
            }
            let sight = sight(group, &s.at);
            found.push(one(subject, s.given, &s.reached, sight, s.by_hand("PING")));
        }
        for s in &group.servers {
            let subject = format!("{} {}", group.name, s.at);
            let sight = sight(group, &s.at);
            found.push(one(subject, s.given, &s.reached, sight, s.by_hand("PING")));
        }
        if !group.skipped.is_empty() {
            let some: Vec<&str> = group.skipped.iter().map(String::as_str).take(LISTED).collect();
            let more = group.skipped.len() - some.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let why = format!(
                "not examined, because no majority of the Sentinels names them, or too many are \
                 named: {}{more}",
                some.join(", ")
            );
            found.push(Finding::unknown(&group.name, why));
        }
        if group.servers.is_empty() && group.skipped.is_empty() && group.heard().next().is_some() {
            let says = format!("no Sentinel names a master for {:?}", group.name);
            let named: Vec<String> = group.heard().map(|s| s.by_hand("SENTINEL MASTERS")).collect();
            found.push(Finding::error(&group.name, says, "SENTINEL MASTER").mend(named));
        }
    }
    for s in &facts.nodes {
        found.push(one(format!("node {}", s.at), s.given, &s.reached, None, s.by_hand("PING")));
    }
    found
}

/// How many of the Sentinels that know this address can reach it, and how many know it; `None` if
/// no Sentinel knows it.
fn sight(group: &Group, at: &str) -> Option<(usize, usize)> {
    let seen = |s: &Sentinel| {
        let lists = [&s.replicas, &s.others].into_iter().filter_map(|list| list.ok()).flatten();
        let mut all = s.master.ok().into_iter().chain(lists);
        all.find(|f| place(f).as_deref() == Some(at))
            .map(|f| !["s_down", "o_down", "disconnected"].iter().any(|flag| flagged(f, flag)))
    };
    let all: Vec<bool> = group.heard().filter_map(seen).collect();
    (!all.is_empty()).then(|| (all.iter().filter(|well| **well).count(), all.len()))
}

fn one(
    subject: String,
    given: bool,
    reached: &Result<(), String>,
    sight: Option<(usize, usize)>,
    ping: String,
) -> Finding {
    let why = match reached {
        Ok(()) => return Finding::fine(subject, "connected and logged in"),
        Err(why) => why,
    };
    let by = if given { "you" } else { "a Sentinel" };
    let also = match sight {
        Some((0, _)) => "; the Sentinels that know it do not reach it either".to_owned(),
        Some((n, all)) => format!(
            "; {n} of {all} Sentinels that know it can reach it: it stopped a moment ago, or a \
             firewall is in the way, or the address is valid in their network only (NAT, \
             announce-ip)"
        ),
        None => String::new(),
    };
    Finding::error(subject, format!("cannot be reached; named by {by}{also}"), why).mend([ping])
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine};

    #[test]
    fn what_does_not_answer_is_told_with_its_cause() {
        fine("unreachable");
        let found = broken("unreachable", |facts| {
            facts.groups[0].servers[1].reached = Err("connection refused".into());
        });
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        assert_eq!(found.read, "connection refused");
        assert!(found.says.contains("3 of 3 Sentinels that know it can reach it"), "{found:?}");
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.2 -p 6379 PING"]);
        let found = broken("unreachable", |facts| {
            facts.groups[0].sentinels[2].reached = Err("no answer before the deadline".into());
            for sentinel in &mut facts.groups[0].sentinels[..2] {
                let Read::Got(others) = &mut sentinel.others else { unreachable!() };
                others[1].insert("flags".into(), "s_down,sentinel,disconnected".into());
            }
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.3:26379");
        assert!(found.says.ends_with("do not reach it either"), "{found:?}");
        let found = broken("unreachable", |facts| {
            let Read::Got(info) = &mut facts.groups[0].sentinels[2].info else { return };
            info.insert("redis_mode".into(), "standalone".into());
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.3:26379");
        let found = broken("unreachable", |facts| facts.groups[0].servers.clear());
        assert!(found.says.contains("no Sentinel names a master"), "{found:?}");
    }
}
