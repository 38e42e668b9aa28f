//! One claim of an idempotency key over the nodes (idempotency 1). A claim is phase 1 of the
//! consensus on the result of the key. The fencing token is the ballot.
//!
//! ```text
//!  a majority shows the same record ─▶ Replay
//!  fewer nodes show a record        ─▶ Repair; the handler does not run
//!  a majority grants with one token, and all these nodes certainly have every claim ─▶ Promise
//!  a majority grants, but too few of these nodes certainly have every claim
//!               ─▶ Promise marked `forgotten`, once no node is silent or the wait is over
//! ```
//!
//! Invariants: 1. A claim succeeds only with a majority. 2. If a node shows a record, its result is
//! returned (replayed), stored on a majority (repaired), or stored by this claim (adopted). 3. A
//! node that may have lost claims does not count towards "there is no record". 4. Only answers
//! before the end of the claim's validity count. 5. If a node shows another fingerprint, no result
//! is replayed, repaired or adopted, because the result may belong to another request.

mod forgotten;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeOutcome;
use crate::op::{Loss, Op, Reply, StoredRecord, StoredSteps};
use crate::quorum::acquire::{self, Acquire};
use crate::quorum::answers::Answers;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;
use crate::token::FencingToken;

/// While another claim's owner is storing its result.
const SOON: Duration = Duration::from_millis(20);

/// Some nodes may have granted the claim all the same; the caller must release these grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    Replay(Option<Arc<[u8]>>),
    /// A result that is not on a majority. The caller claims again with `force`, and stores the
    /// result that it finds by the new claim, or else this one.
    Repair(StoredRecord),
    Refused(Refusal),
}

type Step = Progress<Result<Promise, Denied>>;

fn refused(refusal: Refusal) -> Step {
    Step::Decided(Err(Denied::Refused(refusal)))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    pub token: FencingToken,
    /// Number of claims of the key so far, this one included.
    pub attempt: u32,
    /// Result of an earlier claim, which the caller must complete instead of a new one.
    pub adopt: Option<StoredRecord>,
    /// Of the lists on the granting nodes, that with the highest ballot, and of those the longest.
    /// It has all steps that a majority has.
    pub steps: Option<StoredSteps>,
    /// Set if fewer nodes than a majority certainly have every claim of the key.
    pub forgotten: Option<Forgetting>,
}

/// Some nodes may have lost claims of the key, and the others are no majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgetting {
    /// Time until a majority lacks no claim of the key, because lost ones would have expired. For a
    /// key whose birth is unknown.
    pub remaining: Duration,
    /// Of the nodes that granted but may lack a claim, without duplicates. Empty if one of them did
    /// not report its losses.
    pub losses: Vec<Loss>,
    /// Nodes whose data began empty and that no operator has confirmed as new. Empty if there would
    /// be too few nodes even with these.
    pub fresh: Vec<usize>,
    /// A majority would certainly have every claim, if each node that has not answered, or failed,
    /// has every claim.
    pub unheard: bool,
    /// Each of these nodes may remember the key.
    pub not_granted: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    InFlight {
        /// Until the key could be free on a majority. At most 20 ms while the other owner is
        /// storing a result.
        retry_after: Duration,
    },
    /// None of several claims has a majority. The caller may try again at once, and should by
    /// `retry_after`.
    Contended {
        retry_after: Duration,
    },
    Mismatch,
    TooOld,
    NoQuorum(Vec<NodeOutcome>),
}

/// The state machine that decides one claim of an idempotency key.
#[derive(Clone, Debug)]
pub struct Record {
    answers: Answers,
    adopt: Option<StoredRecord>,
    grants: Acquire,
    /// Grants of nodes that may have lost claims count, too; the result is then `forgotten`.
    relaxed: bool,
    lost: bool,
    won: Option<FencingToken>,
}

