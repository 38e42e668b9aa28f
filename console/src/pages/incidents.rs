//! The page `incidents`: incidents, and an operator's decisions about them. An incident consists of
//! the losses of data, on one or several nodes, that belong together.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use palisade::Idempotency;
use palisade::idempotency::{Decided, Decision, RunError};
use palisade::internal::RETENTION;
use palisade::node::Loss;
use palisade_ops::{Incident, incidents};
use serde_json::{Value, json};

use super::{Params, clean, loss};
use crate::collect::cron::NAMESPACE as CRON;
use crate::history::now_ms;
use crate::refusal::Refusal;
use crate::start::Shared;

/// Namespace with which the incidents are read if the console has found no namespace. The keys of
/// this namespace are not used.
const NO_NAMESPACE: &str = "palisade-console";
/// Largest number of namespaces whose decisions are read.
const NAMESPACES: usize = 64;

pub(crate) fn keys_of(
    shared: &Shared,
    namespace: &str,
    retention: Duration,
) -> Result<Idempotency, Refusal> {
    let keys = shared.redlock.idempotency(namespace).retention(retention).at_most_once().build();
    Ok(keys?)
}

pub(crate) fn retention(ms: Option<u64>) -> Duration {
    ms.map_or(RETENTION, Duration::from_millis)
}

/// Incidents as the nodes reported them.
#[derive(Clone)]
pub(crate) struct Seen {
    incidents: Vec<Value>,
    /// Number of incidents that wait for a decision about a namespace, or may wait for one.
    undecided: usize,
    /// True if every node and every namespace was read, so that no incident is missing.
    whole: bool,
    /// Number of namespaces that were not read, because there are too many.
    left_out: usize,
    unread: Vec<Value>,
    at: u64,
}

pub(crate) async fn count(shared: &Shared) {
    if let Ok(seen) = recent(shared, RETENTION, "").await {
        shared.model().incidents = Some(seen.undecided);
    }
}

async fn recent(shared: &Shared, retention: Duration, namespace: &str) -> Result<Seen, Refusal> {
    let key = (retention, namespace.to_owned());
    shared.recent.incidents.get(key, read(shared, retention, namespace)).await
}

/// Reads the losses of data, and the operators' decisions about them for the keys of `namespace`.
/// If `namespace` is empty, reads the decisions for all known namespaces.
async fn read(shared: &Shared, retention: Duration, namespace: &str) -> Result<Seen, Refusal> {
    let (names, is_over) = {
        let model = shared.model();
        // The calls of cron ticks have a birth. So no loss of data leaves it unknown if their keys
        // were used before, and no decision is needed.
        let all: BTreeSet<String> =
            model.namespaces.iter().filter(|name| *name != CRON).cloned().collect();
        (all, model.scan.rounds > 0 && model.left_out.keys == 0)
    };
    let (names, is_whole) = match namespace {
        "" => (names, is_over),
        one => (BTreeSet::from([one.to_owned()]), true),
    };
    let left_out = names.len().saturating_sub(NAMESPACES);
    let asked = names.first().map_or(NO_NAMESPACE, String::as_str);
    let seen = incidents(&keys_of(shared, asked, retention)?).await;
    if seen.unread.len() == seen.nodes {
        let why = seen.unread.iter().map(|(node, e)| format!("{node}: {e}"));
        return Err(Refusal::nodes(why.collect::<Vec<_>>().join("; ")));
    }
    let all = seen.incidents.iter().map(async |incident| {
        let namespaces = names.iter().take(NAMESPACES).map(async |name| {
            Ok(match keys_of(shared, name, retention) {
                Ok(keys) => standing(name, incident.decisions(&keys).await),
                Err(refusal) => return Err(refusal),
            })
        });
        let namespaces: Result<Vec<Value>, Refusal> =
            join_all(namespaces).await.into_iter().collect();
        Ok::<_, Refusal>(object(incident, &namespaces?))
    });
    let all: Result<Vec<Value>, Refusal> = join_all(all).await.into_iter().collect();
    let all = all?;
    let whole = is_whole && left_out == 0 && seen.unread.is_empty();
    let unread = seen.unread.iter();
    let unread =
        unread.map(|(node, e)| json!({ "node": &**node, "why": clean(&e.to_string()) })).collect();
    let waits = |one: &&Value| left_out > 0 || !is_whole || waits(one);
    let undecided = all.iter().filter(waits).count();
    Ok(Seen { undecided, whole, left_out, unread, at: now_ms(), incidents: all })
}

