//! The next master has the min-replicas check, too.

use super::super::facts::{Facts, Group, MinReplicas, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use super::min_replicas_off::switch_on;

pub(super) const CHECK: Check = Check {
    id: "min-replicas-replica",
    severity: Severity::Error,
    title: "every replica has the min-replicas check of its master",
    why: "if it is set on the master alone (CONFIG SET), the next master does not have it: the \
          first failover silently removes the check (observed)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let each = |g: &Group| -> Vec<Finding> {
        let reached = g.replicas().filter(|s| s.reached.is_ok());
        reached.map(|s| judge(format!("{} {}", g.name, s.at), s, g.master())).collect()
    };
    facts.groups.iter().flat_map(each).collect()
}

fn judge(subject: String, replica: &Server, master: Option<&Server>) -> Finding {
    match (replica.min_replicas(), master.map(Server::min_replicas)) {
        (MinReplicas::Unknown(why), _) => Finding::unknown(subject, why),
        (MinReplicas::Off(read), _) => {
            let says = "if promoted, it would take writes without any replica";
            Finding::error(subject, says, read).mend(switch_on(replica))
        }
        (MinReplicas::On(Some(k), read), Some(MinReplicas::On(Some(asked), _))) if k < asked => {
            let says = format!("its check requires {k} replicas, the master's {asked}");
            let mend = replica.set("min-replicas-to-write", &asked.to_string());
            Finding::error(subject, says, read).mend(mend)
        }
        (MinReplicas::On(_, read), _) => Finding::fine(subject, read),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, close_config, fine, set_on, unknown};

    #[test]
    fn a_replica_without_the_masters_guard_is_told() {
        fine("min-replicas-replica");
        let found = broken("min-replicas-replica", |f| {
            set_on(&mut f.groups[0].servers[2], "min-replicas-to-write", "0");
        });
        assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
        let mend = "redis-cli -h 10.0.0.3 -p 6379 CONFIG SET min-replicas-to-write 1";
        assert_eq!(found.mend[0], mend);
        let found = broken("min-replicas-replica", |f| {
            set_on(&mut f.groups[0].servers[0], "min-replicas-to-write", "2");
        });
        assert!(found.mend[0].ends_with("min-replicas-to-write 2"), "{found:?}");
        unknown("min-replicas-replica", |f| {
            close_config(f);
            f.groups[0].servers[1].info = Read::Failed("no answer".into());
        });
    }
}