impl Record {
    /// The claim is sent at `sent` and valid until `until`; each request is awaited for `patience`.
    /// The token in `raise` is filled in later.
    pub fn new(n: usize, sent: Moment, until: Moment, patience: Duration, raise: Op) -> Self {
        Self {
            answers: Answers::new(n),
            adopt: None,
            grants: Acquire::new(n, sent, until, patience, raise),
            relaxed: false,
            lost: false,
            won: None,
        }
    }

    /// Returns the largest fencing token in the nodes' grants to this claim.
    pub fn largest(&self) -> Option<u64> {
        let granted = self.answers.replies().filter_map(|reply| match reply {
            Reply::Claimed { fence, .. } => Some(*fence),
            _ => None,
        });
        granted.max()
    }

    fn by(&self) -> Moment {
        self.grants.by()
    }

    fn see(&mut self, record: &StoredRecord) {
        if self.adopt.as_ref().is_none_or(|best| best.token < record.token) {
            self.adopt = Some(record.clone());
        }
    }

    fn steps(&self) -> Option<&StoredSteps> {
        let lists = self.answers.replies().filter_map(|reply| match reply {
            Reply::Claimed { steps, .. } => steps.as_ref(),
            _ => None,
        });
        lists.max_by_key(|steps| (steps.token, steps.list.len()))
    }

    fn awaits(&self, now: Moment) -> bool {
        self.answers.silent() > 0 && now < self.by()
    }

    /// With the number of nodes that showed an equal record.
    fn shown(&self) -> impl Iterator<Item = (&StoredRecord, usize)> {
        let shown = self.answers.replies().filter_map(|reply| match reply {
            Reply::Completed(record) => Some(record),
            _ => None,
        });
        let same = |r| self.answers.count(|reply| matches!(reply, Reply::Completed(x) if x == r));
        shown.map(move |r| (r, same(r)))
    }

    fn majority_says(&self) -> Option<Step> {
        let (need, mismatches) = (self.answers.need(), self.mismatches());
        if mismatches >= need {
            return Some(refused(Refusal::Mismatch));
        }
        // A majority with the same record is the result, even while a repair writes it again with a
        // higher ballot. But with another fingerprint on one node, it may belong to another
        // request.
        if let Some((record, _)) = self.shown().find(|(_, same)| *same >= need) {
            return Some(if mismatches > 0 {
                refused(Refusal::Mismatch)
            } else {
                Step::Decided(Err(Denied::Replay(record.value.clone())))
            });
        }
        None
    }

    fn mismatches(&self) -> usize {
        self.answers.count(|r| *r == Reply::Mismatch)
    }

    fn relax(&mut self, now: Moment) -> Progress<acquire::Outcome> {
        self.relaxed = true;
        self.grants = self.grants.anew();
        let mut step = Progress::Wait(self.by());
        for (node, answer) in self.answers.each().enumerate() {
            let Some(answer) = answer else { continue };
            let next = self.grants.on_reply(now, node, answer);
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
            // A node without an answer may have a result that others have lost, or show that an
            // attempt, which a minority has counted, never began.
            Progress::Decided(Ok(token))
                if (self.relaxed || self.attempt(false) > self.attempt(true))
                    && self.awaits(now) =>
            {
                self.won = Some(token);
                Step::Wait(self.by())
            }
            // A claim of another request. If a majority certainly has every claim and no record, it
            // never had a majority, and does not count. Here it may have had one.
            Progress::Decided(Ok(_))
                if self.mismatches() > 0 && (self.relaxed || self.adopt.is_some()) =>
            {
                refused(Refusal::Mismatch)
            }
            Progress::Decided(Ok(token)) if self.shown().next().is_none() => {
                Step::Decided(Ok(Promise {
                    token,
                    attempt: self.attempt(false),
                    adopt: self.adopt.clone(),
                    steps: self.steps().cloned(),
                    forgotten: self.relaxed.then(|| self.forgotten()),
                }))
            }
            Progress::Wait(_) | Progress::Decided(_) => {
                self.lost = true;
                self.refuse(now)
            }
        }
    }

