//! Can the Sentinels reach the servers that answer us?

use super::super::facts::{Facts, Fields, Group, Sentinel, flagged, place};
use super::super::report::{Finding, Severity};
use super::Check;

/// A Sentinel asks for INFO every ten seconds; an answer older than this many milliseconds counts
/// as missing.
const STALE: u64 = 30_000;

pub(super) const CHECK: Check = Check {
    id: "sentinel-sight",
    severity: Severity::Error,
    title: "every Sentinel can use the servers that the doctor can use",
    why: "a Sentinel that cannot log in at a server (no auth-pass, a user without rights) treats \
          it as down for ever: such a replica is never promoted, and such a master is replaced \
          while it works",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let (master, replicas) = match (sentinel.master.known(), sentinel.replicas.known()) {
        (Ok(master), Ok(replicas)) => (master, replicas),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown(subject, why),
    };
    let all = || std::iter::once(master).chain(replicas);
    let read: Vec<String> = all().filter_map(as_seen).collect();
    let answers = |at: &str| group.servers.iter().any(|s| s.at == at && s.reached.is_ok());
    let blind = all().filter(|f| is_blind(f)).filter_map(place).filter(|at| answers(at));
    let blind: Vec<String> = blind.collect();
    if blind.is_empty() {
        return Finding::fine(subject, read.join("; "));
    }
    let says = format!(
        "these servers answer the doctor, but this Sentinel treats them as down or cannot log in: \
         {}",
        blind.join(", ")
    );
    let set = |what: &str| sentinel.by_hand(&format!("SENTINEL SET {} {what}", group.name));
    let mend = [
        format!("redis-cli -h {0} -p {1} ACL LOG 5", host(&blind[0]), port(&blind[0])),
        set("auth-user <user of the Sentinels at the servers>"),
        set("auth-pass <its password>"),
    ];
    Finding::error(subject, says, read.join("; ")).mend(mend)
}

fn is_blind(seen: &Fields) -> bool {
    let stale = seen.get("info-refresh").and_then(|ms| ms.parse::<u64>().ok());
    flagged(seen, "s_down") || flagged(seen, "disconnected") || stale.is_some_and(|ms| ms > STALE)
}

/// `10.0.0.2:6379 slave, INFO 3000 ms ago`
fn as_seen(seen: &Fields) -> Option<String> {
    let flags = seen.get("flags").map_or("", String::as_str);
    let ago = seen.get("info-refresh").map(|ms| format!(", INFO {ms} ms ago"));
    Some(format!("{} {flags}{}", place(seen)?, ago.unwrap_or_default()))
}

fn host(at: &str) -> &str {
    super::super::facts::host_of(at)
}

fn port(at: &str) -> &str {
    at.rsplit_once(':').map_or("6379", |(_, port)| port)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, with};
    use super::*;

    fn change(facts: &mut Facts, name: &str, value: &str) {
        let Read::Got(all) = &mut facts.groups[0].sentinels[1].replicas else { unreachable!() };
        all[0].insert(name.into(), value.into());
    }

    #[test]
    fn what_answers_us_but_not_a_sentinel() {
        fine("sentinel-sight");
        for (name, value) in [("flags", "s_down,slave,disconnected"), ("info-refresh", "45000")] {
            let found = broken("sentinel-sight", |f| change(f, name, value));
            assert_eq!(found.subject, "orders-a Sentinel 10.0.0.2:26379");
            assert!(found.says.ends_with("10.0.0.2:6379"), "{found:?}");
            let to = "redis-cli -h 10.0.0.2 -p 26379 SENTINEL SET orders-a auth-pass";
            assert!(found.mend[2].starts_with(to), "{found:?}");
        }
    }

    #[test]
    fn what_is_down_for_us_too_is_not_the_sentinels_fault() {
        let down = |f: &mut Facts| {
            change(f, "flags", "s_down,slave,disconnected");
            f.groups[0].servers[1].reached = Err("connection refused".into());
        };
        with("sentinel-sight", down, |_| {});
    }
}
