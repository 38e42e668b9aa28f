//! One claim of an idempotency key over the nodes (idempotency 1). It is phase 1 of consensus on
//! the key's result, and the fencing token is the ballot.
//!
//! ```text
//!  a majority shows the same record ─▶ Replay    fewer nodes show one ─▶ Repair, never the handler
//!  a majority of nodes that remember every claim grants, with one token ─▶ Promise
//!  a majority grants, but too few of it remember every claim
//!               ─▶ Promise marked `forgotten`, once no node is silent or the wait is over
//! ```
//!
//! Invariants: 1. Nothing is promised without a majority. 2. A record that any node shows is
//! replayed, repaired or adopted. 3. A node that may have forgotten claims does not count towards
//! "there is no record". 4. All answers that count come before the validity ends. 5. Where any node
//! shows another fingerprint, no result is replayed, repaired or adopted, because it may belong to
//! another request.

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

/// Time after which to claim again while the owner of another claim is storing its result.
const SOON: Duration = Duration::from_millis(20);

/// Reason for which a majority promised nothing. The caller must give back what single nodes
/// granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This is the key's final result; `None` if it was too large to be kept.
    Replay(Option<Arc<[u8]>>),
    /// A result was seen, but not on a majority. The caller has to claim the key again with
    /// `force`, and to complete the record that the new claim finds, or this one if it finds none.
    Repair(StoredRecord),
    /// The claim was refused for this reason.
    Refused(Refusal),
}

type Step = Progress<Result<Promise, Denied>>;

fn refused(refusal: Refusal) -> Step {
    Step::Decided(Err(Denied::Refused(refusal)))
}

/// Promise of a majority of the nodes to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Ballot of the claim: the fencing token on which a majority agrees.
    pub token: FencingToken,
    /// Number of claims of the key so far, this one included.
    pub attempt: u32,
    /// Result of an earlier claim, which must be completed instead of a new result.
    pub adopt: Option<StoredRecord>,
    /// Handler steps that earlier attempts finished: of the lists that the promising nodes have,
    /// those under the highest ballot, and of these the longest. It includes all steps that a
    /// majority has.
    pub steps: Option<StoredSteps>,
    /// Set if too few of the nodes certainly know every claim of the key, because some lost data.
    /// Then it is not certain that there is no record.
    pub forgotten: Option<Forgetting>,
}

/// Reason for which a majority cannot answer that a key was never claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgetting {
    /// Time after which a majority certainly knows every claim again, for keys whose birth (the
    /// time of the request) is not known.
    pub remaining: Duration,
    /// Losses of data on the nodes that granted but may have forgotten a claim, without duplicates.
    /// Empty if one of these nodes did not report its loss.
    pub losses: Vec<Loss>,
    /// Nodes whose data began empty, and that no operator confirmed as new. If they were known to
    /// be new, enough nodes would know every claim. Empty if there would still be too few.
    pub fresh: Vec<usize>,
    /// True if enough nodes would know every claim if the nodes that gave no answer did.
    pub unheard: bool,
}

/// Reason for which a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The claim of another owner is running.
    InFlight {
        /// Time until a majority could be free if the running claim is not renewed. It is at most
        /// 20 ms while the owner is storing a result.
        retry_after: Duration,
    },
    /// Several claims met, and none has a majority. The caller may try again at once, and should at
    /// the latest after `retry_after`.
    Contended {
        /// Time until a majority could be free if no other claim is given back.
        retry_after: Duration,
    },
    /// The key was used with another fingerprint, so for another request.
    Mismatch,
    /// The request is older than the retention of the key, so a record of it may have expired.
    TooOld,
    /// Too few nodes gave an answer that counts. Contains the answer of each node.
    NoQuorum(Vec<NodeOutcome>),
}

/// Answer of a node to the claim so far.
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
    /// Time left of the node's quarantine, and how the node's data began: known, empty or lost.
    Quarantined(Duration, Began),
    Refused,
    Failed(NodeError),
}

