//! `palisade init`, `palisade handover` and other operator commands on real servers.

mod handover;
mod init;
mod keys;
mod nodes;
mod one_deployment;
mod preflight;
mod shared_settings;
mod stopped;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod tilt;

use std::process::{Command, Output};
use std::time::Duration;

use palisade_ops::Deployment;
use support::group::Groups;
use support::server::Server;

/// Runs the program `palisade` with these arguments.
fn palisade(args: &[&str]) -> Output {
    let args = [&["60", env!("CARGO_BIN_EXE_palisade")], args].concat();
    Command::new("timeout").args(args).output().expect("the program can be run")
}

fn words(out: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&out.stdout) + &text(&out.stderr)
}

fn lone(server: &Server) -> Deployment {
    Deployment::new().node(server.url())
}

fn group(groups: &Groups) -> Deployment {
    groups.operated().node(groups.url(0))
}

/// Maximum time for a change that the servers make by themselves. A quarantine (a time without
/// grants) takes longer.
const SOON: Duration = Duration::from_secs(12);
