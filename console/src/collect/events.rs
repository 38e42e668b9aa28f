//! Events of the nodes, and the failovers that the console infers from the events. The handle
//! reports events even if no page is open.

use std::collections::BTreeSet;

use palisade::node::{HistoryCause, NamedEvent, NodeEvent};

use crate::history::{Entry, Level, now_ms};
use crate::model::{Failover, LockRow, Model, Step, View, Vote, VoteState};
use crate::start::Shared;

/// Number of failovers that are kept.
const KEPT: usize = 100;

pub(super) async fn listen(shared: &Shared) {
    let mut events = shared.redlock.events();
    while let Some(NamedEvent { node, event, .. }) = events.next().await {
        note(shared, &node, &event);
        shared.hub.wake.notify_one();
    }
}

fn note(shared: &Shared, node: &str, event: &NodeEvent) {
    let (level, kind, text) = words(node, event);
    {
        let mut model = shared.model();
        let is_gone = |vote: &Vote| vote.node == node && vote.state == VoteState::Unreachable;
        if *event == NodeEvent::Down && model.votes.iter().any(is_gone) {
            // The console's handle has several connections to a node, and each of them reports its
            // end. Only the first report counts.
            return;
        }
        step(&mut model, node, event, kind, &text);
        if let Some(vote) = model.votes.iter_mut().find(|vote| vote.node == node) {
            // `is_changed` makes the next reading of the nodes ask this node for its vote. Until
            // then, a node that went down counts as unreachable.
            vote.is_changed |= !matches!(event, NodeEvent::Reasserted { .. });
            if *event == NodeEvent::Down {
                vote.state = VoteState::Unreachable;
                vote.why = Some("the connection to it was lost".to_owned());
                (vote.until, vote.since) = (None, now_ms());
            }
        }
    }
    shared.happened(Entry::node(level, kind, node, text));
}

fn words(node: &str, event: &NodeEvent) -> (Level, &'static str, String) {
    match event {
        NodeEvent::Down => (Level::Warn, "node_down", format!("{node} cannot be reached")),
        NodeEvent::Up => (Level::Info, "node_up", format!("{node} is connected")),
        NodeEvent::HistoryChanged { cause: HistoryCause::FirstUse, .. } => {
            let text = format!("{node} has no data of palisade yet: it is new, or was emptied");
            (Level::Info, "history_changed", text)
        }
        NodeEvent::HistoryChanged { cause, .. } => {
            let text = format!("{node} has a new data history ({})", cause_word(*cause));
            (Level::Warn, "history_changed", text)
        }
        NodeEvent::QuarantineBegun { remaining, loss, .. } => {
            let until = crate::pages::clock(now_ms() + remaining.as_millis() as u64);
            let loss = loss.map(|loss| format!("; {loss}")).unwrap_or_default();
            (Level::Warn, "quarantine_begun", format!("{node} grants nothing until {until}{loss}"))
        }
        NodeEvent::QuarantineEnded => {
            (Level::Info, "quarantine_ended", format!("{node} grants again"))
        }
        NodeEvent::Reasserted { leases, .. } => {
            (Level::Info, "reasserted", format!("{leases} leases were re-asserted on {node}"))
        }
        NodeEvent::MinReplicasMissing { why, .. } => {
            (Level::Warn, "min_replicas_missing", format!("{node}: {why}"))
        }
        NodeEvent::LoginFailed { why, .. } => {
            (Level::Warn, "login_failed", format!("{node}: {why}"))
        }
        NodeEvent::MinReplicasRestored => {
            let text = format!("{node}: the min-replicas check is strong enough again");
            (Level::Info, "min_replicas_restored", text)
        }
        NodeEvent::SettingsDisagree {
            ours,
            node: theirs,
            our_clock_error,
            node_clock_error,
            ..
        } => {
            let text = format!(
                "clients of {node} differ in max_ttl or clock_error: this console has a quarantine \
                 of {ours:?} and {our_clock_error:?}, the node uses {theirs:?} and \
                 {node_clock_error:?}"
            );
            (Level::Warn, "settings_disagree", text)
        }
        NodeEvent::KeysForgotten { .. } => {
            let text = format!(
                "{node} is new or lost data: idempotency keys without a record count as forgotten"
            );
            (Level::Warn, "keys_forgotten", text)
        }
        NodeEvent::TtlTooShort { .. } => {
            let text = format!("leases do not outlive a failover of {node}: raise ttl and max_ttl");
            (Level::Warn, "ttl_too_short", text)
        }
        other => (Level::Info, "event", format!("{node}: {other:?}")),
    }
}

fn cause_word(cause: HistoryCause) -> &'static str {
    match cause {
        HistoryCause::Restart => "restart",
        HistoryCause::Promotion => "promotion",
        HistoryCause::DataLost => "data lost",
        HistoryCause::FirstUse => "first use",
        _ => "unknown",
    }
}