/// Returns true if an incident waits for a decision about a namespace, or if that is not known. An
/// incident without a namespace also waits, because the loss may have removed all records.
fn waits(incident: &Value) -> bool {
    let all = incident["namespaces"].as_array().filter(|all| !all.is_empty());
    all.is_none_or(|all| {
        all.iter().any(|one| one["standing"] == "undecided" || one["standing"] == "unknown")
    })
}

fn object(incident: &Incident, namespaces: &[Value]) -> Value {
    let losses = incident.losses.iter().map(|one| {
        let mut of = loss(&one.loss);
        of["node"] = (&*one.node).into();
        of["number"] = one.loss.number().into();
        of
    });
    let left = incident.remaining.as_millis() as u64;
    json!({
        "loss": incident.name(), "sentence": sentence(incident),
        "until_ms": now_ms() + left, "remaining_ms": left,
        "losses": losses.collect::<Vec<_>>(), "namespaces": namespaces,
    })
}

pub(super) async fn page(shared: &Shared, params: &Params) -> Result<Value, Refusal> {
    let retention = retention(params.retention_ms);
    let seen = recent(shared, retention, &params.namespace).await?;
    let mut model = shared.model();
    if params.namespace.is_empty() && retention == RETENTION {
        model.incidents = Some(seen.undecided);
    }
    let page = json!({
        "incidents": seen.incidents, "undecided": seen.undecided, "whole": seen.whole,
        "left_out": seen.left_out,
        "retention_ms": retention.as_millis() as u64, "read_ms": seen.at,
    });
    let mut page = super::head(shared, &model, page);
    if let Some(unread) = page["unread"].as_array_mut() {
        unread.extend(seen.unread);
    }
    Ok(page)
}

fn sentence(incident: &Incident) -> String {
    let nodes: BTreeSet<&str> = incident.losses.iter().map(|one| &*one.node).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let losses = match incident.losses.first() {
        Some(one) if incident.losses.len() == 1 => one.loss.to_string(),
        _ => format!("{} losses that belong together", incident.losses.len()),
    };
    format!(
        "{}: {losses}; keys that began before it may have run, and wait for a decision",
        nodes.join(", ")
    )
}

fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Run => "run",
        Decision::Park => "park",
    }
}

fn standing(namespace: &str, read: Result<Vec<(Loss, Option<Decided>)>, RunError>) -> Value {
    let mut of = json!({ "namespace": namespace, "standing": "unknown", "by": null,
                         "reason": null, "at_ms": null, "may": [], "error": null });
    let all = match read {
        Ok(all) => all,
        Err(e) => {
            of["error"] = clean(&e.to_string()).into();
            return of;
        }
    };
    let first = all.iter().find_map(|(_, decided)| decided.as_ref());
    let is_whole = all.iter().all(|(_, decided)| decided.is_some());
    let is_one = |first: &Decided| {
        all.iter().flat_map(|(_, decided)| decided).all(|one| one.decision == first.decision)
    };
    let (standing, may): (_, &[&str]) = match first {
        None => ("undecided", &["run", "park"]),
        Some(_) if !is_whole => ("undecided", &["run", "park"]),
        Some(first) if is_one(first) && first.decision == Decision::Park => ("park", &["replace"]),
        Some(first) if is_one(first) => (word(first.decision), &[]),
        Some(_) => ("mixed", &["replace"]),
    };
    of["standing"] = standing.into();
    of["may"] = may.into();
    if let Some(first) = first {
        of["by"] = clean(&first.by).into();
        of["reason"] = clean(&first.reason).into();
        of["at_ms"] = first.at.into();
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_waits_until_each_namespace_is_decided() {
        let incident = |standings: &[&str]| {
            let all: Vec<_> = standings.iter().map(|one| json!({ "standing": one })).collect();
            json!({ "namespaces": all })
        };
        for (standings, expected) in [
            (&["run", "undecided"][..], true),
            (&["unknown"], true),
            (&["run", "park", "mixed"], false),
            (&[], true),
        ] {
            assert_eq!(waits(&incident(standings)), expected, "{standings:?}");
        }
    }
}
