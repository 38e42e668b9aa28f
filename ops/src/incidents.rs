//! Losses of data after which keys are forgotten, and the decisions of operators about them (rule
//! idempotency 20 in docs/design).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Audit;
use palisade::error::{NodeError, NodeFault};
use palisade::idempotency::{Decided, Decision, Idempotency, RunError};
use palisade::internal::{self, Record, ask_each};
use palisade::node::spi::{Loss, Reply};

/// In milliseconds.
const APART: u64 = 60_000;

/// A loss of data on one node: the writes of a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeLoss {
    /// The node's name.
    pub node: Arc<str>,
    /// The writes that the node's data may lack.
    pub loss: Loss,
}

/// Losses of one or several nodes that overlap, or that follow each other within a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incident {
    /// The losses of data, ordered by the time at which the node continued without the lost writes.
    pub losses: Vec<NodeLoss>,
    /// Time for which keys without `created_at` still count as forgotten because of the incident.
    pub remaining: Duration,
}

/// Result of [`incidents`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incidents {
    /// The latest incident is the last.
    pub incidents: Vec<Incident>,
    /// Nodes that gave no answer, with the errors. Losses of data on these nodes are missing from
    /// `incidents`.
    pub unread: Vec<(Arc<str>, NodeError)>,
    /// Number of nodes.
    pub nodes: usize,
}

/// The nodes' losses of data are not those that were named: list them again. See
/// [`Incidents::named`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherLosses {
    /// Names of the incidents that the nodes have now.
    pub listed: Vec<String>,
    /// The name that is wrong, with the reason.
    why: String,
}

impl std::error::Error for OtherLosses {}

impl fmt::Display for OtherLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = if self.listed.is_empty() { "none".into() } else { self.listed.join(" and ") };
        let why = &self.why;
        write!(
            f,
            "{why}; list the losses again (`palisade idem incidents`), look at what they may have \
             taken, and decide about these: there are {listed}"
        )
    }
}

/// Result of an operator's decision about one loss of data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "another decision may stand"]
pub struct DecidedLoss {
    /// The loss of data that the decision is about.
    pub loss: Loss,
    /// The decision that is valid after the call.
    pub stands: Decided,
    /// True if this call stored the valid decision, false if an earlier call stored it.
    pub is_new: bool,
    /// Number of nodes that have stored the decision.
    pub on: usize,
    /// Number of nodes that did not answer afterwards. They may have stored it, too.
    pub unread: usize,
}

/// Reads from every node the losses of data because of which the node cannot tell if keys of this
/// namespace were used.
///
/// # Cancellation safety
/// The function only reads.
pub async fn incidents(keys: &Idempotency) -> Incidents {
    let answers = losses(keys).await;
    let (nodes, mut all, mut unread) = (answers.len(), Vec::new(), Vec::new());
    for (node, answer) in answers {
        match answer {
            Ok((losses, remaining)) => {
                let last = losses.iter().map(|loss| loss.to).max().unwrap_or_default();
                all.extend(losses.into_iter().map(|loss| {
                    // An earlier loss ended earlier, so its time is shorter by the same amount.
                    let rest = remaining.saturating_sub(Duration::from_millis(last - loss.to));
                    (NodeLoss { node: Arc::clone(&node), loss }, rest)
                }));
            }
            Err(e) => unread.push((node, e)),
        }
    }
    Incidents { incidents: together(all), unread, nodes }
}

/// If the beginning of a loss is not known (`from` is 0), only its end counts.
fn together(mut all: Vec<(NodeLoss, Duration)>) -> Vec<Incident> {
    // If the clock was set back, the loss ends before it begins.
    let begin = |loss: &Loss| if loss.from == 0 { loss.to } else { loss.from.min(loss.to) };
    all.sort_by_key(|(one, _)| (begin(&one.loss), one.loss.to));
    let (mut joined, mut end) = (Vec::<Incident>::new(), 0);
    for (one, rest) in all {
        let (begins, ends) = (begin(&one.loss), one.loss.to);
        match joined.last_mut() {
            Some(incident) if begins <= end + APART => {
                end = end.max(ends);
                incident.remaining = incident.remaining.max(rest);
                incident.losses.push(one);
            }
            _ => {
                end = ends;
                joined.push(Incident { losses: vec![one], remaining: rest });
            }
        }
    }
    for incident in &mut joined {
        incident.losses.sort_by_key(|one| (one.loss.began, one.loss.from));
    }
    joined
}

