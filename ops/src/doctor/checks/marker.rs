//! The doctor's checks of the marker, the key `palisade:generation` that palisade writes on each
//! node. The checks find a new node, a loss of data, and a quarantine (a time without grants) that
//! is too long.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::facts::{Facts, Group, KeptData, Server};
use super::super::report::Finding;
use super::{Answer, Check, Run};
use crate::nodes::LOST_EVERYTHING;
use palisade::error::NodeFault;
use palisade::internal::{AtMost, RETENTION, objection, quoted, until_utc};
use palisade::node::spi::Loss;

pub(super) const NOT_INITIALISED: Check = Check {
    id: "not-initialised",
    why: "a server without the marker is new or was emptied, and palisade cannot tell which: it \
          grants nothing for one quarantine, and may have forgotten any idempotency key that it \
          does not know; the trial lock is left out there, because it would begin that quarantine. \
          If another node has data, the deployment is not new: a server that is marked as new all \
          the same reports keys that it lost as new, and a handler runs twice",
    run: Run::Masters(not_initialised),
};

/// Returns true if the library refuses the server for good. One that may evict keys is mended by
/// the command of another finding, and then wants its marker.
fn is_refused(server: &Server) -> bool {
    let why = server.info_text().ok().and_then(|info| objection(&info, server.allows_eviction));
    why.is_some_and(|e| e.fault() != NodeFault::Eviction)
}

const REPLACED: &str = "replaced or emptied, because other nodes have data: do not initialise it; \
                        it joins by itself one quarantine after an application connects";

fn not_initialised(facts: &Facts, server: &Server) -> Answer {
    let was_used = |s: &Server| matches!(&s.marker, Ok(Some(kept)) if kept.empty_for.is_none());
    let in_use = facts.masters().any(|(_, s)| was_used(s));
    let servers = named(facts);
    let init = || [format!("palisade init --new {servers}  # if it never had any data")];
    let kept = match server.marker.as_ref()? {
        Some(kept) => kept,
        // The library refuses some servers, for example a Redis Cluster, so `palisade init` cannot
        // write the marker (`palisade:generation`) there.
        None if is_refused(server) => {
            return Err("the library refuses this server".to_owned());
        }
        None => {
            let evidence = format!("{} has no key palisade:generation", server.at);
            if in_use {
                return Ok(Finding::warning(REPLACED, evidence));
            }
            let message = "new or emptied: if the whole deployment is new, initialise it before it \
                           is used; if it had data, do not: used keys would run again";
            return Ok(Finding::warning(message, evidence).fix(init()));
        }
    };
    let Some(empty_for) = kept.empty_for else { return Ok(Finding::fine("it is there")) };
    let evidence = format!("palisade:generation of {} began empty {empty_for:.0?} ago", server.at);
    let rest = (RETENTION + kept.quarantine).saturating_sub(empty_for);
    if rest.is_zero() {
        return Ok(Finding::fine(evidence));
    }
    let waits = Some(kept.quarantine_left()).filter(|left| !left.is_zero());
    let waits = waits.map(|left| format!(" and grants nothing for another {left:.0?}"));
    let message = format!(
        "it began without palisade data{}; keys without created_at count as forgotten for another \
         {:.1} h (with a retention of 24 h)",
        waits.unwrap_or_default(),
        rest.as_secs_f64() / 3_600.0
    );
    Ok(if in_use {
        Finding::warning(message, evidence)
    } else {
        let message = format!(
            "{message}; if the whole deployment is new, initialise it; if it had data, do not: \
             used keys would run again"
        );
        let lost = format!("palisade idem incidents {servers}  # if it had data");
        Finding::warning(message, evidence).fix([lost]).fix(init())
    })
}

