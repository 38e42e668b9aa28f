//! The command `palisade list`.

use clap::Args;
use palisade::error::Resource;
use palisade_ops::{Held, HeldList, held};
use serde_json::{Value, json};

use super::inspect::number;
use super::leader::leader_json;
use super::unread_json;
use crate::Done;
use crate::codes::{Fail, UNAVAILABLE};
use crate::settings::HandleArgs;

/// Lists the locks, elections and permits that are held now. If the settings contain a prefix,
/// lists only names with this prefix. Changes nothing.
///
/// The command reads the keys of every server in small steps. So it does not block other clients.
/// Exit code 69 if a node could not be read. Then names may be missing.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    handle: HandleArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let (deployment, prefix) = self.handle.servers()?;
        let list = held(&deployment, &prefix).await?;
        let text = if self.json { whole(&list).to_string() } else { table(&list) };
        let code = if list.unread.is_empty() { 0 } else { UNAVAILABLE };
        Ok(Done { text: text + "\n", code })
    }
}

fn kind(held: &Held) -> (&'static str, &str) {
    match &held.of {
        Resource::Election(name) => ("election", name),
        Resource::Lock(name) => ("lock", name),
        Resource::Semaphore(name) => ("semaphore", name),
        _ => ("", ""),
    }
}

/// Returns true if a majority of the nodes grants the name to this owner. Without a majority, the
/// name is not held.
fn is_held(held: &Held, list: &HeldList) -> bool {
    held.on > list.nodes / 2
}

fn line(held: &Held, list: &HeldList) -> String {
    let ((kind, name), of) = (kind(held), list.nodes);
    let slot = held.slot.map(|slot| format!(" slot {slot}")).unwrap_or_default();
    let what = format!("{kind} {name:?}{slot}");
    if !is_held(held, list) {
        return format!("{what}: no holder (an attempt on {} of {of} nodes)", held.on);
    }
    let who = match &held.leader {
        Some(leader) => super::leader::leader_line(leader),
        None if held.readers > 0 => format!("held by {}", number(held.readers)),
        None => format!("held by {}, fence {}", held.owner, held.fence),
    };
    let note = held.note.as_ref().map(|note| format!(", {note:?}")).unwrap_or_default();
    format!("{what}: {who}, {:.1?} left on {} of {of}{note}", held.remaining, held.on)
}

fn table(list: &HeldList) -> String {
    let mut lines: Vec<_> = list.held.iter().map(|held| line(held, list)).collect();
    if lines.is_empty() && list.unread.is_empty() {
        lines.push("nothing is held".to_owned());
    }
    lines.extend(list.unread.iter().map(|(node, why)| format!("not read: {node}: {why}")));
    lines.join("\n")
}

fn whole(list: &HeldList) -> Value {
    let held = list.held.iter().map(|held| {
        let (kind, name) = kind(held);
        json!({
            "kind": kind, "name": name, "slot": held.slot, "held": is_held(held, list),
            "readers": held.readers, "owner": held.owner,
            "fence": held.fence.get(), "on": held.on, "remaining_ms": held.remaining.as_millis(),
            "leader": held.leader.as_ref().map(leader_json), "note": held.note,
        })
    });
    json!({
        "held": held.collect::<Vec<_>>(), "nodes": list.nodes,
        "unread": unread_json(&list.unread),
    })
}
