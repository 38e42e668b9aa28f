//! One claim of an idempotency key over the nodes (idempotency 1): phase 1 of consensus on the
//! key's result, with the fencing token as ballot.
//!
//! ```text
//!  a majority shows one record ─▶ Replay      any record at all ─▶ Repair, never the handler
//!  a majority of nodes that forgot nothing grants, one token settled on it ─▶ Promised
//!  a majority grants, but too few of them remember ─▶ Promised, forgotten, once all have spoken
//! ```
//!
//! Invariants: 1. without a majority's promise nothing is promised; 2. a record seen anywhere is
//! replayed, repaired or adopted; 3. a node that forgot does not count towards "no record"; 4. all
//! of it before the validity ends; 5. another fingerprint seen anywhere is a mismatch, and no
//! result of another request is shown.

mod forgotten;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeError, NodeOutcome};
use crate::op::{Began, Loss, Op, Reply, StoredRecord, StoredSteps};
use crate::quorum::acquire::{self, Acquire};
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;
use crate::token::FencingToken;

/// Time after which to ask again while an owner is storing its result.
const SOON: Duration = Duration::from_millis(20);

/// Reason for which there is no promise. What was granted must be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This is the key's result, for good; `None` if it was too large to be kept.
    Replay(Option<Arc<[u8]>>),
    /// A result was seen, but not on a majority: claim again with `force`, and complete the record
    /// that this claim finds, or else this one.
    Repair(StoredRecord),
    /// The claim was refused.
    Refused(Refusal),
}

type Step = Progress<Result<Promise, Denied>>;

fn refused(refusal: Refusal) -> Step {
    Step::Decided(Err(Denied::Refused(refusal)))
}

/// Promise of a majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The settled ballot.
    pub token: FencingToken,
    /// Number of claims that the key has seen, this one included.
    pub attempt: u32,
    /// The result that must be completed instead of a new one.
    pub adopt: Option<StoredRecord>,
    /// Steps that earlier attempts finished: those under the highest ballot among the promises, and
    /// of these the longest list. It includes all steps that a majority has.
    pub steps: Option<StoredSteps>,
    /// Set if too few of the nodes know of every claim of the key, so that "no record" is not
    /// certain.
    pub forgotten: Option<Forgetting>,
}

/// Reason for which a majority cannot answer "never seen".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgetting {
    /// Time for which that will be so of keys without a birth.
    pub remaining: Duration,
    /// Losses of all nodes that granted and do not remember, without duplicates; empty if one of
    /// these nodes did not report which loss it was.
    pub losses: Vec<Loss>,
    /// Nodes without which too few know, because their data began empty and no operator confirmed
    /// that they are new. Empty if there would be too few even with them.
    pub fresh: Vec<usize>,
    /// Enough nodes would know if those that gave no answer do.
    pub unheard: bool,
}

/// Reason for which a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another owner's claim runs.
    InFlight {
        /// Time until a majority could be free, if that claim is not renewed; short while a result
        /// is being stored.
        retry_after: Duration,
    },
    /// Several claims met and none has a majority: try again, at the latest after `retry_after`.
    Contended {
        /// Time until a majority could be free if nothing is given back.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint.
    Mismatch,
    /// The request is older than the retention: a record of it may be gone.
    TooOld,
    /// Too few answers that count.
    NoQuorum(Vec<NodeOutcome>),
}

/// Answer of a node to the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Vote {
    Silent,
    Granted {
        fence: u64,
        attempt: u32,
        unsure: Duration,
        losses: Vec<Loss>,
        fresh: bool,
    },
    Completed(StoredRecord),
    InFlight(Duration),
    Mismatch,
    TooOld,
    /// Time left of the quarantine, and the state of the node's data at its beginning.
    Quarantined(Duration, Began),
    Refused,
    Failed(NodeError),
}