/// Returns the command-line options that name all nodes: `palisade init` and `palisade idem` have
/// to see all of them, and `palisade settings` reckons with their failover windows.
fn named(facts: &Facts) -> String {
    let groups = facts.groups.iter().map(|group| &group.url);
    let urls: Vec<_> = groups.chain(facts.nodes.iter().map(|server| &server.url)).collect();
    let even = urls.len().is_multiple_of(2).then(|| "--allow-even-nodes".to_owned());
    let all = urls.into_iter().map(|url| format!("--node {}", quoted(url)));
    all.chain(even).collect::<Vec<_>>().join(" ")
}

pub(super) const DATA_LOSS: Check = Check {
    id: "data-loss",
    why: "after a restart, a failover or from a backup a server may lack what was written last; \
          the keys of requests that were made before then may have been used and forgotten, so \
          palisade does not run them as new ones",
    run: Run::Masters(data_loss),
};

/// Longest loss (span of lost writes), in seconds, for which the finding proposes the setting
/// `accept_loss`. A restart or a failover loses the writes of a shorter span.
const SHORT: u128 = 60;

fn data_loss(facts: &Facts, server: &Server) -> Answer {
    // Two clocks differ by at most twice `clock_error`. So the library extends a loss (a span of
    // lost writes) by that much (rule idempotency 6 in docs/design), and this check does the same.
    let margin = 2 * facts.clock_error;
    let Some(marker) = server.marker.as_ref()? else {
        return Ok(Finding::fine("no marker"));
    };
    let evidence = format!(
        "{} losses in palisade:generation of {}; data history {}; token floor {}",
        marker.losses.len(),
        server.at,
        marker.history,
        marker.floor
    );
    // A server whose data history began without data is no finding here, because the check
    // `not-initialised` reports it.
    let began_so = |loss: &Loss| loss.from == 0 && marker.empty_for.is_some();
    let Some((loss, left)) = marker.loss(RETENTION).filter(|(loss, _)| !began_so(loss)) else {
        return Ok(Finding::fine(evidence));
    };
    let until = u64::try_from(margin.as_millis()).unwrap_or(u64::MAX).saturating_add(loss.to);
    let accepted = loss.length().map(|length| length.saturating_add(margin).as_millis());
    let accept = match accepted.map(|ms| ms.div_ceil(1_000)) {
        Some(secs) if secs <= SHORT => format!(
            "; where a request of those moments may run again, accept_loss of {secs} s or more on \
             its namespace ends that"
        ),
        _ => String::new(),
    };
    let message = format!(
        "{loss}; keys whose created_at is not after {}, or is not given, count as forgotten for \
         another {} (with a retention of 24 h){accept}",
        until_utc(until),
        AtMost(left.saturating_add(margin))
    );
    if !marker.lost_everything {
        return Ok(Finding::info(message, evidence));
    }
    let message = format!("its clients knew data that it lost; {message}; {LOST_EVERYTHING}");
    let list = format!("palisade idem incidents {}", named(facts));
    Ok(Finding::warning(message, evidence).fix([list]))
}

pub(super) const QUARANTINE_LONG: Check = Check {
    id: "quarantine-long",
    why: "all clients of a node share the longest quarantine that any of them requires; after one \
          client with a large max_ttl, each restart and each failover stops grants to all \
          clients for that long, until a person lowers it",
    run: Run::Masters(quarantine_long),
};

fn quarantine_long(facts: &Facts, server: &Server) -> Answer {
    let Some(KeptData { quarantine, .. }) = server.marker.as_ref()? else {
        return Ok(Finding::fine("no marker"));
    };
    // Groups of other Sentinels may have the same name.
    let is_its = |g: &&Group| g.master().is_some_and(|master| std::ptr::eq(master, server));
    let window = facts.groups.iter().find(is_its).map_or(server.window, Group::longest_window);
    let asked = facts.max_ttl.saturating_add(window);
    let evidence = format!("quarantine {quarantine:?}; max_ttl {:?}, L {window:?}", facts.max_ttl);
    // A node rounds the length of its quarantine (the time without grants after a restart) up to
    // whole milliseconds. So a quarantine that is one millisecond too long is no finding.
    if *quarantine <= asked.saturating_add(Duration::from_millis(1)) {
        return Ok(Finding::fine(evidence));
    }
    let message = format!(
        "after a restart or a failover nothing is granted for {quarantine:?}, {:?} longer than the \
         settings given here require; it stays until a person lowers it",
        quarantine.saturating_sub(asked),
    );
    let fix = format!(
        "palisade doctor --max-ttl {}    # with your other options, if an application has that \
         max_ttl; else find the client that has it",
        quarantine.saturating_sub(window).as_secs_f64()
    );
    let lower = format!(
        "palisade settings --lower --max-ttl {} {} --yes    # once that client has ended",
        facts.max_ttl.as_secs_f64(),
        named(facts)
    );
    Ok(Finding::warning(message, evidence).fix([fix, lower]))
}

