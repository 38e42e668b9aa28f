//! Barriers at one server process: callers wait until replicas have what the server granted, and a
//! few `WAIT`s answer all of these callers (durability 2).
//!
//! Callers that wait for the same number of replicas share one queue and one connection. Those that
//! come while a `WAIT` is under way share the next `WAIT`, so there are far fewer `WAIT`s than
//! locks. A frozen replica delays only the callers that need it, because callers that need fewer
//! replicas wait on another connection.

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

/// Shortest remaining time of a caller for which another round (one `WAIT`) is begun. A caller with
/// less time left is answered with the result of the last round.
const LAST: Duration = Duration::from_millis(100);
/// Longest part of a round's time that is kept for the answer's way back from the server. The part
/// is an eighth of the time, but not more than this.
const WAY_BACK: Duration = Duration::from_millis(90);
/// Longest `WAIT` of a round for which too few replicas are connected.
const LOOK: Duration = Duration::from_millis(5);
/// Most callers in the queue for one number of replicas, and most that one `WAIT` answers.
const WISHES_MAX: usize = 8_192;
/// Most queues, each for another number of replicas.
const QUEUES_MAX: usize = 64;
/// Time after which a connection without work is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Barriers at the server process of one session.
pub(crate) struct Barriers {
    server: Server,
    /// Number of replicas that were connected, in any state, when the server was asked last.
    connected: AtomicU32,
    /// Largest number of replicas that were online at once since this node first met the server
    /// process, also over earlier connections. A backup tool that connects as a replica is never
    /// online, so it is not counted.
    most: Arc<AtomicU32>,
    queues: Mutex<BTreeMap<u32, mpsc::Sender<Wish>>>,
}

/// The server process that granted, with what is needed to connect to it.
#[derive(Clone)]
struct Server {
    at: Endpoint,
    run_id: Arc<str>,
    env: Arc<dyn Env>,
}

/// A caller that waits for the result of a `WAIT`.
struct Wish {
    history_id: u64,
    deadline: Moment,
    done: oneshot::Sender<Result<Round, NodeError>>,
}

impl Barriers {
    /// Makes the barriers at the server process `run_id` with the address `at`. `connected`
    /// replicas are connected to it now, and at most `most` were ever online at once. Opens no
    /// connection yet.
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

    /// Waits until the replicas that `level` asks for have what the server process granted in this
    /// data history, and returns how many replicas have it. `known` holds the replicas of the
    /// server, if the Sentinels or a setting report them. If it is `None`, `AllReplicas` waits for
    /// as many as are attached, or as were ever online at once, whichever is more.
    ///
    /// # Cancellation safety
    /// The future may be dropped. The round continues for the other callers.
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
            // `WAIT` counted enough, but more replicas are attached than it waited for, or one has
            // acknowledged the write of the round and not yet the slightly later offset that is
            // compared. Another round decides. None is begun while a known replica is not attached,
            // because it does not come within a round.
            let again = all && count.absent.is_empty() && round.have >= wanted;
            if !again || deadline.since(now) < LAST {
                return Err(too_few(&round, &count, level, now.since(started)));
            }
            wanted = count.all;
        }
    }

    /// Waits for the next round for `k` replicas, and returns its result.
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
                // The tokio runtime of the queue's task has ended, so a new task is started.
                Err(TrySendError::Closed(wish)) => wish,
            },
            None => wish,
        };
        if queues.len() >= QUEUES_MAX && !queues.contains_key(&k) {
            return wish.refuse();
        }
        let (queue, wishes) = mpsc::channel(WISHES_MAX);
        // Cannot fail, because the new queue is empty.
        let _ = queue.try_send(wish);
        queues.insert(k, queue);
        drop(queues);
        let connected = self.connected.load(Ordering::Relaxed);
        let waiter = Waiter { server: self.server.clone(), k, wishes, wire: None, connected };
        self.server.env.spawn(&Handle::current(), Box::pin(waiter.run()));
    }
}

impl Wish {
    /// Answers the caller with the fault `Busy`, because too many callers wait already.
    fn refuse(self) {
        let detail = "too many requests wait for replicas already";
        // An error means that the caller has dropped its future.
        let _ = self.done.send(Err(NodeError::maybe_executed(NodeFault::Busy, detail)));
    }
}

/// The task that answers the callers of one queue. It ends with the session.
struct Waiter {
    server: Server,
    k: u32,
    wishes: mpsc::Receiver<Wish>,
    wire: Option<Wire>,
    /// Number of replicas that were attached in the last round.
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

    /// Returns true if the caller is to be answered with this round: it is enough, another round
    /// could not find more replicas, or the caller has too little time for one.
    fn is_final(&self, round: &Round, wish: &Wish, now: Moment) -> bool {
        round.have >= self.k
            || round.connected() < self.k
            || round.history_id != wish.history_id
            || wish.deadline.since(now) < LAST
    }

    /// Waits for the next caller; `None` after the session has ended. Closes the connection if no
    /// caller comes for [`IDLE`].
    async fn next(&mut self) -> Option<Wish> {
        if self.wire.is_some() {
            match timeout(IDLE, self.wishes.recv()).await {
                Ok(wish) => return wish,
                Err(_) => self.wire = None,
            }
        }
        self.wishes.recv().await
    }

    /// Runs one round, which ends before `first`, the earliest deadline of the callers. If it needs
    /// a new connection, that may take until `last`, the latest deadline.
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
                // Too few replicas were connected in the last round. This one cannot succeed unless
                // a replica has just come, so it is short.
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
                // The kept connection was closed while it was idle. The round is repeated on a new
                // one, because a `WAIT` may be sent twice.
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

/// Returns the error for a barrier that too few replicas passed. It names the replicas that lack
/// the grant, and says what to do.
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
