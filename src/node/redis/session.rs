//! One connection to one server process: opened, asked who it is, used, and thrown away at the
//! first doubt. A session never reconnects and never repeats what may have run.
//!
//! A batch that confirms something to a holder is followed by `ROLE` in the same write to the
//! socket: inside the script only the offset before its own writes can be seen, and `ROLE` comes
//! right behind it, so its offset is that of the last write or, if others write too, a later one.

mod order;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures_util::poll;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, broadcast};

use self::order::Order;
use super::encode::{self, Guarding};
use super::facts::{Introduced, ServerFacts, generation, introduce, look};
use super::hints::Hints;
use super::seen::Seen;
use super::{decode, faults, script};
use crate::dial::Line;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::error::NodeError;
use crate::node::NodeEvent;
use crate::op::{Batch, Facts, Op, Replies, Terms};
use crate::receipt::Predecessor;

/// Whether a connection is known to be gone.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    yes: AtomicBool,
    told: Notify,
}

impl Lost {
    fn is(&self) -> bool {
        self.yes.load(Ordering::Acquire)
    }

    /// Ends when it is.
    pub(crate) async fn wait(&self) {
        let told = self.told.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        if !self.is() {
            told.await;
        }
    }

    fn tell(&self, events: &broadcast::Sender<NodeEvent>) {
        if !self.yes.swap(true, Ordering::AcqRel) {
            self.told.notify_waiters();
            let _ = events.send(NodeEvent::Down);
        }
    }
}

/// An open connection to a master.
pub(crate) struct Session {
    con: Line,
    facts: ServerFacts,
    /// Whether `ROLE` is answered, so that writes get receipts.
    tells_offset: bool,
    generation: Option<u64>,
    /// What the last batch said; the first one supposes that a backlog is kept.
    backlog: AtomicBool,
    /// The marker as the last answer showed it.
    seen: Mutex<Option<Arc<Seen>>>,
    order: Order,
    /// What the server said when its marker was touched, until somebody is told.
    touched: Mutex<Option<Facts>>,
    lost: Arc<Lost>,
    /// It answered ops.
    proved: AtomicBool,
    events: broadcast::Sender<NodeEvent>,
    hints: Hints,
}

