//! Storing the result of an idempotency key (phase 2 of consensus on it, idempotency 2), and
//! reading a stored result.
//!
//! A result is stored once a majority has accepted it under its ballot. If fewer nodes accepted it,
//! or the others refused it because they promised a higher ballot, it is *not known to be stored*.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::{Op, RecordState, Reply, StoredRecord};
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// Pause before the nodes that failed are asked again for the first time. Each further pause is
/// twice as long.
const PAUSE: Duration = Duration::from_millis(10);

/// The error of a completion whose result is not known to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// True if the nodes that refused the ballot leave no majority that could accept the result;
    /// false if too few nodes answered.
    pub overtaken: bool,
    /// Answer of each node.
    pub nodes: Vec<NodeOutcome>,
}

/// The state machine that stores a result on a majority (phase 2).
#[derive(Clone, Debug)]
pub struct Complete {
    op: Op,
    /// Time at which the machine gives up.
    end: Moment,
    /// Time at which the nodes without an answer are asked again. The repetition is harmless,
    /// because a node accepts the same ballot twice.
    again: Option<Moment>,
    pause: Duration,
    votes: Vec<NodeOutcome>,
    /// True once the caller has asked for refusals by [`take_refusal`](Self::take_refusal).
    examined: bool,
}

impl Complete {
    /// Makes the machine of a completion over `n` nodes, to all of which the caller has sent `op`.
    /// The machine gives up at `end`.
    pub fn new(n: usize, op: Op, end: Moment) -> Self {
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, end, again: None, pause: PAUSE, votes, examined: false }
    }

    /// Returns true at the first call if a node has refused the result. Such a node either promised
    /// a higher ballot, or made its promise in an earlier data history, which a renewal of the
    /// claim repairs. So the machine decides at a refusal without asking again. The caller may then
    /// renew the claim, call [`renewed`](Self::renewed), and go on with this machine.
    pub fn take_refusal(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.examined, true);
        first && self.votes.contains(&NodeOutcome::Refused)
    }

    /// Records that the claim was renewed: the nodes that have not accepted the result are asked
    /// again.
    pub fn renewed(&mut self, now: Moment) {
        self.forget(|vote| *vote != NodeOutcome::Granted);
        self.again = Some(now);
    }

    /// Marks the nodes whose vote satisfies `whom` as not having answered.
    fn forget(&mut self, whom: impl Fn(&NodeOutcome) -> bool) {
        self.votes.iter_mut().filter(|v| whom(v)).for_each(|v| *v = NodeOutcome::Silent);
    }

    /// Waits for a pause, and then asks the nodes without an answer again. Without time for another
    /// pause it decides that the result is not known to be stored.
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
    /// `Ok` if a majority accepted, so that this is the key's result.
    type Decision = Result<(), Unstored>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision> {
        // A node that has accepted keeps the result, whatever it answers to a repeated request.
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

/// Result of reading the record of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A majority shows this record, so it is the key's result.
    Stored(StoredRecord),
    /// A majority answered, but no result is certain.
    Open {
        /// Number of claims of the key so far: the largest number that a node showed.
        attempt: u32,
        /// Time left of the lease that ends last; `None` if no claim's lease runs.
        lease: Option<Duration>,
        /// True if a result is stored, but on too few nodes to be certain.
        partial: bool,
        /// Highest ballot that a node has promised.
        promised: u64,
        /// Set if too few of the nodes that answered certainly know every claim of the key, because
        /// some lost data. Contains the time after which enough of them will, for keys whose birth
        /// (the time of the request) is not known.
        forgotten: Option<Duration>,
    },
    /// The key was used with another fingerprint, so for another request.
    Mismatch,
    /// Too few nodes answered. Contains the answer of each node.
    NoQuorum(Vec<NodeOutcome>),
}

/// Answer of a node to the lookup so far.
#[derive(Clone, Debug)]
enum Seen {
    Silent,
    State(Option<RecordState>, Duration),
    Mismatch,
    Failed(NodeError),
}

/// The state machine of one lookup.
#[derive(Clone, Debug)]
pub struct Look {
    /// Moment until which answers are awaited.
    by: Moment,
    votes: Vec<Seen>,
}

impl Look {
    /// Makes the machine of a lookup on `n` nodes, whose answers are awaited until `by`.
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

    /// Returns the time after which a majority certainly knows every claim of the key again; `None`
    /// if a majority already does.
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
            // One mismatch is enough to withhold the result, because it may belong to another
            // request.
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
        // As for a claim, a mismatch on a minority does not count if a majority knows every claim
        // of the key and shows no result: the claim with the other fingerprint then never had a
        // majority.
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
