//! One connection to one server process. It is dropped as soon as an answer is missing or invalid,
//! never reconnects, and never repeats a request that may have run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::broadcast;

use super::encode::GroupTerms;
use super::facts::{ServerFacts, Wants, introduce, look};
use super::hints::Hints;
use super::judging::{Attempt, Begun, Judging, SentWith};
use super::news::{Look, News};
use super::{decode, faults, script};
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Excess;
use crate::dial::login::Keeper;
use crate::dial::wire::{Reply, Wire};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::{NodeEvent, NodeSignal};
use crate::op::{Batch, Facts, Remembered, Replies, Terms, TimedFacts};
use crate::sync::SyncMutex;

pub(crate) struct Session {
    wire: Wire,
    endpoint: Endpoint,
    _keeper: Option<Keeper>,
    facts: ServerFacts,
    judging: Arc<Judging>,
    /// In a cluster each slot has a history of its own.
    slots: SyncMutex<BTreeMap<u16, Arc<Judging>>>,
    wants: Wants,
    look: SyncMutex<Option<Look>>,
    touched: SyncMutex<Option<TimedFacts>>,
    abandoned: AtomicBool,
    proved: AtomicBool,
    events: broadcast::Sender<NodeSignal>,
    hints: Hints,
}

impl Session {
    /// Sets no time-out; the caller has to.
    pub(crate) async fn dial(endpoint: &Endpoint) -> Result<Wire, NodeError> {
        Self::dial_with(endpoint, || script::load(false).get_packed_command()).await
    }

    /// A server of a cluster.
    pub(crate) async fn dial_in_cluster(endpoint: &Endpoint) -> Result<Wire, NodeError> {
        Self::dial_with(endpoint, || script::load(true).get_packed_command()).await
    }

    async fn dial_with(endpoint: &Endpoint, load: fn() -> Vec<u8>) -> Result<Wire, NodeError> {
        let wire = endpoint.wire(load).await;
        wire.map_err(|e| faults::opening(&e, endpoint.is_tls(), &endpoint.secrets()))
    }

    /// Logs in, and reads the server's facts. Sets no time-out; the caller has to.
    pub(crate) async fn open(
        wire: Wire,
        endpoint: &Endpoint,
        events: broadcast::Sender<NodeSignal>,
        wants: Wants,
        env: &Arc<dyn Env>,
    ) -> Result<Self, NodeError> {
        let (facts, look) = introduce(&wire, endpoint, wants, env).await?;
        let at = Arc::from(endpoint.to_string());
        let judging = Judging::new(Arc::clone(&facts.run_id), at, Arc::clone(env));
        Ok(Self {
            _keeper: Keeper::new(endpoint, wire.sends()),
            wire,
            endpoint: endpoint.clone(),
            facts,
            judging: Arc::new(judging),
            slots: SyncMutex::default(),
            wants,
            look: SyncMutex::new(look),
            touched: SyncMutex::default(),
            abandoned: AtomicBool::new(false),
            proved: AtomicBool::new(false),
            hints: Hints::new(endpoint.clone(), events.clone()),
            events,
        })
    }

    pub(crate) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    pub(crate) async fn look_again(&self) -> Result<ServerFacts, NodeError> {
        look(&self.wire, &self.endpoint, self.wants).await
    }

    fn judging(&self, slot: Option<u16>) -> Arc<Judging> {
        let Some(slot) = slot else { return Arc::clone(&self.judging) };
        let Judging { identity, at, env, beliefs, .. } = &*self.judging;
        let new = || {
            let mut own = Judging::new(identity.clone(), at.clone(), Arc::clone(env));
            own.beliefs = Arc::clone(beliefs);
            Arc::new(own)
        };
        Arc::clone(self.slots.lock().entry(slot).or_insert_with(new))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.wire.is_over()
    }

    pub(crate) fn excess(&self) -> Option<Excess> {
        self.wire.excess()
    }

