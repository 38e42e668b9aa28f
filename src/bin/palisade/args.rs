//! What is written on the command line.

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::Done;
use crate::access::{self, SECRETS, SETS, Sets};
use crate::doctor::DoctorArgs;
use crate::handover::HandoverArgs;
use crate::init::InitArgs;

/// Operates the nodes of palisade.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, arg_required_else_help = true)]
struct Palisade {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = after(DOCTOR))]
    Doctor(Box<DoctorArgs>),
    #[command(after_help = after(INIT))]
    Init(Box<InitArgs>),
    #[command(after_help = after(HANDOVER))]
    Handover(Box<HandoverArgs>),
}

const DOCTOR: &str = "Examples:
  palisade doctor --sentinel s1:26379,s2:26379,s3:26379 --master orders-a
  palisade doctor --sentinel s1:26379,s2:26379 --master orders-a --master orders-b \\
                  --sentinel t1:26379,t2:26379 --master orders-c \\
                  --node redis://10.0.2.1 --json

Exit code: 0 no errors, 1 warnings (with --strict), 2 errors, 64 wrong use, 69 nothing could be
reached.";

const INIT: &str = "Examples:
  palisade init --node redis://10.0.2.1
  palisade init --sentinel s1:26379,s2:26379,s3:26379 --master orders-a --prefix orders:

All nodes are marked or none. Exit code: 0 marked, 2 refused, 64 wrong use, 69 not reached.";

const HANDOVER: &str = "Examples:
  palisade handover --sentinel s1:26379,s2:26379,s3:26379 --master orders-a --user operator
  palisade handover --node redis://10.0.2.1 -- systemctl restart redis

The user needs EVAL, WAIT, REPLICAOF, MULTI and CONFIG REWRITE at the servers, and SENTINEL FAILOVER
at the Sentinels. Exit code: 0 handed over, 2 not, 64 wrong use, 69 not reached.";

fn after(examples: &str) -> String {
    format!("{SETS}\n\n{examples}\n\n{SECRETS}")
}

/// What to do, and in which order it was written.
pub(crate) struct Told {
    command: Command,
    sets: Sets,
}

/// Reads the command line.
pub(crate) fn read() -> Result<Told, clap::Error> {
    let matches = Palisade::command().try_get_matches()?;
    let command = Palisade::from_arg_matches(&matches)?.command;
    let sets = matches.subcommand().map(|(_, m)| access::sets(m)).unwrap_or_default();
    Ok(Told { command, sets })
}

impl Told {
    /// What to print and the exit code; an error is wrong use.
    pub(crate) fn run(self) -> Result<Done, String> {
        match self.command {
            Command::Doctor(args) => args.run(self.sets),
            Command::Init(args) => args.run(self.sets),
            Command::Handover(args) => args.run(self.sets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Vec<(Vec<String>, Vec<String>)> {
        let words = line.split(' ');
        let matches = Palisade::command().try_get_matches_from(words).expect("a good line");
        access::sets(matches.subcommand().expect("a command").1)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Palisade::command().debug_assert();
    }

    #[test]
    fn masters_belong_to_the_sentinels_before_them() {
        let sets = told(
            "palisade doctor --sentinel a:1,b:1 --sentinel c:1 --master x --master y,z \
             --node redis://h --sentinel d:1 --master x",
        );
        let want = [(vec!["a:1", "b:1", "c:1"], vec!["x", "y", "z"]), (vec!["d:1"], vec!["x"])];
        assert_eq!(sets.len(), want.len());
        for ((s, m), (ws, wm)) in sets.iter().zip(want) {
            assert_eq!(
                (s, m),
                (
                    &ws.iter().map(|t| (*t).to_owned()).collect(),
                    &wm.iter().map(|t| (*t).to_owned()).collect()
                )
            );
        }
        assert!(told("palisade doctor --node redis://h").is_empty());
    }
}