impl Incidents {
    /// Returns exactly the losses of data whose [numbers](Loss::number) are in `name`, with commas
    /// between them. [`Incident::name`] is such a name, and the sentence of a parked key has one.
    ///
    /// # Errors
    /// [`OtherLosses`] if a number is not listed, or if an incident has a later loss than the
    /// losses of it that are named: whoever wrote the name has not seen that one.
    pub fn named(&self, name: &str) -> Result<Incident, OtherLosses> {
        let numbers: BTreeSet<&str> = name.split(',').collect();
        let is_named = |one: &NodeLoss| numbers.contains(&*one.loss.number());
        let other = |number: &str, why: &str| OtherLosses {
            listed: self.incidents.iter().map(Incident::name).collect(),
            why: format!("{number} {why}"),
        };
        let mut named = Incident { losses: Vec::new(), remaining: Duration::ZERO };
        for incident in self.incidents.iter().filter(|one| one.losses.iter().any(is_named)) {
            if let Some(later) = incident.losses.last().filter(|one| !is_named(one)) {
                return Err(other(&later.loss.number(), "was lost after what was named"));
            }
            named.losses.extend(incident.losses.iter().filter(|one| is_named(one)).cloned());
            named.remaining = named.remaining.max(incident.remaining);
        }
        let known: BTreeSet<String> = named.losses.iter().map(|one| one.loss.number()).collect();
        match numbers.iter().find(|number| !known.contains(**number)) {
            Some(unknown) => Err(other(unknown, "is no loss that concerns these keys")),
            None => Ok(named),
        }
    }
}

impl Incident {
    /// Returns the name of the losses of data in the incident: their [numbers](Loss::number), with
    /// commas between them. Another set of losses has another name.
    pub fn name(&self) -> String {
        Loss::names(&self.distinct())
    }

    /// Returns the shortest range of writes that contains all losses of data in the incident.
    pub fn span(&self) -> Loss {
        let from = self.losses.iter().map(|one| one.loss.from).min().unwrap_or_default();
        let to = self.losses.iter().map(|one| one.loss.to).max().unwrap_or_default();
        let began = self.losses.iter().map(|one| one.loss.began).max().unwrap_or_default();
        Loss { from, began, to }
    }

    /// Two nodes can have the same loss.
    fn distinct(&self) -> Vec<Loss> {
        let mut losses: Vec<Loss> = self.losses.iter().map(|one| one.loss).collect();
        losses.dedup_by_key(|loss| (loss.from, loss.began));
        losses
    }

    /// Reads the decision of an operator about each loss of data, for the keys of this namespace.
    /// Returns `None` for a loss without a decision.
    ///
    /// # Errors
    /// [`RunError`] if too few nodes answered, or if a stored decision cannot be read.
    ///
    /// # Cancellation safety
    /// The function only reads.
    pub async fn decisions(
        &self,
        keys: &Idempotency,
    ) -> Result<Vec<(Loss, Option<Decided>)>, RunError> {
        let mut all = Vec::new();
        for loss in self.distinct() {
            all.push((loss, internal::decided(keys, loss).await?));
        }
        Ok(all)
    }

    /// Decides about all losses of the incident. The decision applies to all forgotten keys of the
    /// namespace, in every process that uses it. Within seconds each process runs the messages and
    /// requests of such keys that come again, or parks them for good. The decision is written to
    /// the log, with its author and reason.
    ///
    /// The first decision is valid. A later call with another decision changes nothing and returns
    /// the first decision. Only a decision to park can be replaced, by a decision to run
    /// (`replace`). A decision to run is final, because keys have run after it.
    ///
    /// # Errors
    /// [`RunError`] if the decision about a loss may not be stored. Call the function again in that
    /// case.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the decision may be stored for some of the losses. Calling again
    /// with the same decision is safe.
    pub async fn decide(
        &self,
        keys: &Idempotency,
        decision: Decision,
        replace: bool,
        audit: &Audit,
    ) -> Result<Vec<DecidedLoss>, RunError> {
        let (by, reason) = (audit.by(), audit.reason());
        let mut all = Vec::new();
        for loss in self.distinct() {
            let settled = internal::decide(keys, loss, (decision, by, reason), replace).await;
            tracing::warn!(
                target: "palisade_ops",
                event = "decide",
                prefix = internal::prefix_of(keys),
                namespace = keys.namespace(),
                loss = %loss,
                ?decision,
                by,
                reason,
                done = settled.as_ref().is_ok_and(|(stands, _)| stands.decision == decision),
                "a loss of data was decided about by an operator"
            );
            let (stands, is_new) = settled?;
            let (on, unread) = copies(keys, loss, &stands).await;
            all.push(DecidedLoss { loss, stands, is_new, on, unread });
        }
        Ok(all)
    }

