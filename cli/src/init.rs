//! The command `palisade init`.

use clap::Args;
use palisade_ops::{Init, Initialised};
use serde_json::{Value, json};

use crate::Done;
use crate::codes::{Fail, USAGE};
use crate::settings::Settings;

/// Marks a new deployment: its nodes grant at once, and have a record of every key from the
/// beginning.
///
/// Run it once, for all nodes together, when the servers are installed and their replicas attached,
/// with `--new` if the whole deployment is new: an emptied server looks the same, so only a person
/// can distinguish the two. A server that was replaced or emptied while other nodes have data joins
/// by itself after one quarantine; if it were marked as new, it would deny keys that it has lost,
/// and a handler would run twice. A server is refused if it has a key with the prefix. Nodes that
/// are marked already are left as they are, so the command can be repeated. If programs used the
/// nodes first, it can still be run as long as no key shows earlier use.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    settings: Settings,

    /// Prefix of the application; without it any key that looks like palisade's leads to a refusal
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// The whole deployment is new: no key was ever used with it
    #[arg(long, conflicts_with = "lost_everything")]
    new: bool,
    /// The deployment had data that are lost for good: keys used before count as new, so they run
    /// again
    #[arg(long, conflicts_with = "prefix")]
    lost_everything: bool,
    /// Print the result for each node as JSON
    #[arg(long)]
    json: bool,
}

/// Message for a call without `--new`: an emptied server looks like a new one, so a person has to
/// state which one it is.
const WHICH: &str = "say what the servers are: with --new, if no key was ever used with them; if \
                     they had data, that would let used keys run again: see `palisade idem \
                     incidents`, or add --lost-everything if nothing can be brought back";

impl InitArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        if !self.new && !self.lost_everything {
            return Err(Fail::new(USAGE, WHICH));
        }
        let deployment = self.settings.with_file()?.deployment()?;
        let done = if self.lost_everything {
            palisade_ops::init_lost(&deployment).await?
        } else {
            palisade_ops::init(&deployment, &self.prefix).await?
        };
        let text = if self.json { whole(&done).to_string() + "\n" } else { done.to_string() };
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
