//! Decisions of operators about losses of data (idempotency 20). A decision is the result of an
//! ordinary idempotency key in a reserved namespace, so of two operators who decide at once, the
//! second reads the first's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::builder::MAX_RESULT_MAX;
use super::{Call, Idempotency, Resolved, RunError, Status};
use crate::durability::Durability;
use crate::error::{NodeError, NodeOutcome};
use crate::name::{DECISIONS, record_key};
use crate::op::{Loss, Op, Reply};
use crate::sync::SyncMutex;
use crate::time::Moment;

const FRESH: Duration = Duration::from_secs(5);

/// The longest retention of any namespace.
pub(super) const KEPT: Duration = Duration::from_secs(366 * 24 * 3_600);

/// An operator's decision about the forgotten keys of a loss of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Run the handlers of these keys, like [`Forgotten::Run`](super::Forgotten::Run). Choose this
    /// if the requests took no effect or may be repeated.
    Run,
    /// Park the keys that the loss made forgotten, like
    /// [`Forgotten::Park`](super::Forgotten::Park): do not run the handlers.
    Park,
}

/// An operator's decision about the keys whose records may be lost because of a loss of data, with
/// the operator's name, the reason and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decided {
    /// The decision: run the handlers of the keys whose records may be lost, or park the keys.
    pub decision: Decision,
    /// Name of the operator.
    pub by: String,
    /// The operator's reason for the decision.
    pub reason: String,
    /// Time of the decision in milliseconds since 1970, by the clock of the operator's machine.
    pub at: u64,
}

const WARNED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Decisions(SyncMutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    /// By the fields `from` and `began` of a [`Loss`], and by the node for [`Record::Without`].
    known: BTreeMap<(u64, u64, Option<usize>), Known>,
    warned: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    decision: Option<Decision>,
    at: Moment,
}

impl Decisions {
    fn get(&self, loss: Loss, without: Option<usize>, now: Moment) -> Option<Known> {
        let (lately, of) = (self.0.lock(), (loss.from, loss.began, without));
        lately.known.get(&of).copied().filter(|known| now < known.at + FRESH)
    }

    fn put(&self, loss: Loss, without: Option<usize>, decision: Option<Decision>, at: Moment) {
        let mut lately = self.0.lock();
        lately.known.retain(|_, known| at < known.at + FRESH);
        lately.known.insert((loss.from, loss.began, without), Known { decision, at });
    }

    fn warns(&self, now: Moment) -> bool {
        let warned = &mut self.0.lock().warned;
        let due = warned.is_none_or(|at| now >= at + WARNED);
        if due {
            *warned = Some(now);
        }
        due
    }
}

/// A record for decisions about a loss of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The decisions one after the other, from 0. The last one is valid. Nothing follows a decision
    /// to run.
    Nth(u32),
    /// That keys run although this node gives no answer.
    Without(&'a str),
}

const MOST: u32 = 8;

#[derive(Debug)]
pub(super) struct Undecided {
    /// The losses without a decision, or all if only `unheard` is the reason.
    pub(super) losses: Vec<Loss>,
    /// Nodes that may remember the key and whose silence no decision covers.
    pub(super) unheard: Vec<Arc<str>>,
}

impl Idempotency {
    /// To park if an operator decided so for any of the losses. To run if operators decided so for
    /// all, and no node may remember the key, unless an operator has given up the nodes `unheard`.
    ///
    /// # Errors
    /// [`Undecided`]; without losses if `losses` is empty.
    pub(super) async fn decision(
        &self,
        losses: &[Loss],
        unheard: &[usize],
    ) -> Result<Decision, Undecided> {
        let all = join_all(losses.iter().map(|loss| self.decision_about(*loss, None))).await;
        if all.contains(&Some(Decision::Park)) {
            return Ok(Decision::Park);
        }
        let open = losses.iter().zip(&all).filter(|(_, decision)| decision.is_none());
        let open: Vec<Loss> = open.map(|(loss, _)| *loss).collect();
        if losses.is_empty() || !open.is_empty() {
            return Err(Undecided { losses: open, unheard: Vec::new() });
        }
        let mut missing = Undecided { losses: Vec::new(), unheard: Vec::new() };
        for node in unheard {
            let all = losses.iter().map(|loss| self.decision_about(*loss, Some(*node)));
            let all = join_all(all).await;
            if all.contains(&None) {
                missing.unheard.push(self.core.name(*node));
                missing.losses = losses.to_vec();
            }
        }
        if missing.unheard.is_empty() { Ok(Decision::Run) } else { Err(missing) }
    }

