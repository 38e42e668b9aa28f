//! Runs a plan in virtual time, on one thread and one runtime. Returns the trace and the violation,
//! if any.

mod aftermath;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade::Drift;
use palisade::node::spi::Env;
use palisade::node::spi::LockNode;
use palisade::{Durability, Redlock};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Actor, Forgotten};
use crate::cluster::{Cluster, ClusterLink};
use crate::invariants::Violation;
use crate::link::{Link, Wire};
use crate::node::Node;
use crate::plan::{Fault, NetPlan, Plan, Settings, Stops, Tamper, ms};
use crate::process::{Gated, Process};
use crate::trace::Event;
use crate::world::World;

/// Limit of the virtual time of a run. All plans are shorter.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) violation: Option<Violation>,
    /// Hash of the whole trace. The same plan always has the same hash.
    pub(crate) hash: u64,
    pub(crate) events: Vec<(u64, Event)>,
}

pub(crate) fn run(plan: Plan) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without IO needs nothing from the system");
    let report = runtime.block_on(async {
        let stage = Stage::new(plan);
        stage.play().await
    });
    drop(runtime);
    report
}

/// A simulated client. When its process dies, the client gets a new one.
struct Seat {
    process: Arc<Process>,
    redlock: Redlock,
    forgotten: Forgotten,
    wires: Vec<Arc<Wire>>,
    progress: Vec<Arc<AtomicUsize>>,
    tasks: Vec<JoinHandle<()>>,
    lives: u64,
    /// Index of the settings that the client's current process has.
    stage: usize,
}

/// A client process after the end of all faults, with its `Redlock` handle and its settings.
pub(crate) type Handle = (Arc<Process>, Redlock, Settings);

struct Stage {
    plan: Arc<Plan>,
    world: Arc<World>,
    nodes: Vec<Arc<Node>>,
    cluster: Option<Arc<Cluster>>,
    net: Arc<Mutex<NetPlan>>,
    seats: Mutex<Vec<Seat>>,
    /// Tasks that end each fault when its time is over.
    ends: Mutex<JoinSet<()>>,
}

impl Stage {
    fn new(plan: Plan) -> Arc<Self> {
        let all = plan.durability == Durability::AllReplicas;
        let fewest = plan.stages.iter().map(|s| s.nodes.count_ones()).min().unwrap_or(1);
        let kept_on = if all { fewest as usize / 2 + 1 } else { 0 };
        let world = World::new(Instant::now(), kept_on, plan.guarantees());
        let nodes: Vec<_> = (0..plan.nodes.len()).map(|i| Node::new(i, &world, &plan)).collect();
        let net = Arc::new(Mutex::new(plan.net));
        let cluster = plan.cluster.as_ref().map(|_| Cluster::new(&world, &plan));
        let stage = Self {
            cluster,
            plan: Arc::new(plan),
            world,
            nodes,
            net,
            seats: Mutex::new(Vec::new()),
            ends: Mutex::default(),
        };
        for client in 0..stage.plan.clients.len() {
            let wires: Vec<_> = stage.nodes.iter().map(|_| Arc::new(Wire::default())).collect();
            let (process, redlock) = stage.process(client, (0, 0), &wires);
            let progress = stage.tasks_of(client).map(|_| Arc::default()).collect();
            let (forgotten, tasks) = (Arc::default(), Vec::new());
            let (lives, now) = (1, 0);
            let seat =
                Seat { process, redlock, forgotten, wires, progress, tasks, lives, stage: now };
            stage.seats().push(seat);
        }
        Arc::new(stage)
    }

    fn ends(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seats(&self) -> std::sync::MutexGuard<'_, Vec<Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks_of(&self, client: usize) -> impl Iterator<Item = &crate::plan::TaskPlan> {
        self.plan.tasks.iter().filter(move |t| t.client == client)
    }

