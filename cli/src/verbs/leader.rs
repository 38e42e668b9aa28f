//! `palisade step-down`, and how a leader is shown.

use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use palisade::election::{Leader, StepDown, StepDownError};
use serde_json::{Value, json};

use super::{Ground, SayArgs, unavailable};
use crate::Done;
use crate::access::{HandleArgs, Sets};
use crate::codes::{Fail, NOT_ACQUIRED, REFUSED, USAGE};
use crate::settings::Span;

/// How long the leader may take to resign where `-w` does not say.
const WAIT: Duration = Duration::from_secs(30);

/// Asks the leader of the election NAME to resign, and waits until it has.
///
/// The command of `palisade elect` gets TERM, and KILL after its grace; others come first then. It
/// is a wish: a leader that hangs goes on until its lease ends.
///
/// Exit code 0 if its term is over, 2 if nobody leads, 75 if it still leads after the wait, 69 if
/// too few nodes answer.
#[derive(Debug, Args)]
pub(crate) struct StepDownArgs {
    #[command(flatten)]
    handle: HandleArgs,
    #[command(flatten)]
    say: SayArgs,
    /// The election's name
    name: String,
    /// Why; the leader logs it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Wait for so long at most [default: 30s]
    #[arg(short = 'w', long, value_name = "SPAN")]
    wait: Option<Span>,
}

impl StepDownArgs {
    pub(crate) async fn run(self, sets: Sets) -> Result<Done, Fail> {
        let json = self.say.json;
        let mut ground = Ground::new(self.handle, sets, self.say)?;
        let election = ground.redlock.election(&self.name).build();
        let election = election.map_err(|e| Fail::from(e.to_string()))?;
        let wait = self.wait.map_or(WAIT, |Span(wait)| wait);
        let asked = tokio::select! {
            biased;
            signal = ground.signals.next() => {
                ground.close().await;
                return Ok(Done { text: String::new(), code: 128 + signal as u8 });
            }
            asked = election.step_down(&self.reason, wait) => asked,
        };
        ground.close().await;
        let (outcome, leader, code) = match asked {
            Ok(StepDown::Resigned(leader)) => ("resigned", Some(leader), 0),
            Ok(StepDown::Vacant) => ("vacant", None, REFUSED),
            Ok(StepDown::StillLeads(leader)) => ("still_leads", Some(leader), NOT_ACQUIRED),
            Ok(other) => return Err(Fail::new(NOT_ACQUIRED, format!("{other:?}"))),
            Err(StepDownError::NoQuorum(why)) => return Err(unavailable(&why)),
            Err(e) => return Err(Fail::new(USAGE, e.to_string())),
        };
        let shown = leader.as_ref();
        let text = if json {
            let leader = shown.map(leader_json);
            json!({ "name": self.name, "outcome": outcome, "leader": leader }).to_string()
        } else {
            let leader = shown.map(leader_line).unwrap_or_default();
            let text = match outcome {
                "resigned" => "its term is over",
                "still_leads" => "it was asked, and still leads",
                _ => "nobody leads, so nobody was asked",
            };
            let parts = [leader, text.to_owned()].into_iter().filter(|part| !part.is_empty());
            format!("election {:?}: {}", self.name, parts.collect::<Vec<_>>().join("; "))
        };
        Ok(Done { text: text + "\n", code })
    }
}

/// A leader for programs.
pub(crate) fn leader_json(leader: &Leader) -> Value {
    let since = leader.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "term": leader.term.get(), "value": leader.value, "number": leader.number,
        "since_ms": since.as_millis(), "host": leader.identity.host, "pid": leader.identity.pid,
        "boot": format!("{:x}", leader.identity.boot),
        "remaining_ms": leader.remaining.as_millis(), "drain_ms": leader.drain.as_millis(),
    })
}

/// The same for people.
pub(crate) fn leader_line(leader: &Leader) -> String {
    let Leader { term, value, identity, .. } = leader;
    format!("term {term}: {value:?} leads (host {}, pid {})", identity.host, identity.pid)
}
