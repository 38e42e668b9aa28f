//! Decisions of operators about losses of data (rule idempotency 20 in docs/design). A key is
//! forgotten if too few nodes can exclude, after a loss, that the key was used before. An operator
//! makes one decision for all forgotten keys of a namespace: their handlers run, or the keys are
//! parked (not run).
//!
//! A decision is stored as the result of an ordinary idempotency key in a reserved namespace. If
//! two operators decide at the same time, only one decision is stored on a majority of the nodes,
//! and the other operator reads this decision. Each loss has two keys: one for the first decision,
//! and one for a later decision to run, which replaces a first decision to park.

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

/// Time for which the cache keeps an operator's decision that was read from the nodes.
const FRESH: Duration = Duration::from_secs(5);

/// Retention of a decision: the longest retention of any namespace. A decision is made after the
/// loss of data that it is about, so the nodes keep the decision for as long as keys are forgotten
/// (their records may be lost) because of this loss.
pub(super) const KEPT: Duration = Duration::from_secs(366 * 24 * 3_600);

/// An operator's decision about the forgotten keys of a loss of data. For a forgotten key too few
/// nodes can exclude an earlier use.
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

/// Shortest time between two warnings of one namespace about a decision that could not be read.
const WARNED: Duration = Duration::from_secs(60);

/// Cache for the operators' decisions about losses of data, for one namespace. An entry is valid
/// for 5 s after its read from the nodes.
#[derive(Debug, Default)]
pub(super) struct Decisions(SyncMutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    /// Decisions by the fields `from` and `began` of the [`Loss`]. These two fields identify a loss
    /// of data.
    known: BTreeMap<(u64, u64), Known>,
    /// Time of the last warning about a decision that could not be read.
    warned: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The decision; `None` if no operator had decided at the time of the read.
    decision: Option<Decision>,
    /// Time at which the decision was read from the nodes.
    at: Moment,
}

impl Decisions {
    fn get(&self, loss: Loss, now: Moment) -> Option<Known> {
        let lately = self.0.lock();
        lately.known.get(&(loss.from, loss.began)).copied().filter(|known| now < known.at + FRESH)
    }

    fn put(&self, loss: Loss, decision: Option<Decision>, at: Moment) {
        let mut lately = self.0.lock();
        lately.known.retain(|_, known| at < known.at + FRESH);
        lately.known.insert((loss.from, loss.began), Known { decision, at });
    }

    /// Returns true if the next warning about a decision that could not be read is due.
    fn warns(&self, now: Moment) -> bool {
        let warned = &mut self.0.lock().warned;
        let due = warned.is_none_or(|at| now >= at + WARNED);
        if due {
            *warned = Some(now);
        }
        due
    }
}

/// One of the two records for the decisions about a loss of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The record of the first operator's decision about the loss of data.
    First,
    /// The record of a later operator's decision to run the keys, which replaces a first decision
    /// to park (not to run) them.
    Replaced,
}

