//! `palisade init`, `palisade handover` and other operator commands on real servers.

mod evicted;
mod handover;
mod init;
mod keys;
mod nodes;
mod one_deployment;
mod preflight;
mod promotion;
mod rights;
mod shared_settings;
mod stopped;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod tilt;
mod unsaved;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
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

/// Returns the output of a run of `palisade` in one line.
fn unwrapped(out: &Output) -> String {
    words(out).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lone(server: &Server) -> Deployment {
    Deployment::new().node(server.url())
}

fn group(groups: &Groups) -> Deployment {
    groups.operated().node(groups.url(0))
}

/// Maximum time for a change that the servers make by themselves. A quarantine takes longer.
const SOON: Duration = Duration::from_secs(12);

/// The reply of the script that writes a marker.
const WRITTEN: &[u8] = b"*2\r\n$2\r\nok\r\n$0\r\n\r\n";
/// Numbers of that reply in a handover: the first one closes the server, the second one lets it go
/// on.
const CLOSED: usize = 1;
const GOES_ON: usize = 2;

/// Returns an edit that loses this reply. If `then_all` is true, it also loses all later replies.
/// Calls `then` when the reply is lost.
fn loses(reply: usize, then_all: bool, then: impl Fn() + Send) -> impl Fn(&mut Vec<u8>) + Send {
    let written = AtomicUsize::new(0);
    move |bytes| {
        let before = written.load(SeqCst);
        let here = bytes.windows(WRITTEN.len()).filter(|part| *part == WRITTEN).count();
        let now = written.fetch_add(here, SeqCst) + here;
        let is_it = before < reply && now >= reply;
        if is_it {
            then();
        }
        if is_it || before >= reply && then_all {
            bytes.clear();
        }
    }
}
