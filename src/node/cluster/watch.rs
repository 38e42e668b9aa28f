//! Asks the masters of a cluster who owns which slot: all at once, again and again, and sooner
//! after an answer that shows a move (cluster 3).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::map::Map;
use super::nodes::View;
use crate::dial::Line;
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::env::{Env, pause};
use crate::error::{NodeError, NodeFault};
use crate::node::redis::faults;
use crate::quorum::majority;
use crate::sentinel::conn::fields;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// For one question, connecting included.
const WITHIN: Duration = Duration::from_millis(500);
/// For the others, after a majority has answered.
const PATIENCE: Duration = Duration::from_millis(50);
/// Shortest and longest pause between two rounds that answers asked for.
const PROMPTED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const LONGEST: Duration = Duration::from_secs(5);
/// `cluster-node-timeout` of a server that shows none.
const USUAL: Duration = Duration::from_secs(15);

/// What a node knows of its cluster.
pub(super) struct Topology {
    pub(super) like: Endpoint,
    pub(super) env: Arc<dyn Env>,
    seeds: Vec<Address>,
    reached: BTreeMap<Address, Address>,
    pub(super) map: SyncMutex<Map>,
    /// By the address at which the server was asked: `None` if it shows none.
    timeouts: SyncMutex<BTreeMap<Address, Option<Duration>>>,
    /// L of the settings.
    least_window: Duration,
    rounds: watch::Sender<u64>,
    prompt: Notify,
}

/// Ends the questions when it is dropped.
pub(super) struct Asking(JoinHandle<()>);

