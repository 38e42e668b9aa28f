//! Barriers at one server process: the callers that need replicas to have what the server granted,
//! and the few `WAIT`s that answer all of them (durability 2).
//!
//! There is one queue and one connection for each number of replicas. Callers that come while a
//! `WAIT` is under way share the next one, so there are far fewer `WAIT`s than locks. A frozen
//! replica delays only the callers that need it, because each number waits on a connection of its
//! own.

pub(crate) mod replicas;
mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::replicas::{Count, Known, Place, count};
use self::wire::{Round, Wire};
use crate::dial::endpoint::Endpoint;
use crate::durability::Durability;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::time::Moment;

/// Shortest rest of a caller's time for another round; a caller with less is answered with the
/// present count.
const LAST: Duration = Duration::from_millis(100);
/// Part of a round's time in which its answer comes back: an eighth, and at most this.
const WAY_BACK: Duration = Duration::from_millis(90);
/// Time to wait for replicas that are not even connected.
const LOOK: Duration = Duration::from_millis(5);
/// Most callers that wait for one number of replicas, and most such numbers.
const WISHES_MAX: usize = 8_192;
const QUEUES_MAX: usize = 64;
/// Time after which a connection without work is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Barriers of one session's server.
pub(crate) struct Barriers {
    server: Server,
    /// Replicas that were connected when the server was asked last, and the most that followed
    /// since this process was first met: a new connection does not forget any, and a backup that
    /// comes as a replica and goes is not counted.
    connected: AtomicU32,
    most: Arc<AtomicU32>,
    queues: Mutex<BTreeMap<u32, mpsc::Sender<Wish>>>,
}

/// The process that granted.
#[derive(Clone)]
struct Server {
    at: Endpoint,
    run_id: Arc<str>,
    env: Arc<dyn Env>,
}

/// A caller that waits for a round.
struct Wish {
    history_id: u64,
    deadline: Moment,
    done: oneshot::Sender<Result<Round, NodeError>>,
}

impl Barriers {
    /// Makes the barriers at the process `run_id` at `at`, to which `connected` replicas were
    /// connected just now, and which at most `most` followed. Connects to nothing yet.
    pub(crate) fn new(
        at: Endpoint,
        run_id: Arc<str>,
        (connected, most): (u32, Arc<AtomicU32>),
        env: Arc<dyn Env>,
    ) -> Self {
        Self {
            server: Server { at, run_id, env },
            connected: AtomicU32::new(connected),
            most,
            queues: Mutex::default(),
        }
    }

    /// Waits until the replicas that `level` asks for have what the process granted in this
    /// history; returns how many have it. `known`: the replicas that there are, if the Sentinels or
    /// a setting name them; otherwise as many as were ever seen to follow count, and those that are
    /// attached.
    ///
    /// # Cancellation safety
    /// May be dropped; the round continues for other callers.
    pub(crate) async fn pass(
        &self,
        history_id: u64,
        level: Durability,
        known: Option<Known>,
        deadline: Moment,
    ) -> Result<u32, NodeError> {
        let started = self.server.env.now();
        let reported = known.is_some();
        let mut known = known.unwrap_or_default();
        let mut wanted = match level {
            Durability::Primary => 0,
            Durability::Replicas(k) => k,
            Durability::AllReplicas => {
                let attached = self.connected.load(Ordering::Relaxed);
                if !reported {
                    known.count = self.most.load(Ordering::Relaxed);
                }
                attached.max(known.count)
            }
        };
        loop {
            let round = self.round(wanted, history_id, deadline).await?;
            self.connected.store(round.connected(), Ordering::Relaxed);
            let most = self.most.fetch_max(round.online(), Ordering::Relaxed).max(round.online());
            if !reported {
                known.count = most;
            }
            let all = level == Durability::AllReplicas;
            let count = if all {
                count(&round.attached, round.offset, &known)
            } else {
                Count { have: round.have, all: wanted, behind: vec![], absent: vec![] }
            };
            if count.is_complete() {
                return Ok(count.have);
            }
            let now = self.server.env.now();
            // Either more replicas have it than were waited for, or an acknowledgement came in two
            // parts. A replica that is not attached does not come within a round.
            let again = all && count.absent.is_empty() && round.have >= wanted;
            if !again || deadline.since(now) < LAST {
                return Err(too_few(&round, &count, level, now.since(started)));
            }
            wanted = count.all;
        }
    }

    /// Returns the result of the next round for `k` replicas.
    async fn round(&self, k: u32, history_id: u64, deadline: Moment) -> Result<Round, NodeError> {
        let (done, round) = oneshot::channel();
        self.submit(k, Wish { history_id, deadline, done });
        round.await.unwrap_or_else(|_| {
            let detail = "the task that waits for replicas ended with its runtime";
            Err(NodeError::maybe_executed(NodeFault::Disconnected, detail))
        })
    }

    fn submit(&self, k: u32, wish: Wish) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let wish = match queues.get(&k) {
            Some(queue) => match queue.try_send(wish) {
                Ok(()) => return,
                Err(TrySendError::Full(wish)) => return wish.refuse(),
                // The runtime of the earlier task is gone, so a new task is started.
                Err(TrySendError::Closed(wish)) => wish,
            },
            None => wish,
        };
        if queues.len() >= QUEUES_MAX && !queues.contains_key(&k) {
            return wish.refuse();
        }
        let (queue, wishes) = mpsc::channel(WISHES_MAX);
        // Cannot fail: the new queue is empty.
        let _ = queue.try_send(wish);
        queues.insert(k, queue);
        drop(queues);
        let connected = self.connected.load(Ordering::Relaxed);
        let waiter = Waiter { server: self.server.clone(), k, wishes, wire: None, connected };
        self.server.env.spawn(&Handle::current(), Box::pin(waiter.run()));
    }
}

