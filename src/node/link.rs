//! The connection of a node to its server, closed and opened again when it is unclear which answers
//! will still arrive. Each try has its own task, so a call's deadline does not interrupt it; in the
//! pause after a failed one all calls fail at once with its cause. Batches are sent in the order of
//! the calls; those that wait for a connection go first.

mod open;
mod order;
mod redial;
mod tend;

use std::collections::VecDeque;
use std::future::ready;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use self::order::Waiting;
use self::redial::Failed;
use super::redis::barrier::Barriers;
use super::redis::barrier::replicas::Known;
use super::redis::encode::{GroupTerms, Named};
use super::redis::facts::{ServerFacts, Wants};
use super::redis::faults;
use super::redis::session::Session;
use super::{BoxFuture, NodeEvent, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::dial::login::Logins;
use crate::dial::wire::Wire;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{Commands, NodeError, NodeFault};
use crate::op::{Batch, Remembered, Replies, Terms, TimedFacts};
use crate::sync::SyncMutex;
use crate::time::Moment;

pub(super) const EVENTS: usize = 1024;
const JUDGE_EVERY: Duration = Duration::from_secs(10);

/// Unanswered batches on a connection. A handle sends fewer at once.
pub(crate) const DEPTH: usize = 8;

pub(crate) trait Resolver: Send + Sync + 'static {
    /// Must return before `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    fn dial<'a>(&'a self, at: &'a Endpoint) -> BoxFuture<'a, Result<Wire, NodeError>> {
        Box::pin(Session::dial(at))
    }

    /// Changes with the master or its epoch. After that the connection must not be used, and
    /// unanswered calls on it end as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    fn wants(&self) -> Wants {
        Wants { min_replicas: true, cluster: false }
    }

    fn hint(&self) -> &'static str {
        ""
    }

    fn is_tls(&self) -> bool;

    /// An error if the server must not vote. For each new connection, and at most every ten seconds
    /// during its use.
    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError>;

    /// After `accept`.
    fn follow_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Also those that are down. `None` without a list: then the connected replicas count.
    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(None)
    }

    /// For every batch after `accept`. They change no earlier than the version.
    fn group_terms(&self) -> GroupTerms {
        GroupTerms::ALONE
    }
}

/// A slot of a cluster, and the masters' last word on its owner, which is the server of this link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) number: u16,
    pub(crate) named: Named,
}

#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// A server without the marker is new and grants at once.
    pub(crate) trust_fresh: bool,
    pub(crate) allow_eviction: bool,
    /// As in [`GroupTerms`].
    pub(crate) trial: Option<u64>,
    pub(crate) name: Arc<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) env: Arc<dyn Env>,
}

pub(crate) struct Link<R> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    resolver: R,
    options: LinkOptions,
    changed: watch::Receiver<u64>,
    events: broadcast::Sender<NodeSignal>,
    state: SyncMutex<State>,
    turns: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Current>>,
    waiting: VecDeque<Waiting>,
    judged: Moment,
    last: Option<(Terms, Remembered)>,
    /// `host:port` of the last connection.
    address: Option<Arc<str>>,
    trying: Option<Arc<str>>,
    /// The connection that is made waits for its provider of credentials.
    wants_login: bool,
    connecting: bool,
    tended: bool,
    /// `run_id` of the last server process, and its largest number of replicas so far.
    replicas: Option<(Arc<str>, Arc<AtomicU32>)>,
    failures: u32,
    /// Consecutive sessions that ended before the server first answered an op.
    flaps: u32,
    failed: Option<Failed>,
}

struct Current {
    session: Arc<Session>,
    at: Arc<str>,
    barriers: Arc<Barriers>,
    version: u64,
    opened: Moment,
}

impl<R: Resolver> Link<R> {
    pub(crate) fn new(resolver: R, options: LinkOptions) -> Self {
        Self::with_events(resolver, options, broadcast::Sender::new(EVENTS))
    }