    async fn decision_about(&self, loss: Loss, without: Option<usize>) -> Option<Decision> {
        if let Some(known) = self.decisions.get(loss, without, self.core.env.now()) {
            return known.decision;
        }
        let read = match without {
            None => self.decided(loss).await,
            Some(node) => {
                let record = self.record(loss, Record::Without(&self.core.name(node)), None);
                record.lookup::<Decided>().await.map(|status| match status {
                    Status::Stored(covered) => Some(covered),
                    _ => None,
                })
            }
        };
        match read {
            Ok(decided) => {
                let decision = decided.map(|decided| decided.decision);
                self.decisions.put(loss, without, decision, self.core.env.now());
                decision
            }
            Err(error) => {
                // So that the next key's call reads again.
                if self.decisions.warns(self.core.env.now()) {
                    tracing::warn!(
                        target: "palisade::idempotency",
                        namespace = %self.namespace, %loss, %error,
                        "the decision about a loss was not read; its keys wait"
                    );
                }
                None
            }
        }
    }

    /// `None` if no majority has one, or if nodes may have lost a later one, or are storing it.
    pub(crate) async fn decided(&self, loss: Loss) -> Result<Option<Decided>, RunError> {
        let mut last = None;
        for nth in 0..MOST {
            match self.record(loss, Record::Nth(nth), last.as_ref()).lookup::<Decided>().await? {
                Status::Stored(run) if run.decision == Decision::Run => return Ok(Some(run)),
                Status::Stored(park) => last = Some(park),
                Status::Absent | Status::Lapsed { .. } => break,
                Status::Forgotten { .. }
                | Status::Running { .. }
                | Status::Unsettled
                | Status::NotKept
                | Status::Mismatch => return Ok(None),
            }
        }
        Ok(last)
    }

    /// With `replace`, also a decision to run in place of one to park. Returns the valid decision,
    /// and true if this call stored it. If the future is dropped, a second call with the same
    /// decision is safe.
    pub(crate) async fn decide(
        &self,
        loss: Loss,
        decision: (Decision, &str, &str),
        replace: bool,
    ) -> Result<(Decided, bool), RunError> {
        let mut last: Option<Decided> = None;
        for nth in 0..MOST {
            let call = self.record(loss, Record::Nth(nth), last.as_ref());
            let status = call.clone().lookup::<Decided>().await?;
            let (settled, is_new) = match (status, &last) {
                (Status::Stored(settled), _) => (settled, false),
                (Status::Absent | Status::Lapsed { .. }, Some(park))
                    if decision.0 == Decision::Park || !replace =>
                {
                    return Ok((park.clone(), false));
                }
                // Nodes may have lost a later decision, and the operator says again what is to
                // hold.
                _ => self.settle(call, decision).await?,
            };
            if is_new || settled.decision == Decision::Run {
                return Ok((settled, is_new));
            }
            last = Some(settled);
        }
        let call = self.record(loss, Record::Nth(MOST), None);
        last.map(|last| (last, false))
            .ok_or_else(|| call.no_quorum(vec![NodeOutcome::Refused; self.core.n()]))
    }

    pub(crate) async fn give_up(
        &self,
        loss: Loss,
        node: &str,
        (by, reason): (&str, &str),
    ) -> Result<(), RunError> {
        let call = self.record(loss, Record::Without(node), None);
        self.settle(call, (Decision::Run, by, reason)).await.map(drop)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.core.config.prefix
    }

