//! The command `palisade settings`.

use std::io::Write as _;

use clap::Args;
use palisade::internal::given;
use palisade_ops::{
    Lower, Lowered, NodeLowered, NodeSettings, OneDeployment, SharedSettings, one_deployment,
    shared_settings,
};
use serde_json::{Value, json};

use crate::Done;
use crate::codes::{Fail, REFUSED, UNAVAILABLE, USAGE};
use crate::say::{escaped, plain};
use crate::settings::{NodesArgs, deployment};

/// Prints the settings that all clients of a node share: the length of a quarantine (the longest
/// `max_ttl` and failover window) and the largest clock error. With --lower, lowers them to
/// --max-ttl and --clock-error.
///
/// Clients only raise them. Before you lower them, end every program that asks for more: nothing
/// can prove that, so --yes says it. The command then waits until no lease and no fencing token of
/// the old settings can be in use (one quarantine and twice the clock error, both the old ones). It
/// changes nothing on a node whose clients have asked for more meanwhile, and names what came back.
/// A client with larger settings raises them again at any time, also long after the command: it
/// does so with its next request.
///
/// Give the addresses as the programs have them: `failover_window`, `min_replicas` and `max_lag` of
/// an address decide how much longer than --max-ttl a quarantine is.
///
/// With --one-deployment, gives nodes that were marked one by one the id of one deployment (of
/// --deployment, else the one that most of them have), so that they vote together. Nothing is lost:
/// no other part of their data changes.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct SettingsArgs {
    #[command(flatten)]
    settings: NodesArgs,
    /// Lower the settings to --max-ttl, --clock-error or both, until a client with larger ones
    /// raises them again; without --yes, only print what would be done
    #[arg(long, group = "change")]
    lower: bool,
    /// Give all these nodes the id of one deployment; without --yes, only print which ids they have
    #[arg(long, group = "change")]
    one_deployment: bool,
    /// Every program with a longer `max_ttl` or a larger clock error has ended; with
    /// --one-deployment: the nodes belong together, and no keys were used on some of them alone
    #[arg(long, requires = "change")]
    yes: bool,
    /// Print JSON; times are milliseconds since 1970
    #[arg(long)]
    json: bool,
}

/// Message for `--lower` without `--yes`.
const CONFIRM: &str = "nothing was changed: end every program that asks for more (each of them \
                       logs `settings_disagree`), then add --yes";

/// Message for `--one-deployment` without `--yes`.
const CONFIRM_ONE: &str = "nothing was changed: add --yes if these are all nodes of one deployment \
                           and no keys were used on some of them without the others";

impl SettingsArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let settings = self.settings.settings()?;
        let deployment = deployment(&settings);
        let json = self.json;
        if self.one_deployment && self.yes {
            let done = one_deployment(&deployment).await?;
            let text = if json { one_json(&done).to_string() + "\n" } else { done.to_string() };
            return Ok(Done { text, code: if done.is_done() { 0 } else { REFUSED } });
        }
        if self.one_deployment {
            return Ok(unconfirmed(&shared_settings(&deployment).await?, json, CONFIRM_ONE));
        }
        if !self.lower {
            return Ok(shown(&shared_settings(&deployment).await?, json));
        }
        if settings.max_ttl.is_none() && settings.clock_error.is_none() {
            let why = "--lower: say to what, by --max-ttl, --clock-error or both";
            return Err(Fail::new(USAGE, why));
        }
        if !self.yes {
            return Ok(unconfirmed(&shared_settings(&deployment).await?, json, CONFIRM));
        }
        let lower = Lower::new(deployment);
        let lower = given(lower, settings.max_ttl, Lower::max_ttl);
        let lower = given(lower, settings.clock_error, Lower::clock_error);
        // The reader of standard error may have closed the stream. So an error is ignored.
        let tell = |step: &str| {
            let line =
                if json { escaped(&json!({ "step": step }).to_string()) } else { plain(step) };
            drop(writeln!(std::io::stderr(), "{line}"));
        };
        let done = lower.run(tell).await?;
        let text = if json { whole(&done).to_string() + "\n" } else { done.to_string() };
        Ok(Done { text, code: done.exit_code() })
    }
}

fn unconfirmed(all: &[NodeSettings], json: bool, confirm: &str) -> Done {
    let Done { text, code } = shown(all, json);
    let text = if json { text } else { format!("{text}{confirm}\n") };
    Done { text, code: code.max(REFUSED) }
}

fn one_json(done: &OneDeployment) -> Value {
    let nodes = done.nodes.iter().map(|(node, one)| match one {
        Ok(changed) => json!({ "node": node, "changed": changed }),
        Err(why) => json!({ "node": node, "why": why }),
    });
    let id = done.id.map(|id| format!("{id:016x}"));
    json!({ "done": done.is_done(), "deployment": id, "nodes": nodes.collect::<Vec<_>>() })
}

fn shown(all: &[NodeSettings], json: bool) -> Done {
    let text = if json {
        json!({ "nodes": all.iter().map(node_json).collect::<Vec<_>>() }).to_string()
    } else {
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let code = if all.iter().all(|node| node.settings.is_ok()) { 0 } else { UNAVAILABLE };
    Done { text: text + "\n", code }
}

fn node_json(of: &NodeSettings) -> Value {
    let (node, server) = (&of.node, &of.server);
    match &of.settings {
        Err(why) => json!({ "node": node, "server": server, "error": why }),
        Ok(settings) => {
            let settings = settings.as_ref().map(settings_json);
            json!({ "node": node, "server": server, "settings": settings })
        }
    }
}

fn settings_json(of: &SharedSettings) -> Value {
    let id = |id: Option<u64>| id.map(|id| format!("{id:016x}"));
    json!({
        "quarantine_ms": of.quarantine.as_millis(), "window_ms": of.window.as_millis(),
        "clock_error_us": of.clock_error.as_micros(), "since_ms": of.since,
        "deployment": id(of.deployment), "vote": id(of.vote),
        "epoch_above": of.epoch_above.map(|(above, now)| json!({ "marker": above,
                                                                  "sentinels": now })),
    })
}

fn whole(done: &Lowered) -> Value {
    let nodes = done.nodes.iter().map(|(node, one)| {
        let (state, settings, why) = match one {
            NodeLowered::Done(settings) => ("lowered", Some(settings), None),
            NodeLowered::Already(settings) => ("already", Some(settings), None),
            NodeLowered::CameBack(why) => ("came_back", None, Some(why)),
            NodeLowered::Refused(why) => ("refused", None, Some(why)),
            NodeLowered::Left => ("left", None, None),
            NodeLowered::Unreachable(why) => ("unreachable", None, Some(why)),
            _ => ("other", None, None),
        };
        json!({ "node": node, "state": state, "settings": settings.map(settings_json),
                "why": why })
    });
    json!({ "done": done.is_done(), "nodes": nodes.collect::<Vec<_>>() })
}