    pub(crate) fn with_events(
        resolver: R,
        options: LinkOptions,
        events: broadcast::Sender<NodeSignal>,
    ) -> Self {
        let shared = Shared {
            changed: resolver.changed(),
            resolver,
            options,
            events,
            state: SyncMutex::default(),
            turns: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Failures of these logins are the node's events.
    pub(crate) fn reporting(
        self,
        logins: impl IntoIterator<Item = (&'static str, Option<Arc<Logins>>)>,
    ) -> Self {
        for (whose, logins) in logins {
            let (events, name) = (self.shared.events.clone(), self.shared.options.name.clone());
            let report = move |why: &str| {
                let why = format!("login at the {whose}: {why}").into();
                let event = NodeEvent::LoginFailed { why };
                event.log(&name, &Commands::default());
                let _ = events.send(event.into());
            };
            if let Some(logins) = logins {
                logins.on_failure(report);
            }
        }
        self
    }

    pub(crate) fn resolver(&self) -> &R {
        &self.shared.resolver
    }

    pub(crate) fn trouble(&self) -> Option<NodeError> {
        let state = self.shared.state();
        let failed = state.failed.as_ref().filter(|_| state.current.is_none())?;
        Some(failed.cause.clone())
    }

    pub(crate) fn address(&self) -> Option<Arc<str>> {
        self.shared.state().address.clone()
    }

    pub(crate) fn server(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.shared.current()?.session.facts().run_id))
    }

    /// `None` at all later calls.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        self.shared.current()?.session.first_facts()
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.shared.events.subscribe()
    }

