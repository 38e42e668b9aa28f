//! The page `nodes`: the latency of each node, its counters, its marker, and the doctor's findings.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use palisade_ops::doctor::{Doctor, Verdict};
use palisade_ops::{NodeData, nodes};
use serde_json::{Value, json};

use super::overview::{millis, vote};
use super::{clean, loss};
use crate::history::now_ms;
use crate::model::Model;
use crate::refusal::Refusal;
use crate::start::Shared;

/// Shortest time between two examinations by the doctor, in ms.
const APART: u64 = 30_000;
/// Age in ms after which the markers are read again. Reading them costs many requests.
const MARKERS: u64 = 30_000;

pub(super) fn page(shared: &Shared, model: &Model) -> Value {
    let metrics = shared.redlock.metrics();
    let all = model.votes.iter().map(|one| {
        let mut of = vote(one);
        let longest = one.latencies.iter().max().copied();
        of["latency_max_ms"] = longest.map(millis).into();
        of["losses"] = one.losses.iter().map(loss).collect();
        if let Some(metrics) = metrics.iter().find(|of| *of.name == *one.node) {
            let kinds =
                metrics.faults.iter().map(|(kind, n)| (format!("{kind:?}").to_lowercase(), *n));
            let kinds: std::collections::BTreeMap<String, u64> = kinds.collect();
            of["batches"] = metrics.batches.into();
            of["faults"] = metrics.faults_total().into();
            of["fault_kinds"] = json!(kinds);
            of["histories"] = metrics.histories.into();
            of["quarantines"] = metrics.quarantines.into();
            of["switches"] = metrics.switches.into();
        }
        let is_of =
            |data: &&NodeData| super::is_node(&data.node, &one.node) || data.server == one.node;
        let data = model.markers.iter().find(is_of);
        if let Some(data) = data.filter(|data| !data.server.is_empty()) {
            of["server"] = (&*data.server).into();
        }
        of["marker"] = data.map(marker).unwrap_or_default();
        of
    });
    json!({ "nodes": all.collect::<Vec<_>>(), "doctor": doctor(model) })
}

fn marker(data: &NodeData) -> Value {
    let Ok(Some(kept)) = &data.kept else { return Value::Null };
    json!({
        "history": kept.history, "since_ms": kept.since, "began_empty": kept.empty_for.is_some(),
        "lost_everything": kept.lost_everything,
        "quarantine_ms": kept.quarantine.as_millis() as u64,
        "quarantine_until_ms": kept.quarantine_until(),
        "token_floor": kept.floor.to_string(), "note_age_ms": kept.note_age().as_millis() as u64,
    })
}

fn doctor(model: &Model) -> Value {
    let exam = &model.doctor;
    let (report, error) = match &exam.report {
        Some(Ok(report)) => (Some(report), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let state = match (exam.is_running, report, error) {
        (true, ..) => "running",
        (false, Some(_), _) => "done",
        (false, None, Some(_)) => "impossible",
        (false, None, None) => "never",
    };
    let all = report.map(|report| &*report.findings).unwrap_or_default();
    let findings: Vec<_> = all.iter().filter(|one| one.verdict != Verdict::Fine).collect();
    json!({
        "state": state, "at_ms": exam.at, "error": error,
        "fine": report.map(|report| report.count(Verdict::Fine)),
        "findings": findings,
    })
}

/// Reads the markers of all nodes if the last reading is old. Only the pages that show markers call
/// this.
pub(super) async fn read_markers(shared: &Shared) {
    let is_due = {
        let mut model = shared.model();
        let is_due = now_ms().saturating_sub(model.markers_at) > MARKERS;
        if is_due {
            model.markers_at = now_ms();
        }
        is_due
    };
    if is_due && let Ok(markers) = nodes(&shared.deployment).await {
        shared.model().markers = markers;
    }
}

pub(crate) fn examine(shared: &Arc<Shared>) -> Result<(), Refusal> {
    {
        let mut model = shared.model();
        let exam = &mut model.doctor;
        let is_early = exam.at.is_some_and(|at| now_ms().saturating_sub(at) < APART);
        if exam.is_running || is_early {
            let why = "the doctor examines the nodes at most once in 30 s";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many", why));
        }
        exam.is_running = true;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let doctor = Doctor::new(shared.deployment.clone()).trial(false);
        let examined = tokio::time::timeout(Duration::from_secs(30), doctor.examine()).await;
        let report = match examined {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(e)) => Err(clean(&e.to_string())),
            Err(_) => Err("the examination took longer than 30 s".to_owned()),
        };
        let mut model = shared.model();
        model.doctor.is_running = false;
        (model.doctor.at, model.doctor.report) = (Some(now_ms()), Some(report));
        drop(model);
        shared.hub.wake.notify_one();
    });
    Ok(())
}