    fn attempt(&self, heard: bool) -> u32 {
        let counted = |reply: &Reply| match reply {
            Reply::Claimed { attempt, .. } => Some((*attempt, forgotten::remembers(reply))),
            _ => None,
        };
        self.answers.attempts(heard, counted).max(1)
    }

    fn refuse(&self, now: Moment) -> Step {
        let answers = &self.answers;
        let (need, silent) = (answers.need(), answers.silent());
        let granted = answers.count(|r| matches!(r, Reply::Claimed { .. }));
        let completed = answers.count(|r| matches!(r, Reply::Completed(_)));
        let mismatched = self.mismatches();
        let too_old = answers.count(|r| *r == Reply::TooOld);
        let mut leases: Vec<Duration> = answers.replies().filter_map(lease).collect();
        let spoke = granted + completed + mismatched + too_old + leases.len();
        let same = self.shown().map(|(_, same)| same).max().unwrap_or(0);
        let may = |have: usize| have + silent >= need;
        let open = spoke < need || may(same) || may(mismatched);
        if self.awaits(now) && spoke + silent >= need && open {
            return Step::Wait(self.by());
        }
        if spoke < need {
            return refused(Refusal::NoQuorum(answers.outcomes(&NodeOutcome::Silent)));
        }
        if mismatched > 0 && (completed > 0 || leases.is_empty()) {
            return refused(Refusal::Mismatch);
        }
        if let Some((best, _)) = self.shown().max_by_key(|(r, _)| r.token) {
            // The owner of the claim that still runs elsewhere is storing it.
            return match leases.iter().min() {
                Some(left) => refused(Refusal::InFlight { retry_after: SOON.min(*left) }),
                None if completed + granted >= need => {
                    Step::Decided(Err(Denied::Repair(best.clone())))
                }
                None => refused(Refusal::NoQuorum(answers.outcomes(&NodeOutcome::Silent))),
            };
        }
        if too_old > 0 && leases.is_empty() {
            return refused(Refusal::TooOld);
        }
        let running = leases.len();
        // A node in quarantine counts as free after it, and one that failed does not count as free,
        // as for locks.
        leases.extend(answers.replies().filter_map(quarantine));
        leases.sort_unstable();
        let late = if self.awaits(now) { 0 } else { silent };
        let free = answers.n() - leases.len() - answers.failed() - late;
        let must_free = need.saturating_sub(free).max(1);
        let retry_after = leases.get(must_free - 1).copied().unwrap_or_default();
        refused(if running >= need {
            Refusal::InFlight { retry_after }
        } else {
            Refusal::Contended { retry_after }
        })
    }
}

impl Machine for Record {
    type Decision = Result<Promise, Denied>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Step {
        if self.answers.has(node) {
            // The node has granted before: the record is newer than the grant, and must be adopted.
            if let Ok(Reply::Completed(record)) = reply {
                self.see(record);
            }
            let step = self.grants.on_reply(now, node, reply);
            return self.judge(now, step);
        }
        if let Ok(Reply::Claimed { record: Some(record), .. }) = reply {
            self.see(record);
        }
        self.answers.put(node, reply);
        if let Some(step) = self.majority_says() {
            return step;
        }
        let step = if self.must_relax() {
            self.relax(now)
        } else if !self.relaxed
            && matches!(reply, Ok(Reply::Claimed { unsure, .. }) if !unsure.is_zero())
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

fn lease(reply: &Reply) -> Option<Duration> {
    match reply {
        Reply::InFlight { remaining } => Some(*remaining),
        _ => None,
    }
}

fn quarantine(reply: &Reply) -> Option<Duration> {
    match reply {
        Reply::Quarantined { remaining, .. } => Some(*remaining),
        _ => None,
    }
}
