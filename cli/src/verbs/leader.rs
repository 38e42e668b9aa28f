//! The commands `palisade step-down` and `palisade candidates`, and functions that show a leader as
//! text and as JSON.

use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use palisade::election::{Candidate, Leader, LeaderError, StepDown};
use serde_json::{Value, json};

use super::{GroundArgs, unavailable};
use crate::Done;
use crate::codes::{Fail, NOT_ACQUIRED, REFUSED, USAGE};
use crate::span::{Span, or_zero};

/// Maximum wait until the leader has resigned, if `-w` is not given.
const WAIT: Duration = Duration::from_secs(30);

/// Requests the leader of the election NAME to resign, and waits until it has resigned.
///
/// The command of `palisade elect` gets TERM, and KILL after its grace. Then another candidate can
/// lead first. A leader that hangs does not react to the request. It leads until its lease ends.
///
/// Exit code 0 if the leader's term is over, 2 if there is no leader, 75 if the leader still leads
/// after the wait, 69 if too few nodes reply.
#[derive(Debug, Args)]
pub(crate) struct StepDownArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the election; a job of `palisade cron` has the election `cron:JOB:lead`
    name: String,
    /// Reason, which the leader logs
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Maximum time to wait [default: 30s]
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = or_zero)]
    wait: Option<Span>,
}

/// Lists the candidates of the election NAME. The leader is first. Then follow the waiting
/// candidates in the order of preference, and then the candidates that are not eligible. Changes
/// nothing.
///
/// The leader is certain. The other candidates may be out of date: a candidate that has died stays
/// in the list for up to its lease. At most 64 candidates are listed.
///
/// Exit code 0 if there is a leader, 2 if there is none, 69 if too few nodes reply.
#[derive(Debug, Args)]
pub(crate) struct CandidatesArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the election; a job of `palisade cron` has the election `cron:JOB:lead`
    name: String,
}

impl CandidatesArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let json = self.ground.say.json;
        let ground = self.ground.without_signals()?;
        let election = ground.redlock.election(&self.name).build()?;
        let all = match election.candidates().await {
            Ok(all) => all,
            Err(LeaderError::NoQuorum(why)) => return Err(unavailable(&why)),
            Err(e) => return Err(Fail::new(USAGE, e.to_string())),
        };
        let leads = all.iter().any(|c| c.term.is_some());
        let text = if json {
            let all: Vec<_> = all.iter().map(candidate_json).collect();
            json!({ "name": self.name, "candidates": all }).to_string()
        } else {
            let vacant = (!leads).then(|| "there is no leader".to_owned());
            let lines = vacant.into_iter().chain(all.iter().map(candidate_line));
            lines.collect::<Vec<_>>().join("\n")
        };
        Ok(Done { text: text + "\n", code: if leads { 0 } else { REFUSED } })
    }
}

fn candidate_json(c: &Candidate) -> Value {
    let since = c.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "leads": c.term.is_some(), "term": c.term.map(palisade::FencingToken::get),
        "value": c.value, "priority": c.priority, "eligible": c.eligible,
        "since_ms": since.as_millis(), "host": c.identity.host, "pid": c.identity.pid,
        "boot": format!("{:x}", c.identity.boot), "remaining_ms": c.remaining.as_millis(),
    })
}

fn candidate_line(c: &Candidate) -> String {
    let value = c.value.as_ref().map_or_else(|| "(a long value)".to_owned(), |v| format!("{v:?}"));
    let is = match c.term {
        Some(term) => format!("leads, term {term}"),
        None if c.eligible => "waits".to_owned(),
        None => "is not eligible".to_owned(),
    };
    let (host, pid) = (&c.identity.host, c.identity.pid);
    let since = c.since.elapsed().unwrap_or_default().as_secs();
    format!("{value} {is} (priority {}, host {host}, pid {pid}, for {since} s)", c.priority)
}

impl StepDownArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let json = self.ground.say.json;
        let ground = self.ground.ground()?;
        let election = ground.redlock.election(&self.name).build()?;
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
            Err(LeaderError::NoQuorum(why)) => return Err(unavailable(&why)),
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
                _ => "there is no leader, so no process was asked",
            };
            let parts = [leader, text.to_owned()].into_iter().filter(|part| !part.is_empty());
            format!("election {:?}: {}", self.name, parts.collect::<Vec<_>>().join("; "))
        };
        Ok(Done { text: text + "\n", code })
    }
}

/// Returns a leader as JSON.
pub(crate) fn leader_json(leader: &Leader) -> Value {
    let since = leader.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "term": leader.term.get(), "value": leader.value, "number": leader.number,
        "since_ms": since.as_millis(), "host": leader.identity.host, "pid": leader.identity.pid,
        "boot": format!("{:x}", leader.identity.boot),
        "remaining_ms": leader.remaining.as_millis(), "drain_ms": leader.drain.as_millis(),
        "priority": leader.priority,
    })
}

/// Returns a leader as a line for people.
pub(crate) fn leader_line(leader: &Leader) -> String {
    let Leader { term, value, identity, .. } = leader;
    format!("term {term}: {value:?} leads (host {}, pid {})", identity.host, identity.pid)
}
