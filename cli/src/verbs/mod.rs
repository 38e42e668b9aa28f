//! The commands of `palisade` that use or show leases and keys. Each command has its own file.

pub(crate) mod console;
pub(crate) mod cron;
pub(crate) mod elect;
pub(crate) mod idem;
pub(crate) mod inspect;
pub(crate) mod inspect_node;
mod kind;
pub(crate) mod leader;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod once;
mod permits;
pub(crate) mod run_now;
pub(crate) mod shared_settings;

use std::ffi::OsString;
use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use palisade::error::{AcquireError, NoQuorum, NodeFault, NodeOutcome};
use palisade::internal::{given, secret_variables};
use palisade::{Mutex, MutexBuilder, Redlock};
use palisade_ops::{Deployment, Records};
use serde_json::{Value, json};

use crate::child::Command;
use crate::codes::{Fail, NOT_ACQUIRED, UNAVAILABLE, USAGE};
use crate::say::Say;
use crate::settings::{HandleArgs, deployment, is_embedded, redlock};
use crate::signals::Signals;
use crate::span::Span;
use crate::warnings;
use crate::watchdog::MARGIN;

/// Maximum time for which unconfirmed releases are repeated before `palisade` ends.
const CLOSE: Duration = Duration::from_secs(2);

/// The form of the program's messages.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SayArgs {
    /// Write messages as JSON, one object per line with `event` and `text`. An error that ends the
    /// program has the event `error`, and its exit code as `code`
    #[arg(long)]
    pub(crate) json: bool,
    /// Show progress, even if standard error is not a terminal
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of every command that uses leases or keys.
#[derive(Debug, Args)]
pub(crate) struct GroundArgs {
    #[command(flatten)]
    handle: HandleArgs,
    #[command(flatten)]
    pub(crate) say: SayArgs,
}

/// Options for the command to run.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// Time between TERM and KILL when the lease is not renewed. The program sends both signals
    /// before the lease ends [default: a quarter of --ttl]
    #[arg(long, value_name = "SPAN", help_heading = "Command")]
    grace: Option<Span>,
    /// End the command after this time (exit code 124)
    #[arg(long, value_name = "SPAN", help_heading = "Command")]
    at_most: Option<Span>,
    /// Keep the variables with passwords in the environment of a command that logs in at the same
    /// servers
    #[arg(long, help_heading = "Command")]
    pass_secrets: bool,
    /// Run TEXT with `/bin/sh -c` instead of CMD
    #[arg(short = 'c', value_name = "TEXT", help_heading = "Command", conflicts_with = "command")]
    shell: Option<String>,
    /// The command and its arguments, run without a shell. A command may become another user's
    /// process, for example by `sudo`. Such a command cannot be ended with the lease, and a message
    /// reports that it still runs
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl CommandArgs {
    /// Returns the command to run. First checks the command's settings against the lease.
    pub(crate) fn command(self, ground: &Ground) -> Result<Command, Fail> {
        let lease = ground.lease();
        let argv = match self.shell {
            Some(text) => vec!["/bin/sh".into(), "-c".into(), text.into()],
            None => self.command,
        };
        if argv.is_empty() {
            return Err(Fail::new(USAGE, "no command: write it after `--`, or as -c 'TEXT'"));
        }
        let grace = self.grace.map_or(lease / 4, |Span(grace)| grace);
        // After the second failed renewal, half of the lease is left, and the command is ended in
        // that time. So the grace (the time between TERM and KILL) and `MARGIN` must not be longer
        // together.
        if grace + MARGIN > lease / 2 {
            let why = format!("--grace is {grace:?}: at most half of the lease ({lease:?})");
            return Err(Fail::new(USAGE, format!("{why} less {MARGIN:?}; make --ttl longer")));
        }
        let withheld = if self.pass_secrets { Vec::new() } else { ground.secrets.clone() };
        Ok(Command { argv, grace, at_most: self.at_most.map(|Span(span)| span), withheld })
    }
}