/// The machine of one claim.
#[derive(Clone, Debug)]
pub struct Record {
    votes: Vec<Vote>,
    /// Record to adopt: the one with the highest ballot among the promises.
    adopt: Option<StoredRecord>,
    /// Steps with the highest ballot among the promises, the longest list of it.
    steps: Option<StoredSteps>,
    /// Settles one token over the grants that count.
    grants: Acquire,
    /// Grants of nodes that forgot count too: the promise will be `forgotten`.
    relaxed: bool,
    /// The grants are no majority, or settle on no token.
    lost: bool,
    /// Token on which the grants agree, while other nodes may still show a result.
    won: Option<FencingToken>,
}

impl Record {
    /// Makes the machine of a claim over `n` nodes, sent at `sent` and valid until `until`; each
    /// request is awaited for `patience`. `raise` is sent, with the ballot set, to nodes that have
    /// to be raised.
    pub fn new(n: usize, sent: Moment, until: Moment, patience: Duration, raise: Op) -> Self {
        Self {
            votes: vec![Vote::Silent; n],
            adopt: None,
            steps: None,
            grants: Acquire::new(n, sent, until, patience, raise),
            relaxed: false,
            lost: false,
            won: None,
        }
    }

    /// Returns the largest fence that a node granted.
    pub fn largest(&self) -> Option<u64> {
        let granted = self.votes.iter().filter_map(|v| match v {
            Vote::Granted { fence, .. } => Some(*fence),
            _ => None,
        });
        granted.max()
    }

    fn by(&self) -> Moment {
        self.grants.by()
    }

    fn vote(&mut self, reply: &Answer) -> Vote {
        match reply {
            Ok(Reply::Claimed { fence, attempt, record, steps, unsure, losses, fresh }) => {
                if let Some(record) = record {
                    self.see(record);
                }
                if let Some(steps) = steps {
                    self.see_steps(steps);
                }
                let (unsure, losses) = (*unsure, losses.clone());
                let fresh = *fresh && !unsure.is_zero();
                Vote::Granted { fence: *fence, attempt: *attempt, unsure, losses, fresh }
            }
            Ok(Reply::Completed(record)) => Vote::Completed(record.clone()),
            Ok(Reply::InFlight { remaining }) => Vote::InFlight(*remaining),
            Ok(Reply::Mismatch) => Vote::Mismatch,
            Ok(Reply::TooOld) => Vote::TooOld,
            Ok(Reply::Quarantined { remaining, began, .. }) => {
                Vote::Quarantined(*remaining, *began)
            }
            Ok(_) => Vote::Refused,
            Err(e) => Vote::Failed(e.clone()),
        }
    }

    fn see(&mut self, record: &StoredRecord) {
        if self.adopt.as_ref().is_none_or(|best| best.token < record.token) {
            self.adopt = Some(record.clone());
        }
    }

    fn see_steps(&mut self, steps: &StoredSteps) {
        let order = |s: &StoredSteps| (s.token, s.list.len());
        if self.steps.as_ref().is_none_or(|best| order(best) < order(steps)) {
            self.steps = Some(steps.clone());
        }
    }

