//! Decides one attempt to acquire a lock by the answers of a majority, and makes a majority agree
//! on one fencing token (locks 2, 3). `claim.rs` counts the grants of a claim with it.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome, Taken};
use crate::op::{Began, Op, Queued, Reply};
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;
use crate::token::FencingToken;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Vote {
    Silent,
    Granted(u64),
    Settled,
    /// `None`: the node refused to raise its fence, or it is above the token. `Some`: the request
    /// to raise it failed.
    Fell(Option<NodeError>),
    Held {
        remaining: Option<Duration>,
        foreign: bool,
        queued: Option<Queued>,
    },
    Quarantined(Duration, Began),
    Refused,
    Failed(NodeError),
}

/// `Ok`: the lock is held until the end of the validity, which began when the attempt was sent.
/// `Err`: the caller must release what nodes may have granted.
pub type Outcome = Result<FencingToken, Loss>;

type Step = Progress<Outcome>;

/// Reason for which an attempt acquired nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A majority answered and did not grant: another owner has the lock, or several attempts split
    /// the votes. With [`Acquire::taken_if_refused`], only if the nodes that did not refuse are no
    /// majority.
    Taken(Taken),
    NoQuorum(Vec<NodeOutcome>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asking,
    /// Until this moment the machine waits for one more answer, which may make a majority's fences
    /// equal.
    Hedging(Moment),
    Raising(u64),
    Over,
}

/// The state machine that decides one attempt to acquire a lock.
#[derive(Clone, Debug)]
pub struct Acquire {
    raise: Op,
    sent: Moment,
    /// An answer at this moment or later wins nothing (invariant 1 of `quorum`).
    until: Moment,
    /// The end of the time for answers to the last request, at most `until`.
    patience: Duration,
    by: Moment,
    votes: Vec<Vote>,
    largest: Option<u64>,
    phase: Phase,
    awaits_all: bool,
    if_refused: bool,
}

/// Shortest and longest wait for one more answer, with which no node has to raise its fence.
const HEDGE: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(5));

impl Acquire {
    /// The requests leave at `sent`; the lease, if it is won, ends at `until`; the answers to each
    /// request are awaited for `patience`. The token in `raise` is filled in later.
    pub fn new(n: usize, sent: Moment, until: Moment, patience: Duration, raise: Op) -> Self {
        let (by, votes) = (until.min(sent + patience), vec![Vote::Silent; n]);
        let (largest, phase, awaits_all, if_refused) = (None, Phase::Asking, false, false);
        Self { raise, sent, until, patience, by, votes, largest, phase, awaits_all, if_refused }
    }

    /// The attempt ends as *no quorum* only after each node has answered or the time is over. By
    /// default as soon as no majority can answer any more.
    #[must_use]
    pub fn awaiting_all(self, awaits_all: bool) -> Self {
        Self { awaits_all, ..self }
    }

    /// The attempt ends as *taken* only if the nodes that did not refuse are no majority. By
    /// default also if a majority answered and did not grant. A takeover by a ticket sets this,
    /// because *taken* is final for it (hand_over 5).
    #[must_use]
    pub fn taken_if_refused(self, if_refused: bool) -> Self {
        Self { if_refused, ..self }
    }

    pub(super) fn by(&self) -> Moment {
        self.by
    }

    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    pub(super) fn anew(&self) -> Self {
        Self::new(self.n(), self.sent, self.until, self.patience, self.raise.clone())
    }

    pub(super) fn set_slot(&mut self, to: u16) {
        if let Op::Raise { slot, .. } = &mut self.raise {
            *slot = Some(to);
        }
    }

    pub(super) fn ask_again(&mut self, now: Moment) {
        self.by = self.until.min(now + self.patience);
    }

    pub(super) fn hedge(&self, now: Moment) -> Moment {
        now + now.since(self.sent).clamp(HEDGE.0, HEDGE.1)
    }

    fn raise_to(&self, token: u64, nodes: &[usize]) -> Step {
        let mut op = self.raise.clone();
        if let Op::Raise { token: to, .. } | Op::RaiseClaim { token: to, .. } = &mut op {
            *to = FencingToken::new(token);
        }
        Step::Send(nodes.iter().map(|node| (*node, op.clone())).collect(), self.by)
    }

    pub(super) fn n(&self) -> usize {
        self.votes.len()
    }

