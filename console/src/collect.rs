//! Reads the deployment, once a second while a page is open and every ten seconds otherwise. All
//! pages share this one collector. The number of its requests does not depend on the number of
//! pages, of locks or of keys: each reading has a budget, and what it leaves out follows in the
//! next ones.

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
use tokio::time::{Instant, sleep, timeout};

use crate::events::Topic;
use crate::history::now_ms;
use crate::pages::{self, Params};
use crate::start::Shared;
use names::Names;

/// Interval of readings while a page is open.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Interval of readings while nobody looks. They only ask for the votes.
const SLOW: Duration = Duration::from_secs(10);
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
    /// Batches that the handle had sent at the last reading, and the survey's requests since then.
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
        sent: votes::Sent::default(),
    };
    let listen = events::listen(&shared);
    let read = async {
        loop {
            let began = Instant::now();
            let is_watched = shared.hub.is_any_watched();
            collector.read(is_watched).await;
            let every = if is_watched { EVERY } else { SLOW };
            let pause = every.saturating_sub(began.elapsed()).max(EVERY / 10);
            let woken = timeout(pause, shared.hub.wake.notified()).await.is_ok();
            if woken {
                // However often it is woken, the collector keeps its budget.
                sleep((EVERY / 2).saturating_sub(began.elapsed())).await;
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
        let due = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() >= EVERY * 19 / 10);
        let asks_votes = !is_watched || due(self.votes_at);
        let shared = Arc::clone(&self.shared);
        if asks_votes {
            self.votes_at = Some(Instant::now());
        }
        let votes = async {
            if asks_votes {
                votes::read(&shared).await;
            }
        };
        if is_watched {
            let survey = self.survey();
            tokio::join!(votes, survey);
            // An election costs several requests, one after the other.
            locks::read(&shared, !self.count.is_multiple_of(2)).await;
            cron::read(&shared).await;
            if self.incidents_at.is_none_or(|at| at.elapsed() >= INCIDENTS) {
                self.incidents_at = Some(Instant::now());
                pages::incidents::count(&shared).await;
            }
        } else {
            votes.await;
        }
        {
            let mut model = self.shared.model();
            if is_watched {
                model.at = Some(now_ms());
                model.scan.names = model.locks.len() + model.elections.len() + model.keys.len();
            }
            // The pages of keys have a survey of their own. If it is in use, it is counted later.
            let pages = self.shared.survey.try_lock().map_or(0, |mut survey| survey.take_sent());
            let own = self.survey.take_sent() + pages;
            model.rate = self.sent.rate(&self.shared.redlock, own);
        }
        self.publish().await;
    }

    /// Sends the pages that are watched, and the tick.
    async fn publish(&mut self) {
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

/// Returns the page without the fields that change with every reading, on each level.
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
