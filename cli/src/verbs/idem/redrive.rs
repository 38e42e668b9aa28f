//! The command `palisade idem redrive`. It moves dead letters of a Redis Stream back into the
//! stream.

use clap::Args;
use palisade_streams::redrive;
use serde_json::json;

use super::super::SayArgs;
use super::change::AuditArgs;
use crate::Done;
use crate::codes::{Fail, UNAVAILABLE, USAGE};
use crate::say::Say;
use crate::signals::Signals;

pub(super) const HELP: &str = "Examples:
  palisade idem decide --namespace payments --loss 20261123-140321.417 --run --replace \\
    --reason 'the ledger has none of them' --node redis://127.0.0.1
  palisade idem redrive --stream orders --url redis://127.0.0.1 \\
    --reason 'decided to run after the loss of 14:03'

It moves every dead letter that was `forgotten`, with the fields of its producer; other dead letters
stay. Keys that have a result are answered by it, so nothing runs twice, and it may be stopped and
called again. Decide first: as long as the decision is to park they become dead letters again. Other
brokers have commands of their own for this (manual, \"What to do after a loss of data\"). Exit
code: 0 done, 2 some stay because they are incomplete, 64 wrong use, 69 not reached.";

const GOES_ON: &str = "some may have been moved: the same command goes on";

const URL: &str =
    "Server of the stream; set a URL with a password by PALISADE_STREAM_URL, which is the default";

/// Moves dead letters of a Redis Stream back into the stream: messages whose keys the nodes had
/// forgotten after a loss of data. Run this command after a decision about the loss.
#[derive(Debug, Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    say: SayArgs,
    /// Stream of the consumers; its dead letters are in {STREAM}:dead
    #[arg(long, value_name = "NAME")]
    stream: String,
    #[arg(long, value_name = "URL", help = URL)]
    url: Option<String>,
    #[command(flatten)]
    audit: AuditArgs,
}

impl RedriveArgs {
    pub(super) async fn run(self) -> Result<Done, Fail> {
        let audit = self.audit.audit()?;
        let url = self.url.or_else(|| std::env::var("PALISADE_STREAM_URL").ok());
        let missing = || Fail::new(USAGE, "no server: use --url or PALISADE_STREAM_URL".to_owned());
        let (url, signals) = (url.ok_or_else(missing)?, Signals::new()?);
        let redriven = tokio::select! {
            biased;
            redriven = redrive(&url, &self.stream) => Ok(redriven),
            signal = signals.next() => Err(signal),
        };
        let done = matches!(redriven, Ok(Ok(_)));
        // The number of moved messages is unknown if the redrive failed or was stopped.
        let moved = redriven.as_ref().ok().and_then(|redriven| redriven.as_ref().ok());
        let moved = moved.map(|redriven| redriven.moved);
        let (by, reason, stream) = (audit.by(), audit.reason(), &self.stream);
        let fields = json!({
            "stream": stream, "moved": moved, "by": by, "reason": reason, "done": done
        });
        let not = if done { "" } else { "not done: " };
        let text = format!("{not}redrive of stream {stream:?} by {by}: {reason}");
        Say::new(self.say.json, self.say.verbose).warn("redrive", fields, &text);
        let redriven = match redriven {
            Ok(Ok(redriven)) => redriven,
            Ok(Err(e)) => return Err(Fail::new(UNAVAILABLE, format!("{e}; {GOES_ON}"))),
            Err(signal) => {
                let why = format!("stopped by {signal}; {GOES_ON}");
                return Err(Fail::new(128 + signal as u8, why));
            }
        };
        let stay = match redriven.incomplete {
            0 => String::new(),
            n => format!(
                "{n} stay: their entries were too large for a dead letter; add them again from \
                 where they came from\n"
            ),
        };
        let text = format!("{} moved\n{stay}", redriven.moved);
        Ok(Done { text, code: if redriven.incomplete == 0 { 0 } else { 2 } })
    }
}
