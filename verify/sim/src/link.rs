//! The simulated connection from one client to one node: a `LockNode` over an unreliable network.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{Batch, BoxFuture, Env, LockNode, NodeSignal, Replies};
use palisade::{Drift, Moment};
use palisade::{Durability, node::spi::BarrierPoint};
use tokio::sync::{broadcast, oneshot};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::node::{Job, Node};
use crate::plan::{Ms, NetPlan, ms};
use crate::world::World;

/// Number of cuts between a client and a node in each direction. A wire is kept when the process of
/// the client is restarted.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    requests: AtomicU32,
    replies: AtomicU32,
}

impl Wire {
    fn way(&self, requests: bool) -> &AtomicU32 {
        if requests { &self.requests } else { &self.replies }
    }

    pub(crate) fn cut(&self, requests: bool) {
        self.way(requests).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn mend(&self, requests: bool) {
        let less = |n: u32| Some(n.saturating_sub(1));
        let _ = self.way(requests).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn heal(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.replies.store(0, Ordering::Relaxed);
    }

    fn is_open(&self, requests: bool) -> bool {
        self.way(requests).load(Ordering::Relaxed) == 0
    }
}

/// Maximum number of a client's batches that travel to a node at the same time.
const DEPTH: usize = 4;

/// A client's connection to one node, with the order of a TCP connection: batches arrive in the
/// order in which they were sent, and their replies arrive in the same order.
pub(crate) struct Link {
    pub(crate) client: usize,
    pub(crate) world: Arc<World>,
    pub(crate) node: Arc<Node>,
    pub(crate) wire: Arc<Wire>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) net: Arc<Mutex<NetPlan>>,
    pub(crate) dice: Mutex<Dice>,
    pub(crate) name: Arc<str>,
    /// Maximum drift between two clocks. All simulated clocks keep to it.
    pub(crate) drift: Drift,
    /// Signals of the last batch that was sent: the first fires when the batch has arrived, the
    /// second when its replies have arrived.
    pub(crate) last: Mutex<Option<(Turn, Turn)>>,
}

/// The far end of a connection.
pub(crate) trait Peer: Send + Sync {
    fn arrive(&self, job: Job);

    /// Returns true if messages in this direction arrive.
    fn is_open(&self, requests: bool) -> bool;
}

impl Peer for (Arc<Node>, Arc<Wire>) {
    fn arrive(&self, job: Job) {
        self.0.arrive(job);
    }

    fn is_open(&self, requests: bool) -> bool {
        self.1.is_open(requests)
    }
}

/// Signal that the next batch may continue. It fires when its sender is dropped.
pub(crate) type Turn = oneshot::Receiver<()>;

/// Keeps the order of batches. A batch waits for the signals `before`, which the batch sent before
/// it fires. It fires the signals `behind`, for which the batch sent after it waits.
#[derive(Default)]
pub(crate) struct Order {
    before: Option<(Turn, Turn)>,
    behind: Option<(oneshot::Sender<()>, oneshot::Sender<()>)>,
}

/// Random delays and faults of one exchange of messages.
#[derive(Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) there: Ms,
    pub(crate) back: Ms,
    pub(crate) lose_request: bool,
    pub(crate) lose_reply: bool,
    again: Option<Ms>,
    refused: bool,
}

impl Order {
    /// Follows the batch whose signals are in `last`.
    pub(crate) fn after(last: &Mutex<Option<(Turn, Turn)>>) -> Self {
        let ((there, arrived), (back, answered)) = (oneshot::channel(), oneshot::channel());
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        Self { before: last.replace((arrived, answered)), behind: Some((there, back)) }
    }
}

impl Fate {
    pub(crate) fn draw(dice: &Mutex<Dice>, net: &Mutex<NetPlan>) -> Self {
        let mut d = dice.lock().unwrap_or_else(PoisonError::into_inner);
        let net = *net.lock().unwrap_or_else(PoisonError::into_inner);
        let mut delay = || {
            let usual = d.range(net.latency.0, net.latency.1);
            let late = d.range(0, net.late_max);
            if d.chance(net.late) { late } else { usual }
        };
        let (there, back) = (delay(), delay());
        let again = d.range(0, net.late_max);
        Self {
            there,
            back,
            lose_request: d.chance(net.lose_request),
            lose_reply: d.chance(net.lose_reply),
            again: d.chance(net.duplicate).then_some(again),
            refused: d.chance(500),
        }
    }
}

