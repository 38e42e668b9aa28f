//! One attempt to acquire: asks all nodes, decides at the majority, settles one token (locks 2, 3).
//!
//! The same machine serves the grants of an idempotency claim; see `record`.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome, Taken};
use crate::op::{Began, Op, Reply};
use crate::quorum::fence::{Settled, settle};
use crate::quorum::majority::{VoteCount, VoteResult, majority};
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;
use crate::token::FencingToken;

/// Answer of a node so far.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Vote {
    Silent,
    /// Granted with this fence; not known (yet) to be at the agreed token.
    Granted(u64),
    /// Granted, and at the token that is being agreed on.
    Settled,
    /// Granted at first, but refused the raise or failed at it.
    Fell(Option<NodeError>),
    Held {
        remaining: Option<Duration>,
        foreign: bool,
    },
    /// Time left of the quarantine, and the state of the node's data at its beginning.
    Quarantined(Duration, Began),
    Refused,
    Failed(NodeError),
}

/// Result of an attempt. With a token the lock is held until the end of the validity, which began
/// with the send; without one, everything that may have been granted must be released.
pub type Outcome = Result<FencingToken, Loss>;

type Step = Progress<Outcome>;

/// Cause of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A majority answered, and another owner has the lock.
    Taken(Taken),
    /// Too few answers that count.
    NoQuorum(Vec<NodeOutcome>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asking,
    /// A majority granted, but different values: one late answer may still make them equal.
    Hedging(Moment),
    Raising(u64),
    Over,
}

/// The machine of one attempt.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Op that raises a node to a token.
    raise: Op,
    sent: Moment,
    /// End of the validity: after it nothing may be won (invariant 1).
    until: Moment,
    /// Time for which the answers to a request are awaited, and `by`, the end of the wait for the
    /// last request: a node that is silent then is counted as failed. Never later than `until`.
    patience: Duration,
    by: Moment,
    votes: Vec<Vote>,
    /// Largest fence that was granted.
    largest: Option<u64>,
    phase: Phase,
}

/// Bounds of the wait for a straggler that could spare the raise round.
const HEDGE: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(5));

impl Acquire {
    /// Makes the machine of an attempt over `n` nodes, sent at `sent` and valid until `until`; each
    /// request is awaited for `patience`. `raise` is sent, with the token set, to nodes that have
    /// to be raised.
    pub fn new(n: usize, sent: Moment, until: Moment, patience: Duration, raise: Op) -> Self {
        let (by, votes) = (until.min(sent + patience), vec![Vote::Silent; n]);
        Self { raise, sent, until, patience, by, votes, largest: None, phase: Phase::Asking }
    }

    /// Returns the end of the wait for the last requests.
    pub(super) fn by(&self) -> Moment {
        self.by
    }

