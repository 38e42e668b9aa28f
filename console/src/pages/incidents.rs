//! Incidents: losses of data, and the one decision about each of them.

use std::collections::BTreeSet;
use std::time::Duration;

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

/// Namespace of the request if there is none. Its keys are not used.
const NO_NAMESPACE: &str = "palisade-console";
/// Largest number of namespaces whose decisions are read.
const NAMESPACES: usize = 20;

/// Returns the keys of a namespace.
pub(crate) fn keys_of(
    shared: &Shared,
    namespace: &str,
    retention: Duration,
) -> Result<Idempotency, Refusal> {
    let keys = shared.redlock.idempotency(namespace).retention(retention).at_most_once().build();
    Ok(keys?)
}

/// Returns the retention that a request names.
pub(crate) fn retention(ms: Option<u64>) -> Duration {
    ms.map_or(RETENTION, Duration::from_millis)
}

/// Counts the incidents, for the overview.
pub(crate) async fn count(shared: &Shared) {
    let Ok(keys) = keys_of(shared, NO_NAMESPACE, RETENTION) else { return };
    let seen = incidents(&keys).await;
    if seen.unread.len() < seen.nodes {
        shared.model().incidents = Some(seen.incidents.len());
    }
}

pub(super) async fn page(shared: &Shared, params: &Params) -> Result<Value, Refusal> {
    let retention = retention(params.retention_ms);
    let names: BTreeSet<String> = {
        let model = shared.model();
        let all = model.keys.keys().map(|(namespace, _)| namespace.clone());
        // The keys of ticks have a birth, so no loss makes them forgotten.
        all.filter(|name| name != CRON).collect()
    };
    let asked = names.first().map_or(NO_NAMESPACE, String::as_str);
    let seen = incidents(&keys_of(shared, asked, retention)?).await;
    if seen.unread.len() == seen.nodes {
        let why = seen.unread.iter().map(|(node, e)| format!("{node}: {e}"));
        return Err(Refusal::nodes(why.collect::<Vec<_>>().join("; ")));
    }
    let mut all = Vec::new();
    for incident in &seen.incidents {
        let mut namespaces = Vec::new();
        for name in names.iter().take(NAMESPACES) {
            let keys = keys_of(shared, name, retention)?;
            namespaces.push(standing(name, incident.decisions(&keys).await));
        }
        let losses = incident.losses.iter().map(|one| {
            let mut of = loss(&one.loss);
            of["node"] = (&*one.node).into();
            of
        });
        let left = incident.remaining.as_millis() as u64;
        all.push(json!({
            "loss": incident.number(), "sentence": sentence(incident),
            "until_ms": now_ms() + left, "remaining_ms": left,
            "losses": losses.collect::<Vec<_>>(), "namespaces": namespaces,
        }));
    }
    let mut model = shared.model();
    model.incidents = Some(all.len());
    let mut page = super::head(shared, &model, json!({ "incidents": all }));
    if let Some(unread) = page["unread"].as_array_mut() {
        unread.extend(
            seen.unread
                .iter()
                .map(|(node, e)| json!({ "node": &**node, "why": clean(&e.to_string()) })),
        );
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