    pub(crate) async fn ask_each(&self, op: &Op) -> Vec<(Arc<str>, Result<Reply, NodeError>)> {
        self.core.ask_each(op).await
    }

    /// A lookup of a key that is never used.
    pub(crate) fn ask_for_losses(&self) -> Op {
        Op::Lookup {
            key: record_key(&self.core.config.prefix, DECISIONS, "losses"),
            retention: self.retention,
            fingerprint: None,
            born: self.in_use_since,
            accepted: self.accepted_loss,
        }
    }

    pub(crate) fn ask_for_decision(&self, loss: Loss, place: Record<'_>) -> Op {
        let key = self.record(loss, place, None).key;
        Op::Lookup {
            key: record_key(&self.core.config.prefix, DECISIONS, &key),
            retention: KEPT,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        }
    }

    /// With the present time. Returns the stored decision, and true if it is this call's.
    async fn settle(
        &self,
        call: Call,
        (decision, by, reason): (Decision, &str, &str),
    ) -> Result<(Decided, bool), RunError> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let decided = Decided { decision, by, reason, at: self.core.env.wall_micros() / 1_000 };
        // An earlier decision that the nodes may have lost counts as never made.
        match call.clone().resolve(&decided).await? {
            Resolved::Stored => Ok((decided, true)),
            Resolved::AlreadyStored(other) => Ok((other, false)),
            _ => Err(call.no_quorum(vec![NodeOutcome::Refused; self.core.n()])),
        }
    }

    /// The record is made after the decision `after` and after the loss, so only nodes that lost
    /// data since may have lost it.
    fn record(&self, loss: Loss, place: Record<'_>, after: Option<&Decided>) -> Call {
        let suffix = match place {
            Record::Nth(0) => String::new(),
            Record::Nth(nth) => format!("+{nth}"),
            Record::Without(node) => format!("+without-{}", node.replace('/', "|")),
        };
        let name = format!("{}/{}-{}{suffix}", self.namespace, loss.from, loss.began);
        let apart = (2 * self.core.config.clock_error).as_millis() as u64 + 2;
        let of = Self {
            namespace: DECISIONS.into(),
            lease: self.core.config.ttl,
            retention: KEPT,
            durability: Durability::Primary,
            max_result: MAX_RESULT_MAX,
            in_use_since: after.map(|decided| decided.at.max(loss.to.saturating_add(apart))),
            accepted_loss: Duration::ZERO,
            reports_forgotten: false,
            ..self.clone()
        };
        let mut call = Call::new(of, &name);
        // This name may be longer than a user's key.
        call.bad = None;
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_warns_once_a_minute_that_a_decision_was_not_read() {
        let decisions = Decisions::default();
        let at = |secs: u64| Moment::from_nanos(secs * 1_000_000_000);
        let warned = [5, 6, 64, 65, 66, 125].map(|secs| decisions.warns(at(secs)));
        assert_eq!(warned, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_decision_is_known_for_a_loss_whose_window_was_raised() {
        let (decisions, now) = (Decisions::default(), Moment::from_nanos(7));
        let loss = Loss::between(5, 9);
        decisions.put(loss, None, Some(Decision::Run), now);
        let known = |loss| decisions.get(loss, None, now).map(|known| known.decision);
        assert_eq!(known(Loss { to: 12_009, ..loss }), Some(Some(Decision::Run)));
        assert_eq!(known(Loss::between(5, 10)), None);
    }

    #[test]
    fn decisions_of_several_losses_are_known_until_each_is_old() {
        let (decisions, first) = (Decisions::default(), Moment::from_nanos(7));
        let later = first + FRESH / 2;
        let (one, other) = (Loss::between(5, 9), Loss::between(11, 12));
        decisions.put(one, None, Some(Decision::Run), first);
        decisions.put(other, None, None, later);
        let knows = |now| [one, other].map(|loss| decisions.get(loss, None, now).is_some());
        assert_eq!(knows(later), [true, true]);
        assert_eq!(knows(first + FRESH), [false, true]);
        assert_eq!(knows(later + FRESH), [false, false]);
    }
}