impl Asking {
    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Topology {
    pub(super) fn new(
        like: Endpoint,
        seeds: Vec<Address>,
        reached: BTreeMap<Address, Address>,
        least_window: Duration,
        env: Arc<dyn Env>,
    ) -> Self {
        Self {
            like,
            env,
            seeds,
            reached,
            map: SyncMutex::new(Map::new()),
            timeouts: SyncMutex::default(),
            least_window,
            rounds: watch::Sender::new(0),
            prompt: Notify::new(),
        }
    }

    pub(super) fn start(self: &Arc<Self>) -> Asking {
        Asking(tokio::spawn(Arc::clone(self).keep_asking()))
    }

    pub(super) fn rounds(&self) -> watch::Receiver<u64> {
        self.rounds.subscribe()
    }

    /// The next round comes soon.
    pub(super) fn prompt(&self) {
        self.prompt.notify_one();
    }

    /// The largest of all servers, as any of them may have been the master before.
    pub(super) fn node_timeout(&self) -> Duration {
        let timeouts = self.timeouts.lock();
        let shown = timeouts.values().map(|shown| shown.unwrap_or(USUAL));
        shown.max().unwrap_or(USUAL)
    }

    /// L (cluster 4).
    pub(super) fn window(&self) -> Duration {
        window(self.node_timeout()).max(self.least_window)
    }

    /// The longest L that a client can state which may not read the servers' settings.
    pub(super) fn widest_window(&self) -> Duration {
        window(USUAL).max(self.window())
    }

    pub(super) fn endpoint(&self, at: &Address) -> Endpoint {
        let at = self.reached.get(at).unwrap_or(at);
        Endpoint::at(at.host(), at.port(), &self.like)
    }

    async fn keep_asking(self: Arc<Self>) {
        let (mut open, mut prompted) = (BTreeMap::new(), 0_u32);
        loop {
            self.round(&mut open).await;
            let floor = pause(self.env.random(), prompted, PROMPTED);
            let rest = (self.window() / 6).min(LONGEST).saturating_sub(floor);
            sleep(floor).await;
            prompted = match timeout(rest, self.prompt.notified()).await {
                Ok(()) => prompted.saturating_add(1),
                Err(_) => 0,
            };
        }
    }

    async fn round(&self, open: &mut BTreeMap<Address, Line>) {
        let asked = self.env.now();
        let known: BTreeSet<Address> = {
            let map = self.map.lock();
            self.seeds.iter().chain(map.masters()).cloned().collect()
        };
        let (mut views, mut silence) = (Vec::new(), None);
        self.ask(&known, open, &mut views, &mut silence).await;
        let named = views.iter().flat_map(View::masters).filter_map(|master| master.at.clone());
        let more: BTreeSet<Address> = named.filter(|at| !known.contains(at)).collect();
        self.ask(&more, open, &mut views, &mut silence).await;
        open.retain(|at, _| known.contains(at) || more.contains(at));
        let unbroken = self.window() / 3;
        self.map.lock().decide(&views, (asked, unbroken), silence);
        self.rounds.send_modify(|n| *n = n.wrapping_add(1));
    }

    async fn ask(
        &self,
        whom: &BTreeSet<Address>,
        open: &mut BTreeMap<Address, Line>,
        views: &mut Vec<View>,
        silence: &mut Option<NodeError>,
    ) {
        let ask = |at: &Address| self.ask_one(at.clone(), open.remove(at));
        let mut asking: FuturesUnordered<_> = whom.iter().map(ask).collect();
        let mut patience = pin!(sleep(WITHIN));
        let mut pressed = false;
        loop {
            let (at, answer, line) = tokio::select! {
                biased;
                next = asking.next() => match next {
                    Some(next) => next,
                    None => return,
                },
                () = &mut patience => return,
            };
            match answer {
                Ok((view, node_timeout)) => {
                    self.timeouts.lock().insert(at.clone(), node_timeout);
                    open.extend(line.map(|line| (at, line)));
                    views.push(view);
                }
                Err(e) => *silence = Some(e),
            }
            let size = views.iter().map(|view| view.masters().count()).max().unwrap_or(0);
            if !pressed && size > 0 && views.len() >= majority(size) {
                pressed = true;
                patience.set(sleep(PATIENCE));
            }
        }
    }

    async fn ask_one(
        &self,
        at: Address,
        line: Option<Line>,
    ) -> (Address, Result<Answer, NodeError>, Option<Line>) {
        let endpoint = self.endpoint(&at);
        let asking = timeout(WITHIN, async {
            if let Some(mut line) = line
                && let Ok(answers) = question(&mut line).await
            {
                return (self.read(answers, &at), Some(line));
            }
            let config = AsyncConnectionConfig::new();
            let opening = |e| faults::opening(&e, endpoint.is_tls(), &endpoint.secrets());
            let mut line = match endpoint.dial("the cluster's map", config, Limits::WORDS).await {
                Ok(line) => line,
                Err(e) => return (Err(opening(e)), None),
            };
            let answers = question(&mut line).await;
            let answers = answers.map_err(|e| faults::connecting(&line.blamed(e), &line.secrets()));
            (answers.and_then(|answers| self.read(answers, &at)), Some(line))
        });
        let (answer, line) = asking.await.unwrap_or_else(|_| {
            let detail = format!("no answer within {WITHIN:?}");
            (Err(NodeError::not_executed(NodeFault::Unreachable, detail)), None)
        });
        (at, answer.map_err(|e| e.at(&endpoint.to_string(), "")), line)
    }

    fn read(&self, answers: Vec<RedisResult<Value>>, at: &Address) -> Result<Answer, NodeError> {
        let mut answers = answers.into_iter();
        let secrets = self.like.secrets();
        let nodes = answers.next().unwrap_or(Ok(Value::Nil));
        let nodes = nodes.map_err(|e| faults::connecting(&e, &secrets))?;
        let text: String =
            redis::from_redis_value(nodes).map_err(|e| faults::connecting(&e.into(), &secrets))?;
        let mut view = View::parse(&text, self.like.is_tls()).ok_or_else(|| {
            NodeError::not_executed(NodeFault::Protocol, "CLUSTER NODES shows no list of servers")
        })?;
        // A server need not know its own address.
        let own = view.members.iter_mut().find(|member| member.id == view.of);
        if let Some(own) = own {
            own.at.get_or_insert_with(|| at.clone());
        }
        let settings = answers.next().and_then(Result::ok).and_then(|settings| fields(&settings));
        let ms = settings.and_then(|mut all| all.remove("cluster-node-timeout")?.parse().ok());
        Ok((view, ms.map(Duration::from_millis)))
    }

    /// Since when the word on a slot counts.
    pub(super) fn since(&self) -> Moment {
        self.env.now() - self.window()
    }
}

type Answer = (View, Option<Duration>);

fn window(node_timeout: Duration) -> Duration {
    node_timeout.saturating_mul(2).saturating_add(Duration::from_secs(1))
}

async fn question(line: &mut Line) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut pipe = redis::pipe();
    pipe.cmd("CLUSTER").arg("NODES");
    // Not all users may read it.
    pipe.cmd("CONFIG").arg("GET").arg("cluster-node-timeout");
    pipe.ignore_errors().query_async(&mut **line).await
}
