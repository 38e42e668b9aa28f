//! Decides one attempt to acquire a lock by the answers of a majority of the nodes, and makes a
//! majority agree on one fencing token (rules locks 2, 3 in docs/design).
//!
//! The state machine that claims an idempotency key (`claim.rs`) uses the state machine of this
//! module to count the grants of the claim.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome, Taken};
use crate::op::{Began, Op, Queued, Reply};
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;
use crate::token::FencingToken;

/// Answer of a node, so far, to one attempt to acquire the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Vote {
    Silent,
    /// The node granted, and gave this fencing token. The final token of the attempt may differ.
    Granted(u64),
    /// The node granted, and its fence (its last fencing token) is the token on which a majority
    /// has to agree.
    Settled,
    /// The node granted, but its grant does not count, because its fence (its last fencing token)
    /// is not the token of the attempt. `None`: the node refused to raise its fence, or its fence
    /// is above the token. `Some`: the request to raise the fence failed with this error.
    Fell(Option<NodeError>),
    Held {
        remaining: Option<Duration>,
        foreign: bool,
        queued: Option<Queued>,
    },
    /// The node is in quarantine: it grants nothing, because it may have lost a lease. Contains
    /// the time until the quarantine ends, and the origin of the node's data (known, empty or
    /// lost).
    Quarantined(Duration, Began),
    Refused,
    Failed(NodeError),
}

/// Result of an attempt. `Ok`: the lock is held until the end of the validity, which began when the
/// attempt was sent. `Err`: the caller must release what nodes may have granted.
pub type Outcome = Result<FencingToken, Loss>;

type Step = Progress<Outcome>;

/// Reason for which an attempt acquired nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A majority answered and did not grant the lock: another owner has the lock, or several
    /// attempts split the votes. With [`Acquire::taken_if_refused`], an attempt ends with this
    /// reason only if the nodes that did not refuse are no majority.
    Taken(Taken),
    /// Too few nodes gave an answer that counts. Contains the answer of each node.
    NoQuorum(Vec<NodeOutcome>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asking,
    /// A majority granted, but with different fences (last fencing tokens of the nodes). Until this
    /// moment the machine waits for one more answer, which may make the fences of a majority equal.
    Hedging(Moment),
    Raising(u64),
    Over,
}

/// The state machine that decides one attempt to acquire a lock.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Request that raises a node's fence (its last fencing token) to the token of the attempt. The
    /// token in this request is set when the request is sent.
    raise: Op,
    sent: Moment,
    /// End of the lock's validity: an answer at this moment or later wins nothing (invariant 1 of
    /// `quorum`).
    until: Moment,
    /// Time for which this state machine waits for the answers to a request. `by` is the end of
    /// this time for the last request, at most `until`. A node that has not answered by then counts
    /// as failed.
    patience: Duration,
    by: Moment,
    votes: Vec<Vote>,
    /// Largest fencing token that a node granted in this attempt.
    largest: Option<u64>,
    phase: Phase,
    /// True if the attempt waits for every node before it ends as *no quorum*; see
    /// [`awaiting_all`](Self::awaiting_all).
    awaits_all: bool,
    /// True if the attempt ends as *taken* only if the nodes that did not refuse are no majority;
    /// see [`taken_if_refused`](Self::taken_if_refused).
    if_refused: bool,
}

/// Shortest and longest wait for one more answer after a majority granted with different fences
/// (last fencing tokens). With this answer a majority may have the same fence, so that no node has
/// to raise its fence.
const HEDGE: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(5));

impl Acquire {
    /// Makes the state machine of one attempt to acquire a lock on `n` nodes. The requests leave at
    /// `sent`, and the lease, if it is won, ends at `until`. The answers to each request are
    /// awaited for `patience`. `raise` is the request that raises a node's fence (its last fencing
    /// token); the token in it is filled in later.
    pub fn new(n: usize, sent: Moment, until: Moment, patience: Duration, raise: Op) -> Self {
        let (by, votes) = (until.min(sent + patience), vec![Vote::Silent; n]);
        let (largest, phase, awaits_all, if_refused) = (None, Phase::Asking, false, false);
        Self { raise, sent, until, patience, by, votes, largest, phase, awaits_all, if_refused }
    }

    /// Sets whether the attempt ends as *no quorum* only after each node has answered or the time
    /// for answers is over. By default it ends as soon as no majority can answer any more.
    pub fn awaiting_all(self, awaits_all: bool) -> Self {
        Self { awaits_all, ..self }
    }

    /// Sets whether the attempt ends as *taken* only if the nodes that did not refuse are no
    /// majority. By default it ends as *taken* if a majority answered and did not grant. A caller
    /// that takes over a lock by a ticket of its holder sets this, because *taken* is final for
    /// such a caller (rule hand_over 5 in docs/design).
    pub fn taken_if_refused(self, if_refused: bool) -> Self {
        Self { if_refused, ..self }
    }

    /// Returns the moment until which the answers to the last request are awaited.
    pub(super) fn by(&self) -> Moment {
        self.by
    }

