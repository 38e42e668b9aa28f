//! Storing a result (phase 2 of consensus on a key, idempotency 2), and reading a stored one.
//!
//! A result is stored when a majority has accepted it under its ballot, and not before: with fewer,
//! or after a refusal because of a higher ballot, it is *not known to be stored*.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::{Op, RecordState, Reply, StoredRecord};
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// First pause before nodes that failed are asked again; doubled each time.
const PAUSE: Duration = Duration::from_millis(10);

/// Error: a result is not known to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// True if enough nodes promised a higher ballot to keep this one from a majority; false if too
    /// few answered.
    pub overtaken: bool,
    /// Answer of each node.
    pub nodes: Vec<NodeOutcome>,
}

/// The machine of phase 2.
#[derive(Clone, Debug)]
pub struct Complete {
    op: Op,
    /// Time at which the machine gives up.
    end: Moment,
    /// Time at which the nodes that gave no answer are asked again: the op is idempotent by ballot.
    again: Option<Moment>,
    pause: Duration,
    votes: Vec<NodeOutcome>,
    /// The caller has looked into refusals by [`take_refusal`](Self::take_refusal).
    examined: bool,
}

impl Complete {
    /// Makes the machine of a completion over `n` nodes, all of which were asked with `op`. It
    /// gives up at `end`.
    pub fn new(n: usize, op: Op, end: Moment) -> Self {
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, end, again: None, pause: PAUSE, votes, examined: false }
    }

    /// Returns true, once, if a node refused: it promised a higher ballot, or it gave its promise
    /// of this ballot in an earlier data history. A renewal of the promise shows which of the two
    /// it is, so a refused completion is decided at once, and may be continued after
    /// [`renewed`](Self::renewed).
    pub fn take_refusal(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.examined, true);
        first && self.votes.contains(&NodeOutcome::Refused)
    }

    /// Records that the promise was renewed: nodes that have not accepted are asked again.
    pub fn renewed(&mut self, now: Moment) {
        self.forget(|vote| *vote != NodeOutcome::Granted);
        self.again = Some(now);
    }

    /// Sets these nodes to silent. Nodes that accepted keep their vote.
    fn forget(&mut self, whom: impl Fn(&NodeOutcome) -> bool) {
        self.votes.iter_mut().filter(|v| whom(v)).for_each(|v| *v = NodeOutcome::Silent);
    }

    /// Asks again after a pause, if there is time, because too few nodes have answered.
    fn ask_again(&mut self, now: Moment) -> Progress<Result<(), Unstored>> {
        match self.again {
            Some(at) if now < at => Progress::Wait(at),
            Some(_) => {
                self.again = None;
                self.forget(|vote| matches!(vote, NodeOutcome::Failed(_)));
                let silent = self.votes.iter().enumerate().filter(|v| *v.1 == NodeOutcome::Silent);
                let asks = silent.map(|(node, _)| (node, self.op.clone())).collect();
                Progress::Send(asks, self.end)
            }
            None if now + self.pause < self.end => {
                let at = now + self.pause;
                self.again = Some(at);
                self.pause *= 2;
                Progress::Wait(at)
            }
            None => self.unstored(false),
        }
    }

    fn unstored(&self, overtaken: bool) -> Progress<Result<(), Unstored>> {
        Progress::Decided(Err(Unstored { overtaken, nodes: self.votes.clone() }))
    }
}

impl Machine for Complete {
    /// `Ok`: a majority accepted, so this is the key's result.
    type Decision = Result<(), Unstored>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision> {
        // What was accepted stays accepted, whatever a repeated request is answered.
        if self.votes[node] != NodeOutcome::Granted {
            self.votes[node] = match reply {
                Ok(Reply::Done) => NodeOutcome::Granted,
                Ok(_) => NodeOutcome::Refused,
                Err(e) => NodeOutcome::Failed(e.clone()),
            };
        }
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision> {
        let n = self.votes.len();
        let need = majority(n);
        let count = |o: &NodeOutcome| self.votes.iter().filter(|v| *v == o).count();
        let (accepted, refused) = (count(&NodeOutcome::Granted), count(&NodeOutcome::Refused));
        let silent = count(&NodeOutcome::Silent);
        if accepted >= need {
            Progress::Decided(Ok(()))
        } else if refused > n - need {
            self.unstored(true)
        } else if silent > 0 && now < self.end && self.again.is_none() {
            Progress::Wait(self.end)
        } else if refused > 0 && !self.examined {
            self.unstored(false)
        } else {
            self.ask_again(now)
        }
    }
}

/// Result of looking up a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A majority shows this record: it is the key's result.
    Stored(StoredRecord),
    /// A majority answered and no result is certain.
    Open {
        /// Number of claims seen.
        attempt: u32,
        /// Longest lease that runs.
        lease: Option<Duration>,
        /// A result is on too few nodes to be certain.
        partial: bool,
        /// Highest ballot that was promised.
        promised: u64,
        /// Set if too few nodes know of every claim of the key: the time for which that will be so
        /// of keys without a birth, by the nodes that answered.
        forgotten: Option<Duration>,
    },
    /// The key was used with another fingerprint.
    Mismatch,
    /// Too few answers.
    NoQuorum(Vec<NodeOutcome>),
}