impl Wish {
    /// Refuses the caller because too many wait.
    fn refuse(self) {
        let detail = "too many requests wait for replicas already";
        // An error means that the caller has dropped its future.
        let _ = self.done.send(Err(NodeError::maybe_executed(NodeFault::Busy, detail)));
    }
}

/// The task of one queue. It ends with the session.
struct Waiter {
    server: Server,
    k: u32,
    wishes: mpsc::Receiver<Wish>,
    wire: Option<Wire>,
    /// Number of replicas at the last round.
    connected: u32,
}

impl Waiter {
    async fn run(mut self) {
        let mut waiting: Vec<Wish> = Vec::new();
        loop {
            if waiting.is_empty() {
                match self.next().await {
                    Some(wish) => waiting.push(wish),
                    None => return,
                }
            }
            while waiting.len() < WISHES_MAX
                && let Ok(wish) = self.wishes.try_recv()
            {
                waiting.push(wish);
            }
            waiting.retain(|wish| !wish.done.is_closed());
            let Some(first) = waiting.iter().map(|wish| wish.deadline).min() else { continue };
            let last = waiting.iter().map(|wish| wish.deadline).max().unwrap_or(first);
            let round = self.round(first, last).await;
            let now = self.server.env.now();
            for wish in std::mem::take(&mut waiting) {
                match &round {
                    Ok(round) if !self.is_final(round, &wish, now) => waiting.push(wish),
                    // An error means that the caller has dropped its future.
                    Ok(round) if round.history_id == wish.history_id => {
                        let _ = wish.done.send(Ok(round.clone()));
                    }
                    Ok(_) => {
                        let detail = "the server has another data history since it granted";
                        let error = NodeError::maybe_executed(NodeFault::NotDurable, detail);
                        let _ = wish.done.send(Err(error));
                    }
                    Err(e) => {
                        let _ = wish.done.send(Err(e.clone()));
                    }
                }
            }
        }
    }

    /// Returns true if another round could not find more replicas.
    fn is_final(&self, round: &Round, wish: &Wish, now: Moment) -> bool {
        round.have >= self.k
            || round.connected() < self.k
            || round.history_id != wish.history_id
            || wish.deadline.since(now) < LAST
    }

    /// Returns the next caller. Closes a connection that is not needed for a while.
    async fn next(&mut self) -> Option<Wish> {
        if self.wire.is_some() {
            match timeout(IDLE, self.wishes.recv()).await {
                Ok(wish) => return wish,
                Err(_) => self.wire = None,
            }
        }
        self.wishes.recv().await
    }

    /// Runs one round, for as long as the caller with the least time can wait.
    async fn round(&mut self, first: Moment, last: Moment) -> Result<Round, NodeError> {
        loop {
            let kept = self.wire.take().filter(|wire| !wire.is_lost());
            let is_new = kept.is_none();
            let wire = match kept {
                Some(wire) => wire,
                None => self.open(last).await?,
            };
            let left = first.since(self.server.env.now());
            let within = if self.connected < self.k {
                // It cannot be enough unless a replica has just come, so the round is short.
                left.min(LOOK)
            } else {
                left.saturating_sub(WAY_BACK.min(left / 8))
            };
            match wire.round(self.k, within).await {
                Ok(round) => {
                    self.connected = round.connected();
                    self.wire = Some(wire);
                    return Ok(round);
                }
                // Closed while it was idle. A barrier may be sent twice.
                Err(e) if !is_new && e.fault() == NodeFault::Disconnected => {}
                Err(e) if e.is_ambiguous() => return Err(e),
                Err(e) => return Err(e.after_execution()),
            }
        }
    }

    async fn open(&self, deadline: Moment) -> Result<Wire, NodeError> {
        let rest = deadline.since(self.server.env.now());
        timeout(rest, Wire::open(&self.server.at, &self.server.run_id)).await.unwrap_or_else(|_| {
            let detail = "no second connection in time, to ask who has it";
            Err(NodeError::maybe_executed(NodeFault::Unreachable, detail))
        })
    }
}

/// Returns the error that names what is missing and what to do.
fn too_few(round: &Round, count: &Count, level: Durability, took: Duration) -> NodeError {
    let Count { have, all, behind, absent } = count;
    let connected = round.connected();
    let why = if connected < *all {
        let absent = list(absent, "not attached");
        format!("only {connected} connected{absent}: start the others or let them connect")
    } else {
        let behind = list(behind, "behind");
        format!("one is frozen, slow or cut off{behind}: look at lag in INFO replication")
    };
    let detail = format!(
        "{have} of {all} replicas have it within {} ms, asked for: {level}; {why}",
        took.as_millis()
    );
    NodeError::maybe_executed(NodeFault::NotDurable, detail)
}

fn list(places: &[Place], what: &str) -> String {
    let names: Vec<String> = places.iter().map(ToString::to_string).collect();
    if names.is_empty() { String::new() } else { format!(" ({what}: {})", names.join(", ")) }
}
