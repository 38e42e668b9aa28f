//! The command `palisade handover`.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use palisade::ConfigError;
use palisade::internal::given;
use palisade_ops::{HandedOver, Handover};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Done;
use crate::codes::{Fail, USAGE};
use crate::say::{escaped, plain};
use crate::settings::NodesArgs;
use crate::signals::Signals;
use crate::span::Span;

/// Hands a group over to a replica, or restarts a lone server, without losing a lock or a key.
///
/// Name one node. A group is handed over to one of its replicas. A lone server needs persistence.
/// The handover closes the lone server. Then the command after `--` restarts the server. Without
/// such a command, restart the server by hand while the handover waits.
#[derive(Debug, Args)]
pub(crate) struct HandoverArgs {
    #[command(flatten)]
    settings: NodesArgs,

    /// Maximum time for which the server refuses requests during the handover, if the handover does
    /// not end earlier [default: 20s for a group, 60s for a lone server]
    #[arg(long, value_name = "SPAN")]
    closed_for: Option<Span>,
    /// Print each step and its result as JSON
    #[arg(long)]
    json: bool,
    /// Command that restarts the lone server
    #[arg(last = true, value_name = "COMMAND")]
    restart: Vec<String>,
}

impl HandoverArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let deployment = self.settings.deployment()?;
        let group = deployment.has_groups()?;
        let minute = Span(Duration::from_secs(60));
        let closed_for = self.closed_for.or((!group).then_some(minute));
        let handover = Handover::new(deployment);
        let handover = given(handover, closed_for, |handover, Span(s)| handover.closed_for(s));
        // The reader of standard error may have closed the stream. So an error is ignored.
        let json = self.json;
        let tell = |step: &str| {
            let line =
                if json { escaped(&json!({ "step": step }).to_string()) } else { plain(step) };
            drop(writeln!(std::io::stderr(), "{line}"));
        };
        let done = if group {
            if !self.restart.is_empty() {
                let why =
                    "a group is handed over without a command: leave out `--` and the command";
                return Err(Fail::new(USAGE, why));
            }
            unless_stopped(&handover, handover.group(tell)).await?
        } else {
            unless_stopped(&handover, handover.lone(restart(&self.restart), tell)).await?
        };
        let text = if json { whole(&done).to_string() } else { done.to_string() };
        Ok(Done { text: text + "\n", code: done.exit_code() })
    }
}

fn whole(done: &HandedOver) -> Value {
    let (outcome, at, closed) = match done {
        HandedOver::Done { at, closed } => ("done", Some(at), Some(closed.as_millis())),
        HandedOver::Refused(_) => ("refused", None, None),
        HandedOver::FellBack(_) => ("fell_back", None, None),
        HandedOver::Unknown(_) => ("unknown", None, None),
        HandedOver::Unreachable(_) => ("unreachable", None, None),
        _ => ("other", None, None),
    };
    json!({ "outcome": outcome, "at": at, "closed_ms": closed, "text": done.to_string() })
}

/// Runs `work` to its end. If a signal arrives earlier, stops `work` and opens the closed server,
/// so that it accepts requests again.
async fn unless_stopped(
    handover: &Handover,
    work: impl Future<Output = Result<HandedOver, ConfigError>>,
) -> Result<HandedOver, Fail> {
    let signals = Signals::new()?;
    tokio::select! {
        biased;
        done = work => return Ok(done?),
        _ = signals.next() => {}
    }
    let stopped = |why: &str| format!("stopped by a signal; {why}");
    Ok(match handover.give_up().await {
        None => HandedOver::Refused(stopped("no server is closed")),
        Some(HandedOver::Refused(why)) => HandedOver::Refused(stopped(&why)),
        Some(HandedOver::FellBack(why)) => HandedOver::FellBack(stopped(&why)),
        Some(HandedOver::Unknown(why)) => HandedOver::Unknown(stopped(&why)),
        Some(done) => done,
    })
}

async fn restart(command: &[String]) -> Result<(), String> {
    let [program, args @ ..] = command else { return Ok(()) };
    match Command::new(program).args(args).status().await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(e) => Err(format!("{program}: {e}")),
    }
}
