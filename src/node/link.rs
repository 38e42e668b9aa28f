//! A node's connection over its lifetime: found, used, thrown away at the first doubt, found again.
//!
//! [`Link`] holds at most one [`Session`]. Where the server is it asks a [`Resolver`]: a fixed
//! address for `RedisNode`, the Sentinels for `SentinelNode`. The first call connects; from then on
//! [`tend`] keeps the node connected. Connecting runs in a task of its own,
//! so that a call with a short deadline does not start it over; a failed try is not repeated before
//! a jittered pause, and calls in between are answered at once with the last cause.

mod open;
mod tend;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};

use super::redis::barrier::Barriers;
use super::redis::barrier::replicas::Known;
use super::redis::encode::Guarding;
use super::redis::facts::ServerFacts;
use super::redis::faults;
use super::redis::session::Session;
use super::{BoxFuture, NodeEvent};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::op::{Batch, Replies, Terms};
use crate::time::Moment;

/// Hints a slow listener may miss before the oldest are dropped.
const EVENTS: usize = 1024;
/// First and longest pause between tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often the resolver judges the server by fresh facts.
const JUDGE_EVERY: Duration = Duration::from_secs(10);

/// Batches that may be under way at once on a connection, for the server answers in order; more
/// than a lane has use for.
pub(crate) const DEPTH: usize = 8;

