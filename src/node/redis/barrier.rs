//! Barriers at one server process: callers wait until replicas have a grant (durability 2), many
//! with one `WAIT`.
//!
//! Callers for the same number of replicas share a queue and a connection; those that arrive while
//! a `WAIT` is under way share the next. A frozen replica delays only the callers that need it,
//! because those that need fewer wait on another connection.

pub(crate) mod replicas;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Shortest remaining time of a caller for which another round starts. With less it receives the
/// last round's result.
const LAST: Duration = Duration::from_millis(100);
/// Reserved of a round's time for the way of the answer: an eighth, up to this.
const WAY_BACK: Duration = Duration::from_millis(90);
/// Longest `WAIT` of a round if too few replicas were connected in the round before.
const LOOK: Duration = Duration::from_millis(5);
const WISHES_MAX: usize = 8_192;
const QUEUES_MAX: usize = 64;
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Barriers {
    server: Server,
    connected: AtomicU32,
    /// Online at one time since this node first connected to the process, earlier connections
    /// included. A backup tool is never online, so it does not count.
    most: Arc<AtomicU32>,
    queues: SyncMutex<BTreeMap<u32, mpsc::Sender<Wish>>>,
}

#[derive(Clone)]
struct Server {
    at: Endpoint,
    run_id: Arc<str>,
    env: Arc<dyn Env>,
}

struct Wish {
    history_id: u64,
    /// Of a cluster. It is written in, because another server may have got it since.
    slot: Option<u16>,
    deadline: Moment,
    done: oneshot::Sender<Result<Round, NodeError>>,
}

impl Barriers {
    /// At the process `run_id`. Opens no connection.
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
            queues: SyncMutex::default(),
        }
    }

    /// Returns how many replicas have all grants of the process in this data history. `known` are
    /// those that the Sentinels or a setting report; without it `AllReplicas` waits for the
    /// attached ones, or for the most that were online at one time. If the future is dropped, the
    /// round goes on for the others.
    pub(crate) async fn pass(
        &self,
        (history_id, slot): (u64, Option<u16>),
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
            let round = self.round(wanted, (history_id, slot), deadline).await?;
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
            // More are attached than `wanted`, or a replica has acknowledged the round's write but
            // not yet the slightly later offset that `count` requires: another round decides. Not
            // for a known replica that is not attached: it would not attach within a round.
            let again = all && count.absent.is_empty() && round.have >= wanted;
            if !again || deadline.since(now) < LAST {
                return Err(too_few(&round, &count, level, now.since(started)));
            }
            wanted = count.all;
        }
    }

    async fn round(
        &self,
        k: u32,
        (history_id, slot): (u64, Option<u16>),
        deadline: Moment,
    ) -> Result<Round, NodeError> {
        let (done, round) = oneshot::channel();
        self.submit(k, Wish { history_id, slot, deadline, done });
        round.await.unwrap_or_else(|_| {
            let detail = "the task that waits for replicas ended with its runtime";
            Err(NodeError::maybe_executed(NodeFault::Disconnected, detail))
        })
    }

    fn submit(&self, k: u32, wish: Wish) {
        let mut queues = self.queues.lock();
        let wish = match queues.get(&k) {
            Some(queue) => match queue.try_send(wish) {
                Ok(()) => return,
                Err(TrySendError::Full(wish)) => return wish.refuse(),
                // The task's runtime has ended, so a new task is started.
                Err(TrySendError::Closed(wish)) => wish,
            },
            None => wish,
        };
        if queues.len() >= QUEUES_MAX && !queues.contains_key(&k) {
            return wish.refuse();
        }
        let (queue, wishes) = mpsc::channel(WISHES_MAX);
        // Cannot fail: the queue is empty.
        let _ = queue.try_send(wish);
        queues.insert(k, queue);
        drop(queues);
        let connected = self.connected.load(Ordering::Relaxed);
        let waiter = Waiter { server: self.server.clone(), k, wishes, wire: None, connected };
        self.server.env.spawn(&Handle::current(), Box::pin(waiter.run()));
    }
}

impl Wish {
    fn refuse(self) {
        let detail = "too many requests wait for replicas already";
        let _ = self.done.send(Err(NodeError::maybe_executed(NodeFault::Busy, detail)));
    }
}