    fn process(
        &self,
        client: usize,
        (life, stage): (u64, usize),
        wires: &[Arc<Wire>],
    ) -> (Arc<Process>, Redlock) {
        let (p, settings) = (&self.plan, self.plan.stages[stage]);
        let stream = 2_000 + 100 * client as u64 + 10 * life;
        let stuck = p.tamper == Some(Tamper::StuckDice);
        let clock = p.clients[client].clock;
        let process = Process::new(self.world.start, clock, p.dice(stream), stuck);
        let env: Arc<dyn Env> = Arc::new(Gated(Arc::clone(&process)));
        let mut builder = Redlock::builder()
            .ttl(ms(settings.ttl))
            .max_ttl(ms(settings.max_ttl))
            .drift(Drift::from_ppm(settings.drift_ppm))
            .node_deadline(ms(p.deadline))
            .clock_error(ms(settings.clock_error))
            .allow_even_nodes()
            .env(Arc::clone(&env));
        for i in (0..self.nodes.len()).filter(|i| settings.has(*i)) {
            let is_twin = p.clients[client].twin && i == 1;
            let link = Link {
                client,
                world: Arc::clone(&self.world),
                node: Arc::clone(&self.nodes[if is_twin { 0 } else { i }]),
                wire: Arc::clone(&wires[i]),
                env: Arc::clone(&env),
                net: Arc::clone(&self.net),
                dice: Mutex::new(p.dice(stream + 50_000 * (i as u64 + 1))),
                name: Arc::from(format!("node-{i}")),
                drift: Drift::from_ppm(p.truth.drift_ppm),
                last: Mutex::default(),
            };
            builder = builder.node_arc(Arc::new(link) as Arc<dyn LockNode>);
        }
        if let Some(cluster) = &self.cluster {
            let dice = p.dice(stream + 50_000);
            let ways = (Arc::clone(&self.net), dice, p.deadline);
            let link = ClusterLink::new(client, cluster, &env, ways);
            builder = builder.node_arc(Arc::new(link));
        }
        let redlock = builder.build().expect("plans keep the inequalities of the settings");
        (process, redlock)
    }

    fn start(&self, client: usize) {
        let seat = &mut self.seats()[client];
        seat.tasks.clear();
        for (i, task) in self.tasks_of(client).enumerate() {
            let actor = Actor {
                world: Arc::clone(&self.world),
                plan: Arc::clone(&self.plan),
                settings: self.plan.stages[seat.stage],
                process: Arc::clone(&seat.process),
                redlock: seat.redlock.clone(),
                nodes: self.nodes.clone(),
                client,
                task: i,
                next: Arc::clone(&seat.progress[i]),
                forgotten: Arc::clone(&seat.forgotten),
            };
            seat.tasks.push(seat.process.run(actor.work(task.actions.clone())));
        }
    }

    async fn play(self: Arc<Self>) -> Report {
        let clients = self.plan.clients.len();
        for client in 0..clients {
            self.start(client);
        }
        if let Some(cluster) = &self.cluster {
            self.ends().spawn(Arc::clone(cluster).gossip());
        }
        let faults = tokio::spawn(Arc::clone(&self).deal());
        if timeout(PATIENCE, self.all_done()).await.is_err() {
            self.world.tell(Event::Stuck);
        }
        faults.abort();
        if self.world.violation().is_none() {
            self.aftermath().await;
        }
        self.seats().clear();
        self.ends().abort_all();
        if self.world.violation().is_none() {
            sleep(Duration::from_secs(4)).await;
            let left = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            if left > 0 {
                self.world.tell(Event::TasksLeft(left));
            }
        }
        let (hash, events) = self.world.take_trace();
        Report { violation: self.world.violation(), hash, events }
    }

    async fn all_done(&self) {
        loop {
            if self.world.violation().is_some() {
                return;
            }
            let next = self
                .seats()
                .iter_mut()
                .find_map(|seat| seat.tasks.iter().position(|t| !t.is_finished()));
            if next.is_none() {
                return;
            }
            sleep(ms(20)).await;
        }
    }

    async fn deal(self: Arc<Self>) {
        for (at, fault) in self.plan.faults.clone() {
            let now = self.world.start.elapsed();
            if ms(at) > now {
                sleep(ms(at).saturating_sub(now)).await;
            }
            self.strike(fault);
        }
    }

