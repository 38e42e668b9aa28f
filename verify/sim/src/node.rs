//! A simulated node: a single server or a group. It has faults: crashes, freezes, clock steps, and
//! failovers after which the replaced master still grants.

mod clock;
mod copies;
mod describe;
mod failover;
mod halt;
mod handover;
mod histories;
mod operators;
mod server;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::Moment;
use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::Env as _;
use palisade::node::spi::{Batch, Op, Remembered, Replies, Reply};
use palisade::node::spi::{LockNode as _, NodeSignal};
use palisade::{Durability, node::spi::BarrierPoint};
use tokio::sync::broadcast;

pub(crate) use self::clock::ServerClock;
use self::copies::Copies;
pub(crate) use self::describe::{answer, describe};
use self::describe::{places, stands};
pub(crate) use self::server::{Job, at_once};
use self::server::{Role, Server, now_or_never};
use crate::dice::Dice;
use crate::plan::{ClientPlan, Copy, Ms, Plan, Settings, ms};
use crate::trace::{Answer, Event};
use crate::world::World;

pub(crate) struct Node {
    pub(crate) index: usize,
    /// True if the node is of another deployment.
    is_foreign: bool,
    /// True if the clients declare that the node loses nothing that it confirmed. It is not watched
    /// by Sentinels then.
    is_declared: bool,
    world: Arc<World>,
    clients: Vec<ClientPlan>,
    /// Largest failover window of the node's servers: the time for which a replaced master may
    /// still grant.
    longest: Duration,
    /// Shortest `max_ttl` of all processes.
    least_lease: Duration,
    drift_ppm: u32,
    /// Maximum clock error. The clocks are at most this far from the true time, unless a fault
    /// changes them.
    error: Duration,
    cross: bool,
    events: broadcast::Sender<NodeSignal>,
    hints: Mutex<Dice>,
    state: Mutex<State>,
}

struct State {
    servers: Vec<Server>,
    master: usize,
    /// For each client, the server to which the client is connected.
    views: Vec<usize>,
    /// Epoch of the Sentinels, one more with each promotion.
    epoch: u64,
    /// For each client, the epoch that the Sentinels named when it connected, and the epoch that
    /// was the latest then.
    told: Vec<u64>,
    asked: Vec<u64>,
    /// True if the data lack nothing, so that no new history may begin.
    whole: bool,
    /// Age of the data that are put back before the next batch of a client that has seen the
    /// newest, and true if the whole machine is.
    puts_back: Option<(Ms, bool)>,
    /// Node to which the address of this node leads.
    astray: Option<Arc<Node>>,
    copies: Copies,
    /// Locks that the master granted and that the replicas have not confirmed yet, each with the
    /// fencing token of its grant.
    granted: Vec<(u16, u64)>,
    down: bool,
    lives: u64,
    /// Number of hints per thousand that are lost.
    lose_hint: u64,
    signals: broadcast::Receiver<NodeSignal>,
}

