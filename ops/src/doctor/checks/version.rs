//! Are the servers new enough, and of one kind?

use std::collections::BTreeSet;

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

/// The oldest version that works.
const OLDEST: [u32; 3] = [6, 2, 7];

/// Too old, or mixed in one group.
pub(super) const CHECK: Check = Check {
    id: "version",
    severity: Severity::Error,
    title: "servers are 6.2.7 or newer, no Redis Cluster, and of one version in a group",
    why: "a Redis Cluster keeps each key on one of several masters, which fail over one by one, so \
          it is no node; before 6.2.7 min-replicas-to-write does not hold inside scripts, \
          and a node is refused; \
          across versions replicas may not understand their master, and 7.2 changed what WAIT \
          counts and whether TIME is constant within a script, so a failover changes how the node \
          behaves",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let groups = facts.groups.iter().map(|g| (&*g.name, &g.servers[..]));
    let nodes = facts.nodes.iter().map(|s| ("node", std::slice::from_ref(s)));
    for (name, servers) in groups.chain(nodes) {
        let reached = || servers.iter().filter(|s| s.reached.is_ok());
        let kinds: BTreeSet<_> = reached().filter_map(|s| version(s).ok()).map(short).collect();
        found.extend(reached().map(|s| judge(name, s, kinds.len() > 1)));
    }
    found
}

/// Name and whole version.
fn version(server: &Server) -> Result<(&'static str, &str), String> {
    // Valkey reports a Redis version too, for old clients.
    match server.info("valkey_version") {
        Ok(version) => Ok(("valkey", version)),
        Err(_) => server.info("redis_version").map(|v| ("redis", v)),
    }
}

/// Major, minor, patch.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|p| p.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// Without the patch, which mixes well.
fn short((name, version): (&'static str, &str)) -> (&'static str, [u32; 2]) {
    let [major, minor, _] = numbers(version);
    (name, [major, minor])
}

fn judge(of: &str, server: &Server, mixed: bool) -> Finding {
    let subject = format!("{of} {}", server.at);
    if server.is_cluster() {
        let says = "Redis Cluster is not supported: use standalone servers or Sentinel groups";
        return Finding::error(subject, says, "redis_mode cluster");
    }
    let (name, version) = match version(server) {
        Ok(version) => version,
        Err(why) => return Finding::unknown(subject, why),
    };
    let read = format!("{name} {version}");
    if numbers(version) < OLDEST {
        let says = format!("{name} {version} is too old: at least 6.2.7 is needed");
        return Finding::error(subject, says, read).mend([upgrade(server)]);
    }
    if mixed {
        let says = format!("{name} {version} in a group with another version");
        return Finding::warning(subject, says, read).mend([upgrade(server)]);
    }
    Finding::fine(subject, read)
}

fn upgrade(server: &Server) -> String {
    let at = &server.at;
    format!("apt-get install --only-upgrade redis-server    # on the box of {at}, replicas first")
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Marker, Read};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, info_on, unknown, with};
    use super::*;

    fn versions(facts: &mut Facts, all: [&str; 3]) {
        for (server, version) in facts.groups[0].servers.iter_mut().zip(all) {
            info_on(server, "redis_version", version);
        }
    }

    #[test]
    fn a_redis_cluster_is_no_node_and_is_not_to_be_initialised() {
        let cluster = |facts: &mut Facts| {
            for server in &mut facts.groups[0].servers {
                info_on(server, "redis_mode", "cluster");
                server.marker = Read::Got(Marker::Absent);
            }
        };
        let found = broken("version", cluster);
        assert_eq!(found.verdict, Verdict::Error);
        assert!(found.says.contains("Cluster is not supported"), "{found:?}");
        assert!(unknown("not-initialised", cluster).mend.is_empty());
    }

    #[test]
    fn too_old_or_mixed() {
        fine("version");
        // Patches do not count.
        with("version", |f| versions(f, ["7.0.15", "7.0.11", "7.0.15"]), |_| {});
        let found = broken("version", |f| versions(f, ["6.0.16", "6.0.16", "6.0.16"]));
        assert_eq!((found.verdict, &*found.read), (Verdict::Error, "redis 6.0.16"));
        let found = broken("version", |f| versions(f, ["6.2.7", "6.2.6", "6.2.14"]));
        assert_eq!((found.verdict, &*found.read), (Verdict::Error, "redis 6.2.6"));
        let found = broken("version", |f| versions(f, ["7.0.15", "7.2.6", "7.0.15"]));
        assert_eq!(found.verdict, Verdict::Warning);
        let valkey = |f: &mut Facts| {
            info_on(&mut f.groups[0].servers[1], "valkey_version", "8.0.1");
        };
        assert_eq!(broken("version", valkey).verdict, Verdict::Warning);
    }
}