impl Session {
    /// Connects and asks the server who it is. `guard_facts` reads the min-replicas settings too.
    /// The caller holds the deadline.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        events: broadcast::Sender<NodeEvent>,
        guard_facts: bool,
    ) -> Result<Self, NodeError> {
        let lost = Arc::<Lost>::default();
        // The crate's own time-outs are off: every wait is inside one of ours, and its time-out
        // would hide whether the request had left.
        let config = AsyncConnectionConfig::new()
            .set_push_sender(listener(events.clone(), Arc::clone(&lost)));
        let con = endpoint
            .dial(config, Limits::BATCHES)
            .await
            .map_err(|e| faults::opening(&e, endpoint.is_tls(), &endpoint.secrets()))?;
        let Introduced { facts, tells_offset } = introduce(&con, guard_facts).await?;
        let generation = generation(&facts.replid);
        let hints = Hints::new(endpoint.clone(), events.clone());
        let backlog = AtomicBool::new(true);
        let order = Order::default();
        let touched = Mutex::default();
        Ok(Self {
            con,
            facts,
            tells_offset,
            generation,
            backlog,
            seen: Mutex::default(),
            order,
            touched,
            lost,
            proved: AtomicBool::new(false),
            events,
            hints,
        })
    }

    /// What the server said of itself.
    pub(crate) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// The data history as the script will tell it, and what it went on from.
    pub(crate) fn history(&self) -> Option<(u64, Option<Predecessor>)> {
        Some((self.generation?, self.facts.predecessor))
    }

    /// Asks again what it said of itself; `guard_facts` the min-replicas settings too.
    pub(crate) async fn look_again(&self, guard_facts: bool) -> Result<ServerFacts, NodeError> {
        look(&self.con, guard_facts).await
    }

    /// Whether no earlier batch is being sent again: what leaves meanwhile would overtake it.
    pub(crate) fn is_in_order(&self) -> bool {
        self.order.is_kept_now()
    }

    /// Ends when it is so.
    pub(crate) async fn in_order(&self) {
        self.order.is_kept().await;
    }

    /// Whether the connection is known to be gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is()
    }

    /// The same to wait for.
    pub(crate) fn lost(&self) -> Arc<Lost> {
        Arc::clone(&self.lost)
    }

    /// Ops were answered on it. Whether that is new.
    pub(crate) fn prove(&self) -> bool {
        !self.is_proved() && !self.proved.swap(true, Ordering::AcqRel)
    }

    /// Whether ops were ever answered on it.
    pub(crate) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// The connection shall not be used again. Tells it once.
    pub(crate) fn abandon(&self) {
        self.lost.tell(&self.events);
    }

    /// Has the server look at its marker, and write it if its history is new. What that showed is
    /// told with the next batch.
    pub(crate) async fn touch(&self, terms: Terms, guarding: Guarding) -> Result<(), NodeError> {
        let nothing = Batch { terms, not_after: None, ops: Vec::new() };
        let facts = self.call(&nothing, guarding).await?.facts;
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = facts;
        Ok(())
    }

    /// Executes a batch. A fault of the connection or the server as a whole is `Err`.
    pub(crate) async fn call(
        &self,
        batch: &Batch,
        guarding: Guarding,
    ) -> Result<Replies, NodeError> {
        self.hints.expect(&batch.ops);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cmd = encode::batch(batch, guarding, seen.as_deref());
        // A history that nobody can go on from needs no receipts.
        let receipt = self.tells_offset
            && self.backlog.load(Ordering::Relaxed)
            && batch.ops.iter().any(Op::is_confirming);
        let call = if receipt { Call::with_receipt(cmd) } else { Call::Plain(cmd) };
        let mut place = self.order.take();
        let answer = match call.ask(&self.con).await {
            Err(e) if faults::is_noscript(&e) => {
                // SCRIPT FLUSH: nothing was executed, so calling again is no repetition. Both leave
                // together: a later batch must not find the script before this one does.
                place.again().await;
                let load = script::load();
                let both = async { tokio::join!(ask(&self.con, &load), call.ask(&self.con)) };
                tokio::pin!(both);
                let first = poll!(both.as_mut());
                place.left();
                let answers = match first {
                    Poll::Ready(answers) => answers,
                    Poll::Pending => both.await,
                };
                match answers {
                    (Err(cause), Err(e)) if faults::is_noscript(&e) => {
                        return Err(faults::connecting(&cause, self.con.secrets()));
                    }
                    (_, answer) => answer,
                }
            }
            answer => answer,
        };
        drop(place);
        let (answer, offset) = answer.map_err(|e| faults::calling(&e, self.con.secrets()))?;
        self.backlog.store(decode::keeps_backlog(&answer), Ordering::Relaxed);
        let lost = (guarding.longest_window(), batch.terms.clock_error);
        let identity = &self.facts.run_id;
        let (mut replies, seen) = decode::replies(answer, &batch.ops, identity, lost, seen)?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        if let Some(facts) = &mut replies.facts {
            // Longer than any that agrees with this client: another one does not.
            facts.quarantine_asked = batch
                .terms
                .max_ttl
                .saturating_add(guarding.widest_window.max(guarding.failover_window));
            facts.offset = offset;
            if Some(facts.generation) == self.generation {
                facts.predecessor = self.facts.predecessor;
            }
            let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(first) = touched.filter(|first| first.generation == facts.generation) {
                facts.new_generation |= first.new_generation;
                facts.marker_missing |= first.marker_missing;
                facts.quarantine_raised |= first.quarantine_raised;
            }
        }
        Ok(replies)
    }
}

/// What leaves in one write to the socket.
enum Call {
    /// The script.
    Plain(Cmd),
    /// The script, and `ROLE` right behind it.
    Receipt(Pipeline),
}

impl Call {
    fn with_receipt(cmd: Cmd) -> Self {
        let mut both = Pipeline::with_capacity(2);
        both.add_command(cmd).cmd("ROLE");
        Self::Receipt(both)
    }

    /// The script's answer and, if it was asked for and given, the offset.
    async fn ask(&self, con: &MultiplexedConnection) -> Result<(Value, Option<u64>), RedisError> {
        let both = match self {
            Self::Plain(cmd) => return Ok((ask(con, cmd).await?, None)),
            Self::Receipt(both) => both,
        };
        let mut answers = con.clone().send_packed_commands(both, 0, 2).await?.into_iter();
        let answer = answers.next().unwrap_or(Value::Nil).extract_error()?;
        // A refusal to tell is no fault: there is no receipt then.
        Ok((answer, answers.next().as_ref().and_then(decode::offset)))
    }
}

pub(super) async fn ask(con: &MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    // An error reply inside `Value` is turned into `Err`.
    con.clone().send_packed_command(cmd).await.and_then(Value::extract_error)
}

/// Notices that the server, or what lies between, has closed the connection. Nothing is subscribed
/// to here: a server that counts a connection among its subscribers cuts it off at the limits for
/// those, also for the length of its answers.
fn listener(
    events: broadcast::Sender<NodeEvent>,
    lost: Arc<Lost>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            lost.tell(&events);
        }
        Ok(())
    }
}