    /// It arrives while the other nodes' fences are being raised.
    fn late_grant(&mut self, now: Moment, node: usize, fence: u64, token: u64) -> Step {
        if fence == token {
            self.votes[node] = Vote::Settled;
        } else if fence < token && now < self.until {
            self.ask_again(now);
            return self.raise_to(token, &[node]);
        } else {
            // The fence is above `token`, and a node never lowers its fence.
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
        if let Some(step) = self.not_won(now, yes, open) {
            return step;
        }
        let grants = self.votes.iter().filter_map(|v| match v {
            Vote::Granted(f) => Some(*f),
            _ => None,
        });
        match settle(self.n(), grants) {
            Settled::Agreed(t) => self.win(t),
            Settled::Raise(t) => self.hedge_or_raise(now, t),
        }
    }

    /// `None` if the `yes` votes are a majority. `open` is the number of nodes that may still vote
    /// yes.
    fn not_won(&mut self, now: Moment, yes: usize, open: usize) -> Option<Step> {
        let need = majority(self.n());
        if yes >= need {
            return None;
        }
        Some(if yes + open < need { self.lose(now) } else { Step::Wait(self.by) })
    }

    fn win(&mut self, token: u64) -> Step {
        self.phase = Phase::Over;
        Step::Decided(Ok(FencingToken::new(token)))
    }

    fn hedge_or_raise(&mut self, now: Moment, token: u64) -> Step {
        if self.silent() > 0 {
            let until = match self.phase {
                Phase::Hedging(until) => until,
                _ => self.hedge(now),
            };
            if now < until {
                self.phase = Phase::Hedging(until);
                return Step::Wait(until.min(self.by));
            }
        }
        self.phase = Phase::Raising(token);
        self.ask_again(now);
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
        self.not_won(now, yes, open).unwrap_or_else(|| self.win(token))
    }

    fn lose(&mut self, now: Moment) -> Step {
        let late = now >= self.by;
        let unraised = late && matches!(self.phase, Phase::Raising(_));
        let spoke = self.count(|v| match v {
            Vote::Held { .. } => true,
            Vote::Granted(_) => !unraised && !self.if_refused,
            Vote::Settled | Vote::Fell(None) => !self.if_refused,
            _ => false,
        });
        let need = majority(self.n());
        let need = if self.if_refused { self.n() - need + 1 } else { need };
        let silent = self.silent();
        if !late && spoke < need && (spoke + silent >= need || self.awaits_all && silent > 0) {
            // What has not arrived decides between "taken" and "no quorum". With `awaits_all` the
            // caller needs all answers, even if the result is certain.
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

    /// With the earliest time at which a majority could be free. A node that granted is free,
    /// because its grant is given back, and so is one that may still answer; one that failed is
    /// not.
    fn taken(&self, late: bool) -> Taken {
        let need = majority(self.n());
        let mut busy: Vec<Option<Duration>> = Vec::new();
        let mut any_foreign = false;
        for vote in &self.votes {
            match vote {
                Vote::Held { remaining, foreign, .. } => {
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
            // Fewer than a majority did not grant, so no other owner can have one: several attempts
            // split the votes, and each gives back its grants.
            let retry_after = Some(Duration::ZERO);
            return Taken { retry_after, foreign: false, queued: self.queued() };
        }
        let free = granted + if late { 0 } else { self.silent() };
        // A key without an expiry (`None`) may stay busy for ever.
        busy.sort_by_key(|r| r.unwrap_or(Duration::MAX));
        let must_free = need.saturating_sub(free).max(1);
        let retry_after = busy.get(must_free - 1).copied().flatten();
        Taken { retry_after, foreign: any_foreign, queued: self.queued() }
    }

    /// `None` unless a majority gave the caller a place or granted (fair 2).
    fn queued(&self) -> Option<Queued> {
        let granted =
            |vote: &Vote| matches!(vote, Vote::Granted(_) | Vote::Settled | Vote::Fell(_));
        let places = self.votes.iter().filter_map(|vote| match vote {
            Vote::Held { queued, .. } => *queued,
            _ => None,
        });
        let answers = self.count(granted) + places.clone().count();
        let ahead = places.clone().map(|queued| queued.ahead).max()?;
        let ticket = places.map(|queued| queued.ticket).max()?;
        (answers >= majority(self.n())).then_some(Queued { ahead, ticket })
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

impl Acquire {
    pub(super) fn record(&mut self, node: usize, reply: &Answer) {
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
                Vote::Held { remaining: *remaining, foreign: *foreign, queued: None }
            }
            (Vote::Silent, Ok(Reply::Queued { remaining, foreign, queued })) => {
                Vote::Held { remaining: *remaining, foreign: *foreign, queued: Some(*queued) }
            }
            (Vote::Silent, Ok(Reply::InFlight { remaining })) => {
                Vote::Held { remaining: Some(*remaining), foreign: false, queued: None }
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
            (vote, _) => vote.clone(),
        };
        self.votes[node] = vote;
    }
}

impl Machine for Acquire {
    type Decision = Outcome;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Step {
        self.record(node, reply);
        let raising = match self.phase {
            Phase::Raising(t) => Some(t),
            _ => None,
        };
        if let (Some(t), Vote::Granted(f)) = (raising, self.votes[node].clone()) {
            return self.late_grant(now, node, f, t);
        }
        self.decide(now)
    }

    fn on_time(&mut self, now: Moment) -> Step {
        self.decide(now)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Agreed(u64),
    Raise(u64),
}

/// `grants` are the fences of at least a majority of the `n` nodes.
///
/// The largest granted fence is not a safe token. Of five nodes, three grant 5, 3 and 3 to a first
/// attempt. The majority of a second may contain only one of these three, and grant 4, 1 and 1: the
/// tokens would be 5 and then 4.
pub(super) fn settle(n: usize, grants: impl Iterator<Item = u64>) -> Settled {
    let mut values: Vec<u64> = grants.collect();
    values.sort_unstable();
    let need = majority(n);
    // The list is sorted: `need` equal values in a row are a value that a majority granted.
    let agreed = values.windows(need).find(|w| w.first() == w.last()).map(|w| w[0]);
    match (agreed, values.last()) {
        (Some(t), _) => Settled::Agreed(t),
        (None, last) => Settled::Raise(last.copied().unwrap_or(0)),
    }
}
