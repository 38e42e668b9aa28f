//! The connection of a node: opened, used, dropped at the first doubt, and opened again.
//!
//! [`Link`] holds at most one [`Session`]. A [`Resolver`] gives it the server's address: a fixed
//! one for `RedisNode`, the one that the Sentinels name for `SentinelNode`. The first call
//! connects; from then on [`tend`] keeps the node connected. Connecting runs in a task of its own,
//! so a call that reaches its deadline does not interrupt it. After a failed try there is a
//! jittered pause, in which all calls fail at once with the cause of that try.
//!
//! Batches are sent in the order of the calls. A batch that finds no connection waits in a queue,
//! and the queue is sent before the new connection is open to other batches.

mod open;
mod order;
mod tend;

use std::collections::VecDeque;
use std::future::ready;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use self::order::{Place, Waiting};
use super::redis::barrier::Barriers;
use super::redis::barrier::replicas::Known;
use super::redis::encode::GroupTerms;
use super::redis::facts::ServerFacts;
use super::redis::faults;
use super::redis::session::Session;
use super::{BoxFuture, NodeEvent, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::op::{Batch, Replies, Terms, TimedFacts};
use crate::time::Moment;

/// Number of signals by which a slow listener may lag before the oldest are dropped.
const EVENTS: usize = 1024;
/// First and longest pause between failed tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Longest pause between tries to connect while there is no call; the pauses grow up to it.
const IDLE_PAUSE: Duration = Duration::from_secs(10);
/// Interval at which the server's facts are read again, for the resolver to judge.
const JUDGE_EVERY: Duration = Duration::from_secs(10);

/// Number of batches that may be under way at once on a connection, where the server answers in
/// order. A node queue uses fewer.
pub(crate) const DEPTH: usize = 8;

/// Finds the server to connect to, and judges whether it may vote.
pub(crate) trait Resolver: Send + Sync + 'static {
    /// Finds the server to connect to, by `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    /// Returns a version that changes when another master or epoch was decided, so that the present
    /// connection must not be used any longer. Calls under way on it end as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Returns true if `accept` needs the min-replicas settings in [`ServerFacts`].
    fn wants_min_replicas_facts(&self) -> bool {
        true
    }

    /// Returns advice that is appended to the error if the server cannot be reached.
    fn hint(&self) -> &'static str {
        ""
    }

    /// Returns true if the connection to the server uses TLS.
    fn is_tls(&self) -> bool;

    /// Judges by its facts whether the server may vote; `Err` refuses it. Called on each new
    /// connection, and with newly read facts at most every ten seconds while it is used.
    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError>;

    /// Reads the settings of the other servers of the group, once this server may vote.
    fn follow_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the replicas of the server, including those that are down. `None`: they are not
    /// known, and the replicas that were seen connected count instead.
    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(None)
    }

    /// Returns the terms that the min-replicas check adds to every batch after `accept`: the time
    /// for which a replaced master may still accept writes, and the number of replicas that must
    /// have acknowledged. Default: none.
    fn group_terms(&self) -> GroupTerms {
        GroupTerms::ALONE
    }
}

/// Settings of a link.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// Treat a server without a marker as a new one, which grants at once.
    pub(crate) trust_fresh: bool,
    /// Let a server vote that deletes keys when its memory is full.
    pub(crate) allow_eviction: bool,
    /// Name of the node, for logs.
    pub(crate) name: Arc<str>,
    /// Longest time for one try to find the address, connect and log in.
    pub(crate) connect_timeout: Duration,
    /// Clock and randomness.
    pub(crate) env: Arc<dyn Env>,
}

