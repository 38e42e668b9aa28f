//! The command `palisade once`. It runs a command once per key, and replays the output and the exit
//! code of the command.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use nix::sys::signal::Signal;
use palisade::idempotency::{Call, Context};
use palisade::{Failed, Outcome, Redlock, RunError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::lock::environment;
use super::{CommandArgs, Ground, GroundArgs, unavailable};
use crate::capture::{Capture, Output};
use crate::child::{self, Command, Ended};
use crate::codes::{Fail, INTERNAL, MISMATCH, NOT_ACQUIRED, NOT_RECORDED, PARKED, USAGE};
use crate::say::Say;
use crate::signals::Signals;
use crate::span::{Span, or_zero};

/// Maximum number of bytes that are kept of each stream. Even with escapes, a record then stays
/// below one mebibyte.
const KEPT: usize = 80 * 1024;

/// Runs a command once for the key KEY, and replays its output and exit code afterwards. Every exit
/// code is a result and is kept, except 75 (`EX_TEMPFAIL`): with this code a command requests
/// another run. A command that cannot be started leaves no result, and the next call starts it. A
/// shell that does not find a program (127) was started, so 127 is a result. A run that is killed
/// or loses its lease leaves the key parked, because it may have taken effect. With --at-least-once
/// the next call runs the command again. The first 80 KiB of each output stream are kept. A replay
/// reports if the output is not complete.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    namespace: KeyArgs,
    /// Maximum time to wait while the command runs elsewhere [default: do not wait]. A signal ends
    /// the wait, and then nothing is run
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = or_zero)]
    wait: Option<Span>,
    /// Exit code if the command runs elsewhere [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// Run again if an earlier run left no result
    #[arg(long)]
    at_least_once: bool,
    /// Time when the request was made, in seconds since 1970. If servers lost data only before that
    /// time, a key that was never used counts as new
    #[arg(long, value_name = "SECONDS")]
    created_at: Option<u64>,
    #[command(flatten)]
    command: CommandArgs,
}

/// The key of a record, with its namespace and the time for which results are kept.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Name of the key
    #[arg(id = "record", value_name = "KEY")]
    pub(crate) key: String,
    /// Namespace of the keys
    #[arg(long, value_name = "NAME", default_value = "once")]
    pub(crate) namespace: String,
    /// Time for which results are kept
    #[arg(long, value_name = "SPAN", default_value = "1d")]
    retention: Span,
}

impl KeyArgs {
    /// Returns the idempotent call of this key. With `again` the command runs at least once.
    /// Otherwise the command runs at most once.
    pub(crate) fn call(&self, redlock: &Redlock, again: bool) -> Result<Call, Fail> {
        let builder = redlock.idempotency(&self.namespace).retention(self.retention.0);
        let builder = if again { builder.at_least_once() } else { builder.at_most_once() };
        let keys = builder.build()?;
        Ok(keys.key(&self.key))
    }
}

/// The stored result of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Record {
    pub(crate) code: u8,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    /// True if the output is incomplete.
    pub(crate) cut: bool,
    pub(crate) millis: u64,
}

impl OnceArgs {
    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let ground = self.ground.ground()?;
        let command = self.command.command(&ground)?;
        let mut call = self.namespace.call(&ground.redlock, self.at_least_once)?;
        call = call.fingerprint_bytes(&request(&command.argv));
        call = call.in_flight_timeout(self.wait.map_or(Duration::ZERO, |Span(wait)| wait));
        if let Some(seconds) = self.created_at {
            call = call.created_at(UNIX_EPOCH + Duration::from_secs(seconds));
        }
        let (begun, ended) = (Cell::new(false), Cell::new(None));
        let (mut capture, watched) = (Capture::new(KEPT), (&ground.signals, ground.say));
        let outcome = {
            let key = &self.namespace.key;
            let work = call.run(|cx| {
                begun.set(true);
                run(cx, key, &command, watched, (&mut capture, &ended))
            });
            tokio::select! {
                biased;
                signal = before(&begun, &ground.signals) => Err(signal),
                outcome = work => Ok(outcome),
            }
        };
        ground.close().await;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(signal) => return Ok(128 + signal as u8),
        };
        // The result is already stored. So it does no harm if the reader of the output is slow.
        let interrupted = tokio::select! {
            () = written(&mut capture, &outcome, ground.say) => None,
            signal = ground.signals.next() => Some(128 + signal as u8),
        };
        let code = exit_code(outcome, ended.get(), self.conflict_exit_code, &ground)?;
        Ok(interrupted.unwrap_or(code))
    }
}

