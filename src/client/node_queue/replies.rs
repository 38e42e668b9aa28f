//! A batch came back: what its answers are worth, who gets them, and what is still owed.

use std::sync::Arc;
use std::time::Duration;

use super::pending::Asker;
use super::pending_releases::PendingRelease;
use super::{Answered, Asked, Job, Spoken, Unsure, Worker};
use crate::client::barrier::{confirm, must_last};
use crate::client::node_counters::Count;
use crate::client::reply_collector::{Origin, Quarantine};
use crate::durability::{BarrierPoint, Durability};
use crate::error::{NodeError, NodeFault};
use crate::node::BoxFuture;
use crate::op::{Facts, Holder, Reply, Terms};
use crate::time::{FENCE_SLACK, Moment, token_lead};

impl Worker {
    /// Takes in what the node said of itself; why its votes do not count, if they do not.
    pub(super) fn hear(&mut self, spoken: &Spoken) -> Option<NodeError> {
        let Spoken { facts, sent, received } = spoken;
        self.clock = Some(spoken.clock());
        self.names_server = self.names_server || self.node.server().is_some();
        self.in_doubt.known(facts.node_micros);
        let node = &self.node;
        let objection = self.health.judge(facts, *sent, *received, &|| node.address());
        let history = facts.history();
        if self.history.replace(history).is_some_and(|before| before != history) {
            let quarantine = Quarantine { id: history, ends: *received + facts.quarantine };
            (self.settings.on_switch)(self.index, quarantine);
        }
        objection
    }

    /// Judges the node's facts and hands out the answers, those that count only when replicas have
    /// them by the futures it gives back.
    pub(super) fn settle(&mut self, answered: Answered) -> Vec<BoxFuture<'static, ()>> {
        let Answered { asked, greeting, replies, deadline, not_after, sent, received } = answered;
        if let Some(spoken) = greeting {
            self.hear(&spoken);
        }
        let facts = replies.facts;
        self.in_touch = facts.is_some();
        let spoken = facts.map(|facts| Spoken { facts, sent, received });
        let objection = spoken.as_ref().and_then(|spoken| self.hear(spoken));
        let facts = spoken.map(|spoken| spoken.facts);
        let grants = facts.as_ref().is_some_and(|facts| facts.quarantine.is_zero());
        self.settings.votes.set(self.index, grants && objection.is_none());
        self.owed.answered(facts.is_some());
        let mut unsure = Unsure::new();
        let mut count = Count::default();
        let at = Origin {
            at: received,
            history: facts.as_ref().map(Facts::history),
            server: facts.as_ref().map(|f| Arc::clone(&f.identity)),
        };
        let shows = replies.items.iter().flatten().any(Reply::shows_result);
        for (mut asked, reply) in asked.into_iter().zip(replies.items) {
            let reply = match reply {
                Ok(Reply::Deferred) => match self.put_off(&mut asked, shows) {
                    Some(error) => Err(error),
                    None => continue,
                },
                reply => reply,
            };
            if let (Err(e), Some(owner)) = (&reply, asked.owner)
                && e.is_ambiguous()
            {
                self.in_doubt.about(owner, not_after);
            }
            let reply = self.judged(reply, &asked, facts.as_ref(), objection.as_ref());
            let named = asked.reasserts.filter(|_| reply == Ok(Reply::Done));
            count.count(&reply, named.is_some_and(|owner| self.health.reasserts(owner)));
            if let Some(owed) = asked.owed {
                self.settle_owed(owed, reply.is_ok(), facts.as_ref());
            }
            if let Some(asker) = asked.asker {
                match (asker.level(), reply) {
                    (Durability::Primary, reply) => asker.post(reply, at.clone()),
                    (level, Ok(reply)) if must_last(&reply) => {
                        unsure.entry(level).or_default().push((asker, reply));
                    }
                    (_, reply) => asker.post(reply, at.clone()),
                }
            }
        }
        self.health.reasserted(count.reassertions());
        self.counters.add(count, received.since(sent));
        let after = facts.as_ref();
        unsure.into_iter().map(|(level, held)| self.confirm(after, level, deadline, held)).collect()
    }

    /// The node wants to be asked again, later; why it will not be, if so. `shows`: it has shown
    /// others their results.
    fn put_off(&mut self, asked: &mut Asked, shows: bool) -> Option<NodeError> {
        let again = if shows { asked.again.take().zip(asked.asker.take()) } else { None };
        let Some(((again, sink), clock)) = again.zip(self.clock.as_ref()) else {
            let detail = "asked again, without having shown any result";
            return Some(NodeError::not_executed(NodeFault::Protocol, detail));
        };
        let (op, deadline) = *again;
        if let Some(owner) = asked.owner {
            // A caller that gives up before that takes back what may be executed only later.
            self.in_doubt.about(owner, clock.0.at(deadline, self.settings.drift));
        }
        self.again.push_back(Job { op, deadline, asker: sink });
        None
    }

    /// What an answer is worth.
    fn judged(
        &self,
        reply: Result<Reply, NodeError>,
        asked: &Asked,
        facts: Option<&Facts>,
        objection: Option<&NodeError>,
    ) -> Result<Reply, NodeError> {
        let Ok(reply) = reply else { return reply };
        if let Some(error) = objection {
            // The node did what it was asked, but its yes does not count as a vote. A no does: it
            // can only make the caller more careful. Nor does it count that nobody holds a name:
            // where a clock stepped forwards, a lease has ended early.
            if asked.vote && is_yes(&reply) || reply == Reply::Holder(None) {
                return Err(error.clone());
            }
        }
        match &reply {
            Reply::Holder(holder) if objection.is_none() => {
                Ok(old_news(holder.as_ref(), facts, &self.settings.terms).unwrap_or(reply))
            }
            Reply::Granted { fence } | Reply::Claimed { fence, .. } if self.is_ahead(*fence) => {
                let wall = self.settings.env.wall_micros();
                let ahead = Duration::from_micros(fence.saturating_sub(wall));
                let detail = format!("token {fence} is {ahead:?} ahead of this machine's clock");
                Err(NodeError::maybe_executed(NodeFault::TokenAhead, detail))
            }
            _ => Ok(reply),
        }
    }

    /// Whether no honest node can have given this token, as far as this machine's clock is right.
    fn is_ahead(&self, fence: u64) -> bool {
        let lead = token_lead(self.settings.terms.clock_error) + FENCE_SLACK;
        let lead = u64::try_from(lead.as_micros()).unwrap_or(u64::MAX);
        fence > self.settings.env.wall_micros().saturating_add(lead)
    }

    /// A release is done once it was answered at a time at which nothing can follow it.
    fn settle_owed(&mut self, owed: PendingRelease, answered: bool, facts: Option<&Facts>) {
        let now = self.settings.env.now();
        let micros = facts.map_or(0, |f| f.node_micros);
        let in_doubt = owed.op.owner().and_then(|owner| self.in_doubt.lasts(owner, micros));
        match in_doubt {
            None if answered => {}
            Some(left) if answered => self.owed.push(owed, now, left),
            _ => self.owed.push_failed(owed, now),
        }
    }

    /// Hands out yeses when enough replicas have them, or that they have not.
    fn confirm(
        &self,
        replied: Option<&Facts>,
        level: Durability,
        deadline: Moment,
        held: Vec<(Asker, Reply)>,
    ) -> BoxFuture<'static, ()> {
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let after = replied.map(|facts| BarrierPoint {
            identity: Arc::clone(&facts.identity),
            history_id: facts.history_id,
        });
        let stamp = Origin {
            at: Moment::default(),
            history: replied.map(Facts::history),
            server: replied.map(|facts| Arc::clone(&facts.identity)),
        };
        let counters = Arc::clone(&self.counters);
        Box::pin(async move {
            let confirmed = confirm(&*node, &*env, after, level, deadline).await;
            counters.count_barrier(confirmed.is_ok());
            let stamp = Origin { at: env.now(), ..stamp };
            for (asker, reply) in held {
                asker.post_kept(reply, confirmed.clone(), stamp.clone());
            }
        })
    }
}

