//! The commands `palisade idem …`. They list and show idempotency keys. They also decide about keys
//! and about losses of data.

mod change;
mod decide_all;
mod incidents;
mod list;
mod redrive;

use std::fmt::Display;

use clap::{Args, Subcommand};
use palisade::RunError;
use palisade::idempotency::{Resolved, Status};
use palisade_ops::{Change, resolve};
use serde_json::json;

pub(crate) use self::change::AuditArgs;
use self::change::{OneArgs, PurgeArgs};
pub(crate) use self::decide_all::lines_in_memory;
use self::incidents::{DecideArgs, IncidentsArgs};
use self::list::ListArgs;
use self::redrive::RedriveArgs;
use super::once::{KeyArgs, Record, empty};
use super::{GroundArgs, unavailable};
use crate::Done;
use crate::codes::{Fail, NOT_ACQUIRED, UNAVAILABLE, USAGE};

/// Lists idempotency keys, or decides about them.
#[derive(Debug, Subcommand)]
pub(crate) enum IdemArgs {
    #[command(after_help = list::HELP)]
    List(Box<ListArgs>),
    Show(Box<ShowArgs>),
    Resolve(Box<ResolveArgs>),
    /// Lets a parked KEY run again at its next call, under any policy.
    ///
    /// A parked key is not run, because an earlier run may have had an effect. Use this command
    /// after a person has verified that the earlier run had no effect. The command itself runs
    /// nothing.
    #[command(after_help = change::HELP)]
    Rerun(Box<OneArgs>),
    /// Ends the claim of a run whose process is dead.
    ///
    /// Then the key is parked (not run until a person decides), or it runs again, according to its
    /// policy. If the process is still alive, it loses its claim. Its earlier effects remain.
    #[command(after_help = change::HELP)]
    Release(Box<OneArgs>),
    #[command(after_help = change::HELP)]
    Purge(Box<PurgeArgs>),
    #[command(after_help = incidents::HELP)]
    Incidents(Box<IncidentsArgs>),
    #[command(after_help = incidents::HELP)]
    Decide(Box<DecideArgs>),
    #[command(after_help = redrive::HELP)]
    Redrive(Box<RedriveArgs>),
}

/// Prints the record of KEY as JSON.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    key: KeyArgs,
}

/// Stores a result under a parked KEY without running a command.
///
/// A parked key is not run, because an earlier run may have had an effect. Use this command if a
/// person knows the result of the earlier run. If the earlier run had no effect, use `palisade idem
/// rerun`. A stored result is never changed. This command is only for keys of `palisade once`. The
/// keys of another program have results of another kind, and that program has to resolve them.
#[derive(Debug, Args)]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Exit code that later calls return
    #[arg(long, value_name = "CODE")]
    code: u8,
    #[command(flatten)]
    audit: AuditArgs,
}

impl IdemArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        match self {
            Self::List(args) => args.run().await,
            Self::Show(args) => args.run().await,
            Self::Rerun(args) => args.run(Change::Rerun).await,
            Self::Release(args) => args.run(Change::Release).await,
            Self::Purge(args) => args.run().await,
            Self::Resolve(args) => args.run().await,
            Self::Incidents(args) => args.run().await,
            Self::Decide(args) => args.run().await,
            Self::Redrive(args) => args.run().await,
        }
    }
}

impl ShowArgs {
    async fn run(self) -> Result<Done, Fail> {
        let ground = self.ground.without_signals()?;
        let status = self.key.call(&ground.redlock, false)?.lookup::<Record>().await;
        let object = match status.map_err(failed)? {
            Status::Stored(record) => json!({ "state": "stored", "result": record }),
            Status::Absent => json!({ "state": "absent" }),
            Status::Forgotten { remaining } => {
                json!({ "state": "forgotten", "for_ms": remaining.as_millis() })
            }
            Status::Running { attempt, remaining } => {
                let left = remaining.as_millis();
                json!({ "state": "running", "attempt": attempt, "remaining_ms": left })
            }
            Status::Lapsed { attempt } => json!({ "state": "lapsed", "attempt": attempt }),
            Status::Unsettled => json!({ "state": "unsettled" }),
            other => json!({ "state": format!("{other:?}") }),
        };
        Ok(Done { text: format!("{object}\n"), code: 0 })
    }
}

impl ResolveArgs {
    async fn run(self) -> Result<Done, Fail> {
        let ground = self.ground.without_signals()?;
        let call = self.key.call(&ground.redlock, false)?;
        let audit = self.audit.audit()?;
        let of = (&*ground.redlock.config().prefix, &*self.key.namespace, &*self.key.key);
        let resolved = resolve(call, &empty(self.code), &audit).await.map_err(failed)?;
        let done = resolved == Resolved::Stored;
        change::event(ground.say, "resolve", of, &audit, Some(done));
        let (text, code) = match resolved {
            Resolved::Stored => (format!("stored: code {}\n", self.code), 0),
            Resolved::AlreadyStored(record) => {
                (format!("not changed: a result is there, code {}\n", record.code), 2)
            }
            Resolved::InFlight { retry_after } => {
                let why = format!("it runs; its lease is over in {retry_after:.1?}");
                return Err(Fail::new(NOT_ACQUIRED, why));
            }
            other => (format!("not stored: {other:?}\n"), 2),
        };
        ground.close().await;
        Ok(Done { text, code })
    }
}

/// Joins the texts of all nodes that could not be read, each with the reason.
fn reasons(unread: &[(impl Display, impl Display)]) -> String {
    let each: Vec<_> = unread.iter().map(|(node, why)| format!("{node}: {why}")).collect();
    each.join("; ")
}

fn failed(e: RunError) -> Fail {
    match e {
        RunError::NoQuorum { error, .. } => unavailable(&error),
        RunError::NotRecorded(not) => Fail::new(UNAVAILABLE, not.to_string()),
        other => Fail::new(USAGE, other.to_string()),
    }
}
