//! The master refuses writes without its replicas.

use super::super::facts::{Facts, MinReplicas, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::internal::ADVISED_LAG;

pub(super) const CHECK: Check = Check {
    id: "min-replicas-off",
    severity: Severity::Error,
    title: "the master has the min-replicas check",
    why: "a master that is cut off goes on granting locks: two masters for 26 s in a partition of \
          15 s, and all of its 14 934 confirmed writes lost at the heal (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let masters = facts.groups.iter().filter_map(|g| Some((g, g.master()?)));
    let reached = masters.filter(|(_, m)| m.reached.is_ok());
    reached.map(|(g, m)| judge(format!("{} {}", g.name, m.at), m)).collect()
}

fn judge(subject: String, master: &Server) -> Finding {
    match master.min_replicas() {
        MinReplicas::On(_, read) => Finding::fine(subject, read),
        MinReplicas::Unknown(why) => Finding::unknown(subject, why),
        MinReplicas::Off(read) => {
            let says = "the min-replicas check is off: the server takes writes without any replica";
            Finding::error(subject, says, read).mend(switch_on(master))
        }
    }
}

/// What switches the check on: the settings that are zero, or both where that is not known.
pub(super) fn switch_on(server: &Server) -> Vec<String> {
    let lag = ADVISED_LAG.as_secs().to_string();
    let wanted = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", &*lag)];
    let off = wanted.iter().filter(|(name, _)| server.number(name).unwrap_or(0) == 0);
    let mut mend: Vec<String> =
        off.map(|(name, value)| server.by_hand(&format!("CONFIG SET {name} {value}"))).collect();
    mend.push(server.by_hand("CONFIG REWRITE"));
    mend
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, close_config, fine, set, unknown, with};

    #[test]
    fn a_master_without_guard_is_told_with_the_command() {
        fine("min-replicas-off");
        let found = broken("min-replicas-off", |f| set(f, "min-replicas-to-write", "0"));
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        assert_eq!(
            found.mend,
            [
                "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET min-replicas-to-write 1",
                "redis-cli -h 10.0.0.1 -p 6379 CONFIG REWRITE"
            ]
        );
        let found = broken("min-replicas-off", |f| set(f, "min-replicas-max-lag", "0"));
        assert!(found.mend[0].ends_with("CONFIG SET min-replicas-max-lag 2"), "{found:?}");
    }

    #[test]
    fn where_config_is_closed_info_tells() {
        with("min-replicas-off", close_config, |all| {
            assert!(all[0].read.contains("check on (CONFIG not allowed)"), "{all:?}");
        });
        let found = broken("min-replicas-off", |f| {
            close_config(f);
            let Read::Got(info) = &mut f.groups[0].servers[0].info else { unreachable!() };
            info.remove("min_slaves_good_slaves");
        });
        assert!(found.read.contains("CONFIG not allowed"), "{found:?}");
        assert_eq!(found.mend.len(), 3, "{found:?}");
        let found = unknown("min-replicas-off", |f| {
            close_config(f);
            f.groups[0].servers[0].info = Read::Closed("INFO not allowed".into());
        });
        assert_eq!(found.says, "unknown (CONFIG not allowed)");
    }
}