/// Whether it makes somebody a holder, or keeps one.
fn is_yes(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { .. } | Reply::Claimed { .. } | Reply::Done)
}

/// The answer of a node in quarantine that may be of an earlier data history. It may have forgotten
/// who holds the name, so "nobody" proves nothing, and a holder counts only if the key was
/// certainly written in this history: no lease is longer than the longest that any client uses, and
/// an earlier server of the node, which set its end, may have had a clock 2E ahead of this one's.
fn old_news(holder: Option<&Holder>, facts: Option<&Facts>, terms: &Terms) -> Option<Reply> {
    #[cfg(feature = "sim-bugs")]
    if crate::bugs::on(crate::bugs::Bug::QuarantinedWitness) {
        return None;
    }
    let facts = facts.filter(|f| !f.quarantine.is_zero())?;
    let age = facts.quarantine_len.saturating_sub(facts.quarantine);
    // Others ask for a longer quarantine if their leases are longer.
    let longer = facts.quarantine_len.saturating_sub(facts.quarantine_asked);
    let longest = terms.max_ttl + longer + 2 * terms.clock_error;
    let rest = holder.and_then(|h| h.remaining);
    let written_since = rest.is_some_and(|rest| rest + age > longest);
    let id = facts.history();
    let (remaining, began) = (facts.quarantine, facts.began);
    (!written_since).then_some(Reply::Quarantined { remaining, id, began })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Began;

    const SECOND: Duration = Duration::from_secs(1);

    /// What a node says of a name, so long after its quarantine of 10 s (or longer, as others have
    /// asked) began. Leases are at most 6 s, E is 1 s.
    fn counts(age: Option<u32>, others: u32, rest: Option<Duration>) -> bool {
        let terms = Terms { max_ttl: 6 * SECOND, clock_error: SECOND };
        let len = (10 + others) * SECOND;
        let facts = Facts {
            node_micros: 1,
            history_id: 1,
            since: 1,
            identity: Arc::from("s"),
            quarantine: age.map_or(Duration::ZERO, |age| len.saturating_sub(age * SECOND)),
            quarantine_len: len,
            quarantine_asked: 10 * SECOND,
            quarantine_raised: false,
            new_history: false,
            marker_missing: false,
            began: Began::Known,
            losses: [].into(),
        };
        let holder = |rest| Holder { owner: None, fence: 1, remaining: Some(rest), meta: None };
        old_news(rest.map(holder).as_ref(), Some(&facts), &terms).is_none()
    }

    #[test]
    fn in_quarantine_a_holder_counts_only_if_it_was_written_since() {
        let (just, more) = (Duration::from_secs(5), Duration::from_millis(5_001));
        // With 6 s + 2E of an earlier lease less 3 s that have passed, 5 s may be left.
        for (age, others, rest, counted) in [
            (None, 0, None, true),
            (None, 0, Some(SECOND), true),
            (Some(3), 0, None, false),
            (Some(9), 0, None, false),
            (Some(3), 0, Some(just), false),
            (Some(3), 0, Some(more), true),
            (Some(4), 0, Some(just), true),
            // Who asks for a longer quarantine may have longer leases.
            (Some(3), 1, Some(more), false),
            (Some(3), 1, Some(SECOND + more), true),
        ] {
            assert_eq!(counts(age, others, rest), counted, "{age:?} {others} {rest:?}");
        }
    }
}