impl Link {
    fn fate(&self) -> Fate {
        Fate::draw(&self.dice, &self.net)
    }
}

/// Carries a batch to the node and the replies back. The batch arrives or is lost, even if the
/// future of the sender is dropped.
pub(crate) async fn travel(
    peer: Arc<dyn Peer>,
    fate: Fate,
    (client, due, batch): (usize, u64, Batch),
    (order, sender): (Order, oneshot::Sender<Replies>),
) {
    let (arrived, answered) = order.before.unzip();
    let (there, _back) = order.behind.unzip();
    pause(fate.there).await;
    turn(arrived).await;
    if fate.lose_request || !peer.is_open(true) {
        return;
    }
    let (reply, answer) = oneshot::channel();
    let copy = fate.again.map(|_| batch.clone());
    peer.arrive(Job { client, due, batch, reply: Some(reply) });
    drop(there);
    if let (Some(later), Some(batch)) = (fate.again, copy) {
        let peer = Arc::clone(&peer);
        tokio::spawn(async move {
            pause(later).await;
            peer.arrive(Job { client, due, batch, reply: None });
        });
    }
    let Ok(replies) = answer.await else { return };
    pause(fate.back).await;
    turn(answered).await;
    if !fate.lose_reply && peer.is_open(false) {
        let _ = sender.send(replies);
    }
}

async fn turn(of: Option<Turn>) {
    if let Some(turn) = of {
        let _ = turn.await;
    }
}

pub(crate) async fn pause(span: Ms) {
    if span > 0 {
        sleep(ms(span)).await;
    }
}

impl LockNode for Link {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let n = batch.ops.len();
        let fate = self.fate();
        let budget: Duration = deadline.since(self.env.now());
        if budget.is_zero() {
            let detail = "the deadline passed before the request was sent";
            let error = NodeError::not_executed(NodeFault::Timeout, detail);
            return Box::pin(async move { Replies::fail(n, &error) });
        }
        if self.node.is_down() && fate.refused {
            // If the connection is refused, the request was certainly not executed.
            let error = NodeError::not_executed(NodeFault::Unreachable, "connection refused");
            return Box::pin(async move {
                pause(fate.there).await;
                Replies::fail(n, &error)
            });
        }
        let (sender, receiver) = oneshot::channel();
        let ends = Arc::new((Arc::clone(&self.node), Arc::clone(&self.wire)));
        // The deadline `due` is in true time, so the largest rate error of the sender's clock is
        // added.
        let due =
            self.world.nanos() + (budget + budget * self.drift.ppm() / 1_000_000).as_nanos() as u64;
        let order = Order::after(&self.last);
        tokio::spawn(travel(ends, fate, (self.client, due, batch), (order, sender)));
        Box::pin(async move {
            let late = pin!(sleep(budget));
            tokio::select! {
                biased;
                replies = answered(receiver) => replies,
                () = late => {
                    let error = NodeError::maybe_executed(NodeFault::Timeout, "no answer in time");
                    Replies::fail(n, &error)
                }
            }
        })
    }

    /// Requests a barrier from the node over the same unreliable connection. The request ends when
    /// its caller drops it.
    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        let fate = self.fate();
        // In one of ten barriers, a replica does not confirm.
        let lags = self.dice.lock().unwrap_or_else(PoisonError::into_inner).chance(100);
        let budget = deadline.since(self.env.now());
        let exchange = async move {
            pause(fate.there).await;
            if fate.lose_request || lags || !self.wire.is_open(true) {
                return pending().await;
            }
            let Some(answer) = self.node.confirm(self.client, after, level) else {
                return pending().await;
            };
            pause(fate.back).await;
            if fate.lose_reply || !self.wire.is_open(false) {
                return pending().await;
            }
            answer
        };
        Box::pin(async move {
            let (late, exchange) = (pin!(sleep(budget)), pin!(exchange));
            tokio::select! {
                biased;
                answer = exchange => answer,
                () = late => {
                    Err(NodeError::maybe_executed(NodeFault::NotDurable, "no answer in time"))
                }
            }
        })
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn server(&self) -> Option<Arc<str>> {
        self.node.server_of(self.client)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.node.events()
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

pub(crate) async fn answered(receiver: oneshot::Receiver<Replies>) -> Replies {
    match receiver.await {
        Ok(replies) => replies,
        // A lost batch has no reply. The caller waits until the deadline.
        Err(_) => pending().await,
    }
}
