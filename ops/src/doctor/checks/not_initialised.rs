//! A deployment that nobody has used is marked as new.

use std::time::Duration;

use super::super::facts::{Facts, Kept, Marker, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::internal::RETENTION;

pub(super) const CHECK: Check = Check {
    id: "not-initialised",
    severity: Severity::Warning,
    title: "every node has palisade's marker",
    why: "a server without the marker is new or was emptied, and palisade cannot tell which: it \
          grants nothing for one quarantine, and may have forgotten any idempotency key that it \
          does not know; the trial lock is left out there, because it would begin that quarantine. \
          If another node has data, the deployment is not new: a server that is marked as new all \
          the same denies keys that it forgot, and a handler runs twice",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let in_use = facts.masters().any(|(_, s)| s.marker.ok().is_some_and(is_used));
    facts.masters().map(|(subject, master)| judge(facts, subject, master, in_use)).collect()
}

/// Whether the marker says that the server was in use before.
fn is_used(marker: &Marker) -> bool {
    matches!(marker, Marker::Kept(kept) if kept.empty_for.is_none())
}

/// The options that name the node for `palisade init` and other commands.
pub(super) fn named(facts: &Facts, subject: &str, server: &Server) -> String {
    let Some(group) = facts.groups.iter().find(|g| g.name == subject) else {
        return format!("--node redis://{}", server.at);
    };
    let sentinels: Vec<&str> = group.heard().map(|s| s.at.as_str()).collect();
    format!("--sentinel {} --master {}", sentinels.join(","), group.name)
}

/// The command that states that the deployment is new.
fn initialise(facts: &Facts, subject: &str, server: &Server) -> String {
    format!("palisade init --new {}  # if it never had any data", named(facts, subject, server))
}

fn judge(facts: &Facts, subject: String, server: &Server, in_use: bool) -> Finding {
    if server.is_cluster() {
        return Finding::unknown(subject, "a Redis Cluster is no node, and is not initialised");
    }
    match server.marker.known() {
        Err(why) => Finding::unknown(subject, why),
        Ok(Marker::Kept(kept)) => match kept.empty_for {
            Some(empty_for) => began_empty(facts, subject, server, kept, empty_for, in_use),
            None => Finding::fine(subject, "it is there"),
        },
        Ok(Marker::Absent) => {
            let read = format!("{} has no key palisade:generation", server.at);
            if in_use {
                return Finding::warning(subject, REPLACED, read);
            }
            let says = "new or emptied: if the whole deployment is new, initialise it before it is \
                        used; if it had data, do not: used keys would run again";
            let mend = initialise(facts, &subject, server);
            Finding::warning(subject, says, read).mend([mend])
        }
    }
}

const REPLACED: &str = "replaced or emptied, because other nodes have data: do not initialise it; \
                        it joins by itself one quarantine after an application connects";

fn began_empty(
    facts: &Facts,
    subject: String,
    server: &Server,
    kept: &Kept,
    empty_for: Duration,
    in_use: bool,
) -> Finding {
    let hours = |span: Duration| format!("{:.1} h", span.as_secs_f64() / 3_600.0);
    let rest = (RETENTION + kept.quarantine).saturating_sub(empty_for);
    let read = format!("palisade:generation of {} began empty {empty_for:.0?} ago", server.at);
    if rest.is_zero() {
        return Finding::fine(subject, read);
    }
    let forgets = format!(
        "keys without created_at count as forgotten for another {} (with a retention of 24 h)",
        hours(rest)
    );
    let waits = kept.quarantine_left();
    let waits = waits.map(|left| format!(" and grants nothing for another {left:.0?}"));
    let began = format!("it began without palisade data{}", waits.unwrap_or_default());
    if in_use {
        return Finding::warning(subject, format!("{began}; {forgets}"), read);
    }
    let says = format!(
        "{began}; if the whole deployment is new, initialise it; if it had data, do not: used keys \
         would run again; until then calls with keys that may be older are refused, and without it \
         {forgets}"
    );
    let servers = named(facts, &subject, server);
    let lost = format!("palisade idem incidents {servers}  # if it had data");
    let new = initialise(facts, &subject, server);
    Finding::warning(subject, says, read).mend([lost, new])
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Read, Role};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    #[test]
    fn a_new_deployment_is_told_how_to_begin() {
        fine("not-initialised");
        let found = broken("not-initialised", |f| {
            f.groups[0].servers[0].marker = Read::Got(Marker::Absent);
        });
        assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a"));
        let sentinels = "10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379";
        let group = format!("--sentinel {sentinels} --master orders-a");
        let mend = format!("palisade init --new {group}  # if it never had any data");
        assert_eq!(found.mend, [mend]);
        // What a replica has comes from its master.
        let replica = |f: &mut Facts| f.groups[0].servers[1].marker = Read::Got(Marker::Absent);
        with("not-initialised", replica, |_| {});
        let closed = |f: &mut Facts| {
            f.groups[0].servers[0].marker = Read::Closed("GET not allowed".into());
        };
        assert_eq!(unknown("not-initialised", closed).says, "unknown (GET not allowed)");
    }

    /// Two lone servers with these markers.
    fn two(f: &mut Facts, markers: [Marker; 2]) {
        let group = f.groups.remove(0);
        for (mut server, marker) in group.servers.into_iter().zip(markers) {
            server.role = Read::Got(Role::Master { offset: 0, replicas: Vec::new() });
            server.marker = Read::Got(marker);
            f.nodes.push(server);
        }
    }

    fn kept(empty_secs: Option<u64>) -> Marker {
        let secs = Duration::from_secs;
        let empty_for = empty_secs.map(secs);
        Marker::Kept(Kept { quarantine: secs(15), agreed: secs(30), empty_for, ..Kept::default() })
    }

    #[test]
    fn a_replaced_node_of_a_deployment_in_use_is_not_to_be_initialised() {
        for second in [Marker::Absent, kept(Some(5)), kept(Some(60))] {
            let found = broken("not-initialised", |f| two(f, [kept(None), second.clone()]));
            assert_eq!(found.subject, "node 10.0.0.2:6379");
            assert_eq!(found.mend, [""; 0], "{second:?}");
            assert_eq!(found.says == REPLACED, second == Marker::Absent, "{found:?}");
        }
        // Applications came before `init`: to one of the new nodes, or to both.
        for first in [Marker::Absent, kept(Some(5))] {
            let found = broken("not-initialised", |f| two(f, [first, kept(Some(5))]));
            let last = found.mend.last().map(String::as_str).unwrap_or_default();
            assert!(last.starts_with("palisade init --new"), "{found:?}");
        }
    }

    #[test]
    fn what_began_empty_is_said_until_nothing_of_before_counts() {
        let of = |empty| broken("not-initialised", |f| two(f, [kept(empty), kept(empty)]));
        let found = of(Some(5));
        assert!(found.says.contains("grants nothing for another 10s"), "{found:?}");
        let found = of(Some(60 * 60));
        assert!(found.says.contains("count as forgotten for another 23.0 h"), "{found:?}");
        // Programs have used it: an emptied server looks the same.
        assert!(found.mend[0].starts_with("palisade idem incidents"), "{found:?}");
        assert!(found.mend[1].starts_with("palisade init --new"), "{found:?}");
        let old = kept(Some(25 * 60 * 60));
        with("not-initialised", |f| two(f, [old.clone(), old]), |_| {});
    }

    #[test]
    fn a_lone_server_too() {
        let found = broken("not-initialised", |f| {
            let mut server = f.groups.remove(0).servers.remove(0);
            server.marker = Read::Got(Marker::Absent);
            f.nodes.push(server);
        });
        assert_eq!(found.subject, "node 10.0.0.1:6379");
        let begin = "palisade init --new --node redis://10.0.0.1:6379  # if it never had any data";
        assert_eq!(found.mend, [begin]);
    }
}
