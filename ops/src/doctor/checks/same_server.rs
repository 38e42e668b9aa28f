//! Each node is a server of its own.

use std::collections::BTreeMap;

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "same-server-twice",
    severity: Severity::Error,
    title: "no server belongs to two nodes",
    why: "one server with two votes can be a majority alone; the library refuses such nodes when \
          it detects them",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    // Nodes by the process ids of their servers.
    let mut seen: BTreeMap<&str, BTreeMap<usize, String>> = BTreeMap::new();
    for (n, group) in facts.groups.iter().enumerate() {
        for server in &group.servers {
            if let Ok(id) = server.info("run_id") {
                let label = format!("{} ({}, node {})", group.name, server.at, n + 1);
                // Two addresses in one group are one vote; `announced-address` reports them.
                seen.entry(id).or_default().entry(n).or_insert(label);
            }
        }
    }
    for (n, server) in facts.nodes.iter().enumerate() {
        if let Ok(id) = server.info("run_id") {
            let n = facts.groups.len() + n;
            seen.entry(id).or_default().insert(n, format!("{} (node {})", server.at, n + 1));
        }
    }
    let Some(any) = facts
        .servers()
        .filter(|(_, s)| s.reached.is_ok())
        .map(|(_, s)| s.info("run_id"))
        .reduce(std::result::Result::and)
    else {
        return Vec::new();
    };
    let twice: Vec<Finding> = seen
        .iter()
        .filter(|(_, labels)| labels.len() > 1)
        .map(|(id, labels)| {
            let labels: Vec<_> = labels.values().map(String::as_str).collect();
            let says = format!("one process, counted twice: {}", labels.join(" and "));
            Finding::error("nodes", says, format!("run_id {id}"))
        })
        .collect();
    match (twice.is_empty(), any) {
        (false, _) => twice,
        (true, Ok(_)) => {
            vec![Finding::fine("nodes", format!("{} servers, all different", seen.len()))]
        }
        (true, Err(why)) => vec![Finding::unknown("nodes", why)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown};

    #[test]
    fn a_server_of_a_group_that_is_a_lone_node_too_is_told() {
        fine("same-server-twice");
        let found = broken("same-server-twice", |f| {
            let mut lone = f.groups[0].servers[1].clone();
            lone.at = "replica.example:6379".into();
            f.nodes.push(lone);
        });
        assert!(found.says.contains("orders-a (10.0.0.2:6379, node 1)"), "{found:?}");
        assert!(found.says.contains("replica.example:6379 (node 2)"), "{found:?}");
        unknown("same-server-twice", |f| {
            f.groups[0].servers[0].info = Read::Closed("INFO not allowed".into());
        });
    }
}