impl Node {
    pub(crate) fn new(index: usize, world: &Arc<World>, plan: &Plan) -> Arc<Self> {
        let (node, is_group) = (&plan.nodes[index], plan.nodes[index].is_group());
        let mut servers: Vec<Server> = Vec::new();
        for (i, server) in node.servers.iter().enumerate() {
            let dice = plan.dice(1_000 + 10 * index as u64 + i as u64);
            let clock = ServerClock::new(world, server.clock, dice);
            let first = i == 0 && node.is_new;
            let memory = if first {
                Server::new_memory(index, &clock, node.is_foreign)
            } else {
                Server::empty_memory(index, &clock)
            };
            servers.push(Server {
                memory,
                clock,
                window: ms(if is_group { server.window } else { 0 }),
                role: if i == 0 { Role::Master } else { Role::Replica },
                frozen: 0,
                halts: false,
                halted: None,
                queue: VecDeque::new(),
                life: 0,
                has_granted: false,
                fresh: (i == 0 && !node.is_new).then_some(Duration::ZERO),
                stale: None,
                replaced: 0,
            });
        }
        let least = plan.stages.iter().map(|s| s.max_ttl).min().unwrap_or(0);
        let state = State {
            copies: Copies::new(plan.copy_every, servers[0].memory.snapshot()),
            granted: Vec::new(),
            signals: servers[0].memory.events(),
            master: 0,
            views: vec![0; plan.clients.len()],
            epoch: 0,
            told: vec![0; plan.clients.len()],
            asked: vec![0; plan.clients.len()],
            whole: node.is_new,
            puts_back: None,
            astray: None,
            servers,
            down: false,
            lives: 0,
            lose_hint: plan.net.lose_hint,
        };
        Arc::new(Self {
            index,
            is_foreign: node.is_foreign,
            is_declared: plan.is_declared(),
            world: Arc::clone(world),
            clients: plan.clients.clone(),
            longest: ms(node.window()),
            least_lease: ms(least),
            drift_ppm: plan.truth.drift_ppm,
            error: Duration::from_micros(plan.truth.error),
            cross: plan.cross,
            events: broadcast::Sender::new(256),
            hints: Mutex::new(plan.dice(1_500 + index as u64)),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.events.subscribe()
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state().down
    }

    pub(crate) fn server_of(&self, client: usize) -> Option<Arc<str>> {
        let state = self.state();
        state.servers[state.views[client]].memory.server()
    }

    /// Delivers a request to the server to which its sender is connected.
    pub(crate) fn arrive(&self, job: Job) {
        let astray = self.state().astray.clone();
        if let Some(other) = astray {
            return Self::arrive_at(&other, job);
        }
        self.deliver(job);
    }

    fn deliver(&self, job: Job) {
        let mut state = self.state();
        let at = state.views[job.client];
        if state.down && at == state.master {
            return;
        }
        if Self::is_busy(&state, at) {
            state.servers[at].queue.push_back(job);
            return;
        }
        self.execute(&mut state, at, job);
    }

    fn execute(&self, state: &mut State, at: usize, job: Job) {
        if let Some(error) = state.refusal(at).or_else(|| state.too_long_ago(at, job.client)) {
            // The server closes the client's connection. The client then connects to the master.
            state.ask(job.client);
            return job.refuse(&error);
        }
        if at == state.master {
            self.put_back_before(state, at, &job.batch);
        }
        if at == state.master || self.cross {
            // A copy of the data is taken before the write, because a replica or a disk may lack
            // the write.
            state.copies.take(self.world.nanos(), &state.servers[at].memory);
        }
        if state.servers[at].halts && job.batch.ops.len() > 1 {
            return self.begin_batch(state, at, job);
        }
        let Job { client, batch, due, reply } = job;
        let replies = self.perform(state, at, (client, due, self.world.nanos()), batch);
        if let Some(reply) = reply {
            let _ = reply.send(replies);
        }
    }

    /// Executes a batch of a client. The batch began at the true time `began`, in nanoseconds.
    fn perform(
        &self,
        state: &mut State,
        at: usize,
        (client, due, began): (usize, u64, u64),
        batch: Batch,
    ) -> Replies {
        let old = at != state.master;
        let server = &state.servers[at];
        let (life, clock) = (server.life, server.clock.now().as_nanos());
        let (read, unread) = self.windows(state, at, client);
        let memory = &state.servers[at].memory;
        memory.set_failover_windows(read, unread);
        let (is_group, told) = (state.servers.len() > 1, state.told[client]);
        memory.set_epoch((is_group && !self.is_declared).then_some(told));
        memory.set_durable(self.is_declared);
        // If this server's clock was set back, it reaches the deadline `due` later. So the batch
        // may take effect later (rule clocks 5 in docs/design).
        let due = due + state.servers[at].clock.set_back() * 1_000;
        let ops = batch.ops.clone();
        let replies = at_once(memory, batch);
        // A server that is closed for a planned handover does not reply. So its new data history
        // counts as begun only with its first reply. If nothing changed on the server, only a
        // client that was told of the promotion begins it.
        let may_begin = told == state.epoch || state.servers[at].stale.is_none();
        let is_answered = replies.facts.is_some();
        let begins = state.servers[at].fresh.take_if(|_| is_answered && may_begin);
        let is_new = replies.facts.as_ref().is_some_and(|facts| facts.new_history);
        if state.whole && is_new {
            self.world.tell(Event::Needless { node: self.index });
        }
        if let Some(window) = begins.filter(|_| is_new || !self.is_declared) {
            let silent = (self.least_lease + window).as_nanos() as u64;
            let (node, server) = (self.index, at);
            self.world.tell(Event::NewLife { node, server, life, at: clock, quarantine: silent });
        }
        let late = began.saturating_sub(due) / 1_000;
        let granted = self.tell((at, life, clock), (client, late), &ops, &replies);
        state.servers[at].has_granted |= granted;
        if !old {
            state.granted.extend(ops.iter().zip(&replies.items).flat_map(stands));
        }
        self.forward(state);
        replies
    }

    /// Returns two failover windows. The first is the largest window of the servers whose settings
    /// the client has read. The second also includes the other servers.
    fn windows(&self, state: &State, at: usize, client: usize) -> (Duration, Duration) {
        let reads = self.clients[client].reads | 1 << at;
        let known = state.servers.iter().enumerate().filter(|(i, _)| reads >> i & 1 == 1);
        let all = known.clone().count() == state.servers.len();
        let read = known.map(|(_, s)| s.window).max().unwrap_or_default();
        (read, if all { read } else { self.longest })
    }

    /// Records the requests and the replies in the trace. Returns true if the replies contain a
    /// grant.
    fn tell(
        &self,
        (server, life, at): (usize, u64, u64),
        (client, late): (usize, u64),
        ops: &[Op],
        replies: &Replies,
    ) -> bool {
        let (node, mut granted) = (self.index, false);
        for (op, reply) in ops.iter().zip(&replies.items) {
            let (verb, name, owner) = describe(op);
            let answer = reply.as_ref().map_or(Answer::Failed, answer);
            self.world.tell(Event::Served { node, server, client, verb, name, owner, answer });
            if let Some(with_ticket) = places(op, reply) {
                self.world.tell(Event::Placed { node, client, name, with_ticket });
            }
            if let (Answer::Quarantined, Some(facts)) = (&answer, &replies.facts) {
                let since_ms = (facts.node_micros / 1_000).saturating_sub(facts.since);
                self.world.tell(Event::Refrains { node, life, since_ms, began: facts.since });
            }
            if matches!(answer, Answer::Granted(_) | Answer::Claimed(..)) {
                self.world.tell(Event::Granting { node, server, life, at });
                granted = true;
            }
            if answer.is_effect() && !op.is_undo() && late > 0 {
                self.world.tell(Event::LateEffect { node, client, name, late });
            }
        }
        granted
    }

    /// Replies to a barrier: confirms that the replicas have all grants of the client's server.
    ///
    /// A former master confirms nothing new, because its replicas follow another server. Returns
    /// `None` if the server does not reply.
    pub(crate) fn confirm(
        &self,
        client: usize,
        after: BarrierPoint,
        level: Durability,
    ) -> Option<Result<u32, NodeError>> {
        let mut state = self.state();
        let at = state.views[client];
        if state.servers[at].frozen > 0 || state.down && at == state.master {
            return None;
        }
        if at != state.master {
            let error = NodeError::maybe_executed(NodeFault::NotDurable, "it follows another");
            return Some(Err(error));
        }
        let memory = state.servers[at].memory.clone();
        let answer = now_or_never(memory.barrier(after, level, Moment::from_nanos(u64::MAX)));
        if answer.is_ok() {
            // The replicas have all writes, including the leases that a clock step has ended.
            for (name, fence) in std::mem::take(&mut state.granted) {
                self.world.kept(self.index, name, fence);
            }
        }
        Some(answer)
    }

    /// Sends the hints of the server to the clients. Each hint travels separately and may be lost.
    fn forward(&self, state: &mut State) {
        while let Ok(event) = state.signals.try_recv() {
            let mut dice = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
            if !dice.chance(state.lose_hint) {
                let _ = self.events.send(event);
            }
        }
    }

    /// Kills the process of the master. The master stays down until [`back`](Self::back).
    pub(crate) fn crash(&self, copy: Copy) {
        let mut state = self.state();
        let at = state.master;
        let (since, data) = state.data(copy, self.world.nanos());
        let server = &mut state.servers[at];
        server.memory = Server::empty_memory(self.index, &server.clock);
        if let Some(data) = data {
            server.memory.restore(data);
        }
        server.queue.clear();
        server.frozen = 0;
        (server.halts, server.halted) = (false, None);
        state.down = true;
        let whole = self.is_declared && state.whole && copy == Copy::Behind(0);
        state.begin(at);
        state.whole = whole;
        // The server closes its connections, and to connect again is to ask the Sentinels.
        for client in 0..state.views.len() {
            if state.views[client] == at {
                state.ask(client);
            }
        }
        drop(state);
        self.world.tell(Event::Lost { node: self.index, since });
    }

    pub(crate) fn back(&self) {
        self.state().down = false;
    }

    pub(crate) fn flush(&self) {
        let mut state = self.state();
        let at = state.master;
        if state.servers[at].halted.is_some() {
            return;
        }
        state.servers[at].memory.flush_all();
        // A replica that has executed the `FLUSHALL` also has the earlier grants, because
        // replication keeps the order. So the replicas can still confirm these grants.
        let granted = std::mem::take(&mut state.granted);
        state.begin(at);
        state.granted = granted;
        drop(state);
        self.world.tell(Event::Lost { node: self.index, since: 0 });
    }

    /// Freezes a server until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self, at: usize) {
        self.state().servers[at].frozen += 1;
    }

    pub(crate) fn thaw(&self, at: usize) {
        let mut state = self.state();
        let server = &mut state.servers[at];
        server.frozen = server.frozen.saturating_sub(1);
        if server.frozen == 0 {
            for job in std::mem::take(&mut state.servers[at].queue) {
                self.execute(&mut state, at, job);
            }
        }
    }

    /// Steps a server's clock to the error `to`, in microseconds.
    pub(crate) fn step(&self, at: usize, to: i64) {
        self.state().servers[at].clock.step(to);
    }

    /// Adds `by` microseconds to the error of a server's clock.
    pub(crate) fn run_wild(&self, at: usize, by: i64) {
        self.state().servers[at].clock.run_wild(by);
    }

    pub(crate) fn heal(&self) {
        let count = {
            let mut state = self.state();
            let master = state.master;
            state.lose_hint = 0;
            state.down = false;
            (state.puts_back, state.astray) = (None, None);
            let epoch = state.epoch;
            state.views.fill(master);
            state.told.fill(epoch);
            state.asked.fill(epoch);
            for (i, server) in state.servers.iter_mut().enumerate() {
                server.clock.mend();
                server.frozen = server.frozen.min(1);
                if i != master {
                    server.role = Role::Replica;
                }
            }
            state.servers.len()
        };
        for at in 0..count {
            self.resume(at);
            self.thaw(at);
        }
    }

    /// Executes an op on the master as if no client had sent it. Returns the reply.
    pub(crate) fn ask(&self, op: Op, settings: &Settings) -> Option<Reply> {
        let batch = Batch {
            terms: settings.terms(),
            not_after: None,
            remembers: Remembered::default(),
            ops: vec![op],
        };
        let memory = {
            let state = self.state();
            state.servers[state.master].memory.clone()
        };
        at_once(&memory, batch).items.pop()?.ok()
    }
}

impl State {
    /// Returns the master's data that remain after a crash or a failover, and the true time (µs) up
    /// to which these data are complete.
    fn data(&self, copy: Copy, now: u64) -> (u64, Option<palisade::test_util::MemorySnapshot>) {
        let (at, data) = match copy {
            Copy::Behind(0) | Copy::Own => (now, Some(self.servers[self.master].memory.snapshot())),
            Copy::Behind(span) => {
                let (at, data) = self.copies.behind(now, span);
                (at, Some(data))
            }
            Copy::Empty => (0, None),
        };
        (at / 1_000, data)
    }

    fn begin(&mut self, at: usize) {
        self.lives += 1;
        self.granted.clear();
        let window = self.servers.iter().filter(|s| s.may_resume()).map(|s| s.window).max();
        let server = &mut self.servers[at];
        server.life = self.lives;
        server.has_granted = false;
        server.fresh = Some(window.unwrap_or_default());
        server.stale = None;
        self.whole = false;
        self.signals = server.memory.events();
    }
}