/// Answer of a node.
#[derive(Clone, Debug)]
enum Seen {
    Silent,
    State(Option<RecordState>, Duration),
    Mismatch,
    Failed(NodeError),
}

/// The machine of a lookup.
#[derive(Clone, Debug)]
pub struct Look {
    /// End of the wait for answers.
    by: Moment,
    votes: Vec<Seen>,
}

impl Look {
    /// Makes the machine of a lookup on `n` nodes; answers are awaited until `by`.
    pub fn new(n: usize, by: Moment) -> Self {
        Self { by, votes: vec![Seen::Silent; n] }
    }

    fn states(&self) -> impl Iterator<Item = &RecordState> {
        self.votes.iter().filter_map(|v| match v {
            Seen::State(state, _) => state.as_ref(),
            _ => None,
        })
    }

    fn count(&self, f: impl Fn(&Seen) -> bool) -> usize {
        self.votes.iter().filter(|v| f(v)).count()
    }

    /// Returns the time until a majority knows every key again; `None` if one does.
    fn forgotten(&self) -> Option<Duration> {
        let unsure = self.votes.iter().filter_map(|v| match v {
            Seen::State(_, unsure) => Some(*unsure),
            _ => None,
        });
        let mut spans: Vec<Duration> = unsure.collect();
        spans.sort_unstable();
        spans.get(majority(self.votes.len()) - 1).copied().filter(|span| !span.is_zero())
    }

    fn outcomes(&self) -> Vec<NodeOutcome> {
        let outcome = |v: &Seen| match v {
            Seen::Silent => NodeOutcome::Silent,
            Seen::State(..) => NodeOutcome::Granted,
            Seen::Mismatch => NodeOutcome::Refused,
            Seen::Failed(e) => NodeOutcome::Failed(e.clone()),
        };
        self.votes.iter().map(outcome).collect()
    }
}

impl Machine for Look {
    type Decision = Found;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Found> {
        self.votes[node] = match reply {
            Ok(Reply::Record { state, unsure, .. }) => Seen::State(state.clone(), *unsure),
            Ok(Reply::Mismatch) => Seen::Mismatch,
            Ok(_) => {
                let detail = "an answer to another question than a look";
                Seen::Failed(NodeError::maybe_executed(NodeFault::Protocol, detail))
            }
            Err(e) => Seen::Failed(e.clone()),
        };
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Found> {
        let need = majority(self.votes.len());
        let shown = || self.states().filter_map(|s| s.record.as_ref());
        let mismatches = self.count(|v| matches!(v, Seen::Mismatch));
        if mismatches >= need {
            return Progress::Decided(Found::Mismatch);
        }
        if let Some(sure) = shown().find(|r| shown().filter(|x| x == r).count() >= need) {
            // One mismatch is enough: the stored result may be that of another request.
            let stored = || Found::Stored(sure.clone());
            return Progress::Decided(if mismatches > 0 { Found::Mismatch } else { stored() });
        }
        if now < self.by && self.count(|v| matches!(v, Seen::Silent)) > 0 {
            return Progress::Wait(self.by);
        }
        let states = self.count(|v| matches!(v, Seen::State(..)));
        if states + mismatches < need {
            return Progress::Decided(Found::NoQuorum(self.outcomes()));
        }
        // As for a claim: a key that only a minority has, under another fingerprint, was never the
        // only claim of a request, as long as a majority knows of all claims and shows no result.
        if mismatches > 0
            && (states < need || shown().next().is_some() || self.forgotten().is_some())
        {
            return Progress::Decided(Found::Mismatch);
        }
        Progress::Decided(Found::Open {
            attempt: self.states().map(|s| s.attempt).max().unwrap_or(0),
            lease: self.states().filter_map(|s| s.lease).max(),
            partial: shown().next().is_some(),
            promised: self.states().map(|s| s.fence).max().unwrap_or(0),
            forgotten: self.forgotten(),
        })
    }
}
