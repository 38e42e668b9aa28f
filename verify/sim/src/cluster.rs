//! A simulated cluster: servers with slots, which move, and replicas, which take the place of their
//! masters. Each server has its own clock, and its own view of who owns what. What a client makes
//! of the views is the library's code.

mod bus;
mod handle;
mod operators;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};
use palisade::node::MemoryNode;
use palisade::node::spi::{Batch, Env as _, LockNode as _, NodeSignal, Op, Remembered, Reply};
use tokio::sync::broadcast;

use self::bus::View;
pub(crate) use self::handle::ClusterLink;
use crate::dice::Dice;
use crate::names::cluster_slot;
use crate::node::{Job, ServerClock, answer, at_once, describe};
use crate::plan::{ClusterPlan, Ms, Plan, Settings, ms};
use crate::trace::{Answer, Event};
use crate::world::World;

/// Port of the first server, and of the first server of another cluster.
const OURS: u16 = 7_000;
const THEIRS: u16 = 7_100;
/// Answer of a server some of whose keys of the slot may be another's.
const ASK: &str = "ASK";

pub(crate) struct Cluster {
    world: Arc<World>,
    plan: ClusterPlan,
    lose_hint: u64,
    events: broadcast::Sender<NodeSignal>,
    dice: Mutex<Dice>,
    state: Mutex<State>,
}

struct State {
    servers: Vec<Server>,
    /// The servers and clients (bits) on one side of each cut.
    splits: Vec<(u64, u64)>,
    /// Slots of another cluster, to which addresses may lead.
    foreign: Vec<MemoryNode>,
    healed: bool,
}

struct Server {
    clock: Arc<ServerClock>,
    /// The data of each slot, also of those that the server does not own.
    parts: Vec<MemoryNode>,
    signals: Vec<broadcast::Receiver<NodeSignal>>,
    view: View,
    frozen: u32,
    /// Number of places to which the server's address leads instead.
    astray: u32,
    queue: Vec<Request>,
    /// For each slot, true while its keys move to or from another server.
    moving: Vec<bool>,
    /// True if the data are another server's since this one became a replica.
    synced: bool,
}

/// A batch for a slot that its sender has on its way to a server, under a majority's word.
struct Request {
    port: u16,
    slot: u16,
    epoch: u64,
    since: u64,
    /// For how long nothing is known to have moved any more.
    disturbed: Option<Duration>,
    window: Duration,
    job: Job,
}

impl State {
    /// Returns true if a message between two servers arrives.
    fn connects(&self, a: usize, b: usize) -> bool {
        self.splits.iter().all(|(servers, _)| servers >> a & 1 == servers >> b & 1)
    }

    fn reaches(&self, client: usize, server: usize) -> bool {
        self.splits.iter().all(|(servers, clients)| clients >> client & 1 == servers >> server & 1)
    }

    /// The owner by its own view; of several the one with the highest epoch.
    fn owner(&self, slot: u16) -> Option<usize> {
        let owns = |at: &usize| self.servers[*at].view.owns(*at, slot);
        (0..self.servers.len()).filter(owns).max_by_key(|at| self.servers[*at].view.epochs[*at])
    }
}

