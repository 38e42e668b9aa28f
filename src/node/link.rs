//! The connection of a node to its server. The connection is closed and opened again if it is
//! unclear which answers will still arrive, for example after a time-out.
//!
//! A [`Link`] has at most one [`Session`]. A [`Resolver`] finds the address of the server. The
//! address is fixed for a `RedisNode`, and comes from the Sentinels for a `SentinelNode`. The first
//! call connects to the server; after that the module [`tend`] keeps the node connected. Each try
//! to connect has its own task, so the deadline of a call does not interrupt the try. After a
//! failed try there is a pause with jitter. During this pause all calls fail at once with the cause
//! of the failed try.
//!
//! Batches are sent in the order of the calls. Without a connection a batch waits in a queue. A new
//! connection first sends the batches of the queue, and then other batches.

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

use self::order::{Place, Waiting};
use self::redial::Failed;
use super::redis::barrier::Barriers;
use super::redis::barrier::replicas::Known;
use super::redis::encode::GroupTerms;
use super::redis::facts::ServerFacts;
use super::redis::faults;
use super::redis::session::Session;
use super::{BoxFuture, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::op::{Batch, Remembered, Replies, Terms, TimedFacts};
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Number of signals (hints and events of the node) that are kept for a slow listener. Older
/// signals are dropped.
const EVENTS: usize = 1024;
/// Interval at which the server's facts are read again, so that the [`Resolver`] can check that the
/// server may still vote (its grants count).
const JUDGE_EVERY: Duration = Duration::from_secs(10);

/// Largest number of unanswered batches on a connection to a server that answers in order. A handle
/// (`Redlock`) sends fewer at once from its queue for the node.
pub(crate) const DEPTH: usize = 8;

/// Finds the server of a node, and decides if the server's answers count as votes.
pub(crate) trait Resolver: Send + Sync + 'static {
    /// Returns the server to connect to. Must return before `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    /// Returns a version that changes with the master or its epoch (Sentinel's number of a
    /// configuration). After a change the connection must not be used, and unanswered calls on it
    /// end as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Returns true if `accept` needs the min-replicas settings in [`ServerFacts`].
    fn wants_min_replicas_facts(&self) -> bool {
        true
    }

    /// Returns advice for the error of an unreachable server.
    fn hint(&self) -> &'static str {
        ""
    }

    /// Returns true if the connection to the server uses TLS.
    fn is_tls(&self) -> bool;

    /// Checks the facts of a server. Returns an error if the server must not vote. Called for each
    /// new connection, and with new facts at most every ten seconds during its use.
    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError>;

    /// Reads the settings of the group's other servers, after `accept` has accepted this server.
    fn follow_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the replicas of the server, including replicas that are down. Returns `None` if this
    /// resolver (which finds the node's server) has no list of replicas. The number of connected
    /// replicas is used then.
    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(None)
    }

    /// Returns the terms of the min-replicas check for every batch after `accept`: the time for
    /// which a replaced master may still accept writes, and the number of replicas that must have
    /// acknowledged. Where they belong to a master, they change no earlier than the version.
    /// Default: none.
    fn group_terms(&self) -> GroupTerms {
        GroupTerms::ALONE
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// If true, a server without the key `palisade:generation` counts as new and grants at once. If
    /// false, it grants nothing at first (quarantine), because it may have lost its data.
    pub(crate) trust_fresh: bool,
    /// If true, a server may vote that deletes keys when its memory is full.
    pub(crate) allow_eviction: bool,
    pub(crate) name: Arc<str>,
    /// Longest time for one try to find the address, connect and log in.
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
    /// Number of ended tries to connect.
    turns: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Current>>,
    /// Batches that wait for a connection, in the order of the calls.
    waiting: VecDeque<Waiting>,
    /// Start of the resolver's last check of the server.
    judged: Moment,
    /// Terms and memory of the last batch, for a connection's first request.
    last: Option<(Terms, Remembered)>,
    /// Address (`host:port`) of the last connection.
    address: Option<Arc<str>>,
    /// Address of the server to which a task is connecting now.
    trying: Option<Arc<str>>,
    connecting: bool,
    /// True while a task of the module `tend` keeps the node connected.
    tended: bool,
    /// `run_id` of the last server process, and its largest number of replicas so far.
    replicas: Option<(Arc<str>, Arc<AtomicU32>)>,
    failures: u32,
    /// Number of consecutive sessions (connections) that ended before the server first answered an
    /// op.
    flaps: u32,
    /// The last try to connect, if that try failed.
    failed: Option<Failed>,
}

struct Current {
    session: Arc<Session>,
    /// Address of the server, as `host:port`.
    at: Arc<str>,
    /// Waits (with `WAIT`) until enough replicas of this server have received a batch's grants.
    barriers: Arc<Barriers>,
    /// Version of the resolver (a number that changes with the master) when the address was
    /// requested.
    version: u64,
    opened: Moment,
}

