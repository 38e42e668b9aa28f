//! A master that is cut off from the Sentinels has lost its replicas, too.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Facts, Group, host_of};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "minority-side",
    severity: Severity::Warning,
    title: "no cut leaves the master its k replicas and most Sentinels to another replica",
    why: "min-replicas-to-write k stops a replaced master only if k replicas cannot be cut off \
          together with it: else it grants for as long as the network stays cut, and the new one \
          begins as soon as somebody gives it a replica",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let led = facts.groups.iter().filter(|g| g.master().is_some_and(|m| m.reached.is_ok()));
    led.map(judge).collect()
}

/// What runs on one box.
#[derive(Clone, Copy, Default)]
struct Place {
    replicas: usize,
    sentinels: usize,
}

fn judge(group: &Group) -> Finding {
    let Some(master) = group.master() else { return Finding::unknown(&group.name, "no master") };
    let k = match master.number("min-replicas-to-write") {
        Ok(k) => usize::try_from(k).unwrap_or(usize::MAX),
        Err(why) => return Finding::unknown(&group.name, why),
    };
    let boxes = boxes(group);
    let replicas: usize = boxes.values().map(|b| b.replicas).sum();
    let sentinels: usize = boxes.values().map(|b| b.sentinels).sum();
    // A failover needs a replica on the other side, and a majority of the Sentinels there.
    let inside = fewest_sentinels(&boxes, host_of(&master.at), k..replicas);
    let outside = inside.map(|n| sentinels - n);
    let read = format!(
        "min-replicas-to-write {k}, {replicas} replicas and {sentinels} Sentinels on {} boxes",
        boxes.len()
    );
    // Without any check, or where two halves can both satisfy it, that is what is reported.
    let halves = replicas.saturating_add(1) >= k.saturating_add(1).saturating_mul(2);
    let Some(outside) = outside.filter(|n| *n > sentinels / 2 && k > 0 && !halves) else {
        return Finding::fine(&group.name, read);
    };
    let says = format!(
        "{k} replicas can be cut off together with the master while {outside} of {sentinels} \
         Sentinels replace it: the old master then grants until the network heals"
    );
    let free = boxes.iter().filter(|(_, b)| b.sentinels == 0);
    let boxes: Vec<&str> = free.map(|(host, _)| *host).collect();
    let mend = format!(
        "redis-sentinel sentinel.conf    # a Sentinel on the box of each data server ({}), and \
         fewer elsewhere",
        boxes.join(", ")
    );
    Finding::warning(&group.name, says, read).mend([mend])
}

fn boxes(group: &Group) -> BTreeMap<&str, Place> {
    let mut boxes: BTreeMap<&str, Place> = BTreeMap::new();
    let master = group.master_at();
    // A server with two addresses counts once.
    let (mut servers, mut sentinels) = (BTreeSet::new(), BTreeSet::new());
    for server in &group.servers {
        let again = server.info("run_id").is_ok_and(|id| !servers.insert(id));
        let replica = !again && Some(&server.at) != master.as_ref();
        boxes.entry(host_of(&server.at)).or_default().replicas += usize::from(replica);
    }
    for sentinel in &group.sentinels {
        let again = sentinel.id.ok().is_some_and(|id| !sentinels.insert(id));
        boxes.entry(host_of(&sentinel.at)).or_default().sentinels += usize::from(!again);
    }
    boxes
}

/// The fewest Sentinels on any boxes which, with the master's, have so many replicas.
fn fewest_sentinels(
    boxes: &BTreeMap<&str, Place>,
    master: &str,
    replicas: std::ops::Range<usize>,
) -> Option<usize> {
    let own = boxes.get(master).copied().unwrap_or_default();
    let mut fewest = BTreeMap::from([(own.replicas, own.sentinels)]);
    for (_, other) in boxes.iter().filter(|(host, b)| **host != master && b.replicas > 0) {
        for (n, sentinels) in fewest.clone() {
            let with = sentinels + other.sentinels;
            let known = fewest.entry(n + other.replicas).or_insert(with);
            *known = with.min(*known);
        }
    }
    fewest.into_iter().filter(|(n, _)| replicas.contains(n)).map(|(_, s)| s).min()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, close_config, fine, info_on, set, unknown, with};
    use super::*;

    /// The Sentinels on boxes of their own, but for the first so many.
    fn apart(facts: &mut Facts, at_home: usize) {
        for (n, sentinel) in facts.groups[0].sentinels.iter_mut().enumerate().skip(at_home) {
            sentinel.at = format!("10.0.1.{n}:26379");
        }
    }

    fn add_sentinel(facts: &mut Facts, host: &str) {
        let mut more = facts.groups[0].sentinels[0].clone();
        let n = facts.groups[0].sentinels.len();
        more.at = format!("{host}:26379");
        more.id = super::super::super::facts::Read::Got(format!("id {n}"));
        facts.groups[0].sentinels.push(more);
    }

    #[test]
    fn sentinels_that_are_not_where_the_servers_are() {
        // On three boxes, two of them have most of the Sentinels.
        fine("minority-side");
        let found = broken("minority-side", |f| apart(f, 0));
        assert_eq!(found.subject, "orders-a");
        assert!(found.says.contains("1 replicas") && found.says.contains("3 of 3"), "{found:?}");
        assert!(found.mend[0].contains("(10.0.0.1, 10.0.0.2, 10.0.0.3)"), "{found:?}");
        let found = broken("minority-side", |f| apart(f, 1));
        assert!(found.says.contains("2 of 3"), "{found:?}");
        // With two of three at home, the replica without one goes with the master.
        let found = broken("minority-side", |f| apart(f, 2));
        assert!(found.mend[0].contains("(10.0.0.3)"), "{found:?}");
        assert_eq!(unknown("minority-side", close_config).says, "unknown (CONFIG not allowed)");
    }

    #[test]
    fn sentinels_elsewhere_may_outvote_those_at_home() {
        let one = |f: &mut Facts| add_sentinel(f, "10.0.1.1");
        with("minority-side", one, |_| {});
        let two = |f: &mut Facts| ["10.0.1.1", "10.0.1.2"].iter().for_each(|h| add_sentinel(f, h));
        assert!(broken("minority-side", two).says.contains("3 of 5"));
    }

    #[test]
    fn a_cut_that_leaves_nobody_to_promote_replaces_nobody() {
        // Both replicas have to be there.
        let all = |f: &mut Facts| {
            apart(f, 0);
            set(f, "min-replicas-to-write", "2");
        };
        with("minority-side", all, |_| {});
        let off = |f: &mut Facts| {
            apart(f, 0);
            set(f, "min-replicas-to-write", "0");
        };
        with("minority-side", off, |_| {});
        // One server under two addresses is one.
        let twice = |f: &mut Facts| {
            apart(f, 0);
            let id = "2".repeat(40);
            info_on(&mut f.groups[0].servers[2], "run_id", &id);
        };
        with("minority-side", twice, |_| {});
    }
}
