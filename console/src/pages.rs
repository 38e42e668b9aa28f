//! The pages as JSON, one file for each page. Most only read the model.

pub(crate) mod cron;
pub(crate) mod elections;
pub(crate) mod failovers;
pub(crate) mod incidents;
pub(crate) mod keys;
pub(crate) mod locks;
pub(crate) mod nodes;
pub(crate) mod overview;

use std::time::Duration;

use palisade::internal::{SENTENCE_MAX, Secrets, until_utc};
use palisade::node::Loss;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::collect::EVERY;
use crate::events::{FRESH, Topic};
use crate::history::now_ms;
use crate::model::{LockId, Model, View};
use crate::recent::Recent;
use crate::refusal::Refusal;
use crate::start::Shared;

const LIMIT: usize = 500;
const PAGE: usize = 100;

const NOT_READ: &str = "it has not been read yet";

/// The last readings for those pages of the console that ask the nodes themselves.
pub(crate) struct Readings {
    /// Reports of the nodes about a lock, and the time of the reading.
    locks: Recent<LockId, Option<(View, u64)>>,
    /// Records of keys, by namespace and key.
    keys: Recent<(String, String), Result<keys::KeyNow, Refusal>>,
    /// The incidents, by the retention of keys and by the namespace. An empty namespace stands for
    /// all namespaces.
    incidents: Recent<(Duration, String), Result<incidents::Seen, Refusal>>,
}

impl Default for Readings {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        // A reading of incidents sends several requests for each namespace. So only one runs at a
        // time, and its result is used for ten seconds.
        let (locks, keys) = (Recent::new(second, 4), Recent::new(second, 4));
        Self { locks, keys, incidents: Recent::new(10 * second, 1) }
    }
}

impl Readings {
    /// Discards the readings of locks and keys, because the collector has read newer states. A page
    /// that is requested after an event then shows the new state.
    pub(crate) fn forget_names(&self) {
        self.locks.forget();
        self.keys.forget();
    }

    /// Discards all readings, because an action may have changed the items that were read.
    pub(crate) fn forget(&self) {
        self.forget_names();
        self.incidents.forget();
    }
}

/// Parameters of a request for a page. All pages have the same parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Params {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) q: String,
    pub(crate) namespace: String,
    pub(crate) key: String,
    pub(crate) state: String,
    pub(crate) cursor: String,
    pub(crate) limit: Option<usize>,
    pub(crate) before: Option<u64>,
    pub(crate) older_than_ms: Option<u64>,
    pub(crate) retention_ms: Option<u64>,
}

impl Params {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE).clamp(1, LIMIT)
    }
}

pub(crate) async fn answer(shared: &Shared, name: &str, params: &Params) -> Result<Value, Refusal> {
    if let Some(topic) = Topic::named(name) {
        shared.hub.look(topic, FRESH).await;
        return answer_of(shared, topic, params).await;
    }
    match name {
        "happened" => {
            let (happened, more) = shared.history.latest(params.before, params.limit(), |_| true);
            let page = json!({ "happened": happened, "more": more });
            Ok(head(shared, &shared.model(), page))
        }
        "lock" => locks::one(shared, params).await,
        "key" => keys::one(shared, params).await,
        "incidents" => incidents::page(shared, params).await,
        _ => Err(Refusal::new(
            axum::http::StatusCode::NOT_FOUND,
            "not_found",
            "there is no such page",
        )),
    }
}

pub(crate) async fn answer_of(
    shared: &Shared,
    topic: Topic,
    params: &Params,
) -> Result<Value, Refusal> {
    if topic == Topic::Nodes || topic == Topic::Failovers {
        nodes::read_markers(shared).await;
    }
    let model = shared.model();
    let page = match topic {
        Topic::Overview => overview::page(shared, &model),
        Topic::Locks => locks::page(shared, &model, params)?,
        Topic::Elections => elections::page(&model),
        Topic::Cron => cron::page(&model),
        Topic::Keys => keys::page(shared, &model, params)?,
        Topic::Nodes => nodes::page(shared, &model),
        Topic::Failovers => failovers::page(&model),
    };
    Ok(head(shared, &model, page))
}

fn head(shared: &Shared, model: &Model, mut page: Value) -> Value {
    let unread = model.unread.iter().map(|(node, why)| json!({ "node": node, "why": why }));
    page["now_ms"] = now_ms().into();
    page["since_ms"] = shared.since.into();
    page["at_ms"] = model.at.into();
    page["unread"] = unread.collect();
    page
}

