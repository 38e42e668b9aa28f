//! A planned handover of a Sentinel group to another master, as `palisade handover` performs it.
//! The handover runs in its own process in the network of the groups, so it can be killed before
//! its end.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use palisade_ops::{Deployment, HandedOver, Handover};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::runtime;
use crate::world::{Failure, World};

/// Arguments of the subcommand `handover`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    group: String,
    /// Address of a Sentinel, `host:port`. Repeated for each Sentinel.
    #[arg(long)]
    sentinel: Vec<String>,
    /// E, the clock error of the clients, in milliseconds.
    #[arg(long)]
    clock_error: u64,
    /// Time for which the server stays closed (D), which means that it answers nothing, in
    /// milliseconds.
    #[arg(long)]
    closed_for: u64,
}

/// Performs the planned handover of the group to another master. Prints a line for each step and
/// for the result. Returns true if another server is the master now.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let group = format!("sentinel://{}/{}", args.sentinel.join(","), args.group);
    let deployment = Deployment::new().node(group);
    let handover = Handover::new(deployment)
        .clock_error(Duration::from_millis(args.clock_error))
        .closed_for(Duration::from_millis(args.closed_for));
    let tell = |step: &str| drop(writeln!(std::io::stdout(), "{step}"));
    let done = runtime::run(async { Ok(handover.group(tell).await?) })?;
    tell(&done.to_string());
    Ok(matches!(done, HandedOver::Done { .. }))
}

/// A running handover. Dropping this value kills the process of the handover.
pub(crate) struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts a handover of a group. `clock_error` is the clock error E of the group's clients.
    pub(crate) fn begin(
        world: &World,
        group: usize,
        clock_error: Duration,
    ) -> Result<Self, Failure> {
        let group = &world.groups[group];
        let closed_for = 2 * clock_error + Duration::from_secs(8);
        let ms = |span: Duration| span.as_millis().to_string();
        let mut command = world.inside();
        command.arg(std::env::current_exe()?).args(["handover", "--group", &group.name]);
        for sentinel in &group.sentinels {
            command.args(["--sentinel", sentinel]);
        }
        command.args(["--clock-error", &ms(clock_error), "--closed-for", &ms(closed_for)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().ok_or("a handover without output")?;
        Ok(Self { process, lines: BufReader::new(output).lines() })
    }

    /// Waits until the handover prints a line with `step`. Returns an error if the handover ends
    /// before this step.
    pub(crate) async fn until(&mut self, step: &str) -> Result<(), Failure> {
        let mut last = String::new();
        while let Some(line) = self.lines.next_line().await? {
            if line.contains(step) {
                return Ok(());
            }
            last = line;
        }
        Err(last.into())
    }

    /// Waits until the handover has ended. If the group was not handed over to another master,
    /// returns the last output line as an error.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        let mut last = String::new();
        while let Some(line) = self.lines.next_line().await? {
            last = line;
        }
        if self.process.wait().await?.success() { Ok(()) } else { Err(last.into()) }
    }
}
