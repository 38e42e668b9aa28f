//! A client of a simulated cluster: asks all masters who owns which slot, and sends each batch to
//! the owner that a majority named. Who is named is decided by the library's code; what is around
//! it here is there what the library does over sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};
use palisade::internal::{ClusterMap, ClusterRound, ClusterView, SlotWord, cluster_masters};
use palisade::node::spi::{
    Batch, BoxFuture, Env, Facts, LockNode, NodeSignal, NotAfter, Op, Replies,
};
use palisade::{Drift, Moment};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{ASK, Cluster, OURS, Request, THEIRS};
use crate::dice::Dice;
use crate::link::{Fate, Order, Peer, Turn, answered, pause, travel};
use crate::node::Job;
use crate::plan::{Ms, NetPlan, ms};
use crate::trace::Event;

/// Number of a client's batches that travel to a server at the same time.
const DEPTH: usize = 8;
/// Largest drift between two clocks. The clocks of these plans keep to it.
const DRIFT_PPM: u32 = 10_000;

/// What a client knows of the cluster.
struct Topology {
    client: usize,
    cluster: Arc<Cluster>,
    env: Arc<dyn Env>,
    net: Arc<Mutex<NetPlan>>,
    dice: Mutex<Dice>,
    deadline: Ms,
    map: Mutex<ClusterMap>,
    /// Ports of the servers that were owners of a slot by a word, also of those who were it before.
    followed: Mutex<BTreeSet<u16>>,
    told: Mutex<BTreeMap<u16, (u16, u64)>>,
    rounds: watch::Sender<u64>,
    prompt: Notify,
    /// For each server and slot, the process that answered last, its clock then, and this one's.
    clocks: Mutex<BTreeMap<(u16, u16), Clock>>,
    /// For each server, the signals of the last batch.
    last: Mutex<BTreeMap<u16, Arc<Last>>>,
}

type Clock = (Arc<str>, u64, Moment);
type Last = Mutex<Option<(Turn, Turn)>>;

/// A client's connections to all servers of the cluster.
pub(crate) struct ClusterLink {
    topology: Arc<Topology>,
    asking: Mutex<Option<JoinHandle<()>>>,
}

struct SlotLink {
    slot: u16,
    name: Arc<str>,
    topology: Arc<Topology>,
}

/// A slot at a server, as a word names it.
struct Owner {
    topology: Arc<Topology>,
    slot: u16,
    port: u16,
    word: SlotWord,
}

/// Returns the port of the server with this id.
fn port_of(id: &str) -> u16 {
    let first = if id.starts_with('s') { OURS } else { THEIRS };
    first + id[1..].trim_end_matches('x').parse::<u16>().unwrap_or_default()
}

impl Peer for Owner {
    fn arrive(&self, job: Job) {
        let SlotWord { epoch, since, disturbed, .. } = self.word;
        let Topology { cluster, client, env, .. } = &*self.topology;
        let window = cluster.window(*client);
        let disturbed = disturbed.map(|at| env.now().since(at));
        let (port, slot) = (self.port, self.slot);
        cluster.arrive(Request { port, slot, epoch, since, disturbed, window, job });
    }

