//! One connection to one server process. A session reads the server's identity when it opens, and
//! is dropped at the first doubt about an answer. It never reconnects, and never repeats a request
//! that may have run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::broadcast;

use super::encode::{self, GroupTerms};
use super::facts::{ServerFacts, introduce, look};
use super::hints::Hints;
use super::seen::Seen;
use super::{decode, faults, script};
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Excess;
use crate::dial::wire::{Reply, Wire};
use crate::env::Env;
use crate::error::NodeError;
use crate::node::{NodeEvent, NodeSignal};
use crate::op::{Batch, Replies, Terms, TimedFacts};
use crate::shown::Secrets;

/// An open connection to a master.
pub(crate) struct Session {
    wire: Wire,
    secrets: Secrets,
    facts: ServerFacts,
    /// Marker of the server as of its last answer; `None` before the first one.
    seen: Mutex<Option<Arc<Seen>>>,
    /// Facts in the answer to [`touch`](Self::touch), until a caller takes them or the answer to a
    /// batch includes them.
    touched: Mutex<Option<TimedFacts>>,
    /// True once the session was given up, which is reported as `NodeEvent::Down`.
    abandoned: AtomicBool,
    /// True once ops were answered on this session.
    proved: AtomicBool,
    events: broadcast::Sender<NodeSignal>,
    hints: Hints,
}

impl Session {
    /// Connects and reads the server's facts; if `min_replicas_facts` is true, also its
    /// min-replicas settings. Sets no time-out; that is left to the caller.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        events: broadcast::Sender<NodeSignal>,
        min_replicas_facts: bool,
    ) -> Result<Self, NodeError> {
        let secrets = endpoint.secrets();
        let wire = endpoint.wire(|| script::load().get_packed_command()).await;
        let wire = wire.map_err(|e| faults::opening(&e, endpoint.is_tls(), &secrets))?;
        let facts = introduce(&wire, endpoint, min_replicas_facts).await?;
        Ok(Self {
            wire,
            secrets,
            facts,
            seen: Mutex::default(),
            touched: Mutex::default(),
            abandoned: AtomicBool::new(false),
            proved: AtomicBool::new(false),
            hints: Hints::new(endpoint.clone(), events.clone()),
            events,
        })
    }

    /// Returns the facts that the server reported when the session was opened.
    pub(crate) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// Reads and returns the server's present facts; if `min_replicas_facts` is true, also its
    /// min-replicas settings.
    pub(crate) async fn look_again(
        &self,
        min_replicas_facts: bool,
    ) -> Result<ServerFacts, NodeError> {
        look(&self.wire, &self.secrets, min_replicas_facts).await
    }

    /// Returns true if nothing may be sent on the connection any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.wire.is_over()
    }

    /// Returns the limit that the server's answers exceeded, if this program ended the connection
    /// for that reason.
    pub(crate) fn excess(&self) -> Option<Excess> {
        self.wire.excess()
    }

    /// Resolves when the connection is lost. Only the future that was polled last is woken.
    pub(crate) async fn lost(&self) {
        self.wire.over().await;
    }

    /// Records that ops were answered on this session. Returns true at the first call only.
    pub(crate) fn prove(&self) -> bool {
        !self.is_proved() && !self.proved.swap(true, Ordering::AcqRel)
    }

    /// Returns true if ops were ever answered on this session.
    pub(crate) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Gives the session up: nothing more is sent on it, but requests under way may still be
    /// answered. The first call reports `NodeEvent::Down`.
    pub(crate) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::AcqRel) {
            self.wire.give_up();
            let _ = self.events.send(NodeEvent::Down.into());
        }
    }

    /// Gives the session up, and ends its requests under way with an error that has this reason.
    pub(crate) fn end(&self, why: &'static str) {
        self.wire.close(why);
        self.abandon();
    }

    /// Sends a batch without ops, so that the server checks its marker, and writes it if its data
    /// history is new. The facts in the answer are returned by [`first_facts`](Self::first_facts),
    /// or included in the answer to the next batch.
    pub(crate) async fn touch(
        self: &Arc<Self>,
        terms: Terms,
        group_terms: GroupTerms,
        env: &dyn Env,
    ) -> Result<(), NodeError> {
        let nothing =
            Arc::new(Batch { terms, not_after: None, known_since: None, ops: Vec::new() });
        let sent = env.now();
        let Some(request) = self.send(nothing, group_terms) else { return Ok(()) };
        let facts = request.answer().await?.facts;
        let facts = facts.map(|facts| TimedFacts { facts, sent, received: env.now() });
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = facts;
        Ok(())
    }

    /// Takes the facts in the answer to [`touch`](Self::touch); `None` if they were taken before,
    /// or the answer to a batch has included them.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sends a batch, behind all that were sent before. Returns `None` if the connection is lost;
    /// then nothing was sent. Must be called within a tokio runtime.
    pub(crate) fn send(
        self: &Arc<Self>,
        batch: Arc<Batch>,
        group_terms: GroupTerms,
    ) -> Option<Sent> {
        self.hints.expect(&batch.ops);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The deadline may be by the clock of the server of an earlier connection. Then it counts
        // as passed, because the two clocks cannot be compared.
        let not_after = batch.not_after.as_ref().map(|moment| moment.on(&self.facts.run_id));
        let cmd = encode::batch(&batch, not_after, group_terms, seen.as_deref());
        let reply = self.wire.send(cmd.get_packed_command(), 1, Some(Arc::clone(&batch)))?;
        Some(Sent { session: Arc::clone(self), reply, batch, group_terms, seen })
    }
}

/// A batch that was sent and whose answer has not been read.
pub(crate) struct Sent {
    session: Arc<Session>,
    reply: Reply,
    batch: Arc<Batch>,
    group_terms: GroupTerms,
    /// Marker that the batch told the server to expect.
    seen: Option<Arc<Seen>>,
}

impl Sent {
    /// Waits for the answer and decodes it. A fault of the connection, or of the server for the
    /// whole batch, is `Err`.
    pub(crate) async fn answer(self) -> Result<Replies, NodeError> {
        let Self { session, reply, batch, group_terms, seen } = self;
        let calling = |e| faults::calling(&e, &session.secrets);
        let mut answers = reply.await.map_err(calling)?.into_iter();
        let answer = match answers.next().unwrap_or(Value::Nil).extract_error() {
            Ok(answer) => answer,
            Err(e) => {
                if faults::is_noscript(&e) {
                    // The wire loads a missing script and sends the batch again. Here that failed,
                    // or a later batch has overtaken this one; so a new connection is made.
                    session.abandon();
                }
                return Err(calling(e));
            }
        };
        let clock_error = batch.terms.clock_error;
        let identity = &session.facts.run_id;
        let (mut replies, seen) = decode::replies(answer, &batch.ops, identity, clock_error, seen)?;
        *session.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        if let Some(facts) = &mut replies.facts {
            // The longest quarantine that any client with the same settings can ask for. If that of
            // the node is longer, another client has other settings.
            facts.quarantine_asked = batch
                .terms
                .max_ttl
                .saturating_add(group_terms.widest_window.max(group_terms.failover_window));
            let first = session.first_facts().map(|first| first.facts);
            if let Some(first) = first.filter(|first| first.history_id == facts.history_id) {
                facts.new_history |= first.new_history;
                facts.marker_missing |= first.marker_missing;
                facts.quarantine_raised |= first.quarantine_raised;
            }
        }
        Ok(replies)
    }
}

pub(super) async fn ask(con: &MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    // `extract_error` turns an error reply inside `Value` into `Err`.
    con.clone().send_packed_command(cmd).await.and_then(Value::extract_error)
}
