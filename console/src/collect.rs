//! The collector reads the state of the nodes, several times a second while a page is open, and
//! every ten seconds otherwise. The number of its requests does not depend on the number of pages,
//! of locks or of keys: no node receives more than five a second.

pub(crate) mod cron;
mod elections;
mod events;
mod keys;
pub(crate) mod locks;
mod names;
mod votes;

use std::sync::Arc;
use std::time::Duration;

use palisade_ops::Survey;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use crate::events::Topic;
use crate::history::now_ms;
use crate::pages::{self, Params};
use crate::start::Shared;
use names::Names;

/// Pause after a reading of the nodes' state, for each request that the reading sent to a node. A
/// reading sends all its requests at once, so with 200 ms some seconds would contain more than five
/// requests.
const REQUEST: Duration = Duration::from_millis(220);
/// Shortest interval between two readings of the nodes while a page is open. Most readings send two
/// requests to a node.
pub(crate) const EVERY: Duration = Duration::from_millis(440);
/// Interval of readings of the nodes while no page is open. These readings only ask which nodes
/// vote.
const SLOW: Duration = Duration::from_secs(10);
/// Interval at which the collector reads the votes, that is, which nodes grant locks. After an
/// event of a node the votes are read at once.
const VOTES: Duration = Duration::from_millis(1_900);
/// Interval of the event `tick`, which shows a browser that its stream of server-sent events is
/// alive.
const TICK: Duration = Duration::from_secs(2);
/// Interval at which the incidents are counted.
const INCIDENTS: Duration = Duration::from_secs(30);
/// Time-out for each request of the survey, which reads the nodes' keys. It is shorter than that of
/// the command line, so that a frozen node does not hold up the others.
pub(crate) const SURVEY: Duration = Duration::from_millis(900);

/// State of the collector that no page needs.
struct Collector {
    shared: Arc<Shared>,
    survey: Survey,
    names: Names,
    count: u64,
    votes_at: Option<Instant>,
    tick_at: Option<Instant>,
    incidents_at: Option<Instant>,
    /// Time at which the scan read its last page of keys. The scan finds names among the nodes'
    /// keys.
    scanned_at: Option<Instant>,
    sent: votes::Sent,
}

/// Reads the state of the deployment again and again until the future is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let deployment = shared.deployment.clone().timeout(SURVEY);
    let mut collector = Collector {
        survey: Survey::new(&deployment),
        names: Names::default(),
        shared: Arc::clone(&shared),
        count: 0,
        votes_at: None,
        tick_at: None,
        incidents_at: None,
        scanned_at: None,
        sent: votes::Sent::default(),
    };
    let listen = events::listen(&shared);
    let read = async {
        loop {
            let began = Instant::now();
            let is_watched = shared.hub.is_any_watched();
            collector.read(is_watched).await;
            let spent = collector.sent.spent(&shared);
            sleep_until(began + EVERY.max(REQUEST.saturating_mul(spent))).await;
            if !is_watched {
                let rest = SLOW.saturating_sub(began.elapsed());
                drop(timeout(rest, shared.hub.wake.notified()).await);
            }
        }
    };
    tokio::join!(listen, read);
}

impl Collector {
    async fn read(&mut self, is_watched: bool) {
        self.count += 1;
        if self.shared.model().votes.iter().any(|vote| vote.is_changed) {
            self.survey.search_again();
            self.votes_at = None;
        }
        let shared = Arc::clone(&self.shared);
        // Reading the votes costs one more request to each node. If the survey, which reads the
        // nodes' keys, found new names, it has already sent an additional request, so the votes are
        // read less often then.
        let found_new = is_watched && self.survey().await;
        let every = if found_new { 2 * VOTES } else { VOTES };
        let asks_votes = !is_watched || self.votes_at.is_none_or(|at| at.elapsed() >= every);
        let votes = async {
            if asks_votes {
                votes::read(&shared).await;
            }
        };
        if is_watched {
            // These reads begin together, so that their requests to a node travel in one batch.
            tokio::join!(locks::read(&shared), cron::read(&shared), votes);
            if self.incidents_at.is_none_or(|at| at.elapsed() >= INCIDENTS) {
                self.incidents_at = Some(Instant::now());
                pages::incidents::count(&shared).await;
            }
        } else {
            votes.await;
        }
        if asks_votes {
            self.votes_at = Some(Instant::now());
        }
        {
            let mut model = self.shared.model();
            if is_watched {
                model.at = Some(now_ms());
                model.scan.names = model.locks.len() + model.elections.len() + model.keys.len();
            }
            model.rate = self.sent.rate(&self.shared);
        }
        self.publish().await;
    }

    async fn publish(&mut self) {
        self.shared.recent.forget_names();
        for topic in Topic::ALL {
            if self.shared.hub.is_watched(topic) {
                let page = pages::answer_of(&self.shared, topic, &Params::default()).await;
                if let Ok(page) = page {
                    let shown = without_change(&page).to_string();
                    self.shared.hub.page(topic, &page.to_string(), shown);
                }
            }
        }
        if self.tick_at.is_none_or(|at| at.elapsed() >= TICK * 19 / 20) {
            self.tick_at = Some(Instant::now());
            let tick = {
                let model = self.shared.model();
                json!({ "now_ms": now_ms(), "at_ms": model.at,
                        "poll": pages::poll(&self.shared, &model) })
            };
            self.shared.hub.send("tick", &tick);
        }
        self.shared.hub.readings.send_modify(|(number, at)| {
            *number += 1;
            *at = Some(Instant::now());
        });
    }
}

/// Returns the page without the fields that change with every reading, at all levels of nesting.
fn without_change(page: &Value) -> Value {
    const ALWAYS: [&str; 8] = [
        "now_ms",
        "at_ms_read",
        "poll",
        "seen_ms",
        "latency_ms",
        "latency_max_ms",
        "batches",
        "note_age_ms",
    ];
    match page {
        Value::Object(all) => {
            let stays = all.iter().filter(|(name, _)| !ALWAYS.contains(&name.as_str()));
            Value::Object(stays.map(|(name, of)| (name.clone(), without_change(of))).collect())
        }
        Value::Array(all) => Value::Array(all.iter().map(without_change).collect()),
        other => other.clone(),
    }
}
