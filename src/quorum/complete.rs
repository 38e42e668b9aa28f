//! Stores the result of an idempotency key (idempotency 2), and reads one. It is *not known to be
//! stored* if fewer nodes than a majority accepted it, or refused it because of a higher ballot.

use std::time::Duration;

use crate::error::NodeOutcome;
use crate::op::{Op, RecordState, Reply, StoredRecord};
use crate::quorum::answers::Answers;
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;

const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// True if too many nodes refused the ballot, false if too few answered.
    pub overtaken: bool,
    pub nodes: Vec<NodeOutcome>,
}

#[derive(Clone, Debug)]
pub struct Complete {
    op: Op,
    end: Moment,
    /// Harmless: a node accepts the result of one claim twice.
    again: Option<Moment>,
    pause: Duration,
    votes: Vec<NodeOutcome>,
    examined: bool,
}

impl Complete {
    pub fn new(n: usize, op: Op, end: Moment) -> Self {
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, end, again: None, pause: PAUSE, votes, examined: false }
    }

    /// True at the first call if a node has refused: it has a higher ballot, or another data
    /// history. After a renewal of the claim, a node of the second kind accepts: the caller may
    /// renew, call [`renewed`](Self::renewed), and go on.
    pub fn take_refusal(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.examined, true);
        first && self.votes.contains(&NodeOutcome::Refused)
    }

    pub fn renewed(&mut self, now: Moment) {
        self.forget(|vote| *vote != NodeOutcome::Granted);
        self.again = Some(now);
    }

    fn forget(&mut self, whom: impl Fn(&NodeOutcome) -> bool) {
        self.votes.iter_mut().filter(|v| whom(v)).for_each(|v| *v = NodeOutcome::Silent);
    }

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
    type Decision = Result<(), Unstored>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision> {
        if self.votes[node] != NodeOutcome::Granted {
            self.votes[node] = NodeOutcome::of(reply);
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
    Stored(StoredRecord),
    Open {
        /// Number of claims of the key so far: the most that a majority may have counted
        /// (idempotency 5), and at least 1 if a claim has a running lease.
        attempt: u32,
        /// Of the lease that ends last.
        lease: Option<Duration>,
        partial: bool,
        /// Highest ballot in the nodes' answers.
        promised: u64,
        /// Set if fewer nodes than a majority certainly have every claim: the time after which, for
        /// a key whose birth is unknown, lost claims would have expired on enough nodes.
        forgotten: Option<Duration>,
    },
    Mismatch,
    NoQuorum(Vec<NodeOutcome>),
}

#[derive(Clone, Debug)]
pub struct Look {
    by: Moment,
    answers: Answers,
}

impl Look {
    pub fn new(n: usize, by: Moment) -> Self {
        Self { by, answers: Answers::new(n) }
    }

    fn states(&self) -> impl Iterator<Item = &RecordState> {
        self.answers.replies().filter_map(|reply| match reply {
            Reply::Record { state, .. } => state.as_ref(),
            _ => None,
        })
    }

    fn attempt(&self) -> u32 {
        self.answers.attempts(false, |reply| match reply {
            Reply::Record { state, unsure, .. } => {
                Some((state.as_ref().map_or(0, |s| s.attempt), unsure.is_zero()))
            }
            _ => None,
        })
    }

    fn forgotten(&self) -> Option<Duration> {
        let unsure = self.answers.replies().filter_map(|reply| match reply {
            Reply::Record { unsure, .. } => Some(*unsure),
            _ => None,
        });
        let mut spans: Vec<Duration> = unsure.collect();
        spans.sort_unstable();
        spans.get(self.answers.need() - 1).copied().filter(|span| !span.is_zero())
    }
}

impl Machine for Look {
    type Decision = Found;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Found> {
        let fits = |r: &Reply| matches!(r, Reply::Record { .. } | Reply::Mismatch);
        self.answers.put_read(node, reply, fits);
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Found> {
        let need = self.answers.need();
        let shown = || self.states().filter_map(|s| s.record.as_ref());
        let mismatches = self.answers.count(|r| *r == Reply::Mismatch);
        if mismatches >= need {
            return Progress::Decided(Found::Mismatch);
        }
        if let Some(sure) = shown().find(|r| shown().filter(|x| x == r).count() >= need) {
            // A mismatch: it may belong to another request.
            let stored = || Found::Stored(sure.clone());
            return Progress::Decided(if mismatches > 0 { Found::Mismatch } else { stored() });
        }
        if now < self.by && self.answers.silent() > 0 {
            return Progress::Wait(self.by);
        }
        let states = self.answers.count(|r| matches!(r, Reply::Record { .. }));
        if states + mismatches < need {
            return Progress::Decided(Found::NoQuorum(self.answers.outcomes(&NodeOutcome::Silent)));
        }
        // That other claim never had a majority. A claim follows the same rule.
        if mismatches > 0
            && (states < need || shown().next().is_some() || self.forgotten().is_some())
        {
            return Progress::Decided(Found::Mismatch);
        }
        let lease = self.states().filter_map(|s| s.lease).max();
        Progress::Decided(Found::Open {
            attempt: self.attempt().max(u32::from(lease.is_some())),
            lease,
            partial: shown().next().is_some(),
            promised: self.states().map(|s| s.fence).max().unwrap_or(0),
            forgotten: self.forgotten(),
        })
    }
}