/// Where the master is.
pub(crate) trait Resolver: Send + Sync + 'static {
    /// Finds the server to connect to, by `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    /// Changes its value whenever the present connection shall not be used any longer (another
    /// master was named, or the present one is said to be down). Calls under way on the old
    /// connection end as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Whether [`ServerFacts`] shall hold the min-replicas settings.
    fn wants_guard_facts(&self) -> bool {
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
        events: &broadcast::Sender<NodeEvent>,
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
    fn guarding(&self) -> Guarding {
        Guarding::ALONE
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
    /// Clock and dice.
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
    events: broadcast::Sender<NodeEvent>,
    state: Mutex<State>,
    /// Whose turn it is to send: calls leave in the order in which they were made, also those that
    /// waited for a connection.
    order: tokio::sync::Mutex<()>,
    /// Counts the tries to connect that have ended.
    turns: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// The bounds of the last batch.
    terms: Option<Terms>,
    /// Where the last connection led.
    address: Option<Arc<str>>,
    /// Where the one that is being made leads.
    trying: Option<Arc<str>>,
    connecting: bool,
    /// A task keeps the node connected.
    tended: bool,
    /// The data history of the last server that was met.
    met: Option<u64>,
    /// The last server process, and how many replicas followed it at the most.
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
    cause: NodeError,
    /// The resolver's word then: a new one is worth a try at once.
    epoch: u64,
}

#[derive(Clone)]
struct Current {
    session: Arc<Session>,
    /// `host:port` of the server.
    at: Arc<str>,
    /// What waits for this server's replicas.
    barriers: Arc<Barriers>,
    /// The resolver's word when the session's address was asked for.
    epoch: u64,
    opened: Moment,
    /// When the resolver last judged the server, or began to.
    judged: Moment,
}

impl<R: Resolver> Link<R> {
    /// A link that connects at its first call.
    pub(crate) fn new(resolver: R, options: LinkOptions) -> Self {
        let changed = resolver.changed();
        let shared = Shared {
            resolver,
            options,
            changed,
            events: broadcast::Sender::new(EVENTS),
            state: Mutex::default(),
            order: tokio::sync::Mutex::default(),
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

    /// Hints of this node.
    pub(crate) fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.shared.events.subscribe()
    }

    /// Executes a batch by `deadline`.
    pub(crate) async fn call(&self, batch: Batch, deadline: Moment) -> Replies {
        let n = batch.ops.len();
        let shared = &*self.shared;
        shared.state().terms = Some(batch.terms);
        let turn = if let Ok(turn) = shared.order.try_lock() {
            turn
        } else {
            let wait = deadline.since(shared.options.env.now());
            let Ok(turn) = timeout(wait, shared.order.lock()).await else {
                return Replies::fail(n, &shared.too_late());
            };
            turn
        };
        let current = match self.current(deadline).await {
            Ok(current) => current,
            Err(e) => return Replies::fail(n, &e),
        };
        let mut rest = deadline.since(shared.options.env.now());
        if !current.session.is_in_order() {
            let _ = timeout(rest, current.session.in_order()).await;
            rest = deadline.since(shared.options.env.now());
        }
        if rest.is_zero() {
            let detail = "the deadline passed before the request was sent";
            return Replies::fail(n, &NodeError::not_executed(NodeFault::Timeout, detail));
        }
        let mut doubt = Doubt { shared, current: &current, standing: true };
        let mut changed = shared.changed.clone();
        let call = current.session.call(&batch, shared.guarding());
        tokio::pin!(call);
        // Its first step puts it on the way; then the next one may leave.
        let first = poll!(call.as_mut());
        drop(turn);
        let answer = async {
            match first {
                Poll::Ready(done) => done,
                Poll::Pending => call.await,
            }
        };
        let done = tokio::select! {
            biased;
            done = answer => done,
            () = moved_on(&mut changed, current.epoch) => {
                let detail = "the Sentinels took this master down while the request was under way";
                Err(NodeError::maybe_executed(NodeFault::Disconnected, detail))
            }
            () = sleep(rest) => {
                let detail = format!("no answer within {rest:?}");
                Err(NodeError::maybe_executed(NodeFault::Timeout, detail))
            }
        };
        if done.is_ok() && n > 0 && current.session.prove() {
            shared.state().flaps = 0;
        }
        doubt.standing = done.as_ref().is_err_and(|e| faults::ends_session(e.fault()));
        done.unwrap_or_else(|e| match e.fault() {
            // For a person, who has to know which server to change.
            NodeFault::Auth | NodeFault::NoPermission => Replies::fail(n, &e.at(&current.at, "")),
            _ => Replies::fail(n, &e),
        })
    }

    /// Waits until replicas have what the server granted. Only while the connection that granted
    /// stands: after any doubt about it nobody knows whether the server is still the one.
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
            passed = current.barriers.pass(after.generation, level, known, deadline) => passed,
            () = moved_on(&mut changed, current.epoch) => {
                not_durable("the Sentinels took this master down before replicas had it".to_owned())
            }
            () = sleep(rest) => {
                not_durable(format!("not known to be on {level} within {} ms", rest.as_millis()))
            }
        }
    }

    /// The present session, or a new one by `deadline`.
    async fn current(&self, deadline: Moment) -> Result<Current, NodeError> {
        let env = &self.shared.options.env;
        let mut turns = self.shared.turns.subscribe();
        loop {
            let connect = {
                let mut state = self.shared.state();
                if let Some(mut current) = state.current.clone() {
                    if !current.session.is_lost() && *self.shared.changed.borrow() == current.epoch
                    {
                        let now = env.now();
                        if now.since(current.judged) >= JUDGE_EVERY {
                            current.judged = now;
                            state.current = Some(current.clone());
                            tokio::spawn(Shared::judge(Arc::clone(&self.shared), current.clone()));
                        }
                        return Ok(current);
                    }
                    if current.session.is_lost() {
                        self.shared.flapped(&mut state, &current);
                    }
                    current.session.abandon();
                    state.current = None;
                }
                let idle = !state.connecting;
                if idle {
                    match &state.failed {
                        Some(f)
                            if env.now() < f.until && f.epoch == *self.shared.changed.borrow() =>
                        {
                            return Err(f.cause.clone());
                        }
                        _ => {}
                    }
                    state.connecting = true;
                }
                idle
            };
            if connect {
                // Outside of the lock: a runtime that shuts down drops the task here and now.
                tokio::spawn(Turn::new(&self.shared).connect());
            }
            let rest = deadline.since(env.now());
            if timeout(rest, turns.changed()).await.is_err() {
                return Err(self.shared.too_late());
            }
        }
    }
}