impl Cluster {
    pub(crate) fn new(world: &Arc<World>, plan: &Plan) -> Arc<Self> {
        let cluster = plan.cluster.clone().expect("only plans with a cluster make one");
        let slots = usize::from(cluster.slots);
        let data = |clock: &Arc<ServerClock>, has: &dyn Fn(usize) -> bool, deployment: u64| {
            let node = || MemoryNode::builder().name("part").env(Arc::clone(clock) as _);
            let build = |slot| {
                let node = node();
                if has(slot) { node.named(deployment, 1) } else { node.quarantined() }.build()
            };
            (0..slots).map(build).collect::<Vec<MemoryNode>>()
        };
        let clock = |at, wave| ServerClock::new(world, wave, plan.dice(1_000 + 10 * at as u64));
        let servers = cluster.clocks.iter().enumerate().map(|(at, wave)| {
            let clock = clock(at, *wave);
            let parts = data(&clock, &|slot| slot % cluster.masters == at, 7);
            Server {
                signals: parts.iter().map(MemoryNode::events).collect(),
                parts,
                clock,
                view: View::new(&cluster),
                frozen: 0,
                astray: 0,
                queue: Vec::new(),
                moving: vec![false; slots],
                synced: false,
            }
        });
        let servers: Vec<Server> = servers.collect();
        let foreign = data(&clock(99, cluster.clocks[0]), &|_| true, 9);
        let state = State { servers, splits: Vec::new(), foreign, healed: false };
        Arc::new(Self {
            world: Arc::clone(world),
            lose_hint: plan.net.lose_hint,
            events: broadcast::Sender::new(256),
            dice: Mutex::new(plan.dice(1_900)),
            state: Mutex::new(state),
            plan: cluster,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, permille: u64) -> bool {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).chance(permille)
    }

    fn now(&self) -> Ms {
        self.world.nanos() / 1_000_000
    }

    fn slot_of(&self, op: &Op) -> u16 {
        cluster_slot(describe(op).1, self.plan.slots)
    }

    /// The identity of the process that has the slot at this address.
    fn server_of(&self, port: u16, slot: u16) -> Option<Arc<str>> {
        let (state, slot) = (self.state(), usize::from(slot));
        if port >= THEIRS {
            return state.foreign[slot].server();
        }
        state.servers.get(usize::from(port - OURS))?.parts[slot].server()
    }

    /// The answer to `CLUSTER NODES` at an address.
    fn show(&self, client: usize, port: u16) -> Option<String> {
        let state = self.state();
        let other = |n: u16| (n < 3).then(|| foreign_view(n, self.plan.slots));
        if port >= THEIRS {
            return other(port - THEIRS);
        }
        let at = usize::from(port - OURS);
        let server = state.servers.get(at)?;
        if server.astray > 0 {
            return other(at as u16 % 3);
        }
        let is_silent = server.frozen > 0 || !state.reaches(client, at);
        (!is_silent).then(|| server.view.text(at, &server.moving))
    }

    fn reaches(&self, client: usize, port: u16) -> bool {
        port >= THEIRS || self.state().reaches(client, usize::from(port - OURS))
    }

    fn arrive(&self, request: Request) {
        let mut state = self.state();
        if request.port < THEIRS {
            let server = &mut state.servers[usize::from(request.port - OURS)];
            if server.frozen > 0 {
                return server.queue.push(request);
            }
            // The connection was made to the server with this id (`CLUSTER MYID`).
            if server.astray > 0 {
                let why = "another server has this address";
                return request.job.refuse(&NodeError::not_executed(NodeFault::Unreachable, why));
            }
        }
        self.execute(&mut state, request);
    }

    fn execute(&self, state: &mut State, request: Request) {
        let Request { port, slot, epoch, since, disturbed, window, job } = request;
        let at = usize::from(port.checked_sub(OURS).filter(|_| port < THEIRS).unwrap_or(99));
        let part = usize::from(slot);
        let (memory, clock) = match state.servers.get(at) {
            None => (state.foreign[part].clone(), Arc::clone(&state.servers[0].clock)),
            Some(server) => {
                // While its keys move, the script declares one that is never there.
                let why = if server.moving[part] { ASK } else { "MOVED" };
                if server.moving[part] || !server.view.owns(at, slot) {
                    return job.refuse(&NodeError::not_executed(NodeFault::NotMaster, why));
                }
                (server.parts[part].clone(), Arc::clone(&server.clock))
            }
        };
        memory.set_failover_windows(window, window);
        let disturbed = disturbed.map(|ago| clock.wall_micros() - ago.as_micros() as u64);
        memory.set_named(epoch, since, disturbed);
        let Job { client, batch, due, reply } = job;
        let ops = batch.ops.clone();
        let replies = at_once(&memory, batch);
        let late = self.world.nanos().saturating_sub(due) / 1_000;
        for (op, reply) in ops.iter().zip(&replies.items) {
            let (verb, name, owner) = describe(op);
            let answer = reply.as_ref().map_or(Answer::Failed, answer);
            let node = usize::from(slot);
            self.world.tell(Event::Served { node, server: at, client, verb, name, owner, answer });
            if answer.is_effect() && !op.is_undo() && late > 0 {
                self.world.tell(Event::LateEffect { node, client, name, late });
            }
        }
        if let Some(signals) = state.servers.get_mut(at).map(|server| &mut server.signals[part]) {
            while let Ok(event) = signals.try_recv() {
                if !self.chance(self.lose_hint) {
                    let _ = self.events.send(event);
                }
            }
        }
        if let Some(reply) = reply {
            let _ = reply.send(replies);
        }
    }

    /// Executes an op at the slot's owner as if no client had sent it. Returns the reply.
    pub(crate) fn ask(&self, op: Op, settings: &Settings) -> Option<Reply> {
        let slot = self.slot_of(&op);
        let memory = {
            let state = self.state();
            state.servers[state.owner(slot)?].parts[usize::from(slot)].clone()
        };
        let remembers = Remembered::default();
        let batch = Batch { terms: settings.terms(), not_after: None, remembers, ops: vec![op] };
        at_once(&memory, batch).items.pop()?.ok()
    }

    fn window(&self, client: usize) -> Duration {
        ms(self.plan.window_of(client))
    }
}

/// How a server of the other cluster sees it.
fn foreign_view(own: u16, slots: u16) -> String {
    let line = |n: u16| {
        let flags = if n == own { "myself,master" } else { "master" };
        let own: Vec<String> = (0..slots).filter(|s| s % 3 == n).map(|s| s.to_string()).collect();
        let (port, epoch, own) = (THEIRS + n, 50 + n, own.join(" "));
        format!("{:x<40} h:{port}@1 {flags} - 0 0 {epoch} connected {own}\n", format!("y{n}"))
    };
    (0..3).map(line).collect()
}
