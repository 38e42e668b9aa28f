//! A simulated node: the real `MemoryNode` as the server's memory, and around it what happens to
//! servers: crashes, freezes, failovers with a former master that lives on, stepped clocks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade::durability::{BarrierPoint, Durability};
use palisade::env::Env;
use palisade::error::{NodeError, NodeFault};
use palisade::node::{BoxFuture, LockNode, MemoryNode, MemorySnapshot, NodeEvent};
use palisade::op::{Batch, Op, Replies, Reply};
use palisade::time::Moment;
use palisade::token::OwnerToken;
use tokio::sync::{broadcast, oneshot};

use crate::dice::{Dice, mix};
use crate::names::number_of;
use crate::plan::{ClockPlan, Loss, Ms, Plan, ms};
use crate::trace::{Answer, Event, Verb};
use crate::world::World;

/// The clocks of a server, without the steps that `MemoryNode` adds itself.
struct ServerEnv {
    world: Arc<World>,
    clock: ClockPlan,
    dice: Mutex<Dice>,
}

impl fmt::Debug for ServerEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerEnv").finish_non_exhaustive()
    }
}

impl Env for ServerEnv {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.clock.local(self.world.nanos()))
    }

    fn wall_micros(&self) -> u64 {
        self.clock.wall(self.world.nanos())
    }

    fn random(&self) -> u128 {
        u128::from(self.dice.lock().unwrap_or_else(PoisonError::into_inner).next())
    }
}

/// A request that arrived.
pub(crate) struct Job {
    pub(crate) client: usize,
    pub(crate) batch: Batch,
    pub(crate) reply: Option<oneshot::Sender<Replies>>,
}

/// One life of a data history.
struct Life {
    memory: MemoryNode,
    number: u64,
    /// Nobody has spoken to it yet, and it is not the first.
    fresh: bool,
}

struct Former {
    life: Life,
    /// The clients that still talk to it, as bits.
    clients: u64,
    until: u64,
}

struct State {
    master: Life,
    former: Option<Former>,
    /// The former master after its window: a replica.
    spare: Option<MemoryNode>,
    copy: MemorySnapshot,
    /// Locks that the master granted since the copy confirmed any, with their fences.
    granted: Vec<(u16, u64)>,
    copied_at: u64,
    down: bool,
    frozen: u32,
    queue: VecDeque<Job>,
    lives: u64,
    jumped: Duration,
    /// How many hints in a thousand get lost.
    lose_hint: u64,
    heard: broadcast::Receiver<NodeEvent>,
}