/// The connection of one node.
pub(crate) struct Link<R> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    resolver: R,
    options: LinkOptions,
    changed: watch::Receiver<u64>,
    events: broadcast::Sender<NodeSignal>,
    state: Mutex<State>,
    /// Number of tries to connect that have ended.
    turns: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Current>>,
    /// Batches that wait for a connection, in the order of their calls.
    waiting: VecDeque<Waiting>,
    /// Time at which the resolver last judged the server, or began to.
    judged: Moment,
    /// Terms (`max_ttl` and clock error) of the last batch, for the first request of a connection.
    terms: Option<Terms>,
    /// Address (`host:port`) of the last connection.
    address: Option<Arc<str>>,
    /// Address of the connection that is being made.
    trying: Option<Arc<str>>,
    connecting: bool,
    /// True while a task keeps the node connected.
    tended: bool,
    /// `run_id` of the last server process, and the largest number of replicas that followed it.
    replicas: Option<(Arc<str>, Arc<AtomicU32>)>,
    failures: u32,
    /// Number of sessions in a row that ended before they answered an op.
    flaps: u32,
    /// The last try to connect, if it failed.
    failed: Option<Failed>,
}

/// A failed try to connect.
struct Failed {
    /// Earliest time of the next try.
    until: Moment,
    /// Earliest time of the next try if there is no call.
    idle_until: Moment,
    cause: NodeError,
    /// Version of the resolver when the try began; with a newer one the next try begins at once.
    epoch: u64,
}

struct Current {
    session: Arc<Session>,
    /// `host:port` of the server.
    at: Arc<str>,
    /// Runs the waits for replicas of this server.
    barriers: Arc<Barriers>,
    /// The resolver's version when the session's address was requested.
    epoch: u64,
    opened: Moment,
}

impl<R: Resolver> Link<R> {
    /// Makes a link that connects at its first call.
    pub(crate) fn new(resolver: R, options: LinkOptions) -> Self {
        let shared = Shared {
            changed: resolver.changed(),
            resolver,
            options,
            events: broadcast::Sender::new(EVENTS),
            state: Mutex::default(),
            turns: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the resolver, from which the link has the server's address.
    pub(crate) fn resolver(&self) -> &R {
        &self.shared.resolver
    }

    /// Returns why there is no connection now; `None` if there is one or none was tried.
    pub(crate) fn trouble(&self) -> Option<NodeError> {
        let state = self.shared.state();
        let failed = state.failed.as_ref().filter(|_| state.current.is_none())?;
        Some(failed.cause.clone())
    }

    /// Returns the address of the last connection, as `host:port`.
    pub(crate) fn address(&self) -> Option<Arc<str>> {
        self.shared.state().address.clone()
    }

    /// Returns the `run_id` of the connected server; `None` without a connection.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        let state = self.shared.state();
        let current = state.current.as_ref().filter(|current| self.shared.is_usable(current))?;
        Some(Arc::clone(&current.session.facts().run_id))
    }

    /// Takes the facts that the connection received when it was opened; later calls return `None`.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        let state = self.shared.state();
        let usable = state.current.as_ref().filter(|current| self.shared.is_usable(current));
        usable?.session.first_facts()
    }

