//! The page `keys`: idempotency keys, selected by state, namespace and age. A parked key waits for
//! a person's decision. An unsettled key has a result on fewer than a majority of the nodes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use palisade::idempotency::Status;
use palisade_ops::{Answers, Ask, KeyFacts, KeyState, Records};
use serde_json::{Value, json};

use super::{Params, clean, cut, span};
use crate::history::now_ms;
use crate::model::{KeyRow, Model};
use crate::refusal::Refusal;
use crate::start::Shared;

fn word(state: KeyState) -> &'static str {
    match state {
        KeyState::Stored => "done",
        KeyState::Lapsed => "parked",
        other => other.word(),
    }
}

/// Returns the state, the number of attempts and the last claim of a key, as its page shows them. A
/// visitor's action on the key contains this text, and is refused if the key has changed. The
/// number of attempts alone would not show each change, because an attempt can be taken back.
pub(crate) fn shown_as(facts: &KeyFacts) -> String {
    format!("{}:{}:{}", word(facts.state), facts.attempts, facts.ballot)
}

/// Returns the rank of a state. The list begins with the smallest rank: running keys, and then the
/// keys that need a person's decision.
fn rank(state: KeyState) -> u8 {
    match state {
        KeyState::Running => 0,
        KeyState::Lapsed => 1,
        KeyState::Unsettled => 2,
        KeyState::Free => 3,
        _ => 4,
    }
}

pub(super) fn page(shared: &Shared, model: &Model, params: &Params) -> Result<Value, Refusal> {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut all = Vec::new();
    for ((namespace, key), row) in &model.keys {
        let Some(facts) = &row.facts else { continue };
        let of = counts.entry(namespace).or_default();
        *of.entry(word(facts.state)).or_default() += 1;
        *of.entry("forgotten").or_default() += usize::from(facts.forgotten);
        let is_meant = (params.namespace.is_empty() || params.namespace == *namespace)
            && (params.state.is_empty() || params.state == word(facts.state))
            && facts.age.as_millis() >= u128::from(params.older_than_ms.unwrap_or_default())
            && key.contains(&params.q);
        if is_meant {
            all.push((rank(facts.state), std::cmp::Reverse(facts.age), namespace, row, facts));
        }
    }
    all.sort_unstable_by_key(|(rank, age, ..)| (*rank, *age));
    let (all, next, total) = cut(all, params)?;
    let keys: Vec<_> = all
        .into_iter()
        .map(|(_, _, namespace, row, facts)| key(namespace, row, facts, model))
        .collect();
    let namespaces = counts.into_iter().map(|(namespace, of)| {
        let n = |word: &str| of.get(word).copied().unwrap_or_default();
        json!({ "namespace": namespace, "running": n("running"), "parked": n("parked"),
                "unsettled": n("unsettled"), "done": n("done"), "free": n("free"),
                "forgotten": n("forgotten") })
    });
    let left_out = model.left_out.keys;
    let whole = model.is_scanned(left_out) && model.keys.values().all(|row| row.facts.is_some());
    Ok(json!({
        "namespaces": namespaces.collect::<Vec<_>>(), "keys": keys, "next": next, "total": total,
        "whole": whole, "left_out": left_out, "poll": super::poll(shared, model),
    }))
}

fn key(namespace: &str, row: &KeyRow, facts: &KeyFacts, model: &Model) -> Value {
    let ms = |span: std::time::Duration| span.as_millis() as u64;
    let actions: &[&str] = match facts.state {
        KeyState::Running => &["release"],
        KeyState::Lapsed => &["resolve", "rerun", "purge"],
        KeyState::Stored => &["purge"],
        _ => &[],
    };
    json!({
        "namespace": namespace, "key": facts.key, "state": word(facts.state),
        "attempts": facts.attempts,
        // The time of the claim is the same in each reading. So the age is computed from it, and
        // does not jump when the key is read again.
        "age_ms": now_ms().saturating_sub(row.at.saturating_sub(ms(facts.age))) / 1_000 * 1_000,
        "until_ms": facts.remaining.map(|left| (row.at + ms(left)) / 1_000 * 1_000),
        "expires_ms": (row.at + ms(facts.expires_in)) / 10_000 * 10_000,
        "forgotten": facts.forgotten, "on": facts.nodes, "of": model.votes.len(),
        "actions": actions, "sentence": sentence(facts), "seen_ms": row.at,
        "shown": shown_as(facts),
    })
}

