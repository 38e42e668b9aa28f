//! The command `palisade init`.

use clap::Args;
use palisade_ops::{Init, Initialised};
use serde_json::{Value, json};

use crate::Done;
use crate::codes::{Fail, USAGE};
use crate::settings::NodesArgs;
use crate::verbs::idem::lines_in_memory;

/// Marks the nodes of a new deployment as new. Marked nodes grant at once and have a complete
/// record of all keys.
///
/// Run this command once for all nodes together, after the servers are installed and their replicas
/// are attached. Use `--new` if the whole deployment is new. An emptied server looks the same as a
/// new server, so only a person can distinguish the two.
///
/// If one server was replaced or emptied while other nodes have data, do not mark it as new. It
/// joins by itself after one quarantine (a time without grants). A server that is wrongly marked as
/// new would report keys that it has lost as unused, and a handler would run twice.
///
/// The command refuses a server that has a key with the prefix. It does not change nodes that are
/// already marked. So the command can be repeated. If programs used the nodes before this command,
/// the command still works as long as no key shows earlier use.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    settings: NodesArgs,

    /// Prefix of the application; without a prefix, any key that looks like a key of palisade leads
    /// to a refusal
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// The whole deployment is new: no key was ever used with it
    #[arg(long, conflicts_with = "lost_everything")]
    new: bool,
    /// The deployment had data that are lost for good: earlier keys count as new, so they run again
    #[arg(long, conflicts_with = "prefix")]
    lost_everything: bool,
    /// Print the result for each node as JSON
    #[arg(long)]
    json: bool,
}

/// Message for a call without `--new`. An emptied server looks the same as a new server. So a
/// person has to decide.
const WHICH: &str = "add --new if no key was ever used with these servers; if they had data, do \
                     not, because used keys would run again: see `palisade idem incidents`, or add \
                     --lost-everything if the data cannot be restored";

impl InitArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        if !self.new && !self.lost_everything {
            return Err(Fail::new(USAGE, WHICH));
        }
        let deployment = self.settings.deployment()?;
        let done = if self.lost_everything {
            palisade_ops::init_lost(&deployment).await?
        } else {
            palisade_ops::init(&deployment, &self.prefix).await?
        };
        let text = if self.json {
            whole(&done).to_string() + "\n"
        } else if done.is_done() {
            done.to_string() + &lines_in_memory(&palisade_ops::in_memory(&deployment).await?)
        } else {
            done.to_string()
        };
        Ok(Done { text, code: done.exit_code() })
    }
}

fn whole(done: &Initialised) -> Value {
    let nodes = done.nodes.iter().map(|(node, done)| {
        let (state, at, why) = match done {
            Init::Marked { at, .. } => ("marked", Some(at), None),
            Init::Already { at, .. } => ("already", Some(at), None),
            Init::Left { at } => ("left", Some(at), None),
            Init::Replaced { at } => ("replaced", Some(at), None),
            Init::Refused(why) => ("refused", None, Some(why)),
            Init::Unreachable(why) => ("unreachable", None, Some(why)),
            Init::Doubtful(why) => ("doubtful", None, Some(why)),
            _ => ("other", None, None),
        };
        let (replicas, note) = match done {
            Init::Marked { replicas, note, .. } => (Some(replicas), note.as_ref()),
            _ => (None, None),
        };
        json!({ "node": node, "state": state, "at": at, "replicas": replicas, "note": note,
                "why": why })
    });
    json!({ "done": done.is_done(), "nodes": nodes.collect::<Vec<_>>() })
}