/// Returns the state of the task that reads the nodes, such as the progress of its scan of all
/// keys.
pub(crate) fn poll(shared: &Shared, model: &Model) -> Value {
    let scan = &model.scan;
    let progress = scan.progress.keys().chain(scan.totals.keys());
    let nodes: std::collections::BTreeSet<&String> = progress.collect();
    let progress = nodes.into_iter().map(|node| {
        json!({ "node": node, "keys": scan.progress.get(node).copied().unwrap_or_default(),
                "total": scan.totals.get(node) })
    });
    json!({
        "every_ms": EVERY.as_millis() as u64, "pages": shared.hub.streams(),
        "state": if shared.hub.is_any_watched() { "live" } else { "stopped" },
        "requests_per_second": model.rate,
        "scan": {
            "keys_per_second": shared.keys_per_second, "rounds": scan.rounds,
            "round_ms": scan.round.map(|round| round.as_millis() as u64), "names": scan.names,
            "progress": progress.collect::<Vec<_>>(),
        },
    })
}

/// Returns the time of day in UTC, for sentences: `12:03:20 UTC`.
pub(crate) fn clock(ms: u64) -> String {
    let text = until_utc(ms);
    // `text` has the form `2025-11-23 14:03:20.0 UTC`.
    let time = text.split(' ').nth(1).and_then(|time| time.split('.').next());
    time.map_or_else(|| text.clone(), |time| format!("{time} UTC"))
}

pub(crate) fn span(ms: u64) -> String {
    match ms / 1_000 {
        0..10 => format!("{:.1} s", ms as f64 / 1_000.0),
        s @ 10..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

/// Removes the characters that control a terminal or reverse the direction of text. The text comes
/// from a node or another process, which could otherwise change the display.
pub(crate) fn clean(text: &str) -> String {
    Secrets::default().clean(text)
}

/// Cleans a text as [`clean`] does, but keeps up to `SENTENCE_MAX` characters. It is for names and
/// reasons of visitors, and for sentences about all nodes.
pub(crate) fn clean_sentence(text: &str) -> String {
    Secrets::default().sentence(text, SENTENCE_MAX)
}

/// Returns true if both names mean the same node. `surveyed` is its name in a survey, `name` is its
/// name in the console's `Redlock` handle. The survey calls a server `node` and its address.
pub(crate) fn is_node(surveyed: &str, name: &str) -> bool {
    surveyed == name || surveyed.strip_prefix("node ") == Some(name)
}

pub(crate) fn loss(loss: &Loss) -> Value {
    let length = loss.length().map(|length| length.as_millis() as u64);
    json!({ "from_ms": length.map(|_| loss.from), "to_ms": loss.to, "length_ms": length,
            "text": loss.to_string() })
}

/// Cuts one page out of a list. `cursor` is the number of entries before the page.
fn cut<T>(all: Vec<T>, params: &Params) -> Result<(Vec<T>, Option<String>, usize), Refusal> {
    let skip: usize = match &*params.cursor {
        "" => 0,
        cursor => {
            cursor.parse().map_err(|_| Refusal::bad_request("cursor: no cursor of a list"))?
        }
    };
    let (total, limit) = (all.len(), params.limit());
    let next = (skip.saturating_add(limit) < total).then(|| (skip + limit).to_string());
    Ok((all.into_iter().skip(skip).take(limit).collect(), next, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_in_utc() {
        assert_eq!(clock(1_763_906_600_000), "14:03:20 UTC");
        let spans = [(0, "0.0 s"), (1_340, "1.3 s"), (59_999, "59 s"), (600_000, "10 min")];
        for (ms, text) in spans {
            assert_eq!(span(ms), text);
        }
        assert_eq!((&*span(7_200_000), &*span(864_000_000)), ("2 h", "10 days"));
    }

    #[test]
    fn a_node_is_not_the_one_whose_name_ends_like_its_own() {
        assert!(is_node("orders", "orders") && !is_node("eu-orders", "orders"));
        assert!(is_node("node 10.0.0.1:6379", "10.0.0.1:6379"));
        assert!(!is_node("node 110.0.0.1:6379", "10.0.0.1:6379"));
    }

    #[test]
    fn names_and_reasons_are_whole_in_the_audit() {
        let (key, other) = (format!("{}1", "k".repeat(511)), format!("{}2", "k".repeat(511)));
        assert_ne!(clean(&key).len(), key.len());
        assert_eq!(clean_sentence(&format!("orders/{key}")), format!("orders/{key}"));
        assert_ne!(clean_sentence(&key), clean_sentence(&other));
    }

    #[test]
    fn a_list_is_cut_into_pages() {
        let page = |cursor: &str, limit| {
            let params = Params { cursor: cursor.to_owned(), limit, ..Params::default() };
            cut(vec![1, 2, 3], &params)
        };
        assert_eq!(page("", Some(2)).unwrap(), (vec![1, 2], Some("2".to_owned()), 3));
        assert_eq!(page("2", Some(2)).unwrap(), (vec![3], None, 3));
        assert_eq!(page("99", None).unwrap(), (vec![], None, 3));
        assert_eq!(page("x", None).unwrap_err().code(), "bad_request");
    }
}
