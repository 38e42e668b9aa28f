//! Reports of `palisade inspect` and `force-release` about a semaphore.

use std::sync::Arc;

use palisade::{NodePermits, PermitHolder, SemaphoreInspection};
use serde_json::{Value, json};

use super::{Ground, refused};
use crate::Done;
use crate::codes::{Fail, NOT_ACQUIRED, REFUSED, UNAVAILABLE};

/// Number of permits that are printed one by one.
const SHOWN: usize = 16;

/// Prints the held permits of a semaphore, as a majority of the nodes reports them, and as each
/// node reports them.
pub(super) async fn inspect(
    ground: &Ground,
    name: &str,
    permits: u16,
    json: bool,
) -> Result<Done, Fail> {
    let seen = look(ground, name, permits).await?;
    let text = if json { whole(name, &seen).to_string() } else { table(&seen) };
    Ok(Done { text: text + "\n", code: if is_known(&seen) { 0 } else { UNAVAILABLE } })
}

/// Returns the reason for which no permit can be taken from its holder. The text names the holders,
/// or reports that there are none, or that no majority of the nodes answers.
pub(super) async fn cannot_be_taken(ground: &Ground, name: &str, permits: u16) -> Fail {
    let seen = match look(ground, name, permits).await {
        Ok(seen) => seen,
        Err(fail) => return fail,
    };
    let (code, why) = if !seen.held().is_empty() {
        let why = "a permit cannot be taken from its holder: end the process that has it; the \
                   permit comes back within its ttl (a program limits how long one that hangs \
                   keeps it by `max_hold`)";
        (REFUSED, format!("held: {}; {why}", words(&seen.held())))
    } else if is_known(&seen) {
        (NOT_ACQUIRED, "no owner holds a permit".to_owned())
    } else {
        (UNAVAILABLE, "no majority reports its permits".to_owned())
    };
    Fail::new(code, format!("semaphore {name:?}: {why}"))
}

async fn look(ground: &Ground, name: &str, permits: u16) -> Result<SemaphoreInspection, Fail> {
    let semaphore = ground.redlock.semaphore(name, permits).build()?;
    semaphore.inspect().await.map_err(|e| refused(&e, None))
}

/// Returns the holder of a permit as text.
pub(super) fn line(holder: &PermitHolder) -> String {
    let PermitHolder { slot, owner, fence, remaining, .. } = holder;
    format!("slot {slot} by {owner} (fence {fence}, {remaining:.1?} of its lease left)")
}

fn words(held: &[PermitHolder]) -> String {
    let mut words: Vec<_> = held.iter().take(SHOWN).map(line).collect();
    if held.len() > SHOWN {
        words.push(format!("{} more (`inspect --json` lists all)", held.len() - SHOWN));
    }
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Returns true if a majority of the nodes reports the permits of the semaphore.
fn is_known(seen: &SemaphoreInspection) -> bool {
    let known = |(_, node): &&(Arc<str>, NodePermits)| matches!(node, NodePermits::Held(_));
    seen.nodes.iter().filter(known).count() > seen.nodes.len() / 2
}

fn table(seen: &SemaphoreInspection) -> String {
    let (held, of) = (seen.held(), seen.permits);
    let mut text = if is_known(seen) {
        format!("{} of {of} permits are free; held: {}", seen.available(), words(&held))
    } else {
        "unknown: no majority reports its permits".to_owned()
    };
    for (node, permits) in &seen.nodes {
        let permits = match permits {
            NodePermits::Held(held) => words(held),
            NodePermits::Unknown(why) => why.to_string(),
            _ => String::new(),
        };
        text.extend(["\n  ", node.as_ref(), ": ", &permits]);
    }
    text
}

fn whole(name: &str, seen: &SemaphoreInspection) -> Value {
    let of = |held: &[PermitHolder]| -> Vec<_> { held.iter().map(permit_json).collect() };
    let nodes = seen.nodes.iter().map(|(node, permits)| match permits {
        NodePermits::Held(held) => json!({ "node": node.as_ref(), "held": of(held) }),
        NodePermits::Unknown(why) => json!({ "node": node.as_ref(), "why": why.to_string() }),
        _ => json!({ "node": node.as_ref() }),
    });
    json!({ "name": name, "state": if is_known(seen) { "known" } else { "unknown" },
            "permits": seen.permits, "available": seen.available(), "held": of(&seen.held()),
            "nodes": nodes.collect::<Vec<_>>() })
}

fn permit_json(holder: &PermitHolder) -> Value {
    json!({ "slot": holder.slot, "owner": holder.owner, "fence": holder.fence.get(),
            "remaining_ms": holder.remaining.as_millis() })
}