    /// Says that a node is gone for good. A decision to run is about what nodes lost, and says
    /// nothing of what a node has that gives no answer: a key that this node may remember waits.
    /// For the losses of this incident it then runs all the same, as long as the node gives no
    /// answer.
    ///
    /// If the node comes back and is silent again, keys run whose results it alone has. So take it
    /// out of the programs, or delete its data, before it is started again.
    ///
    /// # Errors
    /// [`RunError`] if that may not be stored for a loss. Call the function again in that case.
    ///
    /// # Cancellation safety
    /// As [`decide`](Self::decide).
    pub async fn give_up(
        &self,
        keys: &Idempotency,
        node: &str,
        audit: &Audit,
    ) -> Result<(), RunError> {
        let (by, reason) = (audit.by(), audit.reason());
        for loss in self.distinct() {
            let stored = internal::give_up(keys, loss, node, (by, reason)).await;
            tracing::warn!(
                target: "palisade_ops",
                event = "give_up",
                prefix = internal::prefix_of(keys),
                namespace = keys.namespace(),
                loss = %loss,
                node,
                by,
                reason,
                done = stored.is_ok(),
                "a node was given up for a loss of data by an operator"
            );
            stored?;
        }
        Ok(())
    }
}

/// For keys without `created_at`, with the time until the latest loss has no effect any more.
async fn losses(keys: &Idempotency) -> Vec<(Arc<str>, Result<(Vec<Loss>, Duration), NodeError>)> {
    let losses = |answer| match answer {
        Ok(Reply::Record { losses, unsure, .. }) => Ok((losses, unsure)),
        Ok(_) => Err(NodeError::maybe_executed(NodeFault::Protocol, "no answer to a look")),
        Err(e) => Err(e),
    };
    let answers = ask_each(keys, None).await.into_iter();
    answers.map(|(node, answer)| (node, losses(answer))).collect()
}

