//! The page `failovers`. For each failover of a node: the end of the node's vote, its quarantine,
//! the return of its vote, and the lost data.

use serde_json::{Value, json};

use super::{clock, loss, span};
use crate::model::{Failover, Model};

pub(super) fn page(model: &Model) -> Value {
    let all: Vec<_> = model.failovers.iter().map(failover).collect();
    let stored = model.votes.iter().flat_map(|vote| {
        vote.losses.iter().map(|one| {
            let mut of = loss(one);
            of["node"] = (&*vote.node).into();
            of
        })
    });
    json!({ "failovers": all, "stored": stored.collect::<Vec<_>>() })
}

fn failover(one: &Failover) -> Value {
    let state = match (one.ended, one.quarantine) {
        (Some(_), _) => "over",
        (None, true) => "quarantine",
        (None, false) => "lost",
    };
    let steps = one
        .steps
        .iter()
        .map(|step| json!({ "at_ms": step.at, "kind": step.kind, "text": step.text }));
    let lost = one.loss.as_ref().map(|of| {
        let mut shown = loss(of);
        shown["proved"] = of.length().is_some().into();
        shown
    });
    json!({
        "id": one.id, "node": one.node, "state": state, "began_ms": one.began,
        "back_ms": one.back, "ended_ms": one.ended,
        "took_ms": one.ended.map(|ended| ended.saturating_sub(one.began)),
        "cause": one.cause, "steps": steps.collect::<Vec<_>>(), "holders_same": one.same,
        "leases_ran_out": one.ran_out, "reasserted": one.reasserted, "loss": lost,
        "sentence": sentence(one),
    })
}

fn sentence(one: &Failover) -> String {
    let mut parts = vec![format!("lost its vote at {}", clock(one.began))];
    if let (Some(back), true) = (one.back, one.quarantine) {
        parts.push(format!("was back at {}", clock(back)));
    }
    match one.ended {
        Some(ended) => {
            let took = span(ended.saturating_sub(one.began));
            parts.push(format!("votes again since {}, after {took}", clock(ended)));
        }
        None if one.quarantine => parts.push("is in quarantine".to_owned()),
        None => parts.push("does not answer".to_owned()),
    }
    let loss = match (&one.loss, one.ended, one.quarantine) {
        (Some(loss), _, _) => format!("; {loss}"),
        (None, Some(_), false) => "; its data history went on, so nothing was lost".to_owned(),
        _ => String::new(),
    };
    format!("{} {}{loss}", one.node, parts.join(", "))
}