fn sentence(facts: &KeyFacts) -> String {
    let ago = span(facts.age.as_millis() as u64);
    let text = match facts.state {
        KeyState::Stored => format!("done: its result is stored, claimed {ago} ago"),
        KeyState::Unsettled => {
            "fewer than a majority of the nodes have its result; the next call completes it"
                .to_owned()
        }
        KeyState::Running => format!("attempt {} runs, claimed {ago} ago", facts.attempts),
        KeyState::Lapsed => format!(
            "its run ended without a result; it was claimed {ago} ago: its policy runs it again, \
             or a person decides"
        ),
        _ => "every attempt was taken back; the next call runs".to_owned(),
    };
    if facts.forgotten { format!("{text}; nodes may have lost attempts of it") } else { text }
}

/// The record of one key, as the nodes reported it.
#[derive(Clone)]
pub(crate) struct KeyNow {
    pub(crate) facts: Option<KeyFacts>,
    /// Number of nodes that were not read. They are a minority.
    unread: usize,
    /// Time at which the record was read, in milliseconds since 1970.
    at: u64,
}

pub(crate) async fn key_now(
    shared: &Shared,
    namespace: &str,
    key: &str,
) -> Result<KeyNow, Refusal> {
    let records = Records::new(&shared.deployment, shared.prefix(), namespace)?;
    let keys = [key.to_owned()];
    let ask = Ask { keys: Some((&records, &keys)), ..Ask::default() };
    let mut survey = shared.survey.lock().await;
    let answers = survey.read(&ask).await;
    shared.requests.fetch_add(survey.take_sent(), Ordering::Relaxed);
    drop(survey);
    let Answers { facts, unread, .. } = answers?;
    let nodes = shared.redlock.metrics().len();
    if 2 * unread.len() >= nodes {
        let why = unread.iter().map(|(node, why)| format!("{node}: {why}"));
        return Err(Refusal::nodes(clean(&why.collect::<Vec<_>>().join("; "))));
    }
    Ok(KeyNow { facts: facts.into_iter().next(), unread: unread.len(), at: now_ms() })
}

/// Returns the page of one key, with its result if results may be shown. The nodes are asked now,
/// also for a key that the console does not know.
pub(super) async fn one(shared: &Shared, params: &Params) -> Result<Value, Refusal> {
    let id = (params.namespace.clone(), params.key.clone());
    let keys = shared.redlock.idempotency(&id.0).at_most_once().build()?;
    palisade::internal::check_name("key", &id.1)?;
    let read = key_now(shared, &id.0, &id.1);
    let KeyNow { facts, unread, at } = shared.recent.keys.get(id.clone(), read).await?;
    let Some(facts) = facts else {
        if unread == 0 {
            shared.model().keys.remove(&id);
        }
        let why = "no node that answered has a record of the key";
        return Err(Refusal::new(axum::http::StatusCode::NOT_FOUND, "not_found", why));
    };
    let result = if shared.show_results {
        match keys.key(&*id.1).lookup::<Value>().await {
            Ok(Status::Stored(value)) => {
                let bytes = value.to_string().len();
                json!({ "shown": true, "value": value, "why": null, "bytes": bytes })
            }
            Ok(_) => json!({ "shown": false, "value": null, "why": "it has no result",
                             "bytes": null }),
            Err(e) => json!({ "shown": false, "value": null, "why": e.to_string(),
                              "bytes": null }),
        }
    } else {
        let why = "results are hidden: start the console with --show-results";
        json!({ "shown": false, "value": null, "why": why, "bytes": null })
    };
    let mut model = shared.model();
    let mut row = model.keys.get(&id).cloned().unwrap_or_default();
    (row.facts, row.at) = (Some(facts.clone()), at);
    if let Some(known) = model.keys.get_mut(&id) {
        *known = row.clone();
    }
    let mut page = key(&id.0, &row, &facts, &model);
    page["result"] = result;
    Ok(super::head(shared, &model, page))
}