/// The common parts of all commands that hold a lease.
pub(crate) struct Ground {
    pub(crate) redlock: Redlock,
    /// The servers; `None` if the nodes are in the memory of this process.
    pub(crate) servers: Option<Deployment>,
    pub(crate) signals: Signals,
    pub(crate) say: Say,
    /// Names of the environment variables with passwords.
    secrets: Vec<String>,
}

impl GroundArgs {
    pub(crate) fn ground(self) -> Result<Ground, Fail> {
        let mut ground = self.without_signals()?;
        ground.signals = Signals::new()?;
        Ok(ground)
    }

    /// Creates the `Ground` (handle, servers, settings) of a command that has nothing to clean up.
    /// A signal ends `palisade` at once, even if nothing reads its output.
    pub(crate) fn without_signals(self) -> Result<Ground, Fail> {
        let say = Say::new(self.say.json, self.say.verbose);
        warnings::keep(say);
        let settings = self.handle.settings()?;
        let redlock = redlock(&settings)?;
        let servers = if is_embedded(&settings) {
            let text = "--embedded: this protects from no other process";
            say.progress("embedded", json!({}), text);
            None
        } else {
            Some(deployment(&settings))
        };
        let secrets = secret_variables();
        Ok(Ground { redlock, servers, signals: Signals::none(), say, secrets })
    }

    /// Returns access to the idempotency keys of a namespace on the servers. Also returns the form
    /// of messages.
    pub(crate) fn records(self, namespace: &str) -> Result<(Records, Say), Fail> {
        let say = Say::new(self.say.json, self.say.verbose);
        Ok((self.handle.records(namespace)?, say))
    }
}

impl Ground {
    /// Returns the lock `name`. Its acquisition waits for at most `wait`.
    pub(crate) fn mutex(&self, name: &str, wait: Option<Duration>) -> Result<Mutex, Fail> {
        let mutex = self.redlock.mutex(name);
        Ok(given(mutex, wait, MutexBuilder::acquire_timeout).build()?)
    }

    /// Returns the length of a lease.
    pub(crate) fn lease(&self) -> Duration {
        self.redlock.config().ttl
    }

    /// Closes the handle, the client of the nodes. Waits for the releases that the nodes have not
    /// confirmed, and reports the releases that stay unconfirmed.
    pub(crate) async fn close(&self) {
        let closed = self.redlock.close(CLOSE).await;
        if !closed.is_clean() {
            self.say.warn("unconfirmed", json!({}), &closed.to_string());
        }
    }
}

/// Returns the failure of a lock that was not acquired.
pub(crate) fn refused(e: &AcquireError, code: Option<u8>) -> Fail {
    match e {
        AcquireError::NoQuorum(why) => unavailable(why),
        AcquireError::TimedOut { .. } => Fail::new(code.unwrap_or(NOT_ACQUIRED), e.to_string()),
        _ => Fail::new(USAGE, e.to_string()),
    }
}

/// Returns the failure for too few nodes. If no node can be reached, the text contains a command
/// that starts a server.
pub(crate) fn unavailable(why: &NoQuorum) -> Fail {
    let mut text = why.to_string();
    if is_nothing_there(why) {
        text.push_str(
            "; start the server (`redis-server`), name another one by --node, or \
             use --embedded, which protects from this one process only",
        );
    }
    Fail::new(UNAVAILABLE, text)
}

/// Returns the nodes that could not be read, each with the reason, as JSON.
pub(crate) fn unread_json(unread: &[(impl Display, impl Display)]) -> Vec<Value> {
    let each = unread.iter().map(|(node, why)| (node.to_string(), why.to_string()));
    each.map(|(node, why)| json!({ "node": node, "why": why })).collect()
}

/// Returns true if no node accepts a connection.
pub(crate) fn is_nothing_there(why: &NoQuorum) -> bool {
    let absent = [NodeFault::Unreachable, NodeFault::NoSentinel];
    why.nodes.iter().all(|(_, outcome)| match outcome {
        NodeOutcome::Failed(e) => absent.contains(&e.fault()),
        _ => false,
    })
}
