//! `palisade init`.

use clap::Args;
use palisade::ops;

use crate::access::{AccessArgs, Sets};
use crate::{Done, block_on};

/// Marks a new deployment: its nodes grant at once, and remember every key from the beginning.
///
/// Run it once, for all nodes together, when the servers are set up and their replicas attached,
/// and only if the whole deployment is new. A server that was replaced or emptied while other nodes
/// have data joins by itself after one quarantine; marked as new, it would deny keys that it
/// forgot, and a handler would run twice. A server is refused if it has a key with the prefix, or
/// palisade's marker, unless applications wrote the marker too early and are still in its first
/// quarantine.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    access: AccessArgs,

    /// The application's prefix; without it any key that looks like palisade's leads to a refusal
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
}

impl InitArgs {
    pub(crate) fn run(self, sets: Sets) -> Result<Done, String> {
        let deployment = self.access.deployment(sets)?;
        let done = block_on(ops::init(&deployment, &self.prefix))?.map_err(|e| e.to_string())?;
        Ok(Done { text: done.to_string(), code: done.exit_code() })
    }
}
