//! Reads the deployment, several times a second while a page is open and every ten seconds
//! otherwise. All pages share this one collector. The number of its requests does not depend on the
//! number of pages, of locks or of keys: each reading has a budget, and what it leaves out follows
//! in the next ones. A reading that sent more requests than usual is followed by a longer pause, so
//! that no node receives more than five a second.

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

/// Pause for each request to a node. The requests of a reading leave together, so with 0.2 s there
/// would be seconds with more than five.
const REQUEST: Duration = Duration::from_millis(220);
/// Shortest interval of readings while a page is open. Most of them send two requests to a node.
pub(crate) const EVERY: Duration = Duration::from_millis(440);
/// Interval of readings while no page is open. These readings only ask for the votes.
const SLOW: Duration = Duration::from_secs(10);
/// Interval of the readings of the votes. An event of a node has them read at once.
const VOTES: Duration = Duration::from_millis(1_900);
/// Interval of the ticks that show that a stream is alive.
const TICK: Duration = Duration::from_secs(2);
/// Interval of the counts of incidents.
const INCIDENTS: Duration = Duration::from_secs(30);
/// Time-out for each request of the survey, shorter than that of the command line, so that a frozen
/// node does not hold up the others.
pub(crate) const SURVEY: Duration = Duration::from_millis(900);

/// The collector's own memory, which no page needs.
struct Collector {
    shared: Arc<Shared>,
    survey: Survey,
    names: Names,
    /// Number of readings.
    count: u64,
    votes_at: Option<Instant>,
    tick_at: Option<Instant>,
    incidents_at: Option<Instant>,
    /// Time of the last page of the scan.
    scanned_at: Option<Instant>,
    sent: votes::Sent,
}

/// Reads until the future is dropped.
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
        // The votes cost one request more. A reading that found new names already sent one more.
        let found_new = is_watched && self.survey().await;
        let every = if found_new { 2 * VOTES } else { VOTES };
        let asks_votes = !is_watched || self.votes_at.is_none_or(|at| at.elapsed() >= every);
        let votes = async {
            if asks_votes {
                votes::read(&shared).await;
            }
        };
        if is_watched {
            // They begin together, so their requests to a node travel together.
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

    /// Sends the pages that are watched, and the tick.
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
