//! Checks one row of the failover table by the log of its events.
//!
//! A *vote* is a reply in which one server grants or renews one lease. A vote is wrong in four
//! cases:
//!
//! 1. Another holder of the name was valid from before the request until after the vote.
//! 2. The vote was a grant, and the server was in quarantine according to its marker, the key with
//!    its data history. (Old holders may renew.)
//! 3. At the time of the request, the server had been replaced for longer than L, the failover
//!    window. A server is replaced if another server has accepted a plain write and this server was
//!    not promoted later. A server that accepts plain writes so late has one wrong vote, too.
//! 4. The token of the vote was not larger than all tokens that were granted before the request. Or
//!    the holder relied on the lock after its own deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::facts::Facts;
use crate::event::{Event, EventKind, Nanos};
use crate::judge::{self, Hold};

const MS: Nanos = 1_000_000;
/// Minimum number of votes for a row of the failover table. A row with fewer votes is of no use.
const VOTES: usize = 500;

/// Facts about a row of the failover table (about one fault) that the log of events does not
/// contain.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) fault: &'static str,
    /// Time of the fault.
    pub(super) struck: Nanos,
    pub(super) healed: Option<Nanos>,
    /// True if the fault changes nothing at the master.
    pub(super) quiet: bool,
    /// Failover window L: the time for which a replaced master may still grant.
    pub(super) window: Nanos,
    /// Clients on the side of the new master during a cut. Empty without a cut.
    pub(super) far: Vec<u8>,
    /// True if a grant counts only when all replicas have it. Locks then expire while a replica is
    /// down.
    pub(super) all_replicas: bool,
    /// Number of scripts and writes that were sent to the old master after the Sentinels reported
    /// the new one. `None` if they were not counted.
    pub(super) writes_to_old_master: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) fault: &'static str,
    pub(super) wrong_votes: usize,
    pub(super) held_twice: usize,
    pub(super) seconds_without_grants: f64,
    pub(super) reassert_ms: Option<f64>,
    pub(super) first_grant_ms: Option<f64>,
    pub(super) writes_to_old_master: Option<usize>,
    /// Number of checked votes.
    pub(super) votes: usize,
    /// Number of times that a client held a lock or leadership.
    pub(super) holds: usize,
    /// Number of locks that were held when the new master began, by clients that could reach the
    /// new master. Of these locks, `ran_out` expired without a renewal.
    pub(super) sitting: usize,
    pub(super) ran_out: usize,
    pub(super) two_masters_ms: f64,
    /// Time from the fault until the Sentinels report the new master and it accepts writes, in
    /// milliseconds.
    pub(super) new_master_ms: Option<f64>,
    /// Time from the end of `new_master_ms` to the end of the new master's quarantine, in
    /// milliseconds.
    pub(super) quarantine_ms: Option<f64>,
    /// Reasons for which this row of the failover table is of no use.
    pub(super) doubts: Vec<String>,
    /// Descriptions of broken rules.
    pub(super) broken: Vec<String>,
}

impl Row {
    /// Returns true if the row proves something, which means that it has no doubts, and shows no
    /// wrong votes, no second holders and no writes to the old master.
    pub(super) fn is_good(&self) -> bool {
        let bad = self.wrong_votes + self.held_twice;
        bad + self.writes_to_old_master.unwrap_or(0) == 0 && self.doubts.is_empty()
    }
}

/// Checks one row of the failover table by its log. The events must be sorted by time.
pub(super) fn judge(case: &Case, events: &[Event]) -> Row {
    let facts = Facts::of(events);
    let holds = judge::holds(events);
    let mut row = Row {
        fault: case.fault,
        writes_to_old_master: case.writes_to_old_master,
        holds: holds.len(),
        ..Row::default()
    };
    let end = events.last().map_or(0, |e| e.at);
    row.two_masters_ms = millis(facts.two_masters(case.struck, end));
    beliefs(&mut row, events);
    votes(&mut row, case, &facts, &holds, events);
    if row.votes < VOTES {
        row.doubts.push(format!("only {} votes were seen, {VOTES} are wanted", row.votes));
    }
    let fresh: Vec<Nanos> =
        holds.iter().filter(|h| h.name.starts_with("fresh-")).map(|h| h.from).collect();
    times(&mut row, case, &facts, &holds, fresh);
    row
}

/// Counts overlapping holders, tokens that do not grow, and guards that report to be valid for too
/// long.
fn beliefs(row: &mut Row, events: &[Event]) {
    for v in judge::holders(events) {
        if v.rule == "one holder at a time" {
            row.held_twice += 1;
        } else {
            row.wrong_votes += 1;
        }
        say(row, format!("{}: {}: {}", v.rule, v.name, v.text));
    }
}