impl<R: Resolver> Shared<R> {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn too_late(&self) -> NodeError {
        let detail = self.late("still connecting when the deadline passed");
        NodeError::not_executed(NodeFault::Unreachable, detail)
    }

    fn guarding(&self) -> Guarding {
        let trust_fresh = self.options.trust_fresh;
        Guarding { trust_fresh, ..self.resolver.guarding() }
    }

    fn ended(&self, epoch: u64, outcome: Result<Current, NodeError>) {
        let mut state = self.state();
        state.connecting = false;
        match outcome {
            Ok(current) => {
                state.address = Some(Arc::clone(&current.at));
                state.trying = None;
                state.current = Some(current);
                state.failures = 0;
                state.failed = None;
                NodeEvent::Up.log(&self.options.name);
                let _ = self.events.send(NodeEvent::Up);
            }
            Err(cause) => {
                if state.failures == 0 {
                    let node = &*self.options.name;
                    tracing::warn!(
                        target: "palisade::node", node, event = "down", %cause, "node lost"
                    );
                    let _ = self.events.send(NodeEvent::Down);
                }
                let pause = self.pause(state.failures);
                state.failures = state.failures.saturating_add(1);
                let until = self.options.env.now() + pause;
                state.failed = Some(Failed { until, cause, epoch });
            }
        }
        drop(state);
        self.turns.send_modify(|n| *n = n.wrapping_add(1));
    }
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
        let epoch = self.epoch;
        let limit = self.shared.options.connect_timeout;
        let mut changed = self.shared.changed.clone();
        let outcome = tokio::select! {
            biased;
            done = self.shared.open(epoch) => done,
            // No use in waiting for a frozen server that is no longer the one.
            () = moved_on(&mut changed, epoch) => {
                let detail = "another master was named while connecting";
                Err(NodeError::not_executed(NodeFault::NotMaster, detail))
            }
            () = sleep(limit) => {
                let detail = self.shared.late(&format!("no connection within {limit:?}"));
                Err(NodeError::not_executed(NodeFault::Unreachable, detail))
            }
        };
        let connected = outcome.is_ok();
        self.outcome = Some(outcome);
        let shared = Arc::clone(&self.shared);
        // Told before the rest is seen to.
        drop(self);
        if connected {
            shared.tend();
            shared.resolver.follow_up().await;
        }
    }
}

impl<R: Resolver> Drop for Turn<R> {
    fn drop(&mut self) {
        let cut = || Err(NodeError::not_executed(NodeFault::Unreachable, "connecting was cut off"));
        self.shared.ended(self.epoch, self.outcome.take().unwrap_or_else(cut));
    }
}

/// As long as it stands, dropping it throws the session away: a call that was given up midway
/// leaves an answer behind that nobody awaits, and after a time-out nobody knows what may come.
struct Doubt<'a, R: Resolver> {
    shared: &'a Shared<R>,
    current: &'a Current,
    standing: bool,
}

impl<R: Resolver> Drop for Doubt<'_, R> {
    fn drop(&mut self) {
        if !self.standing {
            return;
        }
        let mut state = self.shared.state();
        if state.current.as_ref().is_some_and(|c| Arc::ptr_eq(&c.session, &self.current.session)) {
            state.current = None;
            self.shared.flapped(&mut state, self.current);
        }
        drop(state);
        self.current.session.abandon();
    }
}

/// Ends when the resolver's word is no longer `epoch`.
async fn moved_on(changed: &mut watch::Receiver<u64>, epoch: u64) {
    if changed.wait_for(|now| *now != epoch).await.is_err() {
        // The resolver is gone or never changes its mind.
        std::future::pending::<()>().await;
    }
}