    fn is_open(&self, _: bool) -> bool {
        self.topology.cluster.reaches(self.topology.client, self.port)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Topology {
    fn window(&self) -> Duration {
        self.cluster.window(self.client)
    }

    /// For how long a word counts after its question.
    fn word_lasts(&self) -> Duration {
        ms(self.cluster.plan.window)
    }

    async fn keep_asking(self: Arc<Self>) {
        loop {
            self.round().await;
            let floor = lock(&self.dice).range(2, 10);
            pause(floor).await;
            let rest = (self.window() / 6).saturating_sub(ms(floor));
            let _ = timeout(rest, self.prompt.notified()).await;
        }
    }

    async fn round(self: &Arc<Self>) {
        let asked = self.env.now();
        let seeds = (0..self.cluster.plan.masters).map(|n| OURS + n as u16);
        let known: BTreeSet<u16> = seeds.chain(lock(&self.followed).clone()).collect();
        let mut answers = self.ask_all(&known).await;
        let named = answers.iter().flat_map(|text| cluster_masters(text, false));
        let named: BTreeSet<u16> = named.map(|(_, port)| port).collect();
        let more = named.difference(&known).copied().collect();
        answers.extend(self.ask_all(&more).await);
        let views: Vec<_> =
            answers.iter().filter_map(|text| ClusterView::parse(text, false)).collect();
        let (heard, unbroken) = (self.env.now(), ms(self.cluster.plan.window) / 3);
        let mut map = lock(&self.map);
        let views = &views;
        map.decide(ClusterRound { views, asked, heard, unbroken, ..ClusterRound::default() });
        for slot in 0..self.cluster.plan.slots {
            let Ok(SlotWord { owner, epoch, .. }) = map.word(slot) else { continue };
            let (port, epoch) = (port_of(owner), *epoch);
            lock(&self.followed).insert(port);
            if lock(&self.told).insert(slot, (port, epoch)) != Some((port, epoch)) {
                let named = Event::Named { client: self.client, slot, port, epoch };
                self.cluster.world.tell(named);
            }
        }
        drop(map);
        self.rounds.send_modify(|n| *n = n.wrapping_add(1));
    }

    async fn ask_all(self: &Arc<Self>, whom: &BTreeSet<u16>) -> Vec<String> {
        let ask = |port: &u16| tokio::spawn(ask(Arc::clone(self), *port));
        let all: Vec<JoinHandle<Option<String>>> = whom.iter().map(ask).collect();
        let mut answers = Vec::new();
        for one in all {
            answers.extend(one.await.ok().flatten());
        }
        answers
    }

    fn owner(self: &Arc<Self>, slot: u16) -> Result<Owner, NodeError> {
        let word = lock(&self.map).word(slot)?.clone();
        let port = port_of(&word.owner);
        Ok(Owner { topology: Arc::clone(self), slot, port, word })
    }

    fn clock(&self, owner: &Owner) -> Option<Clock> {
        let server = self.cluster.server_of(owner.port, owner.slot);
        let known = lock(&self.clocks).get(&(owner.port, owner.slot)).cloned();
        known.filter(|(identity, ..)| server.as_ref() == Some(identity))
    }

    async fn call(self: Arc<Self>, slot: u16, batch: Batch, deadline: Moment) -> Replies {
        let n = batch.ops.len();
        let owner = if let Ok(owner) = self.owner(slot) {
            owner
        } else {
            let mut rounds = self.rounds.subscribe();
            self.prompt.notify_one();
            let _ = timeout(deadline.since(self.env.now()), rounds.changed()).await;
            match self.owner(slot) {
                Ok(owner) => owner,
                Err(why) => return Replies::fail(n, &why),
            }
        };
        let owner = Arc::new(owner);
        if self.clock(&owner).is_none() {
            // The first answer of a server shows the clock by which the word ends.
            let nothing = Batch { ops: Vec::new(), not_after: None, ..batch.clone() };
            let answer = self.send(&owner, nothing, deadline).await;
            if answer.facts.is_none() {
                let why = "no answer to the first question";
                return Replies::fail(n, &NodeError::not_executed(NodeFault::Unreachable, why));
            }
        }
        let replies = self.send(&owner, batch, deadline).await;
        if replies.facts.is_none() {
            self.prompt.notify_one();
        }
        let asks = |item: &Result<_, NodeError>| {
            item.as_ref().is_err_and(|e: &NodeError| e.detail() == ASK)
        };
        if replies.items.iter().any(asks) {
            lock(&self.map).disturb(slot, &owner.word.owner, self.env.now());
        }
        replies
    }

    async fn send(self: &Arc<Self>, owner: &Arc<Owner>, batch: Batch, deadline: Moment) -> Replies {
        let n = batch.ops.len();
        let now = self.env.now();
        let budget = deadline.since(now);
        if budget.is_zero() {
            let why = "the deadline passed before the request was sent";
            return Replies::fail(n, &NodeError::not_executed(NodeFault::Timeout, why));
        }
        let drift = Drift::from_ppm(DRIFT_PPM);
        let due = self.cluster.world.nanos()
            + (budget + budget * drift.ppm() / 1_000_000).as_nanos() as u64;
        let fate = Fate::draw(&self.dice, &self.net);
        let last = Arc::clone(lock(&self.last).entry(owner.port).or_default());
        let order = Order::after(&last);
        let (sender, receiver) = oneshot::channel();
        let batch = self.bounded(owner, batch);
        let peer = Arc::clone(owner) as Arc<dyn Peer>;
        tokio::spawn(travel(peer, fate, (self.client, due, batch), (order, sender)));
        let late = pin!(sleep(budget));
        tokio::select! {
            biased;
            replies = answered(receiver) => {
                if let Some(Facts { identity, node_micros, .. }) = &replies.facts {
                    let clock = (Arc::clone(identity), *node_micros, self.env.now());
                    lock(&self.clocks).insert((owner.port, owner.slot), clock);
                }
                replies
            }
            () = late => {
                let why = "no answer in time";
                Replies::fail(n, &NodeError::maybe_executed(NodeFault::Timeout, why))
            }
        }
    }

    /// The batch ends with the word, by the server's clock. While that is not known, it has ended.
    fn bounded(&self, owner: &Owner, batch: Batch) -> Batch {
        let Some(server) = self.cluster.server_of(owner.port, owner.slot) else { return batch };
        let (until, now) = (owner.word.asked + self.word_lasts(), self.env.now());
        let clock = self.clock(owner).filter(|_| now < until);
        let bound = clock.map_or(1, |(_, micros, read)| {
            let span = until.since(read);
            let span = span.saturating_sub(span * DRIFT_PPM / 1_000_000);
            micros + span.as_micros() as u64
        });
        let own = batch.not_after.as_ref();
        let own = own.map(|own| if own.server == server { own.micros } else { 1 });
        let micros = own.map_or(bound, |own| own.min(bound));
        Batch { not_after: Some(NotAfter { server, micros }), ..batch }
    }
}

async fn ask(topology: Arc<Topology>, port: u16) -> Option<String> {
    let Topology { cluster, client, .. } = &*topology;
    let fate = Fate::draw(&topology.dice, &topology.net);
    let answer = async {
        pause(fate.there).await;
        let shown = cluster.show(*client, port).filter(|_| !fate.lose_request);
        let Some(shown) = shown else { return std::future::pending().await };
        pause(fate.back).await;
        (cluster.reaches(*client, port) && !fate.lose_reply).then_some(shown)
    };
    timeout(ms(topology.deadline), answer).await.ok().flatten()
}

impl ClusterLink {
    pub(crate) fn new(
        client: usize,
        cluster: &Arc<Cluster>,
        env: &Arc<dyn Env>,
        (net, dice, deadline): (Arc<Mutex<NetPlan>>, Dice, Ms),
    ) -> Self {
        let topology = Topology {
            client,
            cluster: Arc::clone(cluster),
            env: Arc::clone(env),
            net,
            dice: Mutex::new(dice),
            deadline,
            map: Mutex::default(),
            followed: Mutex::default(),
            told: Mutex::default(),
            rounds: watch::Sender::new(0),
            prompt: Notify::new(),
            clocks: Mutex::default(),
            last: Mutex::default(),
        };
        Self { topology: Arc::new(topology), asking: Mutex::default() }
    }

    fn start(&self) {
        lock(&self.asking).get_or_insert_with(|| {
            let asks = Arc::clone(&self.topology).keep_asking();
            self.topology.env.spawn(&Handle::current(), Box::pin(asks))
        });
    }
}

impl Drop for ClusterLink {
    fn drop(&mut self) {
        if let Some(asking) = lock(&self.asking).take() {
            asking.abort();
        }
    }
}

impl LockNode for ClusterLink {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.start();
        let slot = batch.ops.first().map_or(0, |op| self.topology.cluster.slot_of(op));
        Box::pin(Arc::clone(&self.topology).call(slot, batch, deadline))
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.topology.cluster.events()
    }

    fn name(&self) -> Arc<str> {
        "cluster".into()
    }

    fn part_of(&self, op: &Op) -> Option<Result<u16, NodeError>> {
        self.start();
        Some(Ok(self.topology.cluster.slot_of(op)))
    }

    fn part(&self, part: u16) -> Option<Arc<dyn LockNode>> {
        let (name, topology) = (format!("slot {part}").into(), Arc::clone(&self.topology));
        Some(Arc::new(SlotLink { slot: part, name, topology }))
    }
}

impl LockNode for SlotLink {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        Box::pin(Arc::clone(&self.topology).call(self.slot, batch, deadline))
    }

    fn depth(&self) -> usize {
        if self.server().is_some() { DEPTH } else { 1 }
    }

    fn server(&self) -> Option<Arc<str>> {
        let owner = self.topology.owner(self.slot).ok()?;
        self.topology.clock(&owner).map(|(identity, ..)| identity)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.topology.cluster.events()
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}
