//! One run: a plan in, a trace and a verdict out. One runtime, one thread, virtual time.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade::env::Env;
use palisade::name::LockKeys;
use palisade::node::LockNode;
use palisade::op::{Op, Reply};
use palisade::time::Drift;
use palisade::{Durability, LockGuard, Redlock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Actor, cut};
use crate::dice::Dice;
use crate::invariants::Violation;
use crate::link::{Link, Wire};
use crate::names;
use crate::plan::{Fault, NetPlan, Plan, ms};
use crate::process::{Gated, Process};
use crate::server::Server;
use crate::trace::Event;
use crate::world::World;

/// Longer than any plan takes in virtual time.
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of a run.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) violation: Option<Violation>,
    /// Of the whole trace: the same for the same plan, always.
    pub(crate) hash: u64,
    pub(crate) events: Vec<(u64, Event)>,
}

/// Runs a plan.
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

/// A client's place in the world; its process may be a second or third one.
struct Seat {
    process: Arc<Process>,
    redlock: Redlock,
    forgotten: Arc<Mutex<Vec<Arc<LockGuard>>>>,
    wires: Vec<Arc<Wire>>,
    progress: Vec<Arc<AtomicUsize>>,
    tasks: Vec<JoinHandle<()>>,
    lives: u64,
}

struct Stage {
    plan: Arc<Plan>,
    world: Arc<World>,
    servers: Vec<Arc<Server>>,
    net: Arc<Mutex<NetPlan>>,
    seats: Mutex<Vec<Seat>>,
}

impl Stage {
    fn new(plan: Plan) -> Arc<Self> {
        let all = plan.durability() == Durability::AllReplicas;
        let kept_on = if all { plan.nodes.len() / 2 + 1 } else { 0 };
        let world = World::new(Instant::now(), kept_on);
        let servers: Vec<_> =
            (0..plan.nodes.len()).map(|i| Server::new(i, &world, &plan)).collect();
        let net = Arc::new(Mutex::new(plan.net));
        let stage =
            Self { plan: Arc::new(plan), world, servers, net, seats: Mutex::new(Vec::new()) };
        for client in 0..stage.plan.clients.len() {
            let wires: Vec<_> = stage.servers.iter().map(|_| Arc::new(Wire::default())).collect();
            let (process, redlock) = stage.process(client, 0, &wires);
            let progress = stage.tasks_of(client).map(|_| Arc::default()).collect();
            let (forgotten, tasks) = (Arc::default(), Vec::new());
            let seat = Seat { process, redlock, forgotten, wires, progress, tasks, lives: 1 };
            stage.seats().push(seat);
        }
        Arc::new(stage)
    }

