//! The quarantine is not longer than the clients need.

use std::time::Duration;

use super::super::facts::{Facts, Marker, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::internal::{LAG_SLACK, MinReplicasRule};

pub(super) const CHECK: Check = Check {
    id: "quarantine-long",
    severity: Severity::Warning,
    title: "a node's quarantine is no longer than max_ttl (--max-ttl) requires",
    why: "all clients of a node share the longest quarantine that any of them requires; after one \
          client with a large max_ttl, each restart and each failover costs everybody that much, \
          until one or two of those lengths after its last request",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let max_ttl = facts.max_ttl;
    let groups = facts.groups.iter().filter_map(|group| {
        let master = group.master()?;
        // A client that cannot read the settings assumes this L.
        let unread = MinReplicasRule::default().max_lag + LAG_SLACK;
        let window = group.window().map_or(unread, |window| window.max(unread));
        Some(judge(group.name.clone(), master, max_ttl, window))
    });
    let nodes = facts.nodes.iter();
    let nodes = nodes.map(|s| judge(format!("node {}", s.at), s, max_ttl, Duration::ZERO));
    groups.chain(nodes).flatten().collect()
}

fn judge(subject: String, server: &Server, max_ttl: Duration, l: Duration) -> Option<Finding> {
    // Other checks report servers that are unreachable or have no marker.
    server.reached.as_ref().ok()?;
    let marker = match server.marker.known() {
        Ok(Marker::Absent) => return None,
        Ok(Marker::Kept(kept)) => kept,
        Err(why) => return Some(Finding::unknown(subject, why)),
    };
    let kept = marker.quarantine;
    let read = format!("quarantine {kept:?}; max_ttl {max_ttl:?}, L at most {l:?}");
    let asked = max_ttl.saturating_add(l);
    // The node counts in whole milliseconds, rounded up.
    if kept <= asked.saturating_add(Duration::from_millis(1)) {
        return Some(Finding::fine(subject, read));
    }
    let says = format!(
        "after a restart or a failover nothing is granted for {kept:?}, {:?} longer than the \
         settings given here require; {}",
        kept.saturating_sub(asked),
        comes_down(marker.agreed)
    );
    let longest = kept.saturating_sub(l).as_secs_f64();
    let mend = format!(
        "palisade doctor --max-ttl {longest}    # with your other options, if an application has \
         that max_ttl; else find the client that has it"
    );
    Some(Finding::warning(subject, says, read).mend([mend]))
}

fn comes_down(left: Duration) -> String {
    if left.is_zero() {
        return "it gets shorter with the next request that requires less".to_owned();
    }
    let secs = left.as_secs_f64().ceil();
    format!("it gets shorter in {secs} s, unless a client requires as much before then")
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Kept, Read};
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    fn marker(secs: u64, agreed_ms: u64) -> Read<Marker> {
        let (quarantine, agreed) = (Duration::from_secs(secs), Duration::from_millis(agreed_ms));
        Read::Got(Marker::Kept(Kept { quarantine, agreed, ..Kept::default() }))
    }

    #[test]
    fn a_length_that_nobody_here_asks_for_is_named_with_its_end() {
        fine("quarantine-long");
        let group = |secs, agreed| {
            broken("quarantine-long", |f| f.groups[0].servers[0].marker = marker(secs, agreed))
        };
        let found = group(90, 41_200);
        assert_eq!(found.subject, "orders-a");
        assert!(found.says.contains("granted for 90s, 63s longer"), "{found:?}");
        assert!(found.says.contains("gets shorter in 42 s, unless"), "{found:?}");
        assert!(found.mend[0].starts_with("palisade doctor --max-ttl 78 "), "{found:?}");
        assert!(group(31, 0).says.ends_with("with the next request that requires less"));
        // A client that cannot read the lag takes L to be 12 s.
        let edge = |f: &mut Facts| f.groups[0].servers[0].marker = marker(27, 0);
        with("quarantine-long", edge, |_| {});
        // It is right where an application asks for it.
        let asked = |f: &mut Facts| {
            f.groups[0].servers[0].marker = marker(90, 0);
            f.max_ttl = Duration::from_secs(78);
        };
        with("quarantine-long", asked, |_| {});
    }

    #[test]
    fn a_lone_server_has_nobody_to_outlast() {
        let lone = |f: &mut Facts, secs| {
            let mut server = f.groups.remove(0).servers.remove(0);
            server.marker = marker(secs, 0);
            f.nodes.push(server);
        };
        with("quarantine-long", |f| lone(f, 15), |all| assert_eq!(all.len(), 1));
        assert_eq!(broken("quarantine-long", |f| lone(f, 19)).subject, "node 10.0.0.1:6379");
        let closed = |f: &mut Facts| {
            f.groups[0].servers[0].marker = Read::Closed("GET not allowed".into());
        };
        assert_eq!(unknown("quarantine-long", closed).says, "unknown (GET not allowed)");
    }
}
