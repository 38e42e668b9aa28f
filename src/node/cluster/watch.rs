//! Asks the masters of a cluster who owns which slot: all at once, again and again, and sooner
//! after an answer that shows a move (cluster 3).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::map::{Map, Round, WORD};
use super::nodes::{Id, View};
use crate::dial::Line;
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::env::{Env, pause};
use crate::error::{NodeError, NodeFault};
use crate::node::redis::faults;
use crate::sentinel::conn::fields;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// For one answer, and for a round's connections.
const WITHIN: Duration = Duration::from_millis(500);
/// For one connection, which a later round uses.
const CONNECT: Duration = Duration::from_secs(3);
/// For the others, after a majority has answered.
const PATIENCE: Duration = Duration::from_millis(50);
/// Shortest and longest pause between two rounds that answers asked for.
const PROMPTED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// `cluster-node-timeout` of a server that shows none.
const USUAL: Duration = Duration::from_secs(15);

/// What a node knows of its cluster.
pub(super) struct Topology {
    pub(super) like: Endpoint,
    pub(super) env: Arc<dyn Env>,
    seeds: Vec<Address>,
    reached: BTreeMap<Address, Address>,
    pub(super) map: SyncMutex<Map>,
    /// Last shown; `None` by a server that shows none.
    timeouts: SyncMutex<BTreeMap<Id, Option<Duration>>>,
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
            map: SyncMutex::default(),
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
        window(self.node_timeout()).max(WORD).max(self.least_window)
    }

    /// The longest L that a client can state which may not read the servers' settings.
    pub(super) fn widest_window(&self) -> Duration {
        window(USUAL).max(self.window())
    }

    /// A third of the time in which a master may be replaced; none, where one cannot tell.
    fn unbroken(&self) -> Duration {
        let timeouts = self.timeouts.lock();
        let least = timeouts.values().copied().min().flatten();
        least.map_or(Duration::ZERO, |least| window(least) / 3)
    }

    pub(super) fn endpoint(&self, at: &Address) -> Endpoint {
        let at = self.reached.get(at).unwrap_or(at);
        Endpoint::at(at.host(), at.port(), &self.like)
    }

    async fn keep_asking(self: Arc<Self>) {
        let (mut lines, mut prompted) = (Lines::default(), 0_u32);
        loop {
            self.round(&mut lines).await;
            let floor = pause(self.env.random(), prompted, PROMPTED);
            let rest = (window(self.node_timeout()) / 6).min(WORD / 3).saturating_sub(floor);
            sleep(floor).await;
            prompted = match timeout(rest, self.prompt.notified()).await {
                Ok(()) => prompted.saturating_add(1),
                Err(_) => 0,
            };
        }
    }

    fn lacks_seeds(&self, lines: &Lines) -> bool {
        let answered = self.seeds.iter().filter(|at| lines.answered.contains(*at)).count();
        2 * answered < self.seeds.len()
    }

    async fn round(self: &Arc<Self>, lines: &mut Lines) {
        lines.asked = self.env.now();
        lines.answered.clear();
        let known: BTreeSet<Address> = {
            let map = self.map.lock();
            self.seeds.iter().chain(map.masters()).cloned().collect()
        };
        let (mut views, mut silence) = (Vec::new(), None);
        self.ask(&known, lines, &mut views, &mut silence).await;
        let more: BTreeSet<Address> = {
            let (map, timeouts) = (self.map.lock(), self.timeouts.lock());
            // A replica is asked once, as it may be the next master.
            let new = map.servers().filter(|(id, _)| !timeouts.contains_key(*id));
            let new = new.filter_map(|(_, at)| at).cloned();
            map.named(&views).into_iter().chain(new).filter(|at| !known.contains(at)).collect()
        };
        self.ask(&more, lines, &mut views, &mut silence).await;
        lines.open.retain(|at, _| known.contains(at) || more.contains(at));
        let (asked, heard, unbroken) = (lines.asked, self.env.now(), self.unbroken());
        let lacks_seeds = self.lacks_seeds(lines);
        let mut map = self.map.lock();
        map.decide(Round { views: &views, asked, heard, unbroken, silence, lacks_seeds });
        let ours: BTreeSet<&Id> = map.servers().map(|(id, _)| id).collect();
        self.timeouts.lock().retain(|id, _| ours.is_empty() || ours.contains(id));
        drop(map);
        self.rounds.send_modify(|n| *n = n.wrapping_add(1));
    }

    async fn ask(
        self: &Arc<Self>,
        whom: &BTreeSet<Address>,
        lines: &mut Lines,
        views: &mut Vec<View>,
        silence: &mut Option<NodeError>,
    ) {
        for at in whom {
            lines.ask(self, at);
        }
        let mut missing = whom.clone();
        let mut patience = pin!(sleep(WITHIN));
        let mut pressed = false;
        while let Some(first) = missing.first() {
            let (at, asked, answer) = tokio::select! {
                biased;
                Some(done) = lines.asking.join_next() => match done {
                    Ok(done) => lines.keep(done),
                    Err(_) => continue,
                },
                () = &mut patience => {
                    if !pressed {
                        let late = NodeError::not_executed(
                            NodeFault::Unreachable,
                            format!("{first}: no answer within {WITHIN:?}"),
                        );
                        silence.get_or_insert(late);
                    }
                    return;
                }
            };
            // It was asked in an earlier round, so it may be from before.
            if asked != lines.asked {
                if missing.contains(&at) {
                    lines.ask(self, &at);
                }
                continue;
            }
            missing.remove(&at);
            match answer {
                Ok((view, node_timeout)) => {
                    lines.answered.insert(at);
                    let mut timeouts = self.timeouts.lock();
                    let last = timeouts.entry(view.of.clone()).or_default();
                    *last = node_timeout.or(*last);
                    views.push(view);
                }
                Err(e) => *silence = Some(e),
            }
            let is_enough = |map: &Map| {
                map.is_majority(views) && (map.has_electorate() || !self.lacks_seeds(lines))
            };
            if !pressed && is_enough(&self.map.lock()) {
                pressed = true;
                patience.set(sleep(PATIENCE));
            }
        }
    }

    async fn ask_one(
        self: Arc<Self>,
        at: &Address,
        line: Option<Line>,
    ) -> (Result<Answer, NodeError>, Option<Line>) {
        if let Some(mut line) = line
            && let Ok(Ok(answers)) = timeout(WITHIN, question(&mut line)).await
        {
            return (self.read(answers, at), Some(line));
        }
        let endpoint = self.endpoint(at);
        let located = |e: NodeError| e.at(&endpoint.to_string(), "");
        let late = |what, within| {
            let detail = format!("no {what} within {within:?}");
            located(NodeError::not_executed(NodeFault::Unreachable, detail))
        };
        let opening = |e| located(faults::opening(&e, endpoint.is_tls(), &endpoint.secrets()));
        let config = AsyncConnectionConfig::new();
        let dialled = endpoint.dial("the cluster's map", config, Limits::WORDS);
        let mut line = match timeout(CONNECT, dialled).await {
            Ok(Ok(line)) => line,
            Ok(Err(e)) => return (Err(opening(e)), None),
            Err(_) => return (Err(late("connection", CONNECT)), None),
        };
        let answers = match timeout(WITHIN, question(&mut line)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(e)) => {
                let e = faults::connecting(&line.blamed(e), &line.secrets());
                return (Err(located(e)), None);
            }
            Err(_) => return (Err(late("answer", WITHIN)), None),
        };
        (self.read(answers, at).map_err(located), Some(line))
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
        self.env.now() - WORD
    }
}

type Answer = (View, Option<Duration>);
type Answered = (Address, Moment, Result<Answer, NodeError>);

/// Connections, from round to round. One that is slow to be made is not given up with its round.
#[derive(Default)]
struct Lines {
    open: BTreeMap<Address, Line>,
    /// When the present round began.
    asked: Moment,
    asking: JoinSet<(Answered, Option<Line>)>,
    under_way: BTreeSet<Address>,
    /// In the present round.
    answered: BTreeSet<Address>,
}

impl Lines {
    fn ask(&mut self, topology: &Arc<Topology>, at: &Address) {
        if self.under_way.insert(at.clone()) {
            let (topology, at, line) = (Arc::clone(topology), at.clone(), self.open.remove(at));
            let asked = self.asked;
            self.asking.spawn(async move {
                let (answer, line) = topology.ask_one(&at, line).await;
                ((at, asked, answer), line)
            });
        }
    }

    fn keep(&mut self, (answered, line): (Answered, Option<Line>)) -> Answered {
        self.under_way.remove(&answered.0);
        self.open.extend(line.map(|line| (answered.0.clone(), line)));
        answered
    }
}

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
