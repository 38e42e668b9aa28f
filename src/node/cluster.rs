//! A Redis or Valkey Cluster as one node with one vote. Each slot is a part of it, with a marker, a
//! data history and a queue of its own, and the owner that a majority of the masters names; a
//! master has one connection for all of its slots.

mod builder;
pub(crate) mod map;
pub(crate) mod nodes;
pub(crate) mod owners;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch as channel};
use tokio::time::timeout;

pub use self::builder::{ClusterNodeBuilder, ClusterSettings};
use self::map::WORD;
use self::nodes::Id;
use self::watch::{Asking, Topology};
use super::builder::{NodeBuilder, NodeSettings};
use super::link::{self, DEPTH, Link, LinkOptions, Resolver};
use super::min_replicas::{Group, Judge};
use super::min_replicas_rule::{MinReplicas, MinReplicasRule};
use super::redis::barrier::replicas::Known;
use super::redis::encode::{GroupTerms, Named, keys};
use super::redis::facts::{ServerFacts, Wants};
use super::redis::session::Session;
use super::{BoxFuture, FailoverTimes, LockNode, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::dial::wire::Wire;
use crate::durability::{BarrierPoint, Durability};
use crate::error::{Cause, ConfigError, NodeError, NodeFault};
use crate::name::slot_of;
use crate::op::{Batch, Op, Remembered, Replies};
use crate::sync::SyncMutex;
use crate::time::Moment;

/// A Redis or Valkey Cluster as a node, which has one vote.
///
/// ```no_run
/// use palisade::node::ClusterNode;
/// # fn main() -> Result<(), palisade::error::ConfigError> {
/// let node = ClusterNode::builder(["c1:6379", "c2:6379", "c3:6379"])
///     .password("the servers' password")
///     .build()?;
/// # drop(node);
/// # Ok(())
/// # }
/// ```
///
/// The keys of a name are in one slot. A slot whose master was replaced, or that moved to another
/// master, grants nothing for `max_ttl` plus the failover window, and the other slots go on. The
/// failover window is twice the largest `cluster-node-timeout` of the servers, and one second, and
/// no less than six seconds.
///
/// The node asks all masters who owns which slot, every two seconds or sooner. An owner counts that
/// a majority of the masters names with its epoch. So a cluster needs three masters:
/// one with a single master is refused, and one with two grants nothing while one of them is down.
pub struct ClusterNode {
    url: Arc<str>,
    cluster: Arc<Cluster>,
}

struct Cluster {
    name: Arc<str>,
    topology: Arc<Topology>,
    options: LinkOptions,
    rule: MinReplicasRule,
    events: broadcast::Sender<NodeSignal>,
    links: SyncMutex<BTreeMap<Id, Arc<Link<Master>>>>,
    asking: SyncMutex<Option<Asking>>,
}

impl ClusterNode {
    /// Makes a node for the cluster that has a server at one of these addresses (`host:port`), with
    /// the defaults of [`ClusterNode::builder`].
    ///
    /// # Errors
    /// An address is not `host:port`, or there is none.
    pub fn new<I>(servers: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::builder(servers).build()
    }

    /// Returns a builder for the cluster that has a server at one of these addresses (`host:port`).
    /// The servers name the others, so give some on different machines.
    pub fn builder<I>(servers: I) -> ClusterNodeBuilder
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let own = ClusterSettings::new(servers.into_iter().map(Into::into));
        let data = Endpoint::anywhere();
        NodeBuilder::new(own.map(|own| NodeSettings::new(data, MinReplicas::Off, own)))
    }
}

impl Cluster {
    /// Within a runtime.
    fn start(&self) {
        let mut asking = self.asking.lock();
        if asking.as_ref().is_none_or(Asking::is_over) {
            *asking = Some(self.topology.start());
        }
    }

    /// The connection to the slot's owner, with the word that names it.
    fn owner(&self, slot: u16) -> Result<(Arc<Link<Master>>, link::Slot), NodeError> {
        let map = self.topology.map.lock();
        let word = map.word(slot)?;
        let named = Named {
            epoch: Some(word.epoch),
            until: Some(word.asked + WORD),
            since: Some(word.since),
            disturbed: word.disturbed,
        };
        let mut links = self.links.lock();
        if !links.contains_key(&word.owner) {
            links.retain(|id, _| map.owns(id));
        }
        let link = links.entry(word.owner.clone()).or_insert_with(|| {
            let master = Master {
                id: word.owner.clone(),
                topology: Arc::clone(&self.topology),
                judge: Judge::new(Arc::clone(&self.name), self.rule),
                never: channel::Sender::new(0),
            };
            let events = self.events.clone();
            Arc::new(Link::with_events(master, self.options.clone(), events))
        });
        Ok((Arc::clone(link), link::Slot { number: slot, named }))
    }

