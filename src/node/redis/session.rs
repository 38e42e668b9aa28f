//! One connection to one server process. A session reads the server's identity when it opens. The
//! session is dropped as soon as an answer is missing or invalid. It never reconnects, and never
//! repeats a request that may have run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
use crate::safe_text::Secrets;
use crate::sync::SyncMutex;

/// An open connection to a master.
pub(crate) struct Session {
    wire: Wire,
    secrets: Secrets,
    facts: ServerFacts,
    /// Marker (the server's stored facts about its data history) in the last answer of the server;
    /// `None` before the first answer.
    seen: SyncMutex<Option<Arc<Seen>>>,
    /// Facts about the server (such as its clock and data history) in the answer to
    /// [`touch`](Self::touch). They are kept until a caller takes them, or until the answer to a
    /// batch includes them.
    touched: SyncMutex<Option<TimedFacts>>,
    /// True after [`abandon`](Self::abandon), which reports `NodeEvent::Down` once.
    abandoned: AtomicBool,
    /// True once the server has answered ops on this session.
    proved: AtomicBool,
    events: broadcast::Sender<NodeSignal>,
    hints: Hints,
}

impl Session {
    /// Connects and reads the server's facts, such as its identity and its data history. If
    /// `min_replicas_facts` is true, this function also reads the min-replicas settings. It sets no
    /// time-out; the caller has to set one.
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
            seen: SyncMutex::default(),
            touched: SyncMutex::default(),
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

    /// Reads and returns the server's present facts (identity, version, replicas and so on). If
    /// `min_replicas_facts` is true, this function also reads the min-replicas settings.
    pub(crate) async fn look_again(
        &self,
        min_replicas_facts: bool,
    ) -> Result<ServerFacts, NodeError> {
        look(&self.wire, &self.secrets, min_replicas_facts).await
    }

    /// Returns true if the connection cannot be used for further requests.
    pub(crate) fn is_lost(&self) -> bool {
        self.wire.is_over()
    }

    /// Returns the limit that the server's answers exceeded; `None` if this program did not end the
    /// connection because of a limit.
    pub(crate) fn excess(&self) -> Option<Excess> {
        self.wire.excess()
    }

    /// Waits until the connection is lost. If several futures wait, only the future that was polled
    /// last is woken.
    pub(crate) async fn lost(&self) {
        self.wire.over().await;
    }

    /// Records that the server has answered ops on this session. Returns true at the first call
    /// only.
    pub(crate) fn prove(&self) -> bool {
        !self.is_proved() && !self.proved.swap(true, Ordering::AcqRel)
    }

    /// Returns true if the server has answered ops on this session.
    pub(crate) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Stops sending on this session (connection). Requests under way may still be answered. The
    /// first call reports `NodeEvent::Down`.
    pub(crate) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::AcqRel) {
            self.wire.give_up();
            let _ = self.events.send(NodeEvent::Down.into());
        }
    }

    /// Closes the connection and abandons the session. Requests under way end with an error that
    /// has the reason `why`.
    pub(crate) fn end(&self, why: &'static str) {
        self.wire.close(why);
        self.abandon();
    }

    /// Sends a batch without ops. The server then checks its marker (the facts about its data), and
    /// writes the marker if its data history is new. [`first_facts`](Self::first_facts) or the
    /// answer to the next batch returns the facts in the answer.
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
        *self.touched.lock() = facts;
        Ok(())
    }

    /// Takes the facts about the node's data from the answer to [`touch`](Self::touch). Returns
    /// `None` if a caller has taken them, or the answer to a batch has included them.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        self.touched.lock().take()
    }

    /// Sends a batch after all earlier batches. Returns `None`, and sends nothing, if the
    /// connection is lost. Call this function within a tokio runtime.
    pub(crate) fn send(
        self: &Arc<Self>,
        batch: Arc<Batch>,
        group_terms: GroupTerms,
    ) -> Option<Sent> {
        self.hints.expect(&batch.ops);
        let seen = self.seen.lock().clone();
        // The deadline may be measured by the clock of another server, from an earlier connection.
        // Then the deadline counts as passed, because the two clocks cannot be compared.
        let not_after = batch.not_after.as_ref().map(|moment| moment.on(&self.facts.run_id));
        let cmd = encode::batch(&batch, not_after, group_terms, seen.as_deref());
        let reply = self.wire.send(cmd.get_packed_command(), 1, Some(Arc::clone(&batch)))?;
        Some(Sent { session: Arc::clone(self), reply, batch, group_terms, seen })
    }
}

/// A batch that was sent, and whose answer the client has not read yet.
pub(crate) struct Sent {
    session: Arc<Session>,
    reply: Reply,
    batch: Arc<Batch>,
    group_terms: GroupTerms,
    /// Marker (facts about the data history) that the batch contained, because the client expects
    /// that the server still has it.
    seen: Option<Arc<Seen>>,
}

impl Sent {
    /// Waits for the answer and decodes it. Returns `Err` if the connection failed, or if the
    /// server refused the whole batch.
    pub(crate) async fn answer(self) -> Result<Replies, NodeError> {
        let Self { session, reply, batch, group_terms, seen } = self;
        let calling = |e| faults::calling(&e, &session.secrets);
        let mut answers = reply.await.map_err(calling)?.into_iter();
        let answer = match answers.next().unwrap_or(Value::Nil).extract_error() {
            Ok(answer) => answer,
            Err(e) => {
                if faults::is_noscript(&e) {
                    // The lower layer, `wire`, loads a missing script and sends the batch again.
                    // Here the second try failed, or a later batch was sent before the second try.
                    // So the session ends, and the node makes a new connection.
                    session.abandon();
                }
                return Err(calling(e));
            }
        };
        let clock_error = batch.terms.clock_error;
        let identity = &session.facts.run_id;
        let (mut replies, seen) = decode::replies(answer, &batch.ops, identity, clock_error, seen)?;
        *session.seen.lock() = Some(seen);
        if let Some(facts) = &mut replies.facts {
            // The longest quarantine (time without grants after a loss) that a client with the same
            // settings can request. If the quarantine of the node is longer, another client has
            // other settings.
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