    /// Subscribes to the signals of this node.
    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.shared.events.subscribe()
    }

    /// Executes a batch by `deadline`: sent now, or after the batches that wait for a connection.
    pub(crate) fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        if Handle::try_current().is_err() {
            // There is no runtime yet, so the batch is sent when the future is polled.
            return Box::pin(async move { self.call(batch, deadline).await });
        }
        let (shared, n) = (&self.shared, batch.ops.len());
        let rest = deadline.since(shared.options.env.now());
        let place = match shared.place(Arc::new(batch)) {
            Place::Refused(cause) => return Box::pin(ready(Replies::fail(n, &cause))),
            Place::Sent((current, sent)) => Ok((Doubt::new(shared, current), sent)),
            Place::Waits(sent) => Err(sent),
        };
        Box::pin(async move {
            let late = sleep(rest);
            tokio::pin!(late);
            let (mut doubt, sent) = match place {
                Ok(on_its_way) => on_its_way,
                Err(waits) => match shared.wait(waits, late.as_mut()).await {
                    Ok(on_its_way) => on_its_way,
                    Err(cause) => return Replies::fail(n, &cause),
                },
            };
            let done = tokio::select! {
                biased;
                done = sent.answer() => done,
                () = late => {
                    let detail = format!("no answer within {rest:?}");
                    Err(NodeError::maybe_executed(NodeFault::Timeout, detail))
                }
            };
            if done.is_ok() && n > 0 && doubt.current.session.prove() {
                shared.state().flaps = 0;
            }
            doubt.standing = done.as_ref().is_err_and(|e| faults::ends_session(e.fault()));
            done.unwrap_or_else(|e| match e.fault() {
                // A person has to act on the error, and has to know on which server.
                NodeFault::Auth | NodeFault::NoPermission => {
                    Replies::fail(n, &e.at(&doubt.current.at, ""))
                }
                _ => Replies::fail(n, &e),
            })
        })
    }

    /// Waits until replicas have what the server granted at `after`. Fails if the connection of
    /// that grant is no longer used, because after any doubt the server may be another one.
    pub(crate) async fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> Result<u32, NodeError> {
        let shared = &*self.shared;
        let not_durable = |detail| Err(NodeError::maybe_executed(NodeFault::NotDurable, detail));
        let current = shared.state().current.clone();
        let Some(current) = current.filter(|c| {
            !c.session.is_lost()
                && *shared.changed.borrow() == c.epoch
                && c.session.facts().run_id == after.identity
        }) else {
            return not_durable("the connection to the server that granted is gone".to_owned());
        };
        let known = match level {
            Durability::AllReplicas => shared.resolver.replicas()?,
            _ => None,
        };
        let rest = deadline.since(shared.options.env.now());
        let mut changed = shared.changed.clone();
        tokio::select! {
            biased;
            passed = current.barriers.pass(after.history_id, level, known, deadline) => passed,
            () = moved_on(&mut changed, current.epoch) => {
                not_durable("the Sentinels took this master down before replicas had it".to_owned())
            }
            () = sleep(rest) => {
                not_durable(format!("not known to be on {level} within {} ms", rest.as_millis()))
            }
        }
    }
}

impl<R: Resolver> Shared<R> {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the mutex can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection if it may be used, and has its server judged again if that is due.
    fn usable(self: &Arc<Self>, terms: Terms) -> Option<Arc<Current>> {
        let now = self.options.env.now();
        let (current, judge) = {
            let mut state = self.state();
            state.terms = Some(terms);
            let current = state.current.clone()?;
            let judge = now.since(state.judged) >= JUDGE_EVERY;
            if judge {
                state.judged = now;
            }
            (current, judge)
        };
        if !self.is_usable(&current) {
            self.part_with(&current, current.session.is_lost());
            return None;
        }
        if judge {
            tokio::spawn(Self::judge(Arc::clone(self), Arc::clone(&current)));
        }
        Some(current)
    }

    fn is_usable(&self, current: &Current) -> bool {
        !current.session.is_lost() && *self.changed.borrow() == current.epoch
    }

    /// Stops using a connection. With `broke` it counts as a failure unless it has answered an op.
    fn part_with(&self, current: &Arc<Current>, broke: bool) {
        {
            let mut state = self.state();
            if state.current.as_ref().is_some_and(|c| Arc::ptr_eq(c, current)) {
                state.current = None;
                if broke {
                    self.flapped(&mut state, current);
                }
            }
        }
        if *self.changed.borrow() == current.epoch {
            current.session.abandon();
        } else {
            current
                .session
                .end("the Sentinels took this master down while the request was under way");
        }
    }

    /// Returns the cause of the last failed try, as long as the pause after it lasts.
    fn pausing(&self, state: &State) -> Option<NodeError> {
        let failed = state.failed.as_ref().filter(|_| !state.connecting)?;
        let pauses =
            self.options.env.now() < failed.until && failed.epoch == *self.changed.borrow();
        pauses.then(|| failed.cause.clone())
    }

    fn too_late(&self) -> NodeError {
        let detail = self.late("still connecting when the deadline passed");
        NodeError::not_executed(NodeFault::Unreachable, detail)
    }

    fn group_terms(&self) -> GroupTerms {
        let trust_fresh = self.options.trust_fresh;
        GroupTerms { trust_fresh, ..self.resolver.group_terms() }
    }