fn votes(row: &mut Row, case: &Case, facts: &Facts, holds: &[Hold], events: &[Event]) {
    let mut by_name: BTreeMap<&Arc<str>, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        by_name.entry(&hold.name).or_default().push(hold);
    }
    for e in events {
        let EventKind::Vote { name, token, since, server, grant } = &e.kind else { continue };
        row.votes += 1;
        let other = |h: &&&Hold| h.token != *token && h.from <= *since && h.end > e.at;
        let held = by_name.get(name).and_then(|list| list.iter().find(other));
        let what = if *grant { "granted" } else { "renewed" };
        let words = if let Some(hold) = held {
            format!("{what} while token {} was valid", hold.token)
        } else if let Some(addr) = facts.address(server) {
            if *grant && facts.in_quarantine(addr, *since, e.at) {
                format!("granted by {addr} in its quarantine")
            } else if facts.replaced(addr, case.window, *since, e.at) {
                format!("{what} by {addr}, which was replaced longer than L ago")
            } else {
                continue;
            }
        } else {
            // The server is unknown, because the watcher recorded no write to the process with this
            // run id.
            format!("{what} by a server of unknown identity")
        };
        row.wrong_votes += 1;
        say(row, format!("wrong vote: {name}: token {token} to client {} {words}", e.who.client));
    }
    for (server, at) in facts.last_writes() {
        if facts.replaced(server, case.window, at, at) {
            row.wrong_votes += 1;
            say(row, format!("{server} took a plain write later than L after it was replaced"));
        }
    }
}

fn times(row: &mut Row, case: &Case, facts: &Facts, holds: &[Hold], mut fresh: Vec<Nanos>) {
    fresh.sort_unstable();
    let before = fresh.iter().filter(|at| **at < case.struck).count();
    if before < 50 {
        row.doubts.push(format!("only {before} grants of fresh names before the fault"));
    }
    if case.quiet {
        row.seconds_without_grants = longest_gap(case, &fresh);
        return;
    }
    let Some((named, master)) = facts.master() else {
        row.doubts.push("no majority of the Sentinels named a master in the end".to_owned());
        return;
    };
    let Some(writable) = facts.writable(master, case.struck) else {
        row.doubts.push("the named master was not seen to begin to take writes".to_owned());
        return;
    };
    let begun = named.max(writable);
    let ready = begun.max(facts.quarantine_ends(master).unwrap_or(0));
    row.new_master_ms = Some(millis(begun.saturating_sub(case.struck)));
    row.quarantine_ms = Some(millis(ready - begun));
    let after: Vec<_> = fresh.iter().filter(|at| **at >= begun).collect();
    if after.len() < 50 {
        row.doubts.push(format!("only {} grants of fresh names after the fault", after.len()));
    }
    row.first_grant_ms = after.first().map(|at| millis(at.saturating_sub(ready)));
    row.seconds_without_grants = longest_gap(case, &fresh);
    sitting(row, case, holds, begun);
}

/// Returns the longest time between two grants since the fault, in seconds.
fn longest_gap(case: &Case, fresh: &[Nanos]) -> f64 {
    let first = fresh.partition_point(|at| *at < case.struck).saturating_sub(1);
    let gap = fresh[first..].windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    (gap / (10 * MS)) as f64 / 100.0
}

/// Computes the longest time from the beginning of the new master until a lock that a client keeps
/// all the time was renewed or lost.
fn sitting(row: &mut Row, case: &Case, holds: &[Hold], begun: Nanos) {
    let cut = case.healed.is_none_or(|healed| begun < healed) && !case.far.is_empty();
    // The new master may serve a client shortly before the watcher process detects the new master.
    // So the renewals from 50 ms before the detection (`begun`) count, too.
    let early = begun.saturating_sub(50 * MS).max(case.struck);
    let mut longest = None;
    for hold in holds.iter().filter(|h| h.name.starts_with("sit-")) {
        let until = hold.deadline_at(begun);
        let reaches = !cut || case.far.contains(&hold.who.client);
        if hold.from >= begun || until <= begun || !reaches {
            continue;
        }
        row.sitting += 1;
        let renewed = hold.renewed.iter().map(|(at, _)| *at).find(|at| *at > early);
        let knows = renewed.unwrap_or(hold.end);
        longest = longest.max(Some(knows.saturating_sub(begun)));
        row.ran_out += usize::from(renewed.is_none());
    }
    row.reassert_ms = longest.map(millis);
}

/// Adds the description of a broken rule to the row. A row has at most 12 descriptions.
fn say(row: &mut Row, sentence: String) {
    if row.broken.len() < 12 {
        row.broken.push(sentence);
    }
}

fn millis(nanos: Nanos) -> f64 {
    (nanos / (MS / 10)) as f64 / 10.0
}
