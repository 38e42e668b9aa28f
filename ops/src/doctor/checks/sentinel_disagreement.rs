//! The Sentinels reach each other and agree about the group.

use std::collections::BTreeMap;

use super::super::facts::{Facts, Group, Read, Sentinel, flagged, place};
use super::super::report::{Finding, Severity};
use super::Check;
use super::stale_sentinels::is_gone;

pub(super) const CHECK: Check = Check {
    id: "sentinel-disagreement",
    severity: Severity::Error,
    title: "the Sentinels reach each other and agree on master, epoch, quorum and down-after",
    why: "a Sentinel on the minority side keeps naming the old master and reports no problem; only \
          CKQUORUM shows that no failover is possible (observed)",
    run,
};

/// Fields that have to be equal at all Sentinels.
const ALIKE: &[&str] =
    &["config-epoch", "quorum", "down-after-milliseconds", "num-other-sentinels"];

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        found.extend(group.heard().map(|s| alone(group, s)));
        if group.heard().count() > 1 {
            found.extend(together(group));
        }
    }
    found
}

/// Whether this Sentinel can make a failover and reaches the others.
fn alone(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    if let Read::Failed(why) = &sentinel.master {
        let mend = monitor(group, sentinel);
        return Finding::error(subject, "it does not monitor this group", why).mend(mend);
    }
    let lost: Vec<String> = sentinel
        .others
        .ok()
        .into_iter()
        .flatten()
        .filter_map(|o| {
            let down = flagged(o, "s_down") || flagged(o, "disconnected");
            // Those that are gone for good are reported as stale.
            (down && !is_gone(o)).then(|| place(o))?
        })
        .collect();
    let check = sentinel.by_hand(&format!("SENTINEL CKQUORUM {}", group.name));
    match sentinel.quorum.known() {
        Ok(said) if !said.starts_with("OK") => {
            let ping = others_by_hand(group, &lost).chain([check]);
            Finding::error(subject, "it reports that no failover is possible", said).mend(ping)
        }
        _ if !lost.is_empty() => {
            let read = format!("down or disconnected: {}", lost.join(", "));
            let mend: Vec<_> = others_by_hand(group, &lost).collect();
            Finding::error(subject, "it does not reach other Sentinels", read).mend(mend)
        }
        Ok(said) => Finding::fine(subject, said),
        Err(why) => Finding::unknown(subject, why),
    }
}

/// Commands that ping these Sentinels.
fn others_by_hand<'a>(group: &'a Group, at: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let known = group.sentinels.iter().filter(|s| at.contains(&s.at));
    known.map(|s| s.by_hand("PING"))
}

/// Commands that make a Sentinel monitor the group as the others do.
fn monitor(group: &Group, sentinel: &Sentinel) -> Vec<String> {
    let usual = |name| group.heard().find_map(|s| s.number(name));
    let (Some(at), Some(quorum)) = (group.master_at(), usual("quorum")) else { return Vec::new() };
    let Some((host, port)) = at.rsplit_once(':') else { return Vec::new() };
    let name = &group.name;
    let mut mend =
        vec![sentinel.by_hand(&format!("SENTINEL MONITOR {name} {host} {port} {quorum}"))];
    for what in ["down-after-milliseconds", "failover-timeout"] {
        if let Some(value) = usual(what) {
            mend.push(sentinel.by_hand(&format!("SENTINEL SET {name} {what} {value}")));
        }
    }
    mend
}

/// What differs between the Sentinels.
fn together(group: &Group) -> Vec<Finding> {
    let mut found = Vec::new();
    let name = &group.name;
    let (common, read, odd) = votes(group, Sentinel::master_at);
    if !odd.is_empty() {
        let says = "the Sentinels name different masters; if that lasts for more than a minute, \
                    remove the group on the odd ones and monitor it again";
        let mend = odd.iter().flat_map(|s| {
            let mut mend = vec![s.by_hand(&format!("SENTINEL REMOVE {name}"))];
            mend.extend(monitor(group, s));
            mend
        });
        found.push(Finding::error(name, says, format!("master {read}")).mend(mend));
    }
    for what in ALIKE {
        let (usual, read, odd) = votes(group, |s| Some(s.number(what)?.to_string()));
        if odd.is_empty() {
            continue;
        }
        let says = format!("the Sentinels differ in {what}");
        let value = usual.unwrap_or_default();
        let mend: Vec<String> = match *what {
            "quorum" | "down-after-milliseconds" => {
                let set = format!("SENTINEL SET {name} {what} {value}");
                odd.iter().map(|s| s.by_hand(&set)).collect()
            }
            // Sentinels exchange epochs and counts through the master; a reset repeats that.
            _ => odd.iter().map(|s| s.by_hand(&format!("SENTINEL RESET {name}"))).collect(),
        };
        found.push(Finding::error(name, says, format!("{what} {read}")).mend(mend));
    }
    if found.is_empty() {
        let master = common.unwrap_or_else(|| "no master".into());
        found.push(Finding::fine(
            name,
            format!("all name {master}, and agree on {}", ALIKE.join(", ")),
        ));
    }
    found
}

