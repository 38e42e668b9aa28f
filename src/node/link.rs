//! A node's connection over its lifetime: found, used, thrown away at the first doubt, found again.
//!
//! [`Link`] holds at most one [`Session`]. Where the server is it asks a [`Resolver`]: a fixed
//! address for `RedisNode`, the Sentinels for `SentinelNode`. The first call connects; from then on
//! [`tend`] keeps the node connected. Connecting runs in a task of its own,
//! so that a call with a short deadline does not start it over; a failed try is not repeated before
//! a jittered pause, and calls in between are answered at once with the last cause.
//!
//! Batches leave in the order of the calls. One that finds no connection waits in a queue, and the
//! queue is sent before the new connection is open to others.

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

/// Hints a slow listener may miss before the oldest are dropped.
const EVENTS: usize = 1024;
/// First and longest pause between tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Longest pause between tries that nobody asks for: an idle node is tried less and less often.
const IDLE_PAUSE: Duration = Duration::from_secs(10);
/// How often the resolver judges the server by fresh facts.
const JUDGE_EVERY: Duration = Duration::from_secs(10);

/// Batches that may be under way at once on a connection, for the server answers in order; more
/// than a queue has use for.
pub(crate) const DEPTH: usize = 8;

/// Where the master is.
pub(crate) trait Resolver: Send + Sync + 'static {
    /// Finds the server to connect to, by `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    /// Changes its value when the present connection must not be used any longer (another master
    /// was named, or the present one is said to be down). Calls under way on the old connection end
    /// as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Whether [`ServerFacts`] must hold the min-replicas settings.
    fn wants_min_replicas_facts(&self) -> bool {
        true
    }

    /// What to change if the server that it named cannot be reached; added to the sentence.
    fn hint(&self) -> &'static str {
        ""
    }

    /// Whether the server is met over TLS.
    fn is_tls(&self) -> bool;

    /// Looks at what the server says of itself before it may vote: on each new connection, and at
    /// most every ten seconds of use with fresh facts. `Err` refuses it.
    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError>;

    /// Once the server may vote: looks at the rest of its group. Nobody waits for it.
    fn follow_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Which replicas of the server there are, those included that are down. `None`: nobody says,
    /// and those count that were seen connected.
    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(None)
    }

    /// What the min-replicas check makes of every batch sent after `accept`: for how long a master
    /// that was replaced may still accept writes, and which replicas must have acknowledged. By
    /// default none.
    fn group_terms(&self) -> GroupTerms {
        GroupTerms::ALONE
    }
}

/// How a link behaves.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// Take a server without any history for a new one.
    pub(crate) trust_fresh: bool,
    /// Let a server vote that deletes keys when its memory is full.
    pub(crate) allow_eviction: bool,
    /// The node's, for logs.
    pub(crate) name: Arc<str>,
    /// Longest time for one try to resolve, connect and log in.
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
    /// Counts the tries to connect that have ended.
    turns: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Current>>,
    /// Batches that wait for a connection, in the order of their calls.
    waiting: VecDeque<Waiting>,
    /// When the resolver last judged the server, or began to.
    judged: Moment,
    /// The bounds of the last batch.
    terms: Option<Terms>,
    /// Where the last connection led.
    address: Option<Arc<str>>,
    /// Where the one that is being made leads.
    trying: Option<Arc<str>>,
    connecting: bool,
    /// A task keeps the node connected.
    tended: bool,
    /// The last server process, and the most replicas that followed it.
    replicas: Option<(Arc<str>, Arc<AtomicU32>)>,
    failures: u32,
    /// Sessions in a row that ended before they answered anything that was asked of them.
    flaps: u32,
    /// The last failed try.
    failed: Option<Failed>,
}

/// A failed try to connect.
struct Failed {
    /// Not to be repeated before.
    until: Moment,
    /// Not to be repeated before without a call.
    idle_until: Moment,
    cause: NodeError,
    /// The resolver's version then: after a new one it is tried again at once.
    epoch: u64,
}

struct Current {
    session: Arc<Session>,
    /// `host:port` of the server.
    at: Arc<str>,
    /// What waits for this server's replicas.
    barriers: Arc<Barriers>,
    /// The resolver's version when the session's address was requested.
    epoch: u64,
    opened: Moment,
}

impl<R: Resolver> Link<R> {
    /// A link that connects at its first call.
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

    /// Where the addresses come from.
    pub(crate) fn resolver(&self) -> &R {
        &self.shared.resolver
    }

    /// Why there is no connection at present, if one was tried.
    pub(crate) fn trouble(&self) -> Option<NodeError> {
        let state = self.shared.state();
        let failed = state.failed.as_ref().filter(|_| state.current.is_none())?;
        Some(failed.cause.clone())
    }

    /// Where the last connection led, as `host:port`.
    pub(crate) fn address(&self) -> Option<Arc<str>> {
        self.shared.state().address.clone()
    }

    /// The `run_id` of the server at the other end, while there is a connection.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        let state = self.shared.state();
        let current = state.current.as_ref().filter(|current| self.shared.is_usable(current))?;
        Some(Arc::clone(&current.session.facts().run_id))
    }

    /// Takes the facts that the present connection received when it was opened.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        let state = self.shared.state();
        let usable = state.current.as_ref().filter(|current| self.shared.is_usable(current));
        usable?.session.first_facts()
    }

    /// Hints of this node.
    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.shared.events.subscribe()
    }

    /// Executes a batch by `deadline`. It leaves now, or behind those that wait for a connection.
    pub(crate) fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        if Handle::try_current().is_err() {
            // Called before the runtime is entered: it leaves when it is polled.
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
                // For a person, who has to know which server to change.
                NodeFault::Auth | NodeFault::NoPermission => {
                    Replies::fail(n, &e.at(&doubt.current.at, ""))
                }
                _ => Replies::fail(n, &e),
            })
        })
    }

    /// Waits until replicas have what the server granted. Only while the connection that granted is
    /// in order: after any doubt about it the server may be another one.
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
        // Nothing that holds the lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present connection, unless it is lost or led to a server that is no longer the one.
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

    /// Uses a connection no longer; `broke`: it may have been broken before it answered anything.
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

    /// Why nothing connects at present, if that is so.
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
            // Nobody waits for it any more: nothing to do.
            let _ = waiting.sent.send(Err(cause));
        }
        self.turns.send_modify(|n| *n = n.wrapping_add(1));
    }
}

fn cut_off() -> NodeError {
    NodeError::not_executed(NodeFault::Unreachable, "connecting was cut off")
}

/// A try to connect; ends even if its task is cut off by the end of its runtime before it has run.
struct Turn<R: Resolver> {
    shared: Arc<Shared<R>>,
    epoch: u64,
    outcome: Option<Result<Current, NodeError>>,
}

impl<R: Resolver> Turn<R> {
    fn new(shared: &Arc<Shared<R>>) -> Self {
        // Read before the address is asked for: a change in between makes the session stale.
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
                // No use in waiting for a frozen server that is no longer the one.
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
        // Notify before the rest of the work.
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

/// While it exists, dropping it discards the session: a call that was given up midway leaves an
/// answer behind that nobody awaits, and after a time-out nobody knows what may come.
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

/// Ends when the resolver's version is no longer `epoch`.
async fn moved_on(changed: &mut watch::Receiver<u64>, epoch: u64) {
    if changed.wait_for(|now| *now != epoch).await.is_err() {
        // The resolver is gone or never changes its mind.
        std::future::pending::<()>().await;
    }
}
