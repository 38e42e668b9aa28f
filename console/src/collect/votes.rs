//! The votes: which nodes vote, and for which reason the other nodes do not.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade::NodeHealth;
use palisade::error::{NodeOutcome, Reach};
use palisade::node::Loss;
use palisade::node::spi::Began;
use tokio::time::Instant;

use crate::history::{Entry, Level, now_ms};
use crate::model::{Vote, VoteState, steady};
use crate::start::Shared;

/// Number of latencies that are kept of each node, about those of a minute.
pub(super) const LATENCIES: usize = 150;
/// Time over which the rate of requests is measured.
const WINDOW: Duration = Duration::from_secs(10);

impl Vote {
    pub(crate) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            state: VoteState::Unknown,
            why: None,
            until: None,
            since: now_ms(),
            latency: None,
            latencies: VecDeque::new(),
            losses: Vec::new(),
            is_changed: false,
        }
    }
}

pub(super) async fn read(shared: &Shared) {
    let health = shared.redlock.health().await;
    let mut changes = Vec::new();
    {
        let mut model = shared.model();
        model.needed = health.needed;
        model.abilities = Some((health.locks(), health.new_keys()));
        let is_first = model.votes.is_empty();
        if is_first {
            model.votes = health.nodes.iter().map(|node| Vote::new(&node.name)).collect();
        }
        for (vote, node) in model.votes.iter_mut().zip(&health.nodes) {
            let was = vote.state;
            note(vote, node);
            if was != vote.state {
                vote.since = now_ms();
                changes.push((vote.clone(), is_first));
            }
        }
    }
    for (vote, is_first) in changes {
        let entry = match vote.state {
            VoteState::Votes if is_first => continue,
            VoteState::Votes => {
                Entry::node(Level::Info, "vote_back", &vote.node, format!("{} votes", vote.node))
            }
            _ => {
                let why = vote.why.clone().unwrap_or_default();
                let text = format!("{} does not vote: {why}", vote.node);
                Entry::node(Level::Warn, "vote_lost", &vote.node, text)
            }
        };
        if !is_first {
            super::events::of_vote(shared, &vote);
        }
        shared.happened(entry);
    }
}

fn note(vote: &mut Vote, node: &NodeHealth) {
    vote.losses = node.losses.to_vec();
    vote.is_changed = false;
    let (state, why, left) = match &node.outcome {
        NodeOutcome::Granted | NodeOutcome::Held(_) => (VoteState::Votes, None, None),
        NodeOutcome::Quarantined { remaining, began, .. } => {
            let because = match began {
                Began::Empty => "it was never initialised: it is new, or was emptied; if the \
                                 whole deployment is new, run `palisade init --new` with a \
                                 `--node` for each of its nodes"
                    .to_owned(),
                Began::Lost => "its data are lost".to_owned(),
                Began::Known => match vote.losses.last().and_then(Loss::length) {
                    Some(length) => {
                        format!("it came back without its last {:.1} s", length.as_secs_f64())
                    }
                    None => "it came back after a restart or failover".to_owned(),
                },
            };
            let until = steady(vote.until, now_ms() + millis(*remaining));
            let clock = crate::pages::clock(until);
            let why = format!("{} grants nothing until {clock}, because {because}", node.name);
            (VoteState::Quarantine, Some(why), Some(until))
        }
        NodeOutcome::Refused => {
            (VoteState::Refuses, Some("it refuses the trial lock".to_owned()), None)
        }
        NodeOutcome::Failed(e) => {
            let state = match e.reach() {
                Reach::Unreachable => VoteState::Unreachable,
                Reach::NotAsked => VoteState::Unknown,
                _ => VoteState::Refuses,
            };
            (state, Some(e.to_string()), None)
        }
        other => (VoteState::Unreachable, Some(other.to_string()), None),
    };
    (vote.state, vote.why, vote.until) = (state, why, left);
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The number of requests that the console has sent to each node.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Number of requests that [`spent`](Self::spent) has returned.
    counted: u64,
    /// Times at which `rate` was called, each with the number of all requests until that time.
    totals: VecDeque<(Instant, u64)>,
}

impl Sent {
    /// Returns the number of requests that the console sent to one node since the last call of this
    /// function.
    pub(super) fn spent(&mut self, shared: &Shared) -> u32 {
        let total = total(shared);
        let new = total.saturating_sub(std::mem::replace(&mut self.counted, total));
        u32::try_from(new).unwrap_or(u32::MAX)
    }

    /// Returns the requests per second to one node in the last ten seconds.
    pub(super) fn rate(&mut self, shared: &Shared) -> f64 {
        let (now, total) = (Instant::now(), total(shared));
        self.totals.push_back((now, total));
        while self.totals.len() > 2 && self.totals[1].0 + WINDOW < now {
            self.totals.pop_front();
        }
        let (began, before) = self.totals[0];
        let length = now.duration_since(began).as_secs_f64().max(1.0);
        (total.saturating_sub(before) as f64 / length * 10.0).round() / 10.0
    }
}

/// Returns the number of requests to one node until now: the batches that the console's handle
/// sent, and the round trips of its surveys, which read the nodes' keys.
fn total(shared: &Shared) -> u64 {
    let batches = shared.redlock.metrics().iter().map(|node| node.batches).max();
    batches.unwrap_or_default() + shared.requests.load(Ordering::Relaxed)
}