    fn call(
        self: &Arc<Self>,
        slot: u16,
        batch: Batch,
        deadline: Moment,
    ) -> BoxFuture<'static, Replies> {
        let cluster = Arc::clone(self);
        if Handle::try_current().is_err() {
            // No runtime yet: sent at the first poll.
            return Box::pin(async move { cluster.call(slot, batch, deadline).await });
        }
        self.start();
        let n = batch.ops.len();
        match self.owner(slot) {
            Ok((link, of)) => {
                let sent = link.call_in(Some(of), batch, deadline);
                Box::pin(async move { cluster.heeded((of, &link), sent.await) })
            }
            Err(_) => Box::pin(async move {
                let mut rounds = cluster.topology.rounds();
                cluster.topology.prompt();
                let rest = deadline.since(cluster.topology.env.now());
                let _ = timeout(rest, rounds.changed()).await;
                match cluster.owner(slot) {
                    Ok((link, of)) => {
                        let replies = link.call_in(Some(of), batch, deadline).await;
                        cluster.heeded((of, &link), replies)
                    }
                    Err(why) => Replies::fail(n, &why),
                }
            }),
        }
    }

    /// An answer that another server may have to give makes the next question come sooner.
    fn heeded(&self, (of, at): (link::Slot, &Link<Master>), mut replies: Replies) -> Replies {
        let slot = of.number;
        let code = |e: &NodeError| match e.cause() {
            Some(Cause::Server(code)) => Some(code.clone()),
            _ => None,
        };
        let is_one_of =
            |e: &NodeError, codes: &[&str]| code(e).is_some_and(|code| codes.contains(&&*code));
        let moves = |e: &NodeError| match e.fault() {
            NodeFault::Unreachable
            | NodeFault::Disconnected
            | NodeFault::Timeout
            | NodeFault::NoAgreement
            | NodeFault::NotMaster => true,
            _ => is_one_of(e, &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"]),
        };
        let errors = || replies.items.iter().filter_map(|item| item.as_ref().err());
        if replies.facts.is_none() && (replies.items.is_empty() || errors().any(moves)) {
            self.topology.prompt();
        }
        // (cluster 8).
        if errors().any(|e| is_one_of(e, &["ASK", "TRYAGAIN"])) {
            let now = self.topology.env.now();
            self.topology.map.lock().disturb(slot, &at.resolver().id, now);
        }
        for item in &mut replies.items {
            if let Err(e) = item
                && e.fault() == NodeFault::NoAgreement
            {
                let map = self.topology.map.lock();
                if map.word(slot).is_ok_and(|word| word.asked < self.topology.since()) {
                    *e = map.doubt(slot);
                }
            }
        }
        replies
    }

    fn troubles(&self) -> Option<Arc<str>> {
        let since = self.topology.since();
        let map = self.topology.map.lock();
        let mut troubles = Vec::new();
        let unowned = map.unowned(since);
        if !unowned.is_empty() {
            let why = map.doubt(unowned[0].0);
            troubles.push(format!("{} have no owner: {}", shown(&unowned), why.detail()));
        }
        for (id, link) in &*self.links.lock() {
            let slots = map.slots_of(id);
            if let Some(why) = link.trouble().filter(|_| !slots.is_empty()) {
                troubles.push(format!("{} cannot be used: {why}", shown(&slots)));
            }
        }
        (!troubles.is_empty()).then(|| troubles.join("; ").into())
    }
}

/// `slots 0-99, 101 and 3 more ranges`.
fn shown(ranges: &[(u16, u16)]) -> String {
    let range = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let most = 4;
    let all: Vec<String> = ranges.iter().take(most).map(range).collect();
    let more = match ranges.len().saturating_sub(most) {
        0 => String::new(),
        n => format!(" and {n} more ranges"),
    };
    format!("slots {}{more}", all.join(", "))
}

/// One server of a cluster, as long as it is a master.
struct Master {
    id: Id,
    topology: Arc<Topology>,
    judge: Judge,
    never: channel::Sender<u64>,
}

impl Resolver for Master {
    fn resolve(&self, _deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
        let at = self.topology.map.lock().address(&self.id).cloned();
        let at = at.map(|at| self.topology.endpoint(&at)).ok_or_else(|| {
            let detail = "the cluster does not know this server any more";
            NodeError::not_executed(NodeFault::Unreachable, detail)
        });
        Box::pin(std::future::ready(at))
    }

    fn dial<'a>(&'a self, at: &'a Endpoint) -> BoxFuture<'a, Result<Wire, NodeError>> {
        Box::pin(Session::dial_in_cluster(at))
    }

    /// Another owner of a slot has another connection.
    fn changed(&self) -> channel::Receiver<u64> {
        self.never.subscribe()
    }

    fn wants(&self) -> Wants {
        Wants { min_replicas: self.judge.rule().policy != MinReplicas::Off, cluster: true }
    }