/// Writes the output to palisade's own standard output and standard error. The output is that of
/// this run, or the recorded output of an earlier run.
async fn written(capture: &mut Capture, outcome: &Result<Outcome<Record>, RunError>, say: Say) {
    capture.written().await;
    if let Ok(Outcome::Replayed(record)) = outcome {
        let text = "it was run before; its output and exit code are replayed";
        say.progress("replayed", json!({ "code": record.code }), text);
        replay(record, say).await;
    }
}

/// Returns a signal that arrives before the command is started. Later signals go to the command.
async fn before(begun: &Cell<bool>, signals: &Signals) -> Signal {
    poll_fn(|cx| if begun.get() { Poll::Pending } else { signals.poll(cx) }).await
}

/// Runs the command and returns its result.
async fn run(
    cx: Context,
    key: &str,
    command: &Command,
    (signals, say): (&Signals, Say),
    (capture, to): (&mut Capture, &Cell<Option<Ended>>),
) -> Result<Record, Failed> {
    let mut env = environment(key, cx.fencing_token().get(), cx.remaining());
    env.push(("PALISADE_ATTEMPT", cx.attempt().to_string()));
    let began = Instant::now();
    let lease = (cx.lost_signal(), pending());
    let ended = child::run(command, &env, lease, (signals, say), Some(&mut *capture)).await;
    // An error means that no process was started. So the run had no effect.
    let ended = ended.map_err(Failed::no_effect)?;
    to.set(Some(ended));
    match ended {
        Ended::Code(NOT_ACQUIRED) => Err(Failed::retry("wants to be run again")),
        Ended::Code(code) => {
            let (stdout, stderr, cut) = capture.take();
            let millis = began.elapsed().as_millis() as u64;
            Ok(Record { code, stdout, stderr, cut, millis })
        }
        Ended::Cannot(_) => Err(Failed::no_effect("was not started")),
        _ => Err(Failed::unknown("was ended")),
    }
}

/// Returns the exit code of `palisade once`: that of the command, or that for the reason for which
/// the command has no result.
fn exit_code(
    outcome: Result<Outcome<Record>, RunError>,
    ended: Option<Ended>,
    conflict: Option<u8>,
    ground: &Ground,
) -> Result<u8, Fail> {
    match outcome {
        Ok(Outcome::Executed { value: record, .. } | Outcome::Replayed(record)) => Ok(record.code),
        Ok(Outcome::InFlight { retry_after }) => {
            let why = format!(
                "the command runs elsewhere; ask again in {retry_after:.1?}, or use --wait"
            );
            Err(Fail::new(conflict.unwrap_or(NOT_ACQUIRED), why))
        }
        Ok(Outcome::Mismatch) => {
            Err(Fail::new(MISMATCH, "the key was used for another command; use a new key"))
        }
        Ok(Outcome::Parked(parked)) => Err(Fail::new(PARKED, parked.to_string())),
        Ok(other) => Err(Fail::new(PARKED, format!("nothing was run: {other:?}"))),
        Err(RunError::Handler { failed, overtaken, .. }) => match ended {
            Some(ended) => {
                let lost = if overtaken { "; another run may have taken the key over" } else { "" };
                let text = format!("no result is stored, because the command {failed}{lost}");
                ground.say.warn("failed", json!({}), &text);
                Ok(ended.code())
            }
            None => Err(Fail::new(INTERNAL, format!("cannot run it: {failed}"))),
        },
        Err(RunError::NoQuorum { error, .. }) => Err(unavailable(&error)),
        Err(RunError::NotRecorded(not)) => Err(Fail::new(NOT_RECORDED, not.to_string())),
        Err(e) => Err(Fail::new(USAGE, e.to_string())),
    }
}

/// Writes the recorded output of an earlier run.
async fn replay(record: &Record, say: Say) {
    use tokio::io::AsyncWriteExt as _;
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    // The reader may close the pipe. So errors are ignored.
    drop(out.write_all(record.stdout.bytes()).await);
    drop(out.flush().await);
    drop(err.write_all(record.stderr.bytes()).await);
    drop(err.flush().await);
    if record.cut {
        let text = format!(
            "the output is incomplete: at most {KEPT} bytes of each stream are kept, and nothing \
             that another process writes there after the command's end"
        );
        say.warn("cut", json!({}), &text);
    }
}

/// Returns the command as bytes, for the fingerprint. The length of each word precedes the word.
/// Words can have bytes that are not UTF-8.
fn request(argv: &[std::ffi::OsString]) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    let word = |word: &std::ffi::OsString| {
        let word = word.as_bytes();
        [&(word.len() as u64).to_be_bytes(), word].concat()
    };
    argv.iter().flat_map(word).collect()
}

/// Returns a result without output.
pub(crate) fn empty(code: u8) -> Record {
    let none = || Output::Text(String::new());
    Record { code, stdout: none(), stderr: none(), cut: false, millis: 0 }
}