/// The state machine that decides one claim.
#[derive(Clone, Debug)]
pub struct Record {
    votes: Vec<Vote>,
    /// Record to adopt: of the records that came with grants, the one with the highest ballot.
    adopt: Option<StoredRecord>,
    /// Finished steps: of the lists that came with grants, the longest under the highest ballot.
    steps: Option<StoredSteps>,
    /// Machine that settles one token over the grants that count.
    grants: Acquire,
    /// True once the grants of nodes that may have forgotten claims count too. The promise will
    /// then be marked `forgotten`.
    relaxed: bool,
    /// True once the grants can no longer become a majority with one token.
    lost: bool,
    /// Token on which the grants of a majority agree. It is set while the nodes that have not
    /// answered may still show a result.
    won: Option<FencingToken>,
}

impl Record {
    /// Makes the machine of a claim over `n` nodes, sent at `sent` and valid until `until`. The
    /// answers to each request are awaited for `patience`. `raise` is the op that raises a node's
    /// promise; the machine sets its ballot.
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

    /// Returns the largest fence that a node granted to this claim.
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

    /// Returns true if a node that has not answered may still do so.
    fn awaits(&self, now: Moment) -> bool {
        self.silent() > 0 && now < self.by()
    }

    fn need(&self) -> usize {
        majority(self.votes.len())
    }

    /// Returns the records that nodes showed, each with the number of nodes that showed an equal
    /// record.
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
        // ballot. But one node with another fingerprint is enough to withhold the result, because
        // it may belong to another request.
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

    /// Counts all grants so far once more, this time with those of nodes that may have forgotten
    /// claims.
    fn relax(&mut self, now: Moment) -> Progress<acquire::Outcome> {
        self.relaxed = true;
        self.grants = self.grants.anew();
        let mut step = Progress::Wait(self.by());
        for (node, vote) in self.votes.iter().enumerate() {
            let reply = match vote {
                Vote::Silent => continue,
                Vote::Granted { fence, .. } => Ok(Reply::Granted { fence: *fence }),
                Vote::InFlight(remaining) => Ok(Reply::InFlight { remaining: *remaining }),
                // The node neither granted nor has a running claim. Any other reply tells `grants`
                // this.
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
            // Too few nodes remember every claim. So a node that has not answered yet may have the
            // result that the others forgot.
            Progress::Decided(Ok(token)) if self.relaxed && self.awaits(now) => {
                self.won = Some(token);
                Step::Wait(self.by())
            }
            // If a majority that remembers every claim never saw the key, then no claim with the
            // other fingerprint had a majority, and the mismatch does not count. Otherwise one may
            // have had.
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

    /// Returns the largest number of claims that a node counted. Each earlier attempt that ran had
    /// grants of a majority, which shares a node with the majority of this claim.
    fn attempt(&self) -> u32 {
        let counts = self.votes.iter().map(|v| match v {
            Vote::Granted { attempt, .. } => *attempt,
            _ => 0,
        });
        counts.max().unwrap_or(0).max(1)
    }

    /// Returns the refusal that the answers result in when nothing is promised.
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
            // The answers that are still awaited decide which refusal it is.
            return Step::Wait(self.by());
        }
        if spoke < need {
            return refused(Refusal::NoQuorum(self.outcomes()));
        }
        if mismatched > 0 && (completed > 0 || leases.is_empty()) {
            return refused(Refusal::Mismatch);
        }
        if let Some((best, _)) = self.shown().max_by_key(|(r, _)| r.token) {
            // If leases still run on other nodes, the owner of the claim is storing the result now.
            // The caller should ask again soon, at the latest when the shortest lease ends.
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
        // As for locks, a node in quarantine is free when the quarantine ends, and a node that
        // failed does not count as free.
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
            // This is the answer to a raise. If it shows a record that appeared since the node's
            // grant, that record must be adopted.
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