    fn hint(&self) -> &'static str {
        "; the cluster names this address: if this client reaches the server under another one \
         (NAT, containers), say which by `map_address`, or have the server announce it \
         (cluster-announce-ip)"
    }

    fn is_tls(&self) -> bool {
        self.topology.like.is_tls()
    }

    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError> {
        if facts.cluster_id.as_ref() != Some(&self.id) {
            let shown = facts.cluster_id.as_deref().unwrap_or("none");
            let detail = format!(
                "the server there has the id {shown}, and the owner has the id {}: the address \
                 has another server since, or `map_address` leads to another one",
                self.id
            );
            return Err(NodeError::not_executed(NodeFault::NotMaster, detail).at(at, ""));
        }
        self.judge.accept(at, facts, (Group::default(), Moment::default()), events)
    }

    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(Some(self.topology.map.lock().replicas(&self.id)))
    }

    fn group_terms(&self) -> GroupTerms {
        let window = self.topology.window();
        GroupTerms {
            failover_window: window,
            unread_window: window,
            widest_window: self.topology.widest_window(),
            ..self.judge.group_terms()
        }
    }
}

impl LockNode for ClusterNode {
    /// Ops in different slots are executed by different servers, in no order. The facts are those
    /// of the first op's slot.
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let mut parts = BTreeMap::<u16, Vec<usize>>::new();
        let mut items: Vec<Option<Result<_, NodeError>>> = Vec::new();
        let mut first = None;
        for (n, op) in batch.ops.iter().enumerate() {
            let slot = slot_in(op);
            items.push(slot.as_ref().err().map(|e| Err(e.clone())));
            if let Ok(slot) = slot {
                first.get_or_insert(slot);
                parts.entry(slot).or_default().push(n);
            }
        }
        let first = *first.get_or_insert(0);
        parts.entry(first).or_default();
        // Each slot has data of its own, and what is remembered may be of another one.
        let remembers = Remembered::of(batch.remembers.newest.deployment);
        let all = batch.ops;
        let whole = Batch { remembers, ops: Vec::new(), ..batch };
        let calls: Vec<_> = parts
            .into_iter()
            .map(|(slot, places)| {
                let ops = places.iter().map(|n| all[*n].clone()).collect();
                let call = self.cluster.call(slot, Batch { ops, ..whole.clone() }, deadline);
                async move { (slot, places, call.await) }
            })
            .collect();
        Box::pin(async move {
            let mut facts = None;
            for (slot, places, replies) in join_all(calls).await {
                if slot == first {
                    facts = replies.facts;
                }
                for (n, item) in places.into_iter().zip(replies.items) {
                    items[n] = Some(item);
                }
            }
            Replies { facts, items: items.into_iter().flatten().collect() }
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.cluster.events.subscribe()
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.cluster.name)
    }

    fn url(&self) -> Arc<str> {
        Arc::clone(&self.url)
    }

    fn failover(&self) -> Option<FailoverTimes> {
        Some(self.cluster.failover())
    }

    fn part_of(&self, op: &Op) -> Option<Result<u16, NodeError>> {
        Some(slot_in(op))
    }

    fn part(&self, part: u16) -> Option<Arc<dyn LockNode>> {
        let name = format!("{} slot {part}", self.cluster.name).into();
        Some(Arc::new(SlotNode { slot: part, name, cluster: Arc::clone(&self.cluster) }))
    }

    fn troubles(&self) -> Option<Arc<str>> {
        self.cluster.troubles()
    }
}

impl Cluster {
    fn failover(&self) -> FailoverTimes {
        let (down_after, window) = (self.topology.node_timeout(), self.topology.window());
        FailoverTimes { down_after, window }
    }
}

/// All keys of an op are in one slot, as a server executes it whole or not at all.
fn slot_in(op: &Op) -> Result<u16, NodeError> {
    let (mut first, mut is_split) = (None, false);
    keys(op, true, |key| {
        let slot = slot_of(key);
        is_split |= *first.get_or_insert(slot) != slot;
    });
    if !is_split {
        return Ok(first.unwrap_or(0));
    }
    let detail = if op.several().is_some() {
        "the names are in different slots of the cluster, and only those of one slot can be locked \
         together: give them a common part in braces, as in {order-7}:stock and {order-7}:invoice"
    } else {
        "the name has a } and no part in braces, so its keys would be in different slots of the \
         cluster: use another name"
    };
    Err(NodeError::not_executed(NodeFault::Unsupported, detail))
}

/// A slot of a cluster.
struct SlotNode {
    slot: u16,
    name: Arc<str>,
    cluster: Arc<Cluster>,
}

impl SlotNode {
    fn link(&self) -> Option<Arc<Link<Master>>> {
        self.cluster.owner(self.slot).ok().map(|(link, _)| link)
    }
}

impl LockNode for SlotNode {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.cluster.call(self.slot, batch, deadline)
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(async move {
            let (link, _) = self.cluster.owner(self.slot).map_err(NodeError::after_execution)?;
            link.barrier(Some(self.slot), after, level, deadline).await
        })
    }

    /// The owner answers in order.
    fn depth(&self) -> usize {
        if self.server().is_some() { DEPTH } else { 1 }
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.cluster.events.subscribe()
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn failover(&self) -> Option<FailoverTimes> {
        Some(self.cluster.failover())
    }

    fn address(&self) -> Option<Arc<str>> {
        self.link()?.address()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.link()?.server()
    }
}

impl fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterNode").field("name", &self.cluster.name).finish_non_exhaustive()
    }
}