    fn seats(&self) -> std::sync::MutexGuard<'_, Vec<Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks_of(&self, client: usize) -> impl Iterator<Item = &crate::plan::TaskPlan> {
        self.plan.tasks.iter().filter(move |t| t.client == client)
    }

    /// A process of a client, with a handle of its own on all nodes.
    fn process(&self, client: usize, life: u64, wires: &[Arc<Wire>]) -> (Arc<Process>, Redlock) {
        let p = &self.plan;
        let stream = 2_000 + 100 * client as u64 + 10 * life;
        let dice = Dice::new(p.seed, stream);
        let process = Process::new(self.world.start, p.clients[client], dice, p.stuck_dice);
        let env: Arc<dyn Env> = Arc::new(Gated(Arc::clone(&process)));
        let mut builder = Redlock::builder()
            .ttl(ms(p.ttl))
            .max_ttl(ms(p.max_ttl))
            .drift(Drift::from_ppm(p.drift_ppm))
            .node_deadline(ms(p.deadline))
            .clock_error(ms(p.clock_error))
            .env(Arc::clone(&env));
        for (i, server) in self.servers.iter().enumerate() {
            let link = Link {
                client,
                server: Arc::clone(server),
                wire: Arc::clone(&wires[i]),
                env: Arc::clone(&env),
                net: Arc::clone(&self.net),
                dice: Mutex::new(Dice::new(p.seed, stream + 50_000 * (i as u64 + 1))),
                name: Arc::from(format!("node-{i}")),
            };
            builder = builder.node_arc(Arc::new(link) as Arc<dyn LockNode>);
        }
        let redlock = builder.build().expect("plans keep the inequalities of the settings");
        (process, redlock)
    }

    /// Starts, or goes on with, a client's tasks.
    fn start(&self, client: usize) {
        let seat = &mut self.seats()[client];
        seat.tasks.clear();
        for (i, task) in self.tasks_of(client).enumerate() {
            let actor = Actor {
                world: Arc::clone(&self.world),
                plan: Arc::clone(&self.plan),
                process: Arc::clone(&seat.process),
                redlock: seat.redlock.clone(),
                client,
                task: i,
                next: Arc::clone(&seat.progress[i]),
                forgotten: Arc::clone(&seat.forgotten),
            };
            seat.tasks.push(seat.process.run(actor.work(task.acts.clone())));
        }
    }

    async fn play(self: Arc<Self>) -> Report {
        let clients = self.plan.clients.len();
        for client in 0..clients {
            self.start(client);
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

    /// Until the tasks of all clients are through, those of reborn ones included.
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
            Fault::Crash { node, loss, down } => {
                self.servers[node].crash(loss);
                self.later(down, move |s| {
                    s.servers[node].back();
                    s.world.tell(Event::NodeBack(node));
                });
            }
            Fault::Freeze { node, span } => {
                self.servers[node].freeze();
                self.later(span, move |s| {
                    s.world.tell(Event::NodeBack(node));
                    s.servers[node].thaw();
                });
            }
            Fault::Cut { client, node, requests, span } => {
                let wire = Arc::clone(&self.seats()[client].wires[node]);
                wire.cut(requests);
                self.later(span, move |_| wire.mend(requests));
            }
            Fault::Jump { node, by } => self.servers[node].jump(by),
            Fault::Failover { node, old } => self.servers[node].fail_over(old),
            Fault::Failback { node } => self.servers[node].fail_back(),
            Fault::Pause { client, span, lag } => {
                let process = Arc::clone(&self.seats()[client].process);
                process.stop();
                self.later(span, move |s| {
                    s.world.tell(Event::ClientBack(client));
                    process.resume(ms(lag));
                });
            }
            Fault::Kill { client } => self.kill(client),
        }
    }

    fn later(self: &Arc<Self>, span: u64, then: impl FnOnce(&Self) + Send + 'static) {
        if span == 0 {
            return then(self);
        }
        let stage = Arc::clone(self);
        tokio::spawn(async move {
            sleep(ms(span)).await;
            then(&stage);
        });
    }

    fn kill(&self, client: usize) {
        let (wires, life) = {
            let seat = &mut self.seats()[client];
            seat.process.kill();
            seat.lives += 1;
            (seat.wires.clone(), seat.lives)
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

    /// All is well again: what is left behind, and is everybody served?
    async fn aftermath(&self) {
        self.world.tell(Event::Healed);
        let calm = NetPlan {
            latency: (0, 2),
            late: 0,
            late_max: 0,
            lose_request: 0,
            lose_reply: 0,
            duplicate: 0,
            lose_hint: 0,
        };
        *self.net.lock().unwrap_or_else(PoisonError::into_inner) = calm;
        for server in &self.servers {
            server.heal();
        }
        let handles: Vec<_> = {
            let mut seats = self.seats();
            for seat in seats.iter_mut() {
                seat.wires.iter().for_each(|w| w.heal());
                seat.process.resume(Duration::ZERO);
                seat.forgotten.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            seats.iter().map(|s| (Arc::clone(&s.process), s.redlock.clone())).collect()
        };
        // Every node is spoken to, so that quarantines begin to run; then they run out.
        for (process, redlock) in &handles {
            let touch = redlock.mutex(names::calm(99));
            process.run(async move { drop(touch.try_acquire().await) });
        }
        let p = &self.plan;
        sleep(ms(p.max_ttl + p.window) * 5 / 4 + ms(2 * p.deadline + 400)).await;
        for n in 0..p.names {
            self.must_be_gone(&names::lock(n), "its ttl is long over");
        }
        for (client, (process, redlock)) in handles.iter().enumerate() {
            let polls = Dice::new(p.seed, 40 + client as u64).range(1, 5) as u32;
            let mutex = redlock.mutex(names::calm(client)).ttl(ms(p.max_ttl));
            process.run(async move { drop(cut(polls, mutex.acquire()).await) });
        }
        sleep(ms(40)).await;
        for client in 0..handles.len() {
            self.must_be_gone(&names::calm(client), "the request was dropped 40 ms ago");
        }
        self.serve_everybody(handles).await;
    }

    async fn serve_everybody(&self, handles: Vec<(Arc<Process>, Redlock)>) {
        let world = &self.world;
        let tasks: Vec<_> = handles
            .into_iter()
            .enumerate()
            .map(|(client, (process, redlock))| {
                let (world, ttl) = (Arc::clone(world), ms(self.plan.max_ttl));
                process.run(async move {
                    let mutex = redlock.mutex(names::calm(50)).ttl(ttl).wait(ms(5_000));
                    if let Ok(guard) = mutex.acquire().await {
                        sleep(ms(3)).await;
                        let _ = guard.release().await;
                    } else {
                        let name = names::number_of(&names::calm(50));
                        world.tell(Event::NotServed { client, name });
                    }
                })
            })
            .collect();
        for task in tasks {
            if timeout(PATIENCE, task).await.is_err() {
                world.tell(Event::Stuck);
            }
        }
        sleep(ms(40)).await;
        self.must_be_gone(&names::calm(50), "the last holder released it 40 ms ago");
    }

    fn must_be_gone(&self, key: &str, why: &'static str) {
        for (node, server) in self.servers.iter().enumerate() {
            let inspect = Op::Inspect { keys: LockKeys::new(key), wait: false };
            if let Some(Reply::Holder(Some(_))) = server.ask(inspect, &self.plan) {
                let name = names::number_of(key);
                self.world.tell(Event::KeyLeft { node, name, why });
            }
        }
    }
}