    /// Only the future that was polled last is woken.
    pub(crate) async fn lost(&self) {
        self.wire.over().await;
    }

    pub(crate) fn prove(&self) -> bool {
        !self.is_proved() && !self.proved.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Requests under way may still be answered. The first call reports `NodeEvent::Down`.
    pub(crate) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::AcqRel) {
            self.wire.give_up();
            let _ = self.events.send(NodeEvent::Down.into());
        }
    }

    pub(crate) fn end(&self, why: &'static str) {
        self.wire.close(why);
        self.abandon();
    }

    /// By what the server showed at the login. If a new history is due, it begins now with a batch
    /// without ops. [`first_facts`](Self::first_facts) or the answer to the next batch returns the
    /// facts.
    pub(crate) async fn touch(
        self: &Arc<Self>,
        (terms, remembers): (Terms, Remembered),
        (group_terms, is_refused): (GroupTerms, bool),
    ) -> Result<(), NodeError> {
        let env = &self.judging.env;
        let nothing = Arc::new(Batch { terms, not_after: None, remembers, ops: Vec::new() });
        let mut attempt = Attempt::new(&self.judging, nothing, group_terms);
        let bytes = match self.look.lock().take() {
            Some(look) if is_refused => attempt.leave_evictions(&look),
            Some(look) => match attempt.begin(&look)? {
                Begun::Knows(mut known) => {
                    asked_with(&mut known.facts, terms, group_terms);
                    *self.touched.lock() = Some(known);
                    None
                }
                Begun::Writes(bytes) => Some(bytes),
            },
            None => (!is_refused).then(|| attempt.encode()),
        };
        let sent = env.now();
        let request = bytes.and_then(|bytes| self.send_as(attempt, bytes));
        let Some(request) = request else { return Ok(()) };
        let facts = request.answer().await?.facts;
        let facts = facts.map(|facts| TimedFacts { facts, sent, received: env.now() });
        *self.touched.lock() = facts;
        Ok(())
    }

    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        self.touched.lock().take()
    }

    /// After all earlier ones, within a tokio runtime. `None`, and nothing is sent, if the
    /// connection is lost.
    pub(crate) fn send(
        self: &Arc<Self>,
        batch: Arc<Batch>,
        group_terms: GroupTerms,
    ) -> Option<Sent> {
        self.hints.expect(&batch.ops);
        let attempt = Attempt::new(&self.judging(group_terms.slot), batch, group_terms);
        let bytes = attempt.encode();
        self.send_as(attempt, bytes)
    }

    fn send_as(self: &Arc<Self>, attempt: Attempt, bytes: Vec<u8>) -> Option<Sent> {
        let (batch, group_terms) = (Arc::clone(&attempt.batch), attempt.group_terms);
        let (last, judging) = (Arc::clone(&attempt.sent_with), Arc::clone(&attempt.judging));
        let reply = self.wire.send(bytes, 1, Some(Box::new(attempt)))?;
        Some(Sent { session: Arc::clone(self), judging, reply, batch, group_terms, last })
    }
}

impl Session {
    fn answer_of(&self, answers: RedisResult<Vec<Value>>) -> Result<Value, NodeError> {
        let calling = |e| faults::calling(&self.endpoint.blamed(e), &self.endpoint.secrets());
        let answer = answers.map_err(calling)?.into_iter().next().unwrap_or(Value::Nil);
        answer.extract_error().map_err(|e| {
            if faults::is_noscript(&e) {
                // `wire` loads a missing script and sends the batch again. Here the second try
                // failed, or a later batch was sent before it. So the node makes a new connection.
                self.abandon();
                if let Some(refused) = self.wire.refused_script() {
                    return faults::connecting(&refused, &self.endpoint.secrets());
                }
            }
            calling(e)
        })
    }
}