    /// Returns the largest fencing token that a node granted in this attempt.
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Returns a state machine for the same attempt that has received no answer yet.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.n(), self.sent, self.until, self.patience, self.raise.clone())
    }

    /// Sets the semaphore slot whose fence (last fencing token) the op `raise` raises. The state
    /// machine that acquires a permit (`slots.rs`) calls this.
    pub(super) fn set_slot(&mut self, to: u16) {
        if let Op::Raise { slot, .. } = &mut self.raise {
            *slot = Some(to);
        }
    }

    /// Starts the time for answers again, because this state machine sends a second request to some
    /// nodes.
    pub(super) fn ask_again(&mut self, now: Moment) {
        self.by = self.until.min(now + self.patience);
    }

    /// Returns the moment until which the state machine waits for one more answer. With this answer
    /// a majority may agree on a fencing token, which saves a second request.
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

    /// Returns the number of nodes.
    pub(super) fn n(&self) -> usize {
        self.votes.len()
    }

    /// Handles a grant that arrives while the fences (last fencing tokens) of the other nodes are
    /// being raised to the attempt's token. The grant is a further vote if the node's fence is
    /// equal to the token or can be raised to the token.
    fn late_grant(&mut self, now: Moment, node: usize, fence: u64, token: u64) -> Step {
        if fence == token {
            self.votes[node] = Vote::Settled;
        } else if fence < token && now < self.until {
            self.ask_again(now);
            return self.raise_to(token, &[node]);
        } else {
            // The node's fence (last fencing token) is above `token`. A node never lowers its
            // fence, so it cannot agree on `token`.
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

    /// Returns the next step if the `yes` votes are no majority yet: to wait while a majority is
    /// possible, otherwise to end the attempt. Returns `None` if they are a majority. `open` is the
    /// number of nodes that may still vote yes.
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

    /// Decides an attempt that can no longer be won: as "taken" if a majority answered, otherwise
    /// as "no quorum" (invariant 4 of `quorum`).
    fn lose(&mut self, now: Moment) -> Step {
        let late = now >= self.by;
        // After the time for answers, a node that granted but did not answer the request to raise
        // its fence (last fencing token) does not count as a node that answered.
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
            // The answers that have not arrived yet decide between "taken" and "no quorum". With
            // `awaits_all` the caller needs all answers, even if the result is certain.
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

    /// Returns the refusal with the earliest time at which a majority could be free. A node that
    /// granted is free, because its grant is given back, and so is a node that may still answer. A
    /// node in quarantine (it grants nothing for some time) is free when the quarantine ends. A
    /// node that failed does not count as free.
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
            // The nodes that did not grant are fewer than a majority, so no other owner can have a
            // majority. Several attempts split the votes, and each of them gives back its grants.
            // So the lock is free at once.
            let retry_after = Some(Duration::ZERO);
            return Taken { retry_after, foreign: false, queued: self.queued() };
        }
        let free = granted + if late { 0 } else { self.silent() };
        // A key without an expiry (`None`) may stay busy for ever, so it sorts last.
        busy.sort_by_key(|r| r.unwrap_or(Duration::MAX));
        // If a majority of the nodes answered, `busy` (the times until the nodes that refused are
        // free) has at least `must_free` entries.
        let must_free = need.saturating_sub(free).max(1);
        let retry_after = busy.get(must_free - 1).copied().flatten();
        Taken { retry_after, foreign: any_foreign, queued: self.queued() }
    }

    /// Returns the place of a fair caller, which waits in the nodes' queues in the order of tickets
    /// (rule fair 2 in docs/design): the largest ticket, and the largest number of callers ahead,
    /// that a node reported. Returns `None` unless a majority gave the caller a place or granted.
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
    /// Stores the vote of a node from its reply. Does not decide the attempt.
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
            // The node has answered before, so its vote stays.
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

/// Next step to agree on the fencing token of an attempt, derived from the grants so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// A majority granted this value. It is the fencing token of the attempt.
    Agreed(u64),
    /// No value is on a majority. Contains the largest granted value. The nodes that granted a
    /// smaller value must raise their fence (last fencing token) to this value.
    Raise(u64),
}

/// Returns the next step to agree on the fencing token of an attempt. `grants` are the fences that
/// the nodes granted; the caller has grants of at least a majority of the `n` nodes.
///
/// The largest granted fence is not a safe token. Example: of five nodes, three grant the fences 5,
/// 3 and 3 to a first attempt. The majority of a second attempt may contain only one of these three
/// nodes, and may grant 4, 1 and 1. The tokens would be 5 and then 4. So a token is one of two
/// values: a value that a majority granted, or the largest granted value after a majority has
/// raised its fence to this value.
pub(super) fn settle(n: usize, grants: impl Iterator<Item = u64>) -> Settled {
    let mut values: Vec<u64> = grants.collect();
    values.sort_unstable();
    let need = majority(n);
    // The list is sorted. So `need` equal values in a row are a value that a majority granted. At
    // most one value can have a majority.
    let agreed = values.windows(need).find(|w| w.first() == w.last()).map(|w| w[0]);
    match (agreed, values.last()) {
        (Some(t), _) => Settled::Agreed(t),
        (None, last) => Settled::Raise(last.copied().unwrap_or(0)),
    }
}
