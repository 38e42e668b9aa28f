//! The master refuses writes without its replicas.

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "min-replicas-off",
    severity: Severity::Error,
    title: "the master has the min-replicas guard",
    why: "a master that is cut off goes on granting locks: two masters for 26 s in a partition of \
          15 s, and all of its 14 934 confirmed writes lost at the heal (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.groups.iter().filter_map(|g| g.master().map(|m| judge(&g.name, m))).collect()
}

fn judge(group: &str, master: &Server) -> Finding {
    let subject = format!("{group} {}", master.at);
    let says = "the guard is off: writes are taken without a single replica";
    match (master.number("min-replicas-to-write"), master.number("min-replicas-max-lag")) {
        (Ok(k), Ok(lag)) => {
            let read = format!("min-replicas-to-write {k}, min-replicas-max-lag {lag}");
            if k > 0 && lag > 0 {
                return Finding::fine(subject, read);
            }
            let set = if k == 0 { "min-replicas-to-write 1" } else { "min-replicas-max-lag 2" };
            let (name, value) = set.split_once(' ').unwrap_or((set, ""));
            Finding::error(subject, says, read).mend(master.set(name, value))
        }
        (Err(why), _) | (_, Err(why)) => {
            // INFO shows the line only while both settings are above zero.
            let Some(info) = master.info.ok() else { return Finding::unknown(subject, why) };
            match info.get("min_slaves_good_slaves") {
                Some(n) => {
                    Finding::fine(subject, format!("INFO: min_slaves_good_slaves {n} ({why})"))
                }
                None => {
                    Finding::error(subject, says, format!("INFO: no good-replicas line ({why})"))
                        .mend(master.set("min-replicas-to-write", "1"))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, set, with};
    use super::*;

    #[test]
    fn a_master_without_guard_is_told_with_the_command() {
        fine("min-replicas-off");
        let found = broken("min-replicas-off", |f| set(f, "min-replicas-to-write", "0"));
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        assert_eq!(
            found.mend[0],
            "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET min-replicas-to-write 1"
        );
        let found = broken("min-replicas-off", |f| set(f, "min-replicas-max-lag", "0"));
        assert!(found.mend[0].ends_with("CONFIG SET min-replicas-max-lag 2"), "{found:?}");
    }

    #[test]
    fn where_config_is_closed_info_tells() {
        let closed = |f: &mut Facts| {
            for s in &mut f.groups[0].servers {
                s.config = Read::Closed("CONFIG not allowed".into());
            }
        };
        with("min-replicas-off", closed, |all| {
            assert!(all[0].read.contains("min_slaves_good_slaves 2 (CONFIG not allowed)"));
        });
        let found = broken("min-replicas-off", |f| {
            closed(f);
            let Read::Got(info) = &mut f.groups[0].servers[0].info else { unreachable!() };
            info.remove("min_slaves_good_slaves");
        });
        assert!(found.read.contains("CONFIG not allowed"), "{found:?}");
    }
}