/// Whoever judged the marker on this connection may have other terms. The quarantine is the longest
/// that a client with the same settings can request: if the node's is longer, another has others.
fn asked_with(facts: &mut Facts, terms: Terms, group_terms: GroupTerms) {
    let window = group_terms.widest_window.max(group_terms.failover_window);
    facts.quarantine_asked = terms.max_ttl.saturating_add(window);
    facts.clock_error_asked = terms.clock_error;
}

pub(crate) struct Sent {
    session: Arc<Session>,
    judging: Arc<Judging>,
    reply: Reply,
    batch: Arc<Batch>,
    group_terms: GroupTerms,
    last: Arc<SyncMutex<SentWith>>,
}

impl Sent {
    /// `Err` if the connection failed, or the server refused the whole batch.
    pub(crate) async fn answer(self) -> Result<Replies, NodeError> {
        let Self { session, judging, reply, batch, group_terms, last } = self;
        let answers = reply.await;
        let SentWith { seen, is_bounded, plans, came } = std::mem::take(&mut *last.lock());
        let answer = session.answer_of(answers);
        let judging = &*judging;
        let outcome = |news: &News| news.outcome(judging, &batch, group_terms, seen.as_ref());
        let mut replies = match came.transpose()? {
            Some(came) if came.is_whole() => came.replies(),
            // A part was executed. The rest was sent again in vain, or not sent.
            Some(came) => {
                let why = answer.and_then(|answer| match News::read(&answer) {
                    Some(news) => outcome(&news).map(drop),
                    None => Ok(()),
                });
                came.or_fail(&why.err().unwrap_or_else(out_of_plans)).replies()
            }
            None => {
                let answer = answer?;
                if let Some(news) = News::read(&answer) {
                    let facts = outcome(&news)?;
                    Replies { facts: Some(facts), items: Vec::new() }
                } else {
                    let seen = seen.ok_or_else(|| {
                        decode::garbage("no news, or news with a clock after 2255")
                    })?;
                    decode::replies(answer, &batch, &plans, judging, &seen)?
                        .or_fail(&out_of_plans())
                        .replies()
                }
            }
        };
        if is_bounded {
            for item in &mut replies.items {
                if item.as_ref().is_err_and(|e| e.fault() == NodeFault::PastDeadline) {
                    *item = Err(unasked(group_terms.slot));
                }
            }
        }
        if let Some(facts) = &mut replies.facts {
            asked_with(facts, batch.terms, group_terms);
            let first = session.first_facts().map(|first| first.facts);
            if let Some(first) = first.filter(|first| first.history_id == facts.history_id) {
                facts.new_history |= first.new_history;
                facts.refuted |= first.refuted;
                facts.renamed |= first.renamed;
                facts.marker_missing |= first.marker_missing;
                facts.quarantine_raised |= first.quarantine_raised;
            }
        }
        Ok(replies)
    }
}

pub(super) fn out_of_plans() -> NodeError {
    NodeError::not_executed(NodeFault::Contended, "the record or lock was another one each time")
}

/// The master may have been replaced and promoted again, and only the Sentinels can tell
/// (sentinel 10).
fn unasked(slot: Option<u16>) -> NodeError {
    if let Some(slot) = slot {
        let detail = format!(
            "no majority of the cluster's masters has named this owner of slot {slot} for longer \
             than a replaced one may go on (failover window), so it may be another one: look at \
             the cluster (`redis-cli --cluster check <host:port>`)"
        );
        return NodeError::not_executed(NodeFault::NoAgreement, detail);
    }
    let detail = "no majority of the Sentinels has named this master for longer than a replaced \
                  master may go on (failover window), so it may be another one: look at the \
                  Sentinels (`redis-cli -p 26379 SENTINEL CKQUORUM <group>`), or accept it by \
                  `trust_unconfirmed_master(true)`";
    NodeError::not_executed(NodeFault::NoSentinel, detail)
}

pub(super) async fn ask(con: &MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    // `extract_error` turns an error reply inside `Value` into `Err`.
    con.clone().send_packed_command(cmd).await.and_then(Value::extract_error)
}
