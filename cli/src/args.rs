//! The command line of `palisade`: its commands, options and help texts.

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::Done;
use crate::codes::{Fail, TABLE};
use crate::doctor::DoctorArgs;
use crate::handover::HandoverArgs;
use crate::init::InitArgs;
use crate::settings::SECRETS;
use crate::verbs::console::ConsoleArgs;
use crate::verbs::cron::CronArgs;
use crate::verbs::elect::ElectArgs;
use crate::verbs::idem::IdemArgs;
use crate::verbs::inspect::{ForceArgs, InspectArgs};
use crate::verbs::inspect_node::InspectNodeArgs;
use crate::verbs::leader::{CandidatesArgs, StepDownArgs};
use crate::verbs::list::ListArgs;
use crate::verbs::lock::LockArgs;
use crate::verbs::once::OnceArgs;
use crate::verbs::run_now::RunNowArgs;
use crate::verbs::shared_settings::SettingsArgs;

/// Runs commands under locks, on one leader, or only once, and operates the nodes.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, arg_required_else_help = true, max_term_width = 100)]
struct Palisade {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = commands(LOCK))]
    Lock(Box<LockArgs>),
    #[command(after_help = commands(ELECT))]
    Elect(Box<ElectArgs>),
    #[command(after_help = commands(CRON))]
    Cron(Box<CronArgs>),
    #[command(after_help = commands(ONCE))]
    Once(Box<OnceArgs>),
    #[command(after_help = SECRETS)]
    Inspect(Box<InspectArgs>),
    #[command(after_help = SECRETS)]
    InspectNode(Box<InspectNodeArgs>),
    #[command(after_help = SECRETS)]
    List(Box<ListArgs>),
    #[command(after_help = SECRETS)]
    Candidates(Box<CandidatesArgs>),
    #[command(after_help = SECRETS)]
    StepDown(Box<StepDownArgs>),
    #[command(after_help = after(RUN_NOW))]
    RunNow(Box<RunNowArgs>),
    #[command(after_help = SECRETS)]
    ForceRelease(Box<ForceArgs>),
    #[command(subcommand)]
    Idem(IdemArgs),
    #[command(after_help = after(CONSOLE))]
    Console(Box<ConsoleArgs>),
    #[command(after_help = after(DOCTOR))]
    Doctor(Box<DoctorArgs>),
    #[command(after_help = after(INIT))]
    Init(Box<InitArgs>),
    #[command(after_help = after(HANDOVER))]
    Handover(Box<HandoverArgs>),
    #[command(after_help = after(SETTINGS))]
    Settings(Box<SettingsArgs>),
    /// Prints a completion script for a shell
    Completions {
        /// Name of the shell
        shell: Shell,
    },
}

const LOCK: &str = "Examples:
  palisade lock deploy --node redis://127.0.0.1 -- ./deploy.sh --all
  palisade lock -n -E 0 nightly --node redis://127.0.0.1 -c 'dump | gzip > dump.gz'
  palisade lock gpu --permits 4 --node redis://127.0.0.1 -c 'train --gpu $PALISADE_SLOT'
  palisade lock account-1 --also account-2 --node redis://127.0.0.1 -- ./transfer.sh

The environment of the command has PALISADE_NAME, PALISADE_FENCING_TOKEN (larger than that of every
earlier holder: send it with each write; with --read, not below that of any earlier holder without
--read; with --permits, than those of the same permit; with --also, of all these locks),
PALISADE_DEADLINE_MS (milliseconds since 1970: the end of the first lease, which is renewed), and
with --permits PALISADE_SLOT (the number of the permit).";

const ELECT: &str = "Examples:
  palisade elect billing --node redis://127.0.0.1 --value 10.0.0.7:8080 -- ./billing
  palisade elect billing --node redis://127.0.0.1 --priority 10 -- ./billing

The environment of the command is as for `lock`; PALISADE_FENCING_TOKEN is the term.";

const CRON: &str = "Examples:
  palisade cron '0 3 * * *' nightly --zone Europe/Zurich --node redis://127.0.0.1 -- ./nightly.sh
  palisade cron '*/5 * * * *' sync --missed catch-up --window 2h --node redis://127.0.0.1 -- ./sync
  palisade cron '0 3 * * *' nightly --zone Europe/Zurich --node redis://127.0.0.1 --history 10

The environment of the command is as for `lock`, with PALISADE_TICK (seconds since 1970: when the
tick was due), PALISADE_ATTEMPT (more than 1 if an earlier run of the tick was interrupted),
PALISADE_BACKFILLED, and PALISADE_REQUESTED (1 in a run by `palisade run-now`). A command that exits
with 75 is run again for the same tick. Any other code except 0 is recorded as a failure, and the
next tick runs at its time.";

const RUN_NOW: &str = "Example:
  palisade run-now nightly --reason 'the file came late' --node redis://127.0.0.1";

const ONCE: &str = "Examples:
  palisade once invoice-42 --node redis://127.0.0.1 -- ./send-invoice 42

