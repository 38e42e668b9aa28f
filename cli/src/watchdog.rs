//! Two helper modes of the program `palisade`: watchdog and starter. Only `palisade` itself starts
//! them.
//!
//! A *watchdog* ends the process group of a command before the command's lease ends. The watchdog
//! is a separate process. So it works even if `palisade` itself is stopped, starved or killed. Each
//! group has two watchdogs, but one watchdog is enough. `palisade` replaces a watchdog that was
//! killed. If `palisade` is stopped and cannot replace it, the other watchdog still ends the group
//! in time. Both watchdogs are members of the group. So the system does not give the group's number
//! to another group too early.
//!
//! The *starter* first asks the kernel to kill it when `palisade` dies (PDEATHSIG). Then the
//! starter becomes the command. It reports on a pipe that it became the command. An exit code
//! cannot report this, because the command may use every exit code.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, PipeReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpgrp, getppid};
use palisade::Moment;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};

use crate::codes::{CANNOT_RUN, INTERNAL, NOT_FOUND};

const WATCH: &str = "--watch-a-group";
const START: &str = "--start-a-command";

/// Byte that the starter process writes just before it becomes the command (`exec`).
const BECOMES: u8 = b'+';
/// Byte that the starter process writes if it could not become the command (`exec` failed).
const FAILED: u8 = b'-';
/// Directory with the file descriptors of the process that opens it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const DESCRIPTORS: &str = "/proc/self/fd";
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const DESCRIPTORS: &str = "/dev/fd";

/// Time between the kill of the group and the end of the lease.
pub(crate) const MARGIN: Duration = Duration::from_millis(100);
/// Longest time between two checks of the deadline. If the machine was suspended, the watchdog (the
/// process that kills the command) checks the deadline within this time after the machine wakes.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time to write a new deadline to a watchdog process. The process may be stopped, and its
/// pipe full.
const WRITE: Duration = Duration::from_millis(50);

/// Returns the time of the clock for lease ends. This clock also runs while the machine is
/// suspended.
pub(crate) fn now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    let read = clock_gettime(CLOCK).map(Duration::from).unwrap_or_default();
    Moment::from_nanos(u64::try_from(read.as_nanos()).unwrap_or(u64::MAX))
}

/// Runs the watchdog or the starter, if this process was started as one of them.
pub(crate) fn run() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        WATCH => Some(watch()),
        START => {
            let parent = args.next()?.to_str()?.parse().ok()?;
            let report = args.next()?.to_str()?.parse().ok()?;
            Some(start(Pid::from_raw(parent), report, args.collect()))
        }
        _ => None,
    }
}

/// Prepares this process (the starter) and becomes the command. Returns only after an error.
fn start(parent: Pid, report: RawFd, command: Vec<OsString>) -> ExitCode {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Err(e) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
        eprintln!("palisade: cannot make the command end with this program: {e}");
        return ExitCode::from(INTERNAL);
    }
    // The parent may have ended before `prctl` took effect.
    if getppid() != parent {
        return ExitCode::from(INTERNAL);
    }
    let mut report = match becoming(report) {
        Ok(report) => report,
        Err(e) => {
            eprintln!("palisade: cannot report that the command is started: {e}");
            return ExitCode::from(INTERNAL);
        }
    };
    let mut words = command.into_iter();
    let program = words.next().unwrap_or_default();
    let why = Command::new(&program).args(words).exec();
    // If `palisade` has ended, the pipe has no reader. So an error is ignored.
    drop(report.write_all(&[FAILED]));
    let code = if why.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    eprintln!("palisade: {}: {why}", program.display());
    ExitCode::from(code)
}

/// Opens the inherited pipe again and closes the inherited descriptor. So the command does not
/// inherit the pipe. Then writes the byte `BECOMES`.
fn becoming(inherited: RawFd) -> io::Result<File> {
    let mut report = File::options().write(true).open(format!("{DESCRIPTORS}/{inherited}"))?;
    nix::unistd::close(inherited)?;
    report.write_all(&[BECOMES])?;
    Ok(report)
}

