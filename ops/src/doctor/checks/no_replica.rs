//! At least one replica can take over.

use super::super::facts::{Facts, Group, Sentinel};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "no-promotable-replica",
    severity: Severity::Error,
    title: "at least one replica may be promoted",
    why: "with replica-priority 0 everywhere a dead master is never replaced \
          (-failover-abort-no-good-slave, observed); without replicas there is nothing to promote",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let replicas = match sentinel.replicas.known() {
        Ok(replicas) => replicas,
        Err(why) => return Finding::unknown(subject, why),
    };
    let able = sentinel.priorities().filter(|(_, priority)| *priority > 0).count();
    let read = format!("{} replicas, {able} with a priority above 0", replicas.len());
    if able > 0 {
        return Finding::fine(subject, read);
    }
    let finding = Finding::error(subject, "no replica may be promoted", read);
    if replicas.is_empty() {
        return finding.mend([one_more(group)]);
    }
    finding.mend(group.replicas().flat_map(|s| s.set("replica-priority", "100")))
}

/// The command that starts another replica.
pub(super) fn one_more(group: &Group) -> String {
    let at = group.master_at().unwrap_or_default();
    let (host, port) = at.rsplit_once(':').unwrap_or((&at, "6379"));
    format!("redis-server redis.conf --replicaof {host} {port}    # on another box")
}

impl Sentinel {
    /// The replicas it knows, with their priorities.
    pub(super) fn priorities(&self) -> impl Iterator<Item = (String, u64)> {
        let all = self.replicas.ok().into_iter().flatten();
        all.filter_map(|r| {
            Some((super::super::facts::place(r)?, r.get("slave-priority")?.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    fn priority(f: &mut Facts, replica: usize, value: &str) {
        for s in &mut f.groups[0].sentinels {
            let Read::Got(replicas) = &mut s.replicas else { panic!("no answer") };
            replicas[replica].insert("slave-priority".into(), value.into());
        }
    }

    #[test]
    fn a_group_that_cannot_fail_over_is_told() {
        fine("no-promotable-replica");
        with("no-promotable-replica", |f| priority(f, 0, "0"), |_| {});
        let found = broken("no-promotable-replica", |f| {
            priority(f, 0, "0");
            priority(f, 1, "0");
        });
        let mend = "redis-cli -h 10.0.0.2 -p 6379 CONFIG SET replica-priority 100";
        assert_eq!(found.mend[0], mend);
        let found = broken("no-promotable-replica", |f| {
            for s in &mut f.groups[0].sentinels {
                s.replicas = Read::Got(Vec::new());
            }
        });
        assert!(found.mend[0].contains("--replicaof 10.0.0.1 6379"), "{found:?}");
        unknown("no-promotable-replica", |f| {
            f.groups[0].sentinels[0].replicas = Read::Closed("not allowed".into());
        });
    }
}