    fn count(&self, f: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|v| f(v)).count()
    }

    fn silent(&self) -> usize {
        self.count(|v| *v == Vote::Silent)
    }

    /// Returns true if a silent node may still answer.
    fn awaits(&self, now: Moment) -> bool {
        self.silent() > 0 && now < self.by()
    }

    fn need(&self) -> usize {
        majority(self.votes.len())
    }

    /// Returns the records that nodes showed, each with the number of nodes that show exactly this
    /// one.
    fn shown(&self) -> impl Iterator<Item = (&StoredRecord, usize)> {
        let shown = self.votes.iter().filter_map(|v| match v {
            Vote::Completed(record) => Some(record),
            _ => None,
        });
        shown.map(|r| (r, self.count(|v| matches!(v, Vote::Completed(x) if x == r))))
    }

    fn majority_says(&self) -> Option<Step> {
        let mismatches = self.mismatches();
        if mismatches >= self.need() {
            return Some(refused(Refusal::Mismatch));
        }
        // A record on a majority is the result, even if a repair is writing it again under a higher
        // ballot. But one mismatch is enough: the result may be that of another request.
        if let Some((record, _)) = self.shown().find(|(_, same)| *same >= self.need()) {
            return Some(if mismatches > 0 {
                refused(Refusal::Mismatch)
            } else {
                Step::Decided(Err(Denied::Replay(record.value.clone())))
            });
        }
        None
    }

    fn mismatches(&self) -> usize {
        self.count(|v| *v == Vote::Mismatch)
    }

    /// Judges every grant so far again, those of nodes that forgot included.
    fn relax(&mut self, now: Moment) -> Progress<acquire::Outcome> {
        self.relaxed = true;
        self.grants = self.grants.anew();
        let mut step = Progress::Wait(self.by());
        for (node, vote) in self.votes.iter().enumerate() {
            let reply = match vote {
                Vote::Silent => continue,
                Vote::Granted { fence, .. } => Ok(Reply::Granted { fence: *fence }),
                Vote::InFlight(remaining) => Ok(Reply::InFlight { remaining: *remaining }),
                // Neither a grant nor an owner; the content of the reply does not matter.
                _ => Ok(Reply::Mismatch),
            };
            let next = self.grants.on_reply(now, node, &reply);
            if !matches!(step, Progress::Decided(_)) {
                step = next;
            }
        }
        step
    }

    fn judge(&mut self, now: Moment, step: Progress<acquire::Outcome>) -> Step {
        let step = match (step, self.won) {
            (Progress::Wait(_), Some(token)) => Progress::Decided(Ok(token)),
            (step, _) => step,
        };
        match step {
            Progress::Wait(at) if !self.lost => Step::Wait(at),
            Progress::Send(asks, by) => Step::Send(asks, by),
            // Too few nodes remember: a node that has not answered yet may have the result that
            // these nodes forgot.
            Progress::Decided(Ok(token)) if self.relaxed && self.awaits(now) => {
                self.won = Some(token);
                Step::Wait(self.by())
            }
            // A majority that remembers never saw the key: a key that only a minority has, under
            // another fingerprint, was never the only claim of a request. Without such a majority
            // it may have been.
            Progress::Decided(Ok(_))
                if self.mismatches() > 0 && (self.relaxed || self.adopt.is_some()) =>
            {
                refused(Refusal::Mismatch)
            }
            Progress::Decided(Ok(token)) if self.shown().next().is_none() => {
                Step::Decided(Ok(Promise {
                    token,
                    attempt: self.attempt(),
                    adopt: self.adopt.clone(),
                    steps: self.steps.clone(),
                    forgotten: self.relaxed.then(|| self.forgotten()),
                }))
            }
            Progress::Wait(_) | Progress::Decided(_) => {
                self.lost = true;
                self.refuse(now)
            }
        }
    }

    /// Returns the largest attempt number: an earlier run had the grants of a majority, which
    /// shares a node with ours.
    fn attempt(&self) -> u32 {
        let counts = self.votes.iter().map(|v| match v {
            Vote::Granted { attempt, .. } => *attempt,
            _ => 0,
        });
        counts.max().unwrap_or(0).max(1)
    }

    /// Returns the refusal that follows from the answers when nothing is promised.
    fn refuse(&self, now: Moment) -> Step {
        let (need, silent) = (self.need(), self.silent());
        let granted = self.count(|v| matches!(v, Vote::Granted { .. }));
        let completed = self.count(|v| matches!(v, Vote::Completed(_)));
        let mismatched = self.mismatches();
        let too_old = self.count(|v| *v == Vote::TooOld);
        let mut leases: Vec<Duration> = self.votes.iter().filter_map(Vote::lease).collect();
        let spoke = granted + completed + mismatched + too_old + leases.len();
        let same = self.shown().map(|(_, same)| same).max().unwrap_or(0);
        let may = |have: usize| have + silent >= need;
        let open = spoke < need || may(same) || may(mismatched);
        if self.awaits(now) && spoke + silent >= need && open {
            // The late answers decide which refusal it is.
            return Step::Wait(self.by());
        }
        if spoke < need {
            return refused(Refusal::NoQuorum(self.outcomes()));
        }
        if mismatched > 0 && (completed > 0 || leases.is_empty()) {
            return refused(Refusal::Mismatch);
        }
        if let Some((best, _)) = self.shown().max_by_key(|(r, _)| r.token) {
            // While leases run on other nodes, the owner is storing its result now.
            return match leases.iter().min() {
                Some(left) => refused(Refusal::InFlight { retry_after: SOON.min(*left) }),
                None if completed + granted >= need => {
                    Step::Decided(Err(Denied::Repair(best.clone())))
                }
                None => refused(Refusal::NoQuorum(self.outcomes())),
            };
        }
        if too_old > 0 && leases.is_empty() {
            return refused(Refusal::TooOld);
        }
        let running = leases.len();
        // As for locks: nodes in quarantine are free when that ends, and nodes that failed are not
        // counted as free.
        leases.extend(self.votes.iter().filter_map(Vote::quarantine));
        leases.sort_unstable();
        let failed = self.count(|v| matches!(v, Vote::Failed(_)));
        let late = if self.awaits(now) { 0 } else { silent };
        let free = self.votes.len() - leases.len() - failed - late;
        let must_free = need.saturating_sub(free).max(1);
        let retry_after = leases.get(must_free - 1).copied().unwrap_or_default();
        refused(if running >= need {
            Refusal::InFlight { retry_after }
        } else {
            Refusal::Contended { retry_after }
        })
    }

    fn outcomes(&self) -> Vec<NodeOutcome> {
        let outcome = |v: &Vote| match v {
            Vote::Silent => NodeOutcome::Silent,
            Vote::Granted { .. } => NodeOutcome::Granted,
            Vote::InFlight(left) => NodeOutcome::Held(Some(*left)),
            Vote::Quarantined(left, began) => NodeOutcome::quarantined(*left, *began),
            Vote::Completed(_) | Vote::Mismatch | Vote::TooOld | Vote::Refused => {
                NodeOutcome::Refused
            }
            Vote::Failed(e) => NodeOutcome::Failed(e.clone()),
        };
        self.votes.iter().map(outcome).collect()
    }
}

