//! One Sentinel alone cannot start a failover.

use super::super::facts::{Facts, Group, Sentinel};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "quorum-low",
    severity: Severity::Error,
    title: "the quorum is a majority of the Sentinels",
    why: "with quorum 1, one Sentinel that lost its network promoted a replica after 1.7 s while \
          the healthy master wrote on until 12.7 s; 2 095 confirmed writes lost (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let (quorum, others) = match sentinel.counts() {
        Ok(counts) => counts,
        Err(why) => return Finding::unknown(subject, why),
    };
    let all = others.saturating_add(1);
    let majority = all / 2 + 1;
    let read = format!("quorum {quorum} of {all} Sentinels");
    let says = if quorum < majority {
        format!("{quorum} Sentinels can declare the master down, but a majority is {majority}")
    } else if quorum > all {
        format!("the quorum is {quorum}, and there are fewer Sentinels: no failover can begin")
    } else {
        return Finding::fine(subject, read);
    };
    let set = format!("SENTINEL SET {} quorum {majority}", group.name);
    Finding::error(subject, says, read).mend([sentinel.by_hand(&set)])
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{all_masters, broken, fine, unknown, with};

    #[test]
    fn a_quorum_below_a_majority_is_told_for_each_sentinel() {
        fine("quorum-low");
        let found = broken("quorum-low", |f| all_masters(f, "quorum", "1"));
        let mend = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a quorum 2";
        assert_eq!((found.read.as_str(), &*found.mend[0]), ("quorum 1 of 3 Sentinels", mend));
        assert!(
            broken("quorum-low", |f| all_masters(f, "quorum", "4")).says.contains("no failover")
        );
        with("quorum-low", |f| all_masters(f, "quorum", "3"), |_| {});
        let found = unknown("quorum-low", |f| {
            let closed = "SENTINEL MASTER not allowed";
            f.groups[0].sentinels[1].master = Read::Closed(closed.into());
        });
        assert_eq!(found.says, "unknown (SENTINEL MASTER not allowed)");
    }
}