/// A node of the simulated world.
pub(crate) struct Server {
    pub(crate) index: usize,
    world: Arc<World>,
    env: Arc<ServerEnv>,
    plan: ServerPlan,
    events: broadcast::Sender<NodeEvent>,
    hints: Mutex<Dice>,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct ServerPlan {
    max_ttl: Duration,
    window: Duration,
    /// True time for which a former master still serves: the window by a slow watch.
    old_serves: u64,
    copy_every: u64,
}

impl Server {
    pub(crate) fn new(index: usize, world: &Arc<World>, plan: &Plan) -> Arc<Self> {
        let dice = Dice::new(plan.seed, 1_000 + index as u64);
        let env = Arc::new(ServerEnv {
            world: Arc::clone(world),
            clock: plan.nodes[index],
            dice: Mutex::new(dice.clone()),
        });
        let (window, lose_hint) = (ms(plan.window), plan.net.lose_hint);
        let slow = u64::from(1_000_000 - plan.drift_ppm);
        let plan = ServerPlan {
            max_ttl: ms(plan.max_ttl),
            window,
            old_serves: window.as_nanos() as u64 / 1_000_000 * slow,
            copy_every: plan.copy_every * 1_000_000,
        };
        let memory = builder(index, &env, window).build();
        let state = State {
            copy: memory.snapshot(),
            copied_at: 0,
            granted: Vec::new(),
            heard: memory.events(),
            master: Life { memory, number: 0, fresh: false },
            former: None,
            spare: None,
            down: false,
            frozen: 0,
            queue: VecDeque::new(),
            lives: 0,
            jumped: Duration::ZERO,
            lose_hint,
        };
        Arc::new(Self {
            index,
            world: Arc::clone(world),
            env,
            plan,
            events: broadcast::Sender::new(256),
            hints: Mutex::new(Dice::new(dice.clone().next(), 2)),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state().down
    }

    /// A request arrives.
    pub(crate) fn arrive(&self, job: Job) {
        let mut state = self.state();
        if state.down {
            return;
        }
        if state.frozen > 0 {
            state.queue.push_back(job);
            return;
        }
        self.execute(&mut state, job);
    }

    fn execute(&self, state: &mut State, job: Job) {
        let now = self.world.nanos();
        if now >= state.copied_at + self.plan.copy_every {
            // What a replica or the disk has is older than what is about to be written.
            state.copy = state.master.memory.snapshot();
            state.copied_at = now;
        }
        if state.former.as_ref().is_some_and(|f| now >= f.until) {
            state.spare = state.former.take().map(|f| f.life.memory);
        }
        let jumped = state.jumped;
        let at_old = state.former.as_mut().filter(|f| f.clients >> job.client & 1 == 1);
        let (life, old) = match at_old {
            Some(former) => (&mut former.life, true),
            None => (&mut state.master, false),
        };
        let at = (self.env.now() + jumped).as_nanos();
        if std::mem::take(&mut life.fresh) {
            let quarantine = (self.plan.max_ttl + self.plan.window).as_nanos() as u64;
            let generation = life.number;
            self.world.tell(Event::NewLife { node: self.index, old, generation, at, quarantine });
        }
        let generation = life.number;
        let ops = job.batch.ops.clone();
        let replies = at_once(&life.memory, job.batch);
        for (op, reply) in ops.iter().zip(&replies.items) {
            let (verb, name, owner) = describe(op);
            let answer = reply.as_ref().map_or(Answer::Failed, answer);
            let (node, client) = (self.index, job.client);
            self.world.tell(Event::Served { node, old, client, verb, name, owner, answer });
            if matches!(answer, Answer::Granted(_)) {
                self.world.tell(Event::Granting { node, old, generation, at });
            }
        }
        if !old {
            state.granted.extend(ops.iter().zip(&replies.items).filter_map(stands));
        }
        self.forward(state);
        if let Some(reply) = job.reply {
            let _ = reply.send(replies);
        }
    }

    /// Whether the replica has what the client's server granted: from here on it has, unless that
    /// server is a former master, whose replica follows another. None: no answer.
    pub(crate) fn confirm(
        &self,
        client: usize,
        after: BarrierPoint,
        level: Durability,
    ) -> Option<Result<u32, NodeError>> {
        let mut state = self.state();
        if state.down || state.frozen > 0 {
            return None;
        }
        let now = self.world.nanos();
        let mut former = state.former.iter().filter(|f| now < f.until);
        if former.any(|f| f.clients >> client & 1 == 1) {
            let error = NodeError::maybe_executed(NodeFault::NotDurable, "it follows another");
            return Some(Err(error));
        }
        let memory = state.master.memory.clone();
        let answer = now_or_never(memory.barrier(after, level, Moment::from_nanos(u64::MAX)));
        if answer.is_ok() {
            state.copy = memory.snapshot();
            state.copied_at = now;
            // All its writes are in the copy, also those that a step of the clock has ended.
            for (name, fence) in std::mem::take(&mut state.granted) {
                self.world.kept(self.index, name, fence);
            }
        }
        Some(answer)
    }

    /// Hints travel on their own and may be lost.
    fn forward(&self, state: &mut State) {
        while let Ok(event) = state.heard.try_recv() {
            let mut dice = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
            if !dice.chance(state.lose_hint) {
                let _ = self.events.send(event);
            }
        }
    }

    /// The process dies; `down` until [`back`](Self::back).
    pub(crate) fn crash(&self, loss: Loss) {
        let mut state = self.state();
        let data = match loss {
            Loss::Nothing => Some(state.master.memory.snapshot()),
            Loss::LastWrites => Some(state.copy.clone()),
            Loss::Everything => None,
        };
        let memory = builder(self.index, &self.env, self.plan.window).quarantined().build();
        if let Some(data) = data {
            memory.restore(data);
        }
        state.queue.clear();
        state.down = true;
        self.take_over(&mut state, memory);
    }

    fn take_over(&self, state: &mut State, memory: MemoryNode) -> Life {
        memory.jump_clock(state.jumped);
        state.lives += 1;
        state.heard = memory.events();
        state.copy = memory.snapshot();
        state.copied_at = self.world.nanos();
        state.granted.clear();
        let life = Life { memory, number: state.lives, fresh: true };
        std::mem::replace(&mut state.master, life)
    }

    pub(crate) fn back(&self) {
        self.state().down = false;
    }

    pub(crate) fn freeze(&self) {
        self.state().frozen += 1;
    }

    /// What piled up runs now, in its order.
    pub(crate) fn thaw(&self) {
        let mut state = self.state();
        state.frozen = state.frozen.saturating_sub(1);
        if state.frozen == 0 {
            for job in std::mem::take(&mut state.queue) {
                self.execute(&mut state, job);
            }
        }
    }

    pub(crate) fn jump(&self, by: Ms) {
        let mut state = self.state();
        state.jumped += ms(by);
        state.master.memory.jump_clock(ms(by));
        if let Some(former) = &state.former {
            former.life.memory.jump_clock(ms(by));
        }
    }

    /// The replica is promoted; the clients in `old` stay with the former master until its window
    /// closes.
    pub(crate) fn fail_over(&self, old: u64) {
        let mut state = self.state();
        let memory = builder(self.index, &self.env, self.plan.window).quarantined().build();
        memory.restore(state.copy.clone());
        let until = self.world.nanos() + self.plan.old_serves;
        let life = self.take_over(&mut state, memory);
        state.former = Some(Former { life, clients: old, until });
    }

    /// The former master takes over the data of the present one and is promoted again.
    pub(crate) fn fail_back(&self) {
        let mut state = self.state();
        let former = state.former.take().map(|f| f.life.memory);
        let Some(memory) = former.or(state.spare.take()) else { return };
        memory.restore(state.master.memory.snapshot());
        let jumped = std::mem::take(&mut state.jumped);
        self.take_over(&mut state, memory);
        state.jumped = jumped;
    }

    /// Ends every fault.
    pub(crate) fn heal(&self) {
        {
            let mut state = self.state();
            state.former = None;
            state.lose_hint = 0;
            state.down = false;
            state.frozen = state.frozen.min(1);
        }
        self.thaw();
    }

    /// What stands under a lock's or a record's key now.
    pub(crate) fn ask(&self, op: Op, plan: &Plan) -> Option<Reply> {
        let batch = Batch { terms: plan.terms(), not_after: None, ops: vec![op] };
        let memory = self.state().master.memory.clone();
        at_once(&memory, batch).items.pop()?.ok()
    }
}

fn builder(
    index: usize,
    env: &Arc<ServerEnv>,
    window: Duration,
) -> palisade::node::MemoryNodeBuilder {
    MemoryNode::builder()
        .name(format!("node-{index}"))
        .env(Arc::clone(env) as Arc<dyn Env>)
        .failover_window(window)
}

/// `MemoryNode` answers at the first poll.
fn at_once(memory: &MemoryNode, batch: Batch) -> Replies {
    now_or_never(memory.call(batch, Moment::from_nanos(u64::MAX)))
}

fn now_or_never<T>(mut call: BoxFuture<'_, T>) -> T {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a node in memory never waits"),
    }
}

fn short(owner: &OwnerToken) -> u16 {
    owner.as_str().bytes().fold(0, |h: u64, b| mix(h ^ u64::from(b))) as u16
}

/// A lock that stands with this fence after the op.
fn stands((op, reply): (&Op, &Result<Reply, NodeError>)) -> Option<(u16, u64)> {
    match (op, reply) {
        (Op::Acquire { keys, .. }, Ok(Reply::Granted { fence })) => {
            Some((number_of(keys.lock()), *fence))
        }
        (Op::Raise { keys, token, .. }, Ok(Reply::Done)) => {
            Some((number_of(keys.lock()), token.get()))
        }
        _ => None,
    }
}

fn describe(op: &Op) -> (Verb, u16, u16) {
    match op {
        Op::Acquire { keys, owner, .. } => (Verb::Acquire, number_of(keys.lock()), short(owner)),
        Op::Raise { keys, owner, .. } => (Verb::Raise, number_of(keys.lock()), short(owner)),
        Op::Extend { keys, owner, .. } => (Verb::Extend, number_of(keys.lock()), short(owner)),
        Op::Release { keys, owner, .. } => (Verb::Release, number_of(keys.lock()), short(owner)),
        Op::Inspect { keys, .. } => (Verb::Inspect, number_of(keys.lock()), 0),
        Op::Claim(c) => (Verb::Claim, number_of(&c.key), short(&c.owner)),
        Op::RaiseClaim { key, owner, .. } => (Verb::RaiseClaim, number_of(key), short(owner)),
        Op::ExtendClaim { key, owner, .. } => (Verb::ExtendClaim, number_of(key), short(owner)),
        Op::Complete { key, owner, .. } => (Verb::Complete, number_of(key), short(owner)),
        Op::Unclaim { key, owner, .. } => (Verb::Unclaim, number_of(key), short(owner)),
        Op::Lookup { key, .. } => (Verb::Lookup, number_of(key), 0),
    }
}

fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Granted { fence } | Reply::Claimed { fence, .. } => Answer::Granted(*fence),
        Reply::Held { .. } => Answer::Held,
        Reply::Quarantined { .. } => Answer::Quarantined,
        Reply::Done => Answer::Done,
        Reply::NotOwner => Answer::NotOwner,
        Reply::Absent => Answer::Absent,
        Reply::Holder(_) | Reply::Record { .. } => Answer::Seen,
        Reply::Completed(r) => Answer::Completed(r.token.get()),
        Reply::InFlight { .. } => Answer::InFlight,
        // The memory nodes of the simulator show everything at once.
        Reply::Mismatch | Reply::TooOld | Reply::Deferred => Answer::Mismatch,
    }
}
