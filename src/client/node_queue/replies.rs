//! Handles a node's answer to a batch.

use std::sync::Arc;

use super::pending::Pending;
use super::{Answered, Unconfirmed, Worker};
use crate::client::barrier::confirm;
use crate::client::node_counters::Count;
use crate::client::round::Origin;
use crate::durability::{BarrierPoint, Durability};
use crate::error::{NodeError, NodeFault};
use crate::node::BoxFuture;
use crate::op::{Facts, Remembered, Reply, TimedFacts};
use crate::quorum::grant::Quarantine;
use crate::quorum::vote::{Server, Witness};
use crate::time::Moment;

impl Worker {
    pub(super) fn observe(&mut self, timed: &TimedFacts) -> Option<NodeError> {
        let TimedFacts { facts, sent, received } = timed;
        self.clock = Some(timed.clock());
        self.names_server = self.names_server || self.node.server().is_some();
        self.in_doubt.known(facts.node_micros);
        let node = &self.node;
        let objection = self.monitor.judge(facts, *sent, *received, &|| node.address());
        let foreign = match &facts.lineage {
            // A part that was never used says nothing of the others.
            lineage if self.part.is_some() && lineage.vote == 0 => None,
            lineage => self.settings.deployments.lock().admit(self.index, lineage).err(),
        };
        let history = facts.history();
        if self.history.replace(history).is_some_and(|before| before != history) {
            let quarantine = Quarantine { id: history, ends: *received + facts.quarantine };
            (self.settings.on_switch)((self.index, self.part), quarantine);
        }
        foreign.or(objection)
    }

    /// Forgets another deployment's data (quarantine 22, overview 8).
    pub(super) fn remembered(&self) -> Remembered {
        let remembers = self.monitor.remembers();
        let deployments = self.settings.deployments.lock();
        if deployments.disowns(&remembers.newest) {
            self.monitor.forget(self.settings.remembers);
            return self.settings.remembers;
        }
        let is_shared = deployments.shares(self.index, &remembers.newest);
        Remembered { is_shared, ..remembers }
    }

    /// The futures wait for replicas and then post the replies that count only then.
    pub(super) fn settle(&mut self, answered: Answered) -> Vec<BoxFuture<'static, ()>> {
        let Answered { requests, greeting, replies, deadline, not_after, sent, received } =
            answered;
        if let Some(timed) = greeting {
            self.observe(&timed);
        }
        self.in_touch = replies.facts.is_some();
        if self.in_touch {
            self.load.hear(received);
        }
        let timed = replies.facts.map(|facts| TimedFacts { facts, sent, received });
        let objection = timed.as_ref().and_then(|timed| self.observe(timed));
        let facts = timed.as_ref().map(|timed| &timed.facts);
        let grants = facts.is_some_and(|facts| facts.quarantine.is_zero());
        // A part that does not grant leaves the others their votes.
        if self.part.is_none() || grants {
            self.settings.votes.set(self.index, grants && objection.is_none());
        }
        self.owed.answered(facts.is_some());
        let (env, terms) = (Arc::clone(&self.settings.env), self.settings.terms);
        let foreign = objection.as_ref().filter(|e| e.fault() == NodeFault::ForeignData);
        let witness = Witness {
            facts,
            objection: objection.as_ref(),
            terms: &terms,
            wall_micros: env.wall_micros(),
        };
        let origin = Origin {
            at: received,
            history: facts.map(Facts::history),
            server: facts.filter(|_| foreign.is_none()).map(Server::of),
            replicas: None,
        };
        let (mut unconfirmed, mut count) = (Unconfirmed::new(), Count::default());
        let shows = replies.items.iter().flatten().any(Reply::shows_result);
        for (mut pending, reply) in requests.into_iter().zip(replies.items) {
            let reply = match reply {
                // A node may defer an op only if its answer contains at least one stored result.
                Ok(Reply::Deferred) if shows && pending.op.shows_result() => {
                    self.put_off(pending);
                    continue;
                }
                Ok(Reply::Deferred) => {
                    let detail = "asked again, without having shown any result";
                    Err(NodeError::not_executed(NodeFault::Protocol, detail))
                }
                reply => reply,
            };
            if let (Err(e), Some(owner)) = (&reply, pending.doer())
                && e.is_ambiguous()
            {
                self.in_doubt.about(owner, not_after);
            }
            let reply = match foreign {
                Some(e) if !pending.op.is_undo() => Err(e.clone()),
                _ => witness.judge(reply, pending.op.is_vote()),
            };
            let named = reply == Ok(Reply::Done) && pending.op.reasserts();
            let owner = pending.doer().filter(|_| named);
            count.count(&reply, owner.is_some_and(|owner| self.monitor.reasserts(owner)));
            if let Some(owed) = pending.take_owed() {
                self.settle_owed(owed, reply.is_ok(), facts);
            }
            match reply {
                Ok(reply) if pending.level() != Durability::Primary && reply.must_last() => {
                    pending.awaits_replicas();
                    unconfirmed.entry(pending.level()).or_default().push((pending, reply));
                }
                reply => pending.answer(reply, &origin),
            }
        }
        self.monitor.reasserted(count.reassertions());
        self.counters.add(count, received.since(sent));
        let held = unconfirmed.into_iter();
        held.map(|(level, held)| self.confirm(facts, level, deadline, held)).collect()
    }

    fn put_off(&mut self, pending: Pending) {
        if let (Some(owner), Some((clock, _))) = (pending.doer(), &self.clock) {
            // The caller may drop its call before the batch is sent: the release that follows is
            // repeated until that batch cannot take effect any more.
            let not_after = clock.at(pending.deadline, self.settings.drift);
            self.in_doubt.about(owner, not_after);
        }
        self.again.push_back(pending);
    }

    fn settle_owed(&mut self, owed: Pending, answered: bool, facts: Option<&Facts>) {
        let now = self.settings.env.now();
        let micros = facts.map_or(0, |f| f.node_micros);
        let in_doubt = owed.op.owner().and_then(|owner| self.in_doubt.lasts(owner, micros));
        match in_doubt {
            None if answered => {}
            Some(left) if answered => self.owed.push(owed, now, left),
            _ => self.owed.push_failed(owed, now),
        }
    }

    fn confirm(
        &self,
        replied: Option<&Facts>,
        level: Durability,
        deadline: Moment,
        held: Vec<(Pending, Reply)>,
    ) -> BoxFuture<'static, ()> {
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let after = replied.map(|facts| BarrierPoint {
            identity: Arc::clone(&facts.identity),
            replication: facts.replication,
        });
        let (history, server) = (replied.map(Facts::history), replied.map(Server::of));
        let counters = Arc::clone(&self.counters);
        Box::pin(async move {
            let confirmed = confirm(&*node, &*env, after, level, deadline).await;
            counters.count_barrier(confirmed.is_ok());
            let replicas = confirmed.as_ref().ok().copied();
            let origin = Origin { at: env.now(), history, server, replicas };
            for (pending, reply) in held {
                pending.answer(confirmed.clone().map(|_| reply), &origin);
            }
        })
    }
}
