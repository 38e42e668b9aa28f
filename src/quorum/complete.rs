//! Storing a result (phase 2 of consensus on a key, idempotency 2), and reading what stands there.
//!
//! A result is stored when a majority accepted it under its ballot, and not before: fewer, or a
//! refusal by a higher ballot, is *not known to be stored*.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::{RecordState, Reply, StoredRecord};
use crate::quorum::majority::majority;

/// What the answers so far mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Not decided.
    Wait,
    /// A majority accepted: this is the key's result.
    Stored,
    /// So many promised a higher ballot that a majority is out of reach for this one.
    Overtaken(Vec<NodeOutcome>),
    /// Too few answers. The failed nodes may be asked again.
    Unknown(Vec<NodeOutcome>),
}

/// The machine of phase 2.
#[derive(Clone, Debug)]
pub struct Complete {
    votes: Vec<NodeOutcome>,
}

impl Complete {
    /// A completion over `n` nodes.
    pub fn new(n: usize) -> Self {
        Self { votes: vec![NodeOutcome::Silent; n] }
    }

    /// A node answered, or failed to.
    pub fn on_reply(&mut self, node: usize, reply: &Result<Reply, NodeError>) -> Step {
        // What was accepted stays accepted, whatever becomes of a repeated request.
        if self.votes[node] != NodeOutcome::Granted {
            self.votes[node] = match reply {
                Ok(Reply::Done) => NodeOutcome::Granted,
                Ok(_) => NodeOutcome::Refused,
                Err(e) => NodeOutcome::Failed(e.clone()),
            };
        }
        self.verdict(false)
    }

    /// Nothing more will come: what it is now.
    pub fn give_up(&self) -> Step {
        self.verdict(true)
    }

    fn verdict(&self, last: bool) -> Step {
        let n = self.votes.len();
        let need = majority(n);
        let count = |f: &dyn Fn(&NodeOutcome) -> bool| self.votes.iter().filter(|v| f(v)).count();
        if count(&|v| *v == NodeOutcome::Granted) >= need {
            Step::Stored
        } else if count(&|v| *v == NodeOutcome::Refused) > n - need {
            Step::Overtaken(self.votes.clone())
        } else if last || count(&|v| *v == NodeOutcome::Silent) == 0 {
            Step::Unknown(self.votes.clone())
        } else {
            Step::Wait
        }
    }

    /// Whether a node refused: a higher ballot was promised there, or its promise of this one is of
    /// an earlier life. Which of the two, a renewal of the promise tells.
    pub fn is_refused(&self) -> bool {
        self.votes.contains(&NodeOutcome::Refused)
    }

    /// The nodes that gave no answer that counts, silent again: the op is idempotent by ballot, so
    /// they may be asked once more. What was accepted stays accepted.
    pub fn again(&mut self) -> Vec<usize> {
        self.ask_again(|v| matches!(v, NodeOutcome::Failed(_) | NodeOutcome::Silent))
    }

    /// As [`again`](Self::again) after the promise was renewed: those that refused, too.
    pub fn renewed(&mut self) -> Vec<usize> {
        self.ask_again(|v| *v != NodeOutcome::Granted)
    }

    fn ask_again(&mut self, whom: impl Fn(&NodeOutcome) -> bool) -> Vec<usize> {
        let mut nodes = Vec::new();
        for (node, vote) in self.votes.iter_mut().enumerate().filter(|(_, v)| whom(v)) {
            *vote = NodeOutcome::Silent;
            nodes.push(node);
        }
        nodes
    }
}

/// What a look at the key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Not decided.
    Wait,
    /// A majority shows this record: it is the key's result.
    Stored(StoredRecord),
    /// A majority answered and no result is certain.
    Open {
        /// Claims seen.
        attempt: u32,
        /// The longest lease that runs.
        lease: Option<Duration>,
        /// A result stands on too few nodes to be certain.
        partial: bool,
        /// The highest ballot that was promised.
        promised: u64,
        /// Too few nodes know of every claim of the key; with how long that will be so of keys
        /// without a birth, by the nodes that answered.
        forgotten: Option<Duration>,
    },
    /// The key was used with another fingerprint.
    Mismatch,
    /// Too few answers.
    NoQuorum(Vec<NodeOutcome>),
}

/// What a node shows.
#[derive(Clone, Debug)]
enum Seen {
    Silent,
    State(Option<RecordState>, Duration),
    Mismatch,
    Failed(NodeError),
}

/// The machine of a look at the key.
#[derive(Clone, Debug)]
pub struct Look {
    votes: Vec<Seen>,
}

impl Look {
    /// A look at `n` nodes.
    pub fn new(n: usize) -> Self {
        Self { votes: vec![Seen::Silent; n] }
    }

    /// A node answered, or failed to.
    pub fn on_reply(&mut self, node: usize, reply: &Result<Reply, NodeError>) -> Found {
        self.votes[node] = match reply {
            Ok(Reply::Record { state, unsure }) => Seen::State(state.clone(), *unsure),
            Ok(Reply::Mismatch) => Seen::Mismatch,
            Ok(_) => {
                let detail = "an answer to another question than a look";
                Seen::Failed(NodeError::maybe_executed(NodeFault::Protocol, detail))
            }
            Err(e) => Seen::Failed(e.clone()),
        };
        self.found(false)
    }

    /// Nothing more will come: what it is now.
    pub fn give_up(&self) -> Found {
        self.found(true)
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

    /// How long it is until a majority knows every key again; `None` if one does.
    fn forgotten(&self) -> Option<Duration> {
        let unsure = self.votes.iter().filter_map(|v| match v {
            Seen::State(_, unsure) => Some(*unsure),
            _ => None,
        });
        let mut spans: Vec<Duration> = unsure.collect();
        spans.sort_unstable();
        spans.get(majority(self.votes.len()) - 1).copied().filter(|span| !span.is_zero())
    }

    fn found(&self, last: bool) -> Found {
        let need = majority(self.votes.len());
        let shown = || self.states().filter_map(|s| s.record.as_ref());
        let mismatches = self.count(|v| matches!(v, Seen::Mismatch));
        if mismatches >= need {
            return Found::Mismatch;
        }
        if let Some(sure) = shown().find(|r| shown().filter(|x| x == r).count() >= need) {
            // One word is enough that it may be another request's.
            return if mismatches > 0 { Found::Mismatch } else { Found::Stored(sure.clone()) };
        }
        if !last && self.count(|v| matches!(v, Seen::Silent)) > 0 {
            return Found::Wait;
        }
        let states = self.count(|v| matches!(v, Seen::State(..)));
        if states + mismatches < need {
            return Found::NoQuorum(self.outcomes());
        }
        // As for a claim: what a minority has under another fingerprint was never a request's only
        // claim, as long as a majority knows of all and shows no result.
        if mismatches > 0
            && (states < need || shown().next().is_some() || self.forgotten().is_some())
        {
            return Found::Mismatch;
        }
        Found::Open {
            attempt: self.states().map(|s| s.attempt).max().unwrap_or(0),
            lease: self.states().filter_map(|s| s.lease).max(),
            partial: shown().next().is_some(),
            promised: self.states().map(|s| s.fence).max().unwrap_or(0),
            forgotten: self.forgotten(),
        }
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
