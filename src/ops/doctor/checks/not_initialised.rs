//! A deployment that nobody has used is marked as new.

use super::super::facts::{Facts, Marker, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "not-initialised",
    severity: Severity::Warning,
    title: "every node has palisade's marker",
    why: "a server without it is new or was emptied, and nobody can tell which: for one quarantine \
          it grants nothing, and every idempotency key that it does not know may be one that it \
          forgot; the trial lock is left out, because it would begin that quarantine",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.masters().map(|(subject, master)| judge(facts, subject, master)).collect()
}

/// As `palisade init` is given the node.
fn named(facts: &Facts, subject: &str, server: &Server) -> String {
    let Some(group) = facts.groups.iter().find(|g| g.name == subject) else {
        return format!("--node redis://{}", server.at);
    };
    let sentinels: Vec<&str> = group.heard().map(|s| s.at.as_str()).collect();
    format!("--sentinel {} --master {}", sentinels.join(","), group.name)
}

fn judge(facts: &Facts, subject: String, server: &Server) -> Finding {
    match server.marker.known() {
        Err(why) => Finding::unknown(subject, why),
        Ok(Marker::Kept(_)) => Finding::fine(subject, "it is there"),
        Ok(Marker::Absent) => {
            let says = "new or emptied: if it is new, say so before anybody uses it";
            let read = format!("{} has no key palisade:generation", server.at);
            let mend = format!("palisade init {}", named(facts, &subject, server));
            Finding::warning(subject, says, read).mend([mend])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Marker, Read};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, unknown, with};

    #[test]
    fn a_new_deployment_is_told_how_to_begin() {
        fine("not-initialised");
        let found = broken("not-initialised", |f| {
            f.groups[0].servers[0].marker = Read::Got(Marker::Absent);
        });
        assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a"));
        let sentinels = "10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379";
        let mend = format!("palisade init --sentinel {sentinels} --master orders-a");
        assert_eq!(found.mend, [mend]);
        // What a replica has comes from its master.
        let replica =
            |f: &mut super::Facts| f.groups[0].servers[1].marker = Read::Got(Marker::Absent);
        with("not-initialised", replica, |_| {});
        let closed = |f: &mut super::Facts| {
            f.groups[0].servers[0].marker = Read::Closed("GET not allowed".into());
        };
        assert_eq!(unknown("not-initialised", closed).says, "unknown (GET not allowed)");
    }

    #[test]
    fn a_lone_server_too() {
        let found = broken("not-initialised", |f| {
            let mut server = f.groups.remove(0).servers.remove(0);
            server.marker = Read::Got(Marker::Absent);
            f.nodes.push(server);
        });
        assert_eq!(found.subject, "node 10.0.0.1:6379");
        assert_eq!(found.mend, ["palisade init --node redis://10.0.0.1:6379"]);
    }
}