    fn ended(&self, epoch: u64, outcome: Result<Arc<Current>, NodeError>) {
        let refused = match outcome {
            Ok(current) => {
                self.open_to_all(&current);
                NodeEvent::Up.log(&self.options.name);
                let _ = self.events.send(NodeEvent::Up.into());
                VecDeque::new()
            }
            Err(cause) => {
                let mut state = self.state();
                state.connecting = false;
                if state.failures == 0 {
                    let node = &*self.options.name;
                    tracing::warn!(
                        target: "palisade::node", node, event = "down", %cause, "node lost"
                    );
                    let _ = self.events.send(NodeEvent::Down.into());
                }
                let failures = state.failures;
                state.failures = failures.saturating_add(1);
                let waiting = std::mem::take(&mut state.waiting);
                let waiting = waiting.into_iter().map(|w| (w, cause.clone())).collect();
                state.failed = Some(self.failed(failures, cause, epoch));
                waiting
            }
        };
        for (waiting, cause) in refused {
            // An error means that the caller has dropped its call.
            let _ = waiting.sent.send(Err(cause));
        }
        self.turns.send_modify(|n| *n = n.wrapping_add(1));
    }
}

fn cut_off() -> NodeError {
    NodeError::not_executed(NodeFault::Unreachable, "connecting was cut off")
}

/// A try to connect. Its drop ends the waiting calls, even if its task was never run.
struct Turn<R: Resolver> {
    shared: Arc<Shared<R>>,
    epoch: u64,
    outcome: Option<Result<Current, NodeError>>,
}

impl<R: Resolver> Turn<R> {
    fn new(shared: &Arc<Shared<R>>) -> Self {
        // Read before the address is requested, so that a later change makes the session stale.
        let epoch = *shared.changed.borrow();
        Self { shared: Arc::clone(shared), epoch, outcome: None }
    }

    async fn connect(mut self) {
        let limit = self.shared.options.connect_timeout;
        let mut changed = self.shared.changed.clone();
        let outcome = loop {
            let epoch = self.epoch;
            tokio::select! {
                biased;
                done = self.shared.open(epoch) => break done,
                // Another server was named: it is useless to wait for the old one, perhaps frozen.
                () = moved_on(&mut changed, epoch) => self.epoch = *changed.borrow(),
                () = sleep(limit) => {
                    let detail = self.shared.late(&format!("no connection within {limit:?}"));
                    break Err(NodeError::not_executed(NodeFault::Unreachable, detail));
                }
            }
        };
        let connected = outcome.is_ok();
        self.outcome = Some(outcome);
        let shared = Arc::clone(&self.shared);
        // Dropping the try notifies the waiting calls, so that comes first.
        drop(self);
        if connected {
            shared.tend();
            shared.resolver.follow_up().await;
        }
    }
}

impl<R: Resolver> Drop for Turn<R> {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(cut_off()));
        self.shared.ended(self.epoch, outcome.map(Arc::new));
    }
}

/// Doubt about the session of a call: while `standing`, dropping this gives the session up. A call
/// that is dropped midway leaves an answer that no caller awaits, and after a time-out it is
/// unknown which answers will still come.
struct Doubt<'a, R: Resolver> {
    shared: &'a Shared<R>,
    current: Arc<Current>,
    standing: bool,
}

impl<'a, R: Resolver> Doubt<'a, R> {
    fn new(shared: &'a Shared<R>, current: Arc<Current>) -> Self {
        Self { shared, current, standing: true }
    }
}

impl<R: Resolver> Drop for Doubt<'_, R> {
    fn drop(&mut self) {
        if self.standing {
            self.shared.part_with(&self.current, true);
        }
    }
}

/// Waits until the Sentinels' decision about the master is another one than that numbered `epoch`.
async fn moved_on(changed: &mut watch::Receiver<u64>, epoch: u64) {
    if changed.wait_for(|now| *now != epoch).await.is_err() {
        // The resolver is gone, so the decision never changes any more.
        std::future::pending::<()>().await;
    }
}
