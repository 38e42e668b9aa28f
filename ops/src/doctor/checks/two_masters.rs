//! A group has one master.

use super::super::facts::{Facts, Group, Role, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "two-masters",
    severity: Severity::Error,
    title: "only the server that the Sentinels name calls itself master",
    why: "what the other one grants is lost as soon as it becomes a replica; an old master that \
          comes back remains a master for about 11 s (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.groups.iter().filter(|g| !g.servers.is_empty()).map(judge).collect()
}

fn judge(group: &Group) -> Finding {
    let is_master = |s: &&Server| matches!(s.role.ok(), Some(Role::Master { .. }));
    let masters: Vec<&Server> = group.servers.iter().filter(is_master).collect();
    let named = group.master_at();
    let known = group.servers.iter().filter(|s| s.role.ok().is_some()).count();
    if known == 0 {
        let why = group.servers.iter().find_map(|s| s.role.known().err());
        return Finding::unknown(&group.name, why.unwrap_or_else(|| "no servers".into()));
    }
    let at: Vec<_> = masters.iter().map(|s| s.at.as_str()).collect();
    let who = named.clone().unwrap_or_else(|| "no server".into());
    let read = format!("ROLE master at {}; the Sentinels name {who}", at.join(" and "));
    let others: Vec<_> = masters.iter().filter(|s| Some(&s.at) != named.as_ref()).collect();
    if others.is_empty() {
        return Finding::fine(&group.name, read);
    }
    let says = "servers that the Sentinels do not name call themselves master; if that lasts for \
                more than a minute, make them replicas by hand";
    let mend = others.iter().filter_map(|s| {
        let (host, port) = named.as_deref()?.rsplit_once(':')?;
        Some(s.by_hand(&format!("REPLICAOF {host} {port}")))
    });
    Finding::error(&group.name, says, read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown};

    #[test]
    fn a_second_master_is_told() {
        fine("two-masters");
        let found = broken("two-masters", |f| {
            f.groups[0].servers[2].role = f.groups[0].servers[0].role.clone();
        });
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.3 -p 6379 REPLICAOF 10.0.0.1 6379"]);
        unknown("two-masters", |f| {
            for s in &mut f.groups[0].servers {
                s.role = Read::Closed("ROLE not allowed".into());
            }
        });
    }
}