struct Waiter {
    server: Server,
    k: u32,
    wishes: mpsc::Receiver<Wish>,
    wire: Option<Wire>,
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
            let slots = waiting.iter().map(|wish| wish.slot).collect();
            let round = self.round(first, last, &slots).await;
            let now = self.server.env.now();
            for wish in std::mem::take(&mut waiting) {
                match &round {
                    Ok(Round { refused, .. }) if refused.contains_key(&wish.slot) => {
                        let _ = wish.done.send(Err(refused[&wish.slot].clone()));
                    }
                    Ok(round) if !self.is_final(round, &wish, now) => waiting.push(wish),
                    // Who dropped its future does not wait any more.
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

    /// Enough replicas, another round could not find more, or the caller has too little time for
    /// one.
    fn is_final(&self, round: &Round, wish: &Wish, now: Moment) -> bool {
        round.have >= self.k
            || round.connected() < self.k
            || round.history_id != wish.history_id
            || wish.deadline.since(now) < LAST
    }

    /// `None` after the session has ended. Closes the connection if no caller arrives within
    /// [`IDLE`].
    async fn next(&mut self) -> Option<Wish> {
        if self.wire.is_some() {
            match timeout(IDLE, self.wishes.recv()).await {
                Ok(wish) => return wish,
                Err(_) => self.wire = None,
            }
        }
        self.wishes.recv().await
    }

    /// A write, a `WAIT` and an `INFO`, until `first`, the callers' earliest deadline. A new
    /// connection may take until `last`, the latest.
    async fn round(
        &mut self,
        first: Moment,
        last: Moment,
        slots: &BTreeSet<Option<u16>>,
    ) -> Result<Round, NodeError> {
        loop {
            let kept = self.wire.take().filter(|wire| !wire.is_lost());
            let is_new = kept.is_none();
            let wire = match kept {
                Some(wire) => wire,
                None => self.open(last).await?,
            };
            let left = first.since(self.server.env.now());
            let within = if self.connected < self.k {
                // Too few replicas were connected in the last round: only another one that has just
                // connected helps, so this round is short.
                left.min(LOOK)
            } else {
                left.saturating_sub(WAY_BACK.min(left / 8))
            };
            match wire.round(self.k, within, slots).await {
                Ok(round) => {
                    self.connected = round.connected();
                    self.wire = Some(wire);
                    return Ok(round);
                }
                // Closed while it was idle. A second `WAIT` does no harm.
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

#[cfg(test)]
mod tests {
    use super::replicas::Attached;
    use super::*;
    use crate::env::SystemEnv;

    #[tokio::test]
    async fn a_further_round_starts_if_it_may_find_more_replicas_and_has_time() {
        let at = Endpoint::parse("redis://127.0.0.1:1").unwrap();
        let server = Server { at, run_id: "run".into(), env: Arc::new(SystemEnv) };
        let wishes = mpsc::channel(1).1;
        let waiter = Waiter { server, k: 2, wishes, wire: None, connected: 2 };
        let now = Moment::default() + Duration::from_secs(1_000);
        let is_final = |have, connected: u16, history_id, left| {
            let replica = |port| Attached { at: Place::new("a", port), online: true, offset: 0 };
            let attached = (0..connected).map(replica).collect();
            let refused = BTreeMap::new();
            let round = Round { have, attached, offset: 1, history_id, refused };
            let (slot, done) = (None, oneshot::channel().0);
            let wish = Wish { history_id: 7, slot, deadline: now + left, done };
            waiter.is_final(&round, &wish, now)
        };
        let ms = Duration::from_millis;
        assert!(!is_final(1, 2, 7, ms(5_000)), "the second replica may still confirm");
        assert!(!is_final(1, 2, 7, ms(100)));
        assert!(is_final(1, 2, 7, ms(99)), "no time for another round");
        assert!(is_final(2, 2, 7, ms(5_000)), "there are enough");
        assert!(is_final(1, 1, 7, ms(5_000)), "only one replica is connected");
        assert!(is_final(1, 2, 8, ms(5_000)), "the grant was in another data history");
    }
}
