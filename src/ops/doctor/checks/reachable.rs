//! Whatever was named, by the user or by a Sentinel, can be reached and lets us in.

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "unreachable",
    severity: Severity::Error,
    title: "every server and Sentinel that was named answers and lets us in",
    why: "what does not answer neither votes nor takes over; of what it says nothing else could \
          be checked",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        for s in &group.sentinels {
            let subject = format!("{} Sentinel {}", group.name, s.at);
            found.push(one(subject, s.given, &s.reached, s.by_hand("PING")));
        }
        if group.servers.is_empty() {
            let says = format!("no Sentinel names a master for {:?}", group.name);
            let named: Vec<String> = group.heard().map(|s| s.by_hand("SENTINEL MASTERS")).collect();
            found.push(Finding::error(&group.name, says, "SENTINEL MASTER").mend(named));
        }
    }
    for (name, s) in facts.servers() {
        found.push(one(format!("{name} {}", s.at), s.given, &s.reached, s.by_hand("PING")));
    }
    found
}

fn one(subject: String, given: bool, reached: &Result<(), String>, ping: String) -> Finding {
    match reached {
        Ok(()) => Finding::fine(subject, "connected and logged in"),
        Err(why) => {
            let by = if given { "you" } else { "a Sentinel" };
            Finding::error(subject, format!("cannot be reached; named by {by}"), why).mend([ping])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, fine};

    #[test]
    fn what_does_not_answer_is_told_with_its_cause() {
        fine("unreachable");
        let found = broken("unreachable", |facts| {
            facts.groups[0].servers[1].reached = Err("connection refused".into());
        });
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        assert_eq!(found.read, "connection refused");
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.2 -p 6379 PING"]);
        let found = broken("unreachable", |facts| facts.groups[0].servers.clear());
        assert!(found.says.contains("no Sentinel names a master"), "{found:?}");
    }
}