fn owners(model: &Model) -> BTreeSet<(String, String)> {
    let of_row = |name: &str, row: &LockRow| match &row.view {
        Some(View::Lock(seen)) => {
            let all = seen.holder().into_iter().chain(seen.readers());
            all.map(|holder| (name.to_owned(), holder.owner)).collect::<Vec<_>>()
        }
        Some(View::Semaphore(seen)) => {
            seen.held().into_iter().map(|holder| (name.to_owned(), holder.owner)).collect()
        }
        None => Vec::new(),
    };
    let locks = model.locks.iter().flat_map(|(id, row)| of_row(&id.name, row));
    let led = model.elections.iter().filter_map(|(name, row)| {
        let leader = row.leader.as_ref()?;
        Some((format!("election {name}"), leader.term.to_string()))
    });
    locks.chain(led).collect()
}

/// Adds an event to the open failover of its node, that is, the one that has not ended. If there is
/// none, and the event is one with which a failover begins, opens a failover.
fn step(model: &mut Model, node: &str, event: &NodeEvent, kind: &'static str, text: &str) {
    let begins = matches!(
        event,
        NodeEvent::Down | NodeEvent::HistoryChanged { .. } | NodeEvent::QuarantineBegun { .. }
    );
    let now = now_ms();
    let open = model.failovers.iter().any(|one| one.node == node && one.ended.is_none());
    if !open {
        // Before the votes were read for the first time, events come from the first connections of
        // the console, which are no failover.
        if !begins || model.votes.is_empty() {
            return;
        }
        begin(model, node, now);
    }
    let Some(one) = model.failovers.iter_mut().find(|one| one.node == node && one.ended.is_none())
    else {
        return;
    };
    let step = match event {
        NodeEvent::Down => "lost",
        NodeEvent::Up => {
            one.back = Some(now);
            "back"
        }
        NodeEvent::HistoryChanged { cause, .. } => {
            one.cause = Some(cause_word(*cause));
            "history"
        }
        NodeEvent::QuarantineBegun { loss, .. } => {
            one.quarantine = true;
            one.back = one.back.or(Some(now));
            one.loss = loss.or(one.loss);
            "quarantine"
        }
        NodeEvent::Reasserted { leases, .. } => {
            one.reasserted += leases;
            "reasserted"
        }
        NodeEvent::QuarantineEnded => "vote",
        _ => kind,
    };
    one.steps.push(Step { at: now, kind: step, text: text.to_owned() });
    one.steps.truncate(64);
}

fn begin(model: &mut Model, node: &str, now: u64) {
    let held = model.at.filter(|at| now.saturating_sub(*at) < 5_000).map(|_| owners(model));
    let id = model.failovers.front().map_or(0, |one| one.id) + 1;
    model.failovers.truncate(KEPT - 1);
    model.failovers.push_front(Failover {
        id,
        node: node.to_owned(),
        began: now,
        back: None,
        quarantine: false,
        ended: None,
        cause: None,
        steps: Vec::new(),
        loss: None,
        reasserted: 0,
        held,
        same: None,
        ran_out: None,
    });
}

/// Stores that a node's vote changed: if the node votes again, its failover ends; if the node
/// stopped voting, a failover begins.
pub(super) fn of_vote(shared: &Shared, vote: &Vote) {
    let mut model = shared.model();
    let model = &mut *model;
    let now = now_ms();
    let open = model.failovers.iter().any(|one| one.node == vote.node && one.ended.is_none());
    match vote.state {
        VoteState::Votes if open => {
            let held = owners(model);
            let is_fresh = model.at.is_some_and(|at| now.saturating_sub(at) < 5_000);
            let one = model.failovers.iter_mut().find(|one| one.node == vote.node);
            let Some(one) = one else { return };
            one.ended = Some(now);
            one.back = one.back.or(Some(now));
            one.loss = one.loss.or_else(|| {
                vote.losses.last().copied().filter(|loss| loss.began + 1_000 >= one.began)
            });
            if one.steps.last().is_none_or(|step| step.kind != "vote") {
                let text = format!("{} votes again", vote.node);
                one.steps.push(Step { at: now, kind: "vote", text });
            }
            if let (Some(before), true) = (&one.held, is_fresh) {
                one.same = Some(before.intersection(&held).count());
                one.ran_out = one.ran_out.or(Some(0));
            }
        }
        VoteState::Unreachable | VoteState::Quarantine if !open => {
            begin(model, &vote.node, now);
            if let Some(one) = model.failovers.front_mut() {
                one.quarantine = vote.state == VoteState::Quarantine;
                let text = vote.why.clone().unwrap_or_default();
                let kind = if one.quarantine { "quarantine" } else { "lost" };
                one.steps.push(Step { at: now, kind, text });
            }
        }
        _ => {}
    }
}

/// Counts a lease that ran out without a release, in each open failover that began while this owner
/// held the lease.
pub(super) fn lease_lost(model: &mut Model, name: &str, owner: &str) {
    let of = (name.to_owned(), owner.to_owned());
    for one in model.failovers.iter_mut().filter(|one| one.ended.is_none()) {
        if one.held.as_ref().is_some_and(|held| held.contains(&of)) {
            one.ran_out = Some(one.ran_out.unwrap_or_default() + 1);
        }
    }
}