    /// Returns the largest fence that a node granted.
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Returns the machine of the same attempt, without any answer.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.n(), self.sent, self.until, self.patience, self.raise.clone())
    }

    fn raise_to(&self, token: u64, nodes: &[usize]) -> Step {
        let mut op = self.raise.clone();
        if let Op::Raise { token: to, .. } | Op::RaiseClaim { token: to, .. } = &mut op {
            *to = FencingToken::new(token);
        }
        Step::Send(nodes.iter().map(|node| (*node, op.clone())).collect(), self.by)
    }

    fn n(&self) -> usize {
        self.votes.len()
    }

    /// Handles a grant that came while the others are being raised: an extra vote if its fence
    /// fits.
    fn late_grant(&mut self, now: Moment, node: usize, fence: u64, token: u64) -> Step {
        if fence == token {
            self.votes[node] = Vote::Settled;
        } else if fence < token && now < self.until {
            self.by = self.until.min(now + self.patience);
            return self.raise_to(token, &[node]);
        } else {
            // Above `token`: the node refuses a raise to a smaller value, so it can never be at
            // `token`.
            self.votes[node] = Vote::Fell(None);
        }
        self.decide(now)
    }

    fn decide(&mut self, now: Moment) -> Step {
        if now >= self.until {
            return self.lose_silent();
        }
        match self.phase {
            Phase::Asking | Phase::Hedging(_) => self.decide_grants(now),
            Phase::Raising(t) => self.decide_raise(now, t),
            Phase::Over => Step::Wait(self.by),
        }
    }

    fn count(&self, f: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|v| f(v)).count()
    }

    fn silent(&self) -> usize {
        self.count(|v| matches!(v, Vote::Silent))
    }

    fn decide_grants(&mut self, now: Moment) -> Step {
        let yes = self.count(|v| matches!(v, Vote::Granted(_)));
        let open = if now < self.by { self.silent() } else { 0 };
        match (VoteCount { n: self.n(), yes, no: self.n() - yes - open }).result() {
            VoteResult::Pending => Step::Wait(self.by),
            VoteResult::Lost => self.lose(now),
            VoteResult::Won => {
                let grants = self.votes.iter().filter_map(|v| match v {
                    Vote::Granted(f) => Some(*f),
                    _ => None,
                });
                match settle(self.n(), grants) {
                    Settled::Agreed(t) => {
                        self.phase = Phase::Over;
                        Step::Decided(Ok(FencingToken::new(t)))
                    }
                    Settled::Raise(t) => self.hedge_or_raise(now, t),
                }
            }
        }
    }

    fn hedge_or_raise(&mut self, now: Moment, token: u64) -> Step {
        if self.silent() > 0 {
            let until = match self.phase {
                Phase::Hedging(until) => until,
                _ => now + now.since(self.sent).clamp(HEDGE.0, HEDGE.1),
            };
            if now < until {
                self.phase = Phase::Hedging(until);
                return Step::Wait(until.min(self.by));
            }
        }
        self.phase = Phase::Raising(token);
        self.by = self.until.min(now + self.patience);
        let mut nodes = Vec::new();
        for (i, vote) in self.votes.iter_mut().enumerate() {
            match vote {
                Vote::Granted(f) if *f == token => *vote = Vote::Settled,
                Vote::Granted(_) => nodes.push(i),
                _ => {}
            }
        }
        self.raise_to(token, &nodes)
    }

    fn decide_raise(&mut self, now: Moment, token: u64) -> Step {
        let yes = self.count(|v| matches!(v, Vote::Settled));
        let open = if now < self.by {
            self.count(|v| matches!(v, Vote::Granted(_) | Vote::Silent))
        } else {
            0
        };
        match (VoteCount { n: self.n(), yes, no: self.n() - yes - open }).result() {
            VoteResult::Pending => Step::Wait(self.by),
            VoteResult::Won => {
                self.phase = Phase::Over;
                Step::Decided(Ok(FencingToken::new(token)))
            }
            VoteResult::Lost => self.lose(now),
        }
    }

    /// Decides once a majority is out of reach: "taken" only if a majority answered (invariant 4).
    fn lose(&mut self, now: Moment) -> Step {
        let late = now >= self.by;
        // A node that was to be raised and is silent does not answer any more.
        let unraised = late && matches!(self.phase, Phase::Raising(_));
        let spoke = self.count(|v| match v {
            Vote::Granted(_) => !unraised,
            Vote::Settled | Vote::Fell(None) | Vote::Held { .. } => true,
            _ => false,
        });
        let need = majority(self.n());
        if !late && spoke < need && spoke + self.silent() >= need {
            // The late answers decide between "taken" and "no quorum".
            return Step::Wait(self.by);
        }
        self.phase = Phase::Over;
        if spoke < need {
            return self.no_quorum();
        }
        Step::Decided(Err(Loss::Taken(self.taken(late))))
    }

    fn lose_silent(&mut self) -> Step {
        if self.phase == Phase::Over {
            return Step::Wait(self.until);
        }
        self.phase = Phase::Over;
        for vote in self.votes.iter_mut().filter(|vote| **vote == Vote::Silent) {
            *vote = Vote::Failed(NodeError::maybe_executed(NodeFault::Timeout, ""));
        }
        self.no_quorum()
    }

    /// Returns when a majority could be free at the earliest. Nodes that granted are free, and
    /// nodes that may still answer count as free; a node in quarantine is free when that ends; a
    /// node that failed is not counted as free.
    fn taken(&self, late: bool) -> Taken {
        let need = majority(self.n());
        let mut busy: Vec<Option<Duration>> = Vec::new();
        let mut any_foreign = false;
        for vote in &self.votes {
            match vote {
                Vote::Held { remaining, foreign } => {
                    busy.push(*remaining);
                    any_foreign |= *foreign;
                }
                Vote::Quarantined(rest, _) => busy.push(Some(*rest)),
                _ => {}
            }
        }
        let granted =
            self.count(|v| matches!(v, Vote::Granted(_) | Vote::Settled | Vote::Fell(None)));
        if !any_foreign && granted > self.n() - need {
            // No owner can have a majority, whatever the other nodes answer: several attempts met,
            // and all of them roll back.
            return Taken { retry_after: Some(Duration::ZERO), foreign: false };
        }
        let free = granted + if late { 0 } else { self.silent() };
        // A key without expiry sorts last.
        busy.sort_by_key(|r| r.unwrap_or(Duration::MAX));
        // The nodes that answered are a majority, so `busy` has that many entries.
        let must_free = need.saturating_sub(free).max(1);
        Taken { retry_after: busy[must_free - 1], foreign: any_foreign }
    }

    fn no_quorum(&self) -> Step {
        let outcomes = self.votes.iter().map(|v| match v {
            Vote::Silent => NodeOutcome::Silent,
            Vote::Granted(_) | Vote::Settled => NodeOutcome::Granted,
            Vote::Held { remaining, .. } => NodeOutcome::Held(*remaining),
            Vote::Quarantined(d, began) => NodeOutcome::quarantined(*d, *began),
            Vote::Fell(None) | Vote::Refused => NodeOutcome::Refused,
            Vote::Fell(Some(e)) | Vote::Failed(e) => NodeOutcome::Failed(e.clone()),
        });
        Step::Decided(Err(Loss::NoQuorum(outcomes.collect())))
    }
}