impl<R: Resolver> Link<R> {
    /// Makes a link, which is a node's connection. The first call connects to the server.
    pub(crate) fn new(resolver: R, options: LinkOptions) -> Self {
        let shared = Shared {
            changed: resolver.changed(),
            resolver,
            options,
            events: broadcast::Sender::new(EVENTS),
            state: SyncMutex::default(),
            turns: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn resolver(&self) -> &R {
        &self.shared.resolver
    }

    /// Returns the reason for a missing connection. Returns `None` if there is a connection, or if
    /// no try has failed yet.
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

    /// Returns the facts that the server reported when the connection was opened; `None` at all
    /// later calls.
    pub(crate) fn first_facts(&self) -> Option<TimedFacts> {
        let state = self.shared.state();
        let usable = state.current.as_ref().filter(|current| self.shared.is_usable(current));
        usable?.session.first_facts()
    }

    /// Returns a receiver of this node's signals (hints and events).
    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.shared.events.subscribe()
    }

    /// Executes a batch by `deadline`, after all batches that wait for a connection.
    pub(crate) fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        if Handle::try_current().is_err() {
            // There is no tokio runtime yet, so the batch is sent at the first poll of the future.
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
                    let detail = format!("no answer in the {rest:?} that were left for it");
                    Err(NodeError::maybe_executed(NodeFault::Timeout, detail))
                }
            };
            if done.is_ok() && n > 0 && doubt.current.session.prove() {
                shared.state().flaps = 0;
            }
            doubt.standing = done.as_ref().is_err_and(|e| faults::ends_session(e.fault()));
            done.unwrap_or_else(|e| match e.fault() {
                // A person has to correct this error, so the message contains the server.
                NodeFault::Auth | NodeFault::NoPermission => {
                    Replies::fail(n, &e.at(&doubt.current.at, ""))
                }
                _ => Replies::fail(n, &e),
            })
        })
    }

    /// Waits until replicas have the server's writes up to `after`. Fails if the connection is no
    /// longer in use, because a new connection may lead to another server.
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
                && *shared.changed.borrow() == c.version
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
            passed = current.barriers.pass(after.replication, level, known, deadline) => passed,
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

    /// Returns the connection with its terms, if it may be used. Starts a check of its server if a
    /// check is due.
    fn usable(self: &Arc<Self>, batch: &Batch) -> Option<(Arc<Current>, GroupTerms)> {
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
            self.terms_at(current.version).filter(|_| !current.session.is_lost())
        else {
            self.part_with(&current, current.session.is_lost());
            return None;
        };
        if judge {
            tokio::spawn(Self::judge(Arc::clone(self), Arc::clone(&current)));
        }
        Some((current, group_terms))
    }

    fn is_usable(&self, current: &Current) -> bool {
        !current.session.is_lost() && *self.changed.borrow() == current.version
    }

    /// Stops the use of a connection. If `broke` is true, the connection counts as failed, unless
    /// the server has answered an op on it.
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
        let detail = self.late("still connecting when the deadline passed");
        NodeError::not_executed(NodeFault::Unreachable, detail)
    }

    /// Returns the terms for a connection of this version; `None` if there is a later one.
    fn terms_at(&self, version: u64) -> Option<GroupTerms> {
        let LinkOptions { trust_fresh, allow_eviction, .. } = self.options;
        let group_terms = GroupTerms { trust_fresh, allow_eviction, ..self.resolver.group_terms() };
        // The version comes second: it changes no later than the terms, which name one master only
        // (sentinel 10).
        (*self.changed.borrow() == version).then_some(group_terms)
    }
}

fn cut_off() -> NodeError {
    NodeError::not_executed(NodeFault::Unreachable, "connecting was cut off")
}

/// The session (connection) of a call that may end without an answer. If `standing` is true at the
/// drop of this value, the session is no longer used. A dropped call leaves a reply without a
/// reader. After a time-out it is unknown which replies will still arrive.
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

/// Waits until the version of the resolver, which changes with the master, differs from `version`.
async fn moved_on(changed: &mut watch::Receiver<u64>, version: u64) {
    if changed.wait_for(|now| *now != version).await.is_err() {
        // The resolver was dropped, so the version never changes again.
        std::future::pending::<()>().await;
    }
}

/// Implements [`LockNode`](super::LockNode) for a node with the fields `name` and `link`. Methods
/// with a default can follow after the type.
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
                Box::pin(self.link.barrier(after, level, deadline))
            }

            /// Returns the number of batches that may be under way at once. All batches share one
            /// connection, and the server answers in the order of the requests.
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