/// How many nodes have it, and how many did not say.
async fn copies(keys: &Idempotency, loss: Loss, decided: &Decided) -> (usize, usize) {
    let mut most_unread = 0;
    for nth in 0..8 {
        let has = |(_, answer): &(_, Result<Reply, _>)| match answer {
            Ok(Reply::Record { state: Some(state), .. }) => {
                let value = state.record.as_ref().and_then(|record| record.value.as_deref());
                value.and_then(|value| serde_json::from_slice(value).ok()).as_ref() == Some(decided)
            }
            _ => false,
        };
        let answers = ask_each(keys, Some((loss, Record::Nth(nth)))).await;
        let on = answers.iter().filter(|one| has(one)).count();
        let is_unread = |(_, answer): &(_, _)| !matches!(answer, Ok(Reply::Record { .. }));
        let unread = answers.iter().filter(|one| is_unread(one)).count();
        if on > 0 {
            return (on, unread);
        }
        most_unread = most_unread.max(unread);
    }
    (0, most_unread)
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: BTreeSet<&str> = self.losses.iter().map(|one| &*one.node).collect();
        let nodes: Vec<&str> = nodes.into_iter().collect();
        // One range over several losses would contain writes that no node lost.
        let losses: Vec<String> = self.distinct().iter().map(Loss::to_string).collect();
        let (name, losses) = (self.name(), losses.join("; "));
        write!(f, "loss {name}: {losses} on {}", nodes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::between;

    fn joined(losses: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let one = |(from, to): &(u64, u64)| {
            let loss = between(*from, *to);
            (NodeLoss { node: "n".into(), loss }, Duration::from_millis(*to))
        };
        let incidents = together(losses.iter().map(one).collect());
        for incident in &incidents {
            let last = incident.losses.iter().map(|one| one.loss.to).max().unwrap();
            assert_eq!(incident.remaining, Duration::from_millis(last));
        }
        let ends = |incident: &Incident| incident.losses.iter().map(|one| one.loss.to).collect();
        incidents.iter().map(ends).collect()
    }

    #[test]
    fn each_loss_of_an_incident_is_shown_with_its_own_span() {
        let noon = 1_763_906_600_000;
        let one = |from: u64, to: u64| NodeLoss {
            node: "n".into(),
            loss: Loss { from: noon + from, began: noon + to, to: noon + to },
        };
        let shown =
            |losses: Vec<NodeLoss>| Incident { losses, remaining: Duration::ZERO }.to_string();
        assert_eq!(
            shown(vec![one(0, 1_599), one(30_300, 32_199)]),
            "loss 20251123-140321.599,20251123-140352.199: lost at most 1.6 s of writes, \
             2025-11-23 14:03:20.0–14:03:21.6 UTC; lost at most 1.9 s of writes, 2025-11-23 \
             14:03:50.3–14:03:52.2 UTC on n"
        );
        assert_eq!(
            shown(vec![one(0, 1_599)]),
            "loss 20251123-140321.599: lost at most 1.6 s of writes, 2025-11-23 \
             14:03:20.0–14:03:21.6 UTC on n"
        );
    }

    #[test]
    fn a_name_is_of_the_losses_that_its_author_was_shown_and_of_no_other() {
        let seen = |losses: &[(&str, u64, u64)]| {
            let one = |(node, from, to): &(&str, u64, u64)| {
                (NodeLoss { node: (*node).into(), loss: between(*from, *to) }, Duration::ZERO)
            };
            let incidents = together(losses.iter().map(one).collect());
            Incidents { incidents, unread: Vec::new(), nodes: 3 }
        };
        let (m, a, b) = (60_000, ("a", 1_000, 4_000), ("b", 2_000, 4_001));
        let later = ("c", 30_000, 31_000);
        let names =
            |seen: &Incidents| seen.incidents.iter().map(Incident::name).collect::<Vec<_>>();
        let name = names(&seen(&[a, b])).join(" and ");
        assert_eq!(name, "19700101-000004.000,19700101-000004.001", "they belong together");
        for (now, is_same) in [
            (&[a, b][..], true),
            (&[b, a, ("c", 1_000, 4_000)], true),
            (&[a, b, ("c", 2_000, 4_002)], false),
            (&[a, ("c", 2_000, 4_002)], false),
            (&[a, b, later], false),
            (&[a], false),
            (&[], false),
            (&[a, b, ("a", 9 * m, 9 * m + 1)], true),
        ] {
            match seen(now).named(&name) {
                Ok(found) => assert!(is_same && found.name() == name, "{now:?}: {found}"),
                Err(e) => {
                    assert!(!is_same, "{now:?}: {e}");
                    assert!(e.to_string().contains("list the losses again"), "{e}");
                    assert_eq!(e.listed, names(&seen(now)));
                }
            }
        }
        let all = seen(&[a, b, ("a", 9 * m, 9 * m + 1)]);
        let name = names(&all).join(",");
        assert_eq!(all.named(&name).unwrap().name(), name);
        let last = all.named("19700101-000004.001").unwrap();
        assert_eq!(last.name(), "19700101-000004.001");
        for wrong in ["", ",", "19700101-000004", "19700101-000004.001,", " 19700101-000004.001"] {
            assert!(all.named(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn losses_that_overlap_are_one_incident() {
        let m = 60_000;
        assert_eq!(joined(&[]), [[0; 0]; 0]);
        assert_eq!(joined(&[(1_000, 2_000), (1_500, 3_000)]), [[2_000, 3_000]]);
        assert_eq!(joined(&[(1_000, 2_000), (2_000 + m, 3_000 + m)]), [[2_000, 3_000 + m]]);
        assert_eq!(joined(&[(1_000, 2_000), (2_001 + m, 3_000 + m)]).len(), 2);
        let long_ago = (1_000, 2_000);
        let emptied = joined(&[(0, 9 * m), long_ago, (0, 9 * m + 5_000)]);
        assert_eq!(emptied, [vec![2_000], vec![9 * m, 9 * m + 5_000]]);
        assert_eq!(joined(&[(1, 9 * m), (2 * m, 3 * m), (7 * m, 8 * m)]), [[3 * m, 8 * m, 9 * m]]);
    }
}