impl Machine for Acquire {
    type Decision = Outcome;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Step {
        let raising = match self.phase {
            Phase::Raising(t) => Some(t),
            _ => None,
        };
        let vote = match (&self.votes[node], reply) {
            (Vote::Silent, Ok(Reply::Granted { fence } | Reply::Claimed { fence, .. })) => {
                self.largest = self.largest.max(Some(*fence));
                Vote::Granted(*fence)
            }
            (Vote::Silent, Ok(Reply::Held { remaining, foreign })) => {
                Vote::Held { remaining: *remaining, foreign: *foreign }
            }
            (Vote::Silent, Ok(Reply::InFlight { remaining })) => {
                Vote::Held { remaining: Some(*remaining), foreign: false }
            }
            (Vote::Silent, Ok(Reply::Quarantined { remaining, began, .. })) => {
                Vote::Quarantined(*remaining, *began)
            }
            (Vote::Silent, Ok(_)) => Vote::Refused,
            (Vote::Silent, Err(e)) => Vote::Failed(e.clone()),
            (Vote::Granted(_), Ok(Reply::Done | Reply::Completed(_))) if raising.is_some() => {
                Vote::Settled
            }
            (Vote::Granted(_), Ok(_)) if raising.is_some() => Vote::Fell(None),
            (Vote::Granted(_), Err(e)) if raising.is_some() => Vote::Fell(Some(e.clone())),
            // A repeated answer changes nothing.
            (vote, _) => vote.clone(),
        };
        self.votes[node] = vote;
        if let (Some(t), Vote::Granted(f)) = (raising, self.votes[node].clone()) {
            return self.late_grant(now, node, f, t);
        }
        self.decide(now)
    }

    fn on_time(&mut self, now: Moment) -> Step {
        self.decide(now)
    }
}