    fn strike(self: &Arc<Self>, fault: Fault) {
        self.world.tell(Event::Fault(fault));
        match fault {
            Fault::Crash { node, copy, down } => {
                self.nodes[node].crash(copy);
                self.later(down, move |s| {
                    s.nodes[node].back();
                    s.world.tell(Event::NodeBack(node));
                });
            }
            Fault::Flush { node } => self.nodes[node].flush(),
            Fault::Evict { node } => self.nodes[node].evict(),
            Fault::Freeze { node, server, span } => self.freeze(node, server, span),
            Fault::Halt { node, server, span } => {
                self.nodes[node].halt(server);
                self.later(span, move |s| s.nodes[node].resume(server));
            }
            Fault::Cut { client, node, requests, span } => {
                let wire = Arc::clone(&self.seats()[client].wires[node]);
                wire.cut(requests);
                self.later(span, move |_| wire.mend(requests));
            }
            Fault::Step { node, server, to } => self.nodes[node].step(server, to),
            Fault::Wild { node, server, by, span } => {
                self.nodes[node].run_wild(server, by);
                self.later(span, move |s| s.nodes[node].run_wild(server, -by));
            }
            Fault::Failover { node, to, copy, old, freeze } => {
                let replaced = self.nodes[node].fail_over(to, copy, old);
                if let Some(server) = replaced.filter(|_| freeze > 0) {
                    self.freeze(node, server, freeze);
                }
            }
            Fault::Handover { node, to, takes, stops } => {
                self.hand_over(node, to, takes, stops);
            }
            Fault::Rename { node } => self.nodes[node].rename(),
            Fault::Epoch { node, old } => self.nodes[node].raise_epoch(old),
            Fault::PutBack { node, age, whole } => self.nodes[node].put_back(age, whole),
            Fault::Detour { node, copy, reset } => self.nodes[node].detour(copy, reset),
            Fault::Astray { node, to, span } => {
                self.nodes[node].lead_to(Some(Arc::clone(&self.nodes[to])));
                self.later(span, move |s| s.nodes[node].lead_to(None));
            }
            Fault::Pause { client, span, lag } => {
                let process = Arc::clone(&self.seats()[client].process);
                process.stop();
                self.later(span, move |s| {
                    s.world.tell(Event::ClientBack(client));
                    process.resume(ms(lag));
                });
            }
            Fault::Kill { client } => self.kill(client),
            Fault::Shift(shift) => {
                let cluster = self.cluster.as_ref().expect("a plan with shifts has a cluster");
                if let Some((span, back)) = cluster.begin(shift) {
                    self.later(span, move |s| {
                        if let Some(cluster) = &s.cluster {
                            cluster.end(back);
                        }
                    });
                }
            }
            Fault::Deploy { client, stage } => {
                self.seats()[client].stage = stage;
                self.kill(client);
            }
        }
    }

    fn hand_over(self: &Arc<Self>, node: usize, to: usize, takes: u64, stops: Stops) {
        let span = self.plan.closed_for(takes);
        let Some(closing) = self.nodes[node].close(span) else { return };
        let last = match stops {
            Stops::Late => span.as_millis() as u64,
            _ => takes / 4,
        };
        self.later(takes, move |s| {
            let node = &s.nodes[node];
            match stops {
                Stops::Closed => return,
                Stops::Reopened => return node.reopen(closing),
                _ => {}
            }
            let behind = if let Stops::Behind(span) = stops { Some(span) } else { None };
            let is_demoted = stops != Stops::Promoted;
            if !node.promote(to, closing, (behind, is_demoted)) {
                return;
            }
            let node = Arc::clone(node);
            tokio::spawn(async move {
                sleep(ms(last)).await;
                match stops {
                    Stops::Promoted => {}
                    Stops::Opened => node.open(to, closing),
                    _ => node.finish(to, closing),
                }
            });
        });
    }

    fn freeze(self: &Arc<Self>, node: usize, server: usize, span: u64) {
        self.nodes[node].freeze(server);
        self.later(span, move |s| {
            s.world.tell(Event::NodeBack(node));
            s.nodes[node].thaw(server);
        });
    }

    fn later(self: &Arc<Self>, span: u64, then: impl FnOnce(&Self) + Send + 'static) {
        if span == 0 {
            return then(self);
        }
        let stage = Arc::clone(self);
        self.ends().spawn(async move {
            sleep(ms(span)).await;
            then(&stage);
        });
    }

    fn kill(&self, client: usize) {
        let (wires, life) = {
            let seat = &mut self.seats()[client];
            seat.process.kill();
            seat.lives += 1;
            (seat.wires.clone(), (seat.lives, seat.stage))
        };
        self.world.forget_client(client);
        let (process, redlock) = self.process(client, life, &wires);
        {
            let seat = &mut self.seats()[client];
            seat.process = process;
            seat.redlock = redlock;
            seat.forgotten.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.start(client);
    }
}