/// Reads deadlines from standard input. Kills its own process group when the last deadline has
/// passed. Kills the group at once when `palisade` has ended.
fn watch() -> ExitCode {
    // A signal for the command is sent to its whole process group, which has the watchdog as a
    // member. It must not end the watchdog.
    let mut deaf = SigSet::all();
    deaf.remove(Signal::SIGKILL);
    if deaf.thread_block().is_err() {
        return ExitCode::from(INTERNAL);
    }
    let (tx, lines) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if tx.send(line).is_err() {
                return;
            }
        }
    });
    let mut kill_at = None;
    loop {
        let read = now();
        if kill_at.is_some_and(|at| read >= at) {
            break;
        }
        let pause = kill_at.map_or(LOOK, |at: Moment| at.since(read).min(LOOK));
        match lines.recv_timeout(pause) {
            Ok(line) => match line.parse() {
                Ok(nanos) => kill_at = Some(Moment::from_nanos(nanos)),
                Err(_) => return ExitCode::SUCCESS,
            },
            Err(RecvTimeoutError::Timeout) => {}
            // The pipe was closed without a last line. So `palisade` has ended.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = killpg(getpgrp(), Signal::SIGKILL);
    ExitCode::from(INTERNAL)
}

/// The pipe on which a starter (the process that becomes the command) reports that it became the
/// command.
pub(crate) struct Report(PipeReader);

impl Report {
    /// Returns true if the starter process became the command. Call this function after the starter
    /// or the command has ended.
    pub(crate) fn became(mut self) -> bool {
        let mut reports = [0; 2];
        matches!(self.0.read(&mut reports), Ok(1)) && reports[0] == BECOMES
    }
}

/// Returns a command that runs the file of this program, even if the path now has another file.
fn myself() -> tokio::process::Command {
    // Process lists show this name for the new process.
    let name = std::env::args_os().next().unwrap_or_else(|| "palisade".into());
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let program = "/proc/self/exe";
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let program = std::env::current_exe().unwrap_or_else(|_| name.clone().into());
    let mut command = tokio::process::Command::new(program);
    command.arg0(name);
    command
}

/// Both watchdogs of a process group: two processes that kill the group when the lease ends.
/// `palisade` controls them by this value.
pub(crate) struct Watchdog {
    pair: [WatchdogProcess; 2],
    group: Pid,
}

/// The process of one watchdog, which kills the command at a deadline, and the last deadline that
/// was sent to it.
struct WatchdogProcess {
    child: Child,
    input: Option<ChildStdin>,
    sent: Option<Moment>,
}

impl WatchdogProcess {
    /// Starts a watchdog (a process that kills its process group at a deadline). The watchdog joins
    /// the group `group`. If `group` is `None`, the watchdog leads a new group.
    fn start(group: Option<Pid>) -> io::Result<Self> {
        let mut command = myself();
        command.arg(WATCH).process_group(group.map_or(0, Pid::as_raw));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input, sent: None })
    }

    async fn until(&mut self, end: Moment) {
        if self.sent == Some(end) {
            return;
        }
        let line = format!("{}\n", (end - MARGIN).as_nanos());
        if self.say(&line).await {
            self.sent = Some(end);
        }
    }

    async fn say(&mut self, line: &str) -> bool {
        let Some(input) = &mut self.input else { return false };
        let said = tokio::time::timeout(WRITE, input.write_all(line.as_bytes())).await;
        matches!(said, Ok(Ok(())))
    }

    async fn end(mut self) {
        let said = self.say("end\n").await;
        drop(self.input.take());
        if !said {
            drop(self.child.start_kill());
        }
        // The watchdog ends at once after the last line on its standard input. A stopped watchdog
        // does not end, and is killed.
        if tokio::time::timeout(LOOK, self.child.wait()).await.is_err() {
            drop(self.child.start_kill());
            drop(self.child.wait().await);
        }
    }
}

impl Watchdog {
    /// Starts both watchdogs. They kill the command's process group shortly before `end`. A call of
    /// `until` moves this time.
    pub(crate) async fn start(end: Moment) -> io::Result<Self> {
        let first = WatchdogProcess::start(None)?;
        let id = first.child.id().ok_or_else(|| io::Error::other("the watchdog ended at once"))?;
        let group = Pid::from_raw(i32::try_from(id).map_err(io::Error::other)?);
        let second = WatchdogProcess::start(Some(group))?;
        let mut watchdog = Self { pair: [first, second], group };
        watchdog.until(end).await;
        Ok(watchdog)
    }

    /// Returns the process group that the watchdogs end.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Starts a command in the watchdogs' process group. `add` sets the arguments, the environment
    /// and the streams of the command.
    pub(crate) fn spawn(
        &self,
        add: impl FnOnce(&mut tokio::process::Command),
    ) -> io::Result<(Child, Report)> {
        let (reader, writer) = io::pipe()?;
        // Only this thread starts processes. So no other process inherits the descriptor of the
        // pipe.
        fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = myself();
        command.arg(START).arg(std::process::id().to_string());
        command.arg(writer.as_raw_fd().to_string());
        command.process_group(self.group.as_raw());
        add(&mut command);
        Ok((command.spawn()?, Report(reader)))
    }

    /// Resolves when a watchdog has ended, and returns the index of this watchdog in the pair. If
    /// the future is dropped, the method can be called again.
    pub(crate) async fn ended(&mut self) -> usize {
        let [first, second] = &mut self.pair;
        tokio::select! {
            biased;
            _ = first.child.wait() => 0,
            _ = second.child.wait() => 1,
        }
    }

    /// Starts a new watchdog in place of a watchdog that has ended. Fails if the command's process
    /// group has ended, too.
    pub(crate) async fn replace(&mut self, place: usize, end: Moment) -> io::Result<()> {
        self.pair[place] = WatchdogProcess::start(Some(self.group))?;
        self.pair[place].until(end).await;
        Ok(())
    }

    /// Sends the new end of the lease to both watchdogs.
    pub(crate) async fn until(&mut self, end: Moment) {
        for one in &mut self.pair {
            one.until(end).await;
        }
    }

    /// Ends the watchdogs without killing the command's process group. Call this method after the
    /// command has ended.
    pub(crate) async fn end(self) {
        let [first, second] = self.pair;
        tokio::join!(first.end(), second.end());
    }
}