/// The most common value, every value with its Sentinels, and the Sentinels that differ.
fn votes(
    group: &Group,
    of: impl Fn(&Sentinel) -> Option<String>,
) -> (Option<String>, String, Vec<&Sentinel>) {
    let mut said: BTreeMap<String, Vec<&Sentinel>> = BTreeMap::new();
    for sentinel in group.heard() {
        if let Some(value) = of(sentinel) {
            said.entry(value).or_default().push(sentinel);
        }
    }
    let usual = said.iter().max_by_key(|(_, by)| by.len()).map(|(value, _)| value.clone());
    let read: Vec<String> = said
        .iter()
        .map(|(value, by)| {
            let by: Vec<_> = by.iter().map(|s| s.at.as_str()).collect();
            format!("{value} at {}", by.join(" and "))
        })
        .collect();
    let odd = said.into_iter().filter(|(value, _)| Some(value) != usual.as_ref());
    (usual.clone(), read.join("; "), odd.flat_map(|(_, by)| by).collect())
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    fn said(f: &mut Facts, n: usize, name: &str, value: &str) {
        let Read::Got(master) = &mut f.groups[0].sentinels[n].master else { panic!("no answer") };
        master.insert(name.into(), value.into());
    }

    #[test]
    fn a_lost_quorum_is_the_word_of_ckquorum() {
        fine("sentinel-disagreement");
        let found = broken("sentinel-disagreement", |f| {
            let no = "NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach the \
                      majority and authorize a failover";
            f.groups[0].sentinels[0].quorum = Read::Got(no.into());
        });
        assert!(found.says.contains("no failover"), "{found:?}");
        let closed = |f: &mut Facts| {
            for s in &mut f.groups[0].sentinels {
                s.quorum = Read::Closed("SENTINEL CKQUORUM not allowed".into());
            }
        };
        let found = unknown("sentinel-disagreement", closed);
        assert_eq!(found.says, "unknown (SENTINEL CKQUORUM not allowed)");
    }

    #[test]
    fn a_sentinel_out_of_reach_is_told_by_the_one_that_misses_it() {
        let gone = |ms: &'static str| {
            move |f: &mut Facts| {
                let Read::Got(others) = &mut f.groups[0].sentinels[0].others else { return };
                others[0].insert("flags".into(), "s_down,sentinel,disconnected".into());
                others[0].insert("s-down-time".into(), ms.into());
            }
        };
        let found = broken("sentinel-disagreement", gone("4000"));
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
        assert_eq!(found.mend, ["redis-cli -h 10.0.0.2 -p 26379 PING"]);
        with("sentinel-disagreement", gone("700000"), |_| {});
    }

    #[test]
    fn what_they_say_differently_is_told_with_who_says_it() {
        let found = broken("sentinel-disagreement", |f| said(f, 2, "ip", "10.0.0.2"));
        assert!(found.read.contains("10.0.0.2:6379 at 10.0.0.3:26379"), "{found:?}");
        assert!(found.mend[1].ends_with("SENTINEL MONITOR orders-a 10.0.0.1 6379 2"), "{found:?}");
        for what in ALIKE {
            let found = broken("sentinel-disagreement", |f| said(f, 1, what, "7"));
            assert!(found.says.contains(what), "{found:?}");
            assert!(found.mend[0].starts_with("redis-cli -h 10.0.0.2 -p 26379"), "{found:?}");
        }
        let found = broken("sentinel-disagreement", |f| {
            let why = "ERR No such master with that name";
            f.groups[0].sentinels[1].master = Read::Failed(why.into());
        });
        assert!(found.mend[1].ends_with("SENTINEL SET orders-a down-after-milliseconds 4000"));
    }
}