impl Machine for Record {
    type Decision = Result<Promise, Denied>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Step {
        if self.votes[node] != Vote::Silent {
            // This is the answer to a raise; a record that appeared since the grant must be
            // adopted.
            if let Ok(Reply::Completed(record)) = reply {
                self.see(record);
            }
            let step = self.grants.on_reply(now, node, reply);
            return self.judge(now, step);
        }
        self.votes[node] = self.vote(reply);
        if let Some(step) = self.majority_says() {
            return step;
        }
        let step = if self.must_relax() {
            self.relax(now)
        } else if !self.relaxed
            && matches!(self.votes[node], Vote::Granted { unsure, .. } if !unsure.is_zero())
        {
            self.grants.on_time(now)
        } else {
            self.grants.on_reply(now, node, reply)
        };
        self.judge(now, step)
    }

    fn on_time(&mut self, now: Moment) -> Step {
        let step = self.grants.on_time(now);
        self.judge(now, step)
    }
}

impl Vote {
    fn quarantine(&self) -> Option<Duration> {
        match self {
            Self::Quarantined(left, _) => Some(*left),
            _ => None,
        }
    }

    fn lease(&self) -> Option<Duration> {
        match self {
            Self::InFlight(left) => Some(*left),
            _ => None,
        }
    }
}