impl Idempotency {
    /// Returns the operators' decision for a key that is forgotten (too few nodes can exclude an
    /// earlier use) because of `losses` of data: its handler runs, or the key is parked. The key is
    /// parked if an operator decided so for any of the losses. The handler runs if operators
    /// decided so for all of the losses.
    ///
    /// # Errors
    /// The losses without an operator's decision; an empty list if `losses` is empty.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub(super) async fn decision(&self, losses: &[Loss]) -> Result<Decision, Vec<Loss>> {
        let all = join_all(losses.iter().map(|loss| self.decision_about(*loss))).await;
        if all.contains(&Some(Decision::Park)) {
            return Ok(Decision::Park);
        }
        let open = losses.iter().zip(&all).filter(|(_, decision)| decision.is_none());
        let open: Vec<Loss> = open.map(|(loss, _)| *loss).collect();
        if losses.is_empty() || !open.is_empty() { Err(open) } else { Ok(Decision::Run) }
    }

    async fn decision_about(&self, loss: Loss) -> Option<Decision> {
        if let Some(known) = self.decisions.get(loss, self.core.env.now()) {
            return known.decision;
        }
        match self.decided(loss).await {
            Ok(decided) => {
                let decision = decided.map(|decided| decided.decision);
                self.decisions.put(loss, decision, self.core.env.now());
                decision
            }
            Err(error) => {
                // A failed read is not cached, so the next key's call reads the decision again.
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

    /// Reads the valid decision about a loss of data: the second decision if it replaced the first.
    /// `None` if no majority of the nodes has a decision.
    ///
    /// # Errors
    /// Too few nodes answered, or the stored decision cannot be parsed.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub(crate) async fn decided(&self, loss: Loss) -> Result<Option<Decided>, RunError> {
        let first = self.record(loss, Record::First).lookup::<Decided>().await?;
        let Status::Stored(first) = first else { return Ok(None) };
        if first.decision == Decision::Run {
            return Ok(Some(first));
        }
        Ok(match self.record(loss, Record::Replaced).lookup().await? {
            Status::Stored(replaced) => Some(replaced),
            Status::Absent | Status::Forgotten { .. } | Status::Lapsed { .. } => Some(first),
            // An operator's decision is being stored, or too few nodes have it.
            Status::Running { .. } | Status::Unsettled | Status::NotKept | Status::Mismatch => None,
        })
    }

    /// Stores an operator's decision about the loss of data, if the loss has no decision yet. With
    /// `replace`, also stores a decision to run in place of a decision to park (not to run) the
    /// keys. `decision` also contains the name of the operator and the reason. Returns the valid
    /// decision, and true if this call stored it.
    ///
    /// # Errors
    /// [`RunError`] if the decision may not be stored.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the decision may or may not be stored. A second call with the same
    /// decision is safe.
    pub(crate) async fn decide(
        &self,
        loss: Loss,
        decision: (Decision, &str, &str),
        replace: bool,
    ) -> Result<(Decided, bool), RunError> {
        let (first, ours) = self.settle(loss, Record::First, decision).await?;
        if ours || first.decision == Decision::Run {
            return Ok((first, ours));
        }
        match self.record(loss, Record::Replaced).lookup().await? {
            Status::Stored(replaced) => Ok((replaced, false)),
            _ if replace && decision.0 == Decision::Run => {
                self.settle(loss, Record::Replaced, decision).await
            }
            _ => Ok((first, false)),
        }
    }

    /// Returns the prefix of all Redis keys of this `Redlock` handle on the nodes.
    pub(crate) fn prefix(&self) -> &str {
        &self.core.config.prefix
    }

    /// Sends the operation to every node, and returns the reply of each node. A node without a
    /// reply in time has an error.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the nodes may still execute the operation.
    pub(crate) async fn ask_each(&self, op: &Op) -> Vec<(Arc<str>, Result<Reply, NodeError>)> {
        self.core.ask_each(op).await
    }

    /// Returns a lookup of a key that is never used. The reply of a node contains the losses of
    /// data because of which keys of this namespace without a creation time are forgotten: too few
    /// nodes can exclude an earlier use.
    pub(crate) fn ask_for_losses(&self) -> Op {
        Op::Lookup {
            key: record_key(&self.core.config.prefix, DECISIONS, "losses"),
            retention: self.retention,
            fingerprint: None,
            born: self.in_use_since,
            accepted: self.accepted_loss,
        }
    }

    /// Returns a lookup of one of the two records for the operators' decisions about the loss of
    /// data.
    pub(crate) fn ask_for_decision(&self, loss: Loss, place: Record) -> Op {
        Op::Lookup {
            key: record_key(&self.core.config.prefix, DECISIONS, &self.record(loss, place).key),
            retention: KEPT,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        }
    }

    /// Stores an operator's decision, with the present time, in one of the two records of the loss
    /// of data, if the record has no decision yet. Returns the stored decision, and true if it is
    /// the decision of this call.
    ///
    /// # Errors
    /// [`RunError`] if the decision may not be stored.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the decision may or may not be stored. A second call with the same
    /// decision is safe.
    async fn settle(
        &self,
        loss: Loss,
        place: Record,
        (decision, by, reason): (Decision, &str, &str),
    ) -> Result<(Decided, bool), RunError> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let decided = Decided { decision, by, reason, at: self.core.env.wall_micros() / 1_000 };
        let call = self.record(loss, place);
        // `resolve` stores the decision even if the nodes may have lost an earlier decision. The
        // lost decision then counts as never made.
        match call.clone().resolve(&decided).await? {
            Resolved::Stored => Ok((decided, true)),
            Resolved::AlreadyStored(other) => Ok((other, false)),
            _ => Err(call.no_quorum(vec![NodeOutcome::Refused; self.core.n()])),
        }
    }

    /// Returns the call that reads or stores one of the two records for the operators' decisions
    /// about the loss of data.
    fn record(&self, loss: Loss, place: Record) -> Call {
        let suffix = if place == Record::Replaced { "+run" } else { "" };
        let name = format!("{}/{}-{}{suffix}", self.namespace, loss.from, loss.began);
        let of = Self {
            namespace: DECISIONS.into(),
            lease: self.core.config.ttl,
            retention: KEPT,
            durability: Durability::Primary,
            max_result: MAX_RESULT_MAX,
            in_use_since: None,
            accepted_loss: Duration::ZERO,
            reports_forgotten: false,
            ..self.clone()
        };
        let mut call = Call::new(of, &name);
        // `Call::new` reports a key that is too long. This name may be longer than a user's key,
        // because it contains the namespace. So the report is removed.
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
        decisions.put(loss, Some(Decision::Run), now);
        let known = |loss| decisions.get(loss, now).map(|known| known.decision);
        assert_eq!(known(Loss { to: 12_009, ..loss }), Some(Some(Decision::Run)));
        assert_eq!(known(Loss::between(5, 10)), None);
    }

    #[test]
    fn decisions_of_several_losses_are_known_until_each_is_old() {
        let (decisions, first) = (Decisions::default(), Moment::from_nanos(7));
        let later = first + FRESH / 2;
        let (one, other) = (Loss::between(5, 9), Loss::between(11, 12));
        decisions.put(one, Some(Decision::Run), first);
        decisions.put(other, None, later);
        let knows = |now| [one, other].map(|loss| decisions.get(loss, now).is_some());
        assert_eq!(knows(later), [true, true]);
        assert_eq!(knows(first + FRESH), [false, true]);
        assert_eq!(knows(later + FRESH), [false, false]);
    }
}