The environment of the command is as for `lock`, with PALISADE_ATTEMPT: more than 1 if an earlier
run may have taken effect.";

const CONSOLE: &str = "Examples:
  palisade console --demo
  palisade console --node redis://10.0.2.1 --node redis://10.0.2.2 --node redis://10.0.2.3
  palisade console --node redis://10.0.2.1 --allow-actions --audit /var/log/palisade-audit.jsonl
  palisade console --node redis://10.0.2.1 --listen 0.0.0.0:7420 --host console.example.com \\
                   --tls-cert cert.pem --tls-key key.pem --act-token-file act --read-token-file read

The user needs SCAN, EVAL and INFO at the servers, besides the rights of a client.";

const DOCTOR: &str = "Examples:
  palisade doctor --node sentinel://s1,s2,s3/orders-a
  palisade doctor --node sentinel://s1,s2,s3/orders-a --node sentinel://t1,t2,t3/orders-b \\
                  --node redis://10.0.2.1 --json
  palisade doctor --probe rediss://cache.example:6379

Exit code: 0 no errors, 1 warnings (with --strict), 2 errors, 64 wrong use, 69 nothing could be
reached. With --probe: 0 all that palisade needs works, 1 it needs a setting, 2 it cannot work, 69
it could not be tried to the end.";

const INIT: &str = "Examples:
  palisade init --new --node redis://10.0.2.1
  palisade init --new --node sentinel://s1,s2,s3/orders-a --prefix orders:

All nodes are marked, or none. Exit code: 0 marked, now or before, 2 refused, 64 wrong use, 69 not
reached.";

const HANDOVER: &str = "Examples:
  palisade handover --node sentinel://s1,s2,s3/orders-a --username operator
  palisade handover --node redis://10.0.2.1 -- systemctl restart redis

The user needs EVAL, WAIT, REPLICAOF, MULTI and CONFIG REWRITE at the servers, and SENTINEL FAILOVER
at the Sentinels. Exit code: 0 handed over, 2 not handed over, 64 wrong
use, 69 not reached.";

const SETTINGS: &str = "Examples:
  palisade settings --node redis://10.0.2.1
  palisade settings --lower --max-ttl 15s --node sentinel://s1,s2,s3/orders-a --yes

The user needs EVAL at the servers, besides the rights of a client. Exit code: 0 shown, or changed,
2 not changed, not on all replicas, or raised again by a program, 64 wrong use, 69 not reached.";

fn after(examples: &str) -> String {
    format!("{examples}\n\n{SECRETS}")
}

fn commands(examples: &str) -> String {
    format!("{examples}\n\n{TABLE}\n\n{SECRETS}")
}

/// A parsed command line.
pub(crate) struct Line {
    command: Command,
    /// True if `palisade` prints messages as JSON objects.
    pub(crate) json: bool,
}

pub(crate) fn read() -> Result<Line, clap::Error> {
    let matches = Palisade::command().try_get_matches()?;
    let command = Palisade::from_arg_matches(&matches)?.command;
    let matches = deepest(&matches);
    let json = matches!(matches.try_get_one("json"), Ok(Some(true)));
    Ok(Line { command, json })
}

/// Returns the matches of the innermost subcommand.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, below)| deepest(below))
}

impl Line {
    /// Runs the command, and returns the text to print and the exit code.
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        match self.command {
            Command::Lock(args) => args.run().await.map(Done::from),
            Command::Elect(args) => args.run().await.map(Done::from),
            Command::Cron(args) => args.run().await.map(Done::from),
            Command::Once(args) => args.run().await.map(Done::from),
            Command::Inspect(args) => args.run().await,
            Command::InspectNode(args) => args.run().await,
            Command::List(args) => args.run().await,
            Command::Candidates(args) => args.run().await,
            Command::StepDown(args) => args.run().await,
            Command::RunNow(args) => args.run().await,
            Command::ForceRelease(args) => args.run().await.map(Done::from),
            Command::Idem(args) => args.run().await,
            Command::Console(args) => args.run().await,
            Command::Doctor(args) => args.run().await,
            Command::Init(args) => args.run().await,
            Command::Handover(args) => Box::pin(args.run()).await,
            Command::Settings(args) => args.run().await,
            Command::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Palisade::command(), "palisade", &mut text);
                Ok(Done { text: String::from_utf8_lossy(&text).into_owned(), code: 0 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Palisade::command().debug_assert();
    }

    #[test]
    fn no_variable_of_an_option_is_unknown() {
        let (mut commands, mut names) = (vec![Palisade::command()], Vec::new());
        while let Some(command) = commands.pop() {
            let of = command.get_arguments().filter_map(clap::Arg::get_env);
            names.extend(of.map(|name| name.to_string_lossy().into_owned()));
            commands.extend(command.get_subcommands().cloned());
        }
        assert!(names.len() > 20, "{names:?}");
        assert_eq!(palisade::internal::unknown_variables(names.into_iter()), [""; 0]);
    }
}
