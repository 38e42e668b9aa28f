//! Storing a result (phase 2 of consensus on a key, design §5.7), and reading what stands there.
//!
//! A result is stored when a majority accepted it under its ballot, and not before: fewer, or a
//! refusal by a higher ballot, is *not known to be stored*.

use std::time::Duration;

use crate::error::{NodeError, NodeOutcome};
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
    /// Too few answers.
    NoQuorum(Vec<NodeOutcome>),
}

/// The machine of a look at the key.
#[derive(Clone, Debug)]
pub struct Look {
    votes: Vec<Option<Result<(Option<RecordState>, Duration), NodeError>>>,
}

impl Look {
    /// A look at `n` nodes.
    pub fn new(n: usize) -> Self {
        Self { votes: vec![None; n] }
    }

    /// A node answered, or failed to.
    pub fn on_reply(&mut self, node: usize, reply: &Result<Reply, NodeError>) -> Found {
        self.votes[node] = Some(match reply {
            Ok(Reply::Record { state, unsure }) => Ok((state.clone(), *unsure)),
            Ok(_) => Ok((None, Duration::ZERO)),
            Err(e) => Err(e.clone()),
        });
        self.found(false)
    }

    /// Nothing more will come: what it is now.
    pub fn give_up(&self) -> Found {
        self.found(true)
    }

    fn states(&self) -> impl Iterator<Item = &RecordState> {
        self.votes.iter().filter_map(|v| v.as_ref()?.as_ref().ok()?.0.as_ref())
    }

    /// How long it is until a majority knows every key again; `None` if one does.
    fn forgotten(&self) -> Option<Duration> {
        let unsure = self.votes.iter().filter_map(|v| Some(v.as_ref()?.as_ref().ok()?.1));
        let mut spans: Vec<Duration> = unsure.collect();
        spans.sort_unstable();
        spans.get(majority(self.votes.len()) - 1).copied().filter(|span| !span.is_zero())
    }

    fn found(&self, last: bool) -> Found {
        let need = majority(self.votes.len());
        let shown = || self.states().filter_map(|s| s.record.as_ref());
        if let Some(sure) = shown().find(|r| shown().filter(|x| x == r).count() >= need) {
            return Found::Stored(sure.clone());
        }
        if !last && self.votes.iter().any(Option::is_none) {
            return Found::Wait;
        }
        if self.votes.iter().filter(|v| matches!(v, Some(Ok(_)))).count() < need {
            return Found::NoQuorum(self.outcomes());
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
        let outcome = |v: &Option<Result<_, NodeError>>| match v {
            None => NodeOutcome::Silent,
            Some(Ok(_)) => NodeOutcome::Granted,
            Some(Err(e)) => NodeOutcome::Failed(e.clone()),
        };
        self.votes.iter().map(outcome).collect()
    }
}
