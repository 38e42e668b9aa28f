//! The command `palisade elect`.

use std::time::Duration;

use clap::Args;
use palisade::election::{CampaignError, TryCampaign};
use palisade::internal::given;
use palisade::{Election, ElectionBuilder, Leadership};
use serde_json::json;

use super::leader::leader_line;
use super::lock::environment;
use super::{CommandArgs, GroundArgs, is_nothing_there, unavailable};
use crate::child::{self, Ended};
use crate::codes::{Fail, INTERNAL, NOT_ACQUIRED, USAGE};
use crate::metrics::MetricsArgs;
use crate::say::Say;
use crate::span::{Span, or_zero};
use crate::warnings;

/// Runs a command only on the host that leads the election NAME.
///
/// Waits until this host leads, runs the command, and resigns when the command ends. The exit code
/// is that of the command. If the leadership is lost, the program ends the command before another
/// candidate can lead. Then it campaigns again. `palisade step-down NAME` also ends the command.
/// Then this candidate resigns, and campaigns again one lease later, so that another candidate can
/// lead first. If no server can be reached at the start, the program fails. After its first term,
/// the program waits for the servers.
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Name of the election
    name: String,
    /// Value that the leader publishes, for example an address [default: host and process id]
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Maximum time to wait [default: until elected]
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = or_zero)]
    wait: Option<Span>,
    /// Exit code if another candidate leads [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// Priority of this candidate: candidates of lower priority delay their attempts. A leader
    /// keeps the leadership if a candidate of higher priority arrives [default: 0]
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// End when the leadership is lost or given up on request (exit code 200), and do not campaign
    /// again
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    command: CommandArgs,
}

impl ElectArgs {
    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let ground = self.metrics.ground(self.ground).await?;
        let wait = if self.nonblock { Some(Duration::ZERO) } else { self.wait.map(|Span(w)| w) };
        let election = ground.redlock.election(&self.name);
        let election = given(election, wait, ElectionBuilder::acquire_timeout);
        let election = given(election, self.priority, ElectionBuilder::priority);
        let election = election.build()?;
        let command = self.command.command(&ground)?;
        self.metrics.watch(&election);
        let value = self.value.unwrap_or_else(|| format!("pid {}", std::process::id()));
        // A program that has led once has reached the nodes. So from then on it waits for nodes
        // that do not reply.
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
            let lease = (leadership.lost_signal(), end_requested(&leadership));
            let ended = child::run(&command, &env, lease, (signals, say), None).await;
            // Resigning fails if the leadership was lost. Then there is no leadership to resign.
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

/// Resolves when a process asks this leader to step down. Returns the request as text.
async fn end_requested(leadership: &Leadership) -> String {
    let request = leadership.asked_to_resign().await;
    let why = if request.reason.is_empty() { "no reason given" } else { &request.reason };
    format!("{} asks to step down ({why})", request.by)
}

/// Campaigns for the leadership. If no node can be reached, fails if `at_once` is true, and waits
/// otherwise.
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