    pub(crate) fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'static, Replies> {
        self.call_in(None, batch, deadline)
    }

    /// For data in this slot.
    pub(crate) fn call_in(
        &self,
        slot: Option<Slot>,
        batch: Batch,
        deadline: Moment,
    ) -> BoxFuture<'static, Replies> {
        let shared = Arc::clone(&self.shared);
        if Handle::try_current().is_err() {
            // No runtime yet: sent at the first poll.
            let link = Self { shared };
            return Box::pin(async move { link.call_in(slot, batch, deadline).await });
        }
        let n = batch.ops.len();
        let rest = deadline.since(shared.options.env.now());
        let of = Arc::clone(&shared);
        let doubt = move |(current, sent)| {
            (Doubt { shared: Arc::clone(&of), current, standing: true }, sent)
        };
        let place = match shared.place(slot, Arc::new(batch)) {
            Ok(place) => place.map(&doubt),
            Err(cause) => return Box::pin(ready(Replies::fail(n, &cause))),
        };
        Box::pin(async move {
            let late = sleep(rest);
            tokio::pin!(late);
            let (mut doubt, sent) = match place {
                Ok(on_its_way) => on_its_way,
                Err(waits) => {
                    let sent = tokio::select! {
                        biased;
                        sent = waits => sent.unwrap_or_else(|_| Err(cut_off())),
                        () = late.as_mut() => Err(shared.too_late()),
                    };
                    match sent {
                        Ok(sent) => doubt(sent),
                        Err(cause) => return Replies::fail(n, &cause),
                    }
                }
            };
            let done = tokio::select! {
                biased;
                done = sent.answer() => done,
                () = late => {
                    let detail = format!("no answer in the {rest:?} that were left for it");
                    Err(NodeError::maybe_executed(NodeFault::Timeout, detail))
                }
            };
            if done.is_ok() && n > 0 && doubt.current.session.prove() {
                shared.state().flaps = 0;
            }
            doubt.standing = done.as_ref().is_err_and(|e| faults::ends_session(e.fault()));
            done.unwrap_or_else(|e| match e.fault() {
                // A person has to correct this, so the message names the server.
                NodeFault::Auth | NodeFault::Credentials | NodeFault::NoPermission => {
                    Replies::fail(n, &e.at(&doubt.current.at, ""))
                }
                _ => Replies::fail(n, &e),
            })
        })
    }

    /// A new connection may lead to another server.
    pub(crate) async fn barrier(
        &self,
        slot: Option<u16>,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> Result<u32, NodeError> {
        let shared = &*self.shared;
        let not_durable = |detail| Err(NodeError::maybe_executed(NodeFault::NotDurable, detail));
        let current = shared.current();
        let Some(current) = current.filter(|c| c.session.facts().run_id == after.identity) else {
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
            passed = current.barriers.pass((after.replication, slot), level, known, deadline) => {
                passed
            }
            () = moved_on(&mut changed, current.version) => {
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
        self.state.lock()
    }

    fn usable(
        self: &Arc<Self>,
        slot: Option<Slot>,
        batch: &Batch,
    ) -> Option<(Arc<Current>, GroupTerms)> {
        let now = self.options.env.now();
        let (current, judge) = {
            let mut state = self.state();
            state.last = Some((batch.terms, batch.remembers));
            let current = state.current.clone()?;
            let judge = now.since(state.judged) >= JUDGE_EVERY;
            if judge {
                state.judged = now;
            }
            (current, judge)
        };
        let Some(group_terms) =
            self.terms_in(slot, current.version).filter(|_| !current.session.is_lost())
        else {
            self.part_with(&current, current.session.is_lost());
            return None;
        };
        if judge {
            tokio::spawn(Self::judge(Arc::clone(self), Arc::clone(&current)));
        }
        Some((current, group_terms))
    }

    fn current(&self) -> Option<Arc<Current>> {
        let current = self.state().current.clone();
        current.filter(|current| self.is_usable(current))
    }

    fn is_usable(&self, current: &Current) -> bool {
        !current.session.is_lost() && *self.changed.borrow() == current.version
    }

    /// `broke`: counts as failed, unless the server has answered an op.
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
        if *self.changed.borrow() == current.version {
            current.session.abandon();
        } else {
            current
                .session
                .end("the Sentinels took this master down while the request was under way");
        }
    }

    fn too_late(&self) -> NodeError {
        self.late("still connecting when the deadline passed")
    }

    fn terms_in(&self, slot: Option<Slot>, version: u64) -> Option<GroupTerms> {
        let terms = self.terms_at(version)?;
        let Some(Slot { number, named }) = slot else { return Some(terms) };
        Some(GroupTerms { slot: Some(number), named: Some(named), ..terms })
    }

    /// Of this version; `None` if there is a later one.
    fn terms_at(&self, version: u64) -> Option<GroupTerms> {
        let LinkOptions { trust_fresh, allow_eviction, trial, .. } = self.options;
        let group_terms = self.resolver.group_terms();
        let group_terms = GroupTerms { trust_fresh, allow_eviction, trial, ..group_terms };
        // The version comes second: it changes no later than the terms, which name one master only
        // (sentinel 10).
        (*self.changed.borrow() == version).then_some(group_terms)
    }
}

fn cut_off() -> NodeError {
    NodeError::not_executed(NodeFault::Unreachable, "connecting was cut off")
}

/// A dropped call leaves a reply without a reader, and after a time-out it is unknown which replies
/// will still arrive.
struct Doubt<R: Resolver> {
    shared: Arc<Shared<R>>,
    current: Arc<Current>,
    standing: bool,
}

impl<R: Resolver> Drop for Doubt<R> {
    fn drop(&mut self) {
        if self.standing {
            self.shared.part_with(&self.current, true);
        }
    }
}

async fn moved_on(changed: &mut watch::Receiver<u64>, version: u64) {
    if changed.wait_for(|now| *now != version).await.is_err() {
        // The resolver was dropped.
        std::future::pending::<()>().await;
    }
}

macro_rules! node_over_link {
    ($node:ty; $($method:tt)*) => {
        impl $crate::node::LockNode for $node {
            fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
                self.link.call(batch, deadline)
            }

            fn barrier(
                &self,
                after: BarrierPoint,
                level: Durability,
                deadline: Moment,
            ) -> BoxFuture<'_, Result<u32, NodeError>> {
                Box::pin(self.link.barrier(None, after, level, deadline))
            }

            /// The server answers in order.
            fn depth(&self) -> usize {
                $crate::node::link::DEPTH
            }

            fn events(&self) -> broadcast::Receiver<NodeSignal> {
                self.link.events()
            }

            fn name(&self) -> Arc<str> {
                Arc::clone(&self.name)
            }

            fn url(&self) -> Arc<str> {
                Arc::clone(&self.url)
            }

            fn address(&self) -> Option<Arc<str>> {
                self.link.address()
            }

            fn first_facts(&self) -> Option<TimedFacts> {
                self.link.first_facts()
            }

            fn server(&self) -> Option<Arc<str>> {
                self.link.server()
            }

            $($method)*
        }
    };
}
pub(super) use node_over_link;
