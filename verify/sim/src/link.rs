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

/// Signal that the next batch may continue. It fires when its sender is dropped.
type Turn = oneshot::Receiver<()>;

/// Keeps the order of batches. A batch waits for the signals `before`, which the batch sent before
/// it fires. It fires the signals `behind`, for which the batch sent after it waits.
#[derive(Default)]
struct Order {
    before: Option<(Turn, Turn)>,
    behind: Option<(oneshot::Sender<()>, oneshot::Sender<()>)>,
}

/// Random delays and faults of one exchange of messages.
#[derive(Clone, Copy)]
struct Fate {
    there: Ms,
    back: Ms,
    lose_request: bool,
    lose_reply: bool,
    again: Option<Ms>,
    refused: bool,
}

impl Link {
    fn order(&self) -> Order {
        let ((there, arrived), (back, answered)) = (oneshot::channel(), oneshot::channel());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Order { before: last.replace((arrived, answered)), behind: Some((there, back)) }
    }

    fn fate(&self) -> Fate {
        let mut d = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let net = *self.net.lock().unwrap_or_else(PoisonError::into_inner);
        let mut delay = || {
            let usual = d.range(net.latency.0, net.latency.1);
            let late = d.range(0, net.late_max);
            if d.chance(net.late) { late } else { usual }
        };
        let (there, back) = (delay(), delay());
        let again = d.range(0, net.late_max);
        Fate {
            there,
            back,
            lose_request: d.chance(net.lose_request),
            lose_reply: d.chance(net.lose_reply),
            again: d.chance(net.duplicate).then_some(again),
            refused: d.chance(500),
        }
    }
}

/// Carries a batch to the node and the replies back. The batch arrives or is lost, even if the
/// future of the sender is dropped.
async fn travel(
    (node, wire): (Arc<Node>, Arc<Wire>),
    fate: Fate,
    (client, due, batch): (usize, u64, Batch),
    (order, sender): (Order, oneshot::Sender<Replies>),
) {
    let (arrived, answered) = order.before.unzip();
    let (there, _back) = order.behind.unzip();
    pause(fate.there).await;
    turn(arrived).await;
    if fate.lose_request || !wire.is_open(true) {
        return;
    }
    let (reply, answer) = oneshot::channel();
    let copy = fate.again.map(|_| batch.clone());
    node.arrive(Job { client, due, batch, reply: Some(reply) });
    drop(there);
    if let (Some(later), Some(batch)) = (fate.again, copy) {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            pause(later).await;
            node.arrive(Job { client, due, batch, reply: None });
        });
    }
    let Ok(replies) = answer.await else { return };
    pause(fate.back).await;
    turn(answered).await;
    if !fate.lose_reply && wire.is_open(false) {
        let _ = sender.send(replies);
    }
}

async fn turn(of: Option<Turn>) {
    if let Some(turn) = of {
        let _ = turn.await;
    }
}

async fn pause(span: Ms) {
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
        let ends = (Arc::clone(&self.node), Arc::clone(&self.wire));
        // The deadline `due` is in true time, so the largest rate error of the sender's clock is
        // added.
        let due =
            self.world.nanos() + (budget + budget * self.drift.ppm() / 1_000_000).as_nanos() as u64;
        tokio::spawn(travel(ends, fate, (self.client, due, batch), (self.order(), sender)));
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

async fn answered(receiver: oneshot::Receiver<Replies>) -> Replies {
    match receiver.await {
        Ok(replies) => replies,
        // A lost batch has no reply. The caller waits until the deadline.
        Err(_) => pending().await,
    }
}