/// Reports nodes that clients do not let vote together: by the ids of their data (rules quarantine
/// 14 and 22, overview 8 in docs/design).
pub(super) const OTHER_DEPLOYMENT: Check = Check {
    id: "other-deployment",
    why: "a lock that is granted with the data of another deployment is held beside one that is \
          granted with the data of this one, so clients refuse that node or all of them; and of \
          two nodes with one vote, which are one server by two addresses or a copy of its data, \
          only one counts",
    run: Run::All(other_deployment),
};

/// Subject of findings about all nodes.
const NODES: &str = "nodes";

fn other_deployment(facts: &Facts) -> Vec<Finding> {
    let (mut unread, mut deployments, mut votes) = (Vec::new(), Ids::new(), Ids::new());
    for (subject, server) in facts.masters() {
        match &server.marker {
            Ok(Some(kept)) => {
                for (ids, id) in [(&mut deployments, kept.deployment), (&mut votes, kept.vote)] {
                    if let Some(id) = id {
                        ids.entry(id).or_default().push(&server.at);
                    }
                }
            }
            Ok(None) => {}
            Err(why) => unread.push(Finding::unknown(why).on(subject)),
        }
    }
    let evidence = format!("deployments {}; votes {}", listed(&deployments), listed(&votes));
    votes.retain(|_, at| at.len() > 1);
    let is_other = |id: &u64| facts.deployment.is_some_and(|given| given != *id);
    let mut found = Vec::new();
    if deployments.keys().any(is_other) {
        deployments.retain(|id, _| is_other(id));
        let message = format!(
            "the settings name the deployment {:016x}, and these nodes have the data of another \
             one: {}; point their addresses at the right servers, or correct `deployment` in the \
             settings",
            facts.deployment.unwrap_or_default(),
            listed(&deployments)
        );
        found.push(Finding::error(message, &evidence));
    } else if deployments.len() > 1 {
        let message = format!(
            "the nodes have the data of different deployments: {}; point each address at the right \
             server; only if all are the right ones, and were marked one by one, give them one id",
            listed(&deployments)
        );
        let join = format!("palisade settings --one-deployment {}", named(facts));
        let join =
            format!("{join}    # if all are the right servers; it says what to make sure of");
        found.push(Finding::error(message, &evidence).fix([join]));
    }
    if !votes.is_empty() {
        let message = format!(
            "several nodes have one vote: {}; name each server once; if one was made from a copy \
             of another one's data, stop it (of a group: with its replicas), delete the data files \
             of all that you stopped, and start them",
            listed(&votes)
        );
        found.push(Finding::error(message, evidence.clone()));
    }
    if found.is_empty() && unread.is_empty() {
        found.push(Finding::fine(evidence));
    }
    found.into_iter().map(|finding| finding.on(NODES)).chain(unread).collect()
}

/// Ids in markers, each with the addresses of the servers that have it.
type Ids<'a> = BTreeMap<u64, Vec<&'a str>>;

fn listed(ids: &Ids<'_>) -> String {
    let each = ids.iter().map(|(id, at)| format!("{id:016x} at {}", at.join(" and ")));
    if ids.is_empty() { "none".to_owned() } else { each.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests;
