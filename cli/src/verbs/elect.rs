//! The command `palisade elect`.

use std::time::Duration;

use clap::Args;
use palisade::election::{CampaignError, Observation, TryCampaign};
use palisade::{Advice, Election, Leadership};
use serde_json::{Value, json};

use super::leader::{leader_json, leader_line};
use super::lock::environment;
use super::{CommandArgs, Ground, SayArgs, is_nothing_there, unavailable};
use crate::child::{self, Ended};
use crate::codes::{Fail, INTERNAL, NOT_ACQUIRED, USAGE};
use crate::metrics::MetricsArgs;
use crate::say::{Say, escaped, plain};
use crate::settings::HandleArgs;
use crate::span::Span;
use crate::warnings;

/// Runs a command on the host that leads the election NAME, and nowhere else.
///
/// Waits to lead, runs the command, and resigns when it ends; its exit code is passed on. If the
/// leadership is lost, the command is ended before another candidate can lead, and this one
/// campaigns again. `palisade step-down NAME` ends the command, too: then this candidate resigns,
/// and campaigns again one lease later, so that others come first. If no server can be reached at
/// the start, the program fails; after its first term it waits for the servers.
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    handle: HandleArgs,
    #[command(flatten)]
    say: SayArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Name of the election
    name: String,
    /// Value that the leader publishes, an address for example [default: host and process id]
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for at most this long [default: until elected]
    #[arg(short = 'w', long, value_name = "SPAN")]
    wait: Option<Span>,
    /// Exit code if another candidate leads [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// Prefer this candidate to those of lower priority, which delay each attempt for it; a leader
    /// stays if a candidate of higher priority arrives [default: 0]
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// End when the leadership is lost or given up on request (exit code 200), instead of
    /// campaigning again
    #[arg(long)]
    once: bool,
    /// Only print the leader on standard output: now, and at each change
    #[arg(long, conflicts_with_all = ["value", "nonblock", "wait", "priority", "once",
        "command", "shell"])]
    observe: bool,
    #[command(flatten)]
    command: CommandArgs,
}

impl ElectArgs {
    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let json = self.say.json;
        let mut ground = self.metrics.ground(self.handle, self.say)?;
        let wait = if self.nonblock { Some(Duration::ZERO) } else { self.wait.map(|Span(w)| w) };
        let election = ground.redlock.election(&self.name);
        let election = match wait {
            Some(wait) => election.acquire_timeout(wait),
            None => election,
        };
        let election = match self.priority {
            Some(priority) => election.priority(priority),
            None => election,
        };
        let election = election.build()?;
        if self.observe {
            return observe(&election, &mut ground, json).await;
        }
        let command = self.command.command(&ground)?;
        self.metrics.watch(&election);
        let value = self.value.unwrap_or_else(|| format!("pid {}", std::process::id()));
        // After its first term the program has reached the nodes, so from then on it waits for them
        // to come back.
        let mut first = true;
        loop {
            let won = tokio::select! {
                biased;
                signal = ground.signals.next() => {
                    ground.close().await;
                    return Ok(128 + signal as u8);
                }
                won = campaign(&election, &value, first && wait.is_none(), ground.say) => won,
            };
            let leadership = match won {
                Ok(leadership) => leadership,
                Err(e) => {
                    ground.close().await;
                    return Err(refused(&e, self.conflict_exit_code));
                }
            };
            first = false;
            let term = leadership.term();
            let fields = json!({ "name": self.name, "term": term.get(), "value": value });
            ground.say.warn("leading", fields, &format!("leads {:?}, term {term}", self.name));
            let env = environment(&self.name, term.get(), leadership.remaining());
            let (signals, say) = (&ground.signals, ground.say);
            let ended = child::run(&command, &env, &leadership, (signals, say), None).await;
            // Resigning a leadership that was lost fails, and nothing has to be done then.
            let _ = leadership.resign().await;
            let ended = ended.map_err(|e| Fail::new(INTERNAL, format!("no process: {e}")))?;
            if !matches!(ended, Ended::Lost | Ended::Requested) || self.once {
                ground.close().await;
                return Ok(ended.code());
            }
            let fields = json!({ "name": self.name, "term": term.get() });
            let text = format!("no longer leads {:?}; campaigns again", self.name);
            ground.say.warn("deposed", fields, &text);
        }
    }
}

/// Campaigns. With `at_once` the call fails if no node can be reached, and does not wait for one.
async fn campaign(
    election: &Election,
    value: &str,
    at_once: bool,
    say: Say,
) -> Result<Leadership, CampaignError> {
    let why = match election.try_campaign(value).await {
        Ok(TryCampaign::Won(leadership)) => return Ok(leadership),
        Err(CampaignError::NoQuorum(why)) if !at_once || !is_nothing_there(&why) => why.to_string(),
        Err(e) => return Err(e),
        Ok(TryCampaign::Following(_)) => {
            let leader = election.leader().await.ok().flatten();
            leader.map_or_else(|| "another candidate leads".to_owned(), |l| leader_line(&l))
        }
    };
    let text = format!("election {:?}: {why}; waiting", election.name());
    say.warn("waiting", json!({ "name": election.name() }), &text);
    warnings::show(say);
    election.campaign(value).await
}

fn refused(e: &CampaignError, code: Option<u8>) -> Fail {
    match e {
        CampaignError::NoQuorum(why) => unavailable(why),
        CampaignError::TimedOut { .. } => Fail::new(code.unwrap_or(NOT_ACQUIRED), e.to_string()),
        _ => Fail::new(USAGE, e.to_string()),
    }
}

/// Prints the leader at each change, until a signal ends the program or its reader is gone.
async fn observe(election: &Election, ground: &mut Ground, json: bool) -> Result<u8, Fail> {
    use tokio::io::AsyncWriteExt as _;
    let mut observer = election.observe();
    let mut out = tokio::io::stdout();
    loop {
        let seen = tokio::select! {
            biased;
            signal = ground.signals.next() => return Ok(128 + signal as u8),
            seen = observer.next() => seen,
        };
        let Some(seen) = seen else { return Ok(0) };
        if let Observation::Disconnected(why) = &seen
            && why.advice() == Advice::Misconfigured
        {
            return Err(unavailable(why));
        }
        let (object, text) = shown(&seen);
        let line = if json { escaped(&object.to_string()) } else { plain(&text) } + "\n";
        let written = async {
            out.write_all(line.as_bytes()).await?;
            out.flush().await
        };
        tokio::select! {
            biased;
            signal = ground.signals.next() => return Ok(128 + signal as u8),
            // An error means that the reader has closed standard output.
            written = written => if written.is_err() { return Ok(0) },
        }
    }
}

fn shown(seen: &Observation) -> (Value, String) {
    match seen {
        Observation::Leader { leader, gap } => {
            let mut object = leader_json(leader);
            object["state"] = "leader".into();
            object["gap"] = (*gap).into();
            let missed = if *gap { "; more may have led since the line before" } else { "" };
            (object, format!("{}{missed}", leader_line(leader)))
        }
        Observation::Vacant => (json!({ "state": "vacant" }), "nobody leads".to_owned()),
        Observation::Disconnected(why) => {
            let why = why.to_string();
            let text = format!("disconnected, who leads is unknown: {why}");
            (json!({ "state": "disconnected", "why": why }), text)
        }
        Observation::Resynced { gap } => {
            let missed = if *gap { "something may have been missed" } else { "nothing was missed" };
            (json!({ "state": "resynced", "gap": gap }), format!("connected again; {missed}"))
        }
        other => (json!({ "state": "other" }), format!("{other:?}")),
    }
}
