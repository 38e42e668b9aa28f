//! The command `palisade inspect-node`.

use clap::Args;
use palisade::node::Loss;
use palisade_ops::{NodeData, nodes};
use serde_json::{Value, json};

use crate::Done;
use crate::codes::{Fail, UNAVAILABLE};
use crate::settings::NodesArgs;

/// Prints the marker of each node: its data history, its quarantine (a time without grants), the
/// smallest fencing token that it grants, and the writes that the node may have lost. Changes
/// nothing.
///
/// Exit code 69 if a node could not be read.
#[derive(Debug, Args)]
pub(crate) struct InspectNodeArgs {
    #[command(flatten)]
    settings: NodesArgs,
    /// Print JSON; times are milliseconds since 1970
    #[arg(long)]
    json: bool,
}

impl InspectNodeArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let deployment = self.settings.deployment()?;
        let all = nodes(&deployment).await?;
        let text = if self.json {
            let all: Vec<Value> = all.iter().map(node_json).collect();
            json!({ "nodes": all }).to_string()
        } else {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let code = if all.iter().all(|node| node.kept.is_ok()) { 0 } else { UNAVAILABLE };
        Ok(Done { text: text + "\n", code })
    }
}

fn node_json(node: &NodeData) -> Value {
    let (name, server) = (&node.node, &node.server);
    let kept = match &node.kept {
        Err(why) => return json!({ "node": name, "server": server, "error": why }),
        Ok(None) => return json!({ "node": name, "server": server, "data": null }),
        Ok(Some(kept)) => kept,
    };
    let data = json!({
        "history": kept.history, "history_now": node.history_now, "since_ms": kept.since,
        "began_empty": kept.empty_for.is_some(), "lost_everything": kept.lost_everything,
        "quarantine_ms": kept.quarantine.as_millis(),
        "quarantine_until_ms": kept.quarantine_until(),
        "quarantine_left_ms": kept.quarantine_left().as_millis(),
        "token_floor": kept.floor.get(), "note_age_ms": kept.note_age().as_millis(),
        "losses": kept.losses.iter().map(loss_json).collect::<Vec<_>>(),
    });
    json!({ "node": name, "server": server, "data": data })
}

/// Returns a loss (the span of the writes that the node may have lost) as JSON. If the beginning of
/// the span is not known, the JSON has no beginning and no length.
fn loss_json(loss: &Loss) -> Value {
    let length = loss.length().map(|length| length.as_millis());
    json!({
        "from_ms": length.map(|_| loss.from), "to_ms": loss.to, "at_most_ms": length,
        "text": loss.to_string(),
    })
}
