//! A master without replicas keeps its data history.

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "backlog-ttl",
    severity: Severity::Warning,
    title: "repl-backlog-ttl is 0",
    why: "after this time without replicas (one hour by default) a master drops its backlog and \
          takes a new replication id, although its data are the same: for palisade that is a new \
          data history, and nothing is granted for one quarantine",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let groups = facts.groups.iter().flat_map(|g| g.servers.iter().map(|s| (&*g.name, s)));
    // A lone server that never had a replica has no backlog to drop.
    let backlog = |s: &&Server| s.info("repl_backlog_active") == Ok("1");
    let nodes = facts.nodes.iter().filter(backlog).map(|s| ("node", s));
    let reached = groups.chain(nodes).filter(|(_, s)| s.reached.is_ok());
    reached.map(|(name, s)| judge(format!("{name} {}", s.at), s)).collect()
}

fn judge(subject: String, server: &Server) -> Finding {
    match server.number("repl-backlog-ttl") {
        Ok(0) => Finding::fine(subject, "repl-backlog-ttl 0"),
        Ok(ttl) => {
            let says = format!("after {ttl} s without replicas the node begins a quarantine");
            let mend = server.set("repl-backlog-ttl", "0");
            Finding::warning(subject, says, format!("repl-backlog-ttl {ttl}")).mend(mend)
        }
        Err(why) => Finding::unknown(subject, why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, close_config, fine, set, unknown};

    #[test]
    fn a_backlog_that_is_dropped_is_told() {
        fine("backlog-ttl");
        let found = broken("backlog-ttl", |f| set(f, "repl-backlog-ttl", "3600"));
        let mend = "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET repl-backlog-ttl 0";
        assert_eq!(found.mend[0], mend);
        unknown("backlog-ttl", close_config);
    }
}
