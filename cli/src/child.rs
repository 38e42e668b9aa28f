//! Runs a command under a lease. The command always ends before the lease ends.
//!
//! ```text
//!  lease  ├──────────────── renewed ───────────────┤ not renewed ... ┤ end
//!  command  runs                                   TERM       KILL
//!                                                  │◀── grace ──▶│◀─ margin ─▶│
//! ```

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{self, SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, tcgetpgrp, tcsetpgrp};
use palisade::LostSignal;
use serde_json::json;
use tokio::process::Child;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::capture::Capture;
use crate::codes::{INTERNAL, LOST};
use crate::say::Say;
use crate::signals::Signals;
use crate::warnings;
use crate::watchdog::{MARGIN, Report, Watchdog, now};

/// Interval between two checks of the lease.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum time until killed processes have ended.
pub(crate) const DIES: Duration = Duration::from_millis(250);

/// A command to run.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// Program and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Time between TERM and KILL. Both are sent before the lease ends.
    pub(crate) grace: Duration,
    /// Maximum time for which the command may run.
    pub(crate) at_most: Option<Duration>,
    /// Names of the environment variables that are removed for the command.
    pub(crate) withheld: Vec<String>,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command exited with this code.
    Code(u8),
    /// A signal ended the command. The number is 0 if the cause of the end is unknown.
    Signal(i32),
    /// The command was not started. Contains the exit code of `palisade` in this case.
    Cannot(u8),
    /// The command ran for longer than `at_most`, and `palisade` ended it.
    TooLong,
    /// `palisade` ended the command, because the lease was about to end or was lost.
    Lost,
    /// `palisade` ended the command, because of a request. For example, a person asked the leader
    /// to step down, or the next tick of a job was due.
    Requested,
}

impl Ended {
    /// Returns the end of the command. `became` is false if the starter (the process that becomes
    /// the command) ended before it became the command.
    fn of(status: ExitStatus, became: bool) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        match (status.code(), status.signal()) {
            (code, signal) if !became => {
                let code = code.or(signal.map(|signal| 128 + signal));
                Self::Cannot(code.map_or(INTERNAL, |code| code as u8))
            }
            (Some(code), _) => Self::Code(code as u8),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Returns the exit code of `palisade` for this end of the command.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) | Self::Cannot(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal as u8),
            // `timeout(1)` uses the same exit code.
            Self::TooLong => 124,
            Self::Lost | Self::Requested => LOST,
        }
    }
}

/// Runs a command under a lease to its end. If `end_requested` resolves, the command has to end
/// although the lease is not lost; its output is the reason as text. Kills the processes that the
/// command leaves in its process group. An error means that no process was started. From this call
/// on, the library's warnings are shown at once.
pub(crate) async fn run(
    command: &Command,
    env: &[(&str, String)],
    (lease, end_requested): (LostSignal, impl Future<Output = String>),
    (signals, say): (&Signals, Say),
    capture: Option<&mut Capture>,
) -> io::Result<Ended> {
    warnings::show(say);
    let mut watchdog = Watchdog::start(now() + lease.remaining()).await?;
    let group = watchdog.group();
    // A signal arrived before the command was started. `palisade` ends and does not start the
    // command.
    if let Some(signal) = signals.came() {
        watchdog.end().await;
        return Ok(Ended::Cannot(128 + signal as u8));
    }
    let (mut child, report) = watchdog.spawn(|starter| {
        for name in &command.withheld {
            starter.env_remove(name);
        }
        starter.args(&command.argv).envs(env.iter().map(|(name, value)| (*name, value)));
        if capture.is_some() {
            starter.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
    })?;
    let copies = capture.map(|capture| capture.begin(&mut child));
    let terminal = Terminal::give(group);
    let (started, say_to) = ((&mut child, report), (signals, say));
    let held = (command, &lease, end_requested);
    let ended = attend(started, &mut watchdog, held, say_to, terminal.as_ref()).await;
    watchdog.end().await;
    clear(group, command.grace, &lease, say).await;
    drop(terminal);
    if let Some(copies) = copies {
        copies.end().await;
    }
    Ok(ended)
}

/// Waits for the end of the command. Meanwhile passes signals on to the command, and sends each new
/// end of the lease to the watchdogs (processes that kill the command at that time). Ends the
/// command before the lease ends.
async fn attend(
    (child, report): (&mut Child, Report),
    watchdog: &mut Watchdog,
    (command, lease, end_requested): (&Command, &LostSignal, impl Future<Output = String>),
    (signals, say): (&Signals, Say),
    terminal: Option<&Terminal>,
) -> Ended {
    let group = watchdog.group();
    let began = Instant::now();
    let (mut ending, mut killed, mut interrupts) = (None, false, 0);
    let mut kill_at = None;
    tokio::pin!(end_requested);
    let mut beat = interval(LOOK);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            status = child.wait() => {
                let status = status.map(|status| Ended::of(status, report.became()));
                let status = status.unwrap_or_else(|e| unseen(&e, say));
                let over = lease.remaining() <= MARGIN;
                return how_it_ended(ending, over, status);
            }
            () = lease.lost(), if !killed => {
                say.warn("lost", json!({}), "the lease is lost; the command is killed");
                (ending, killed) = (Some(Ended::Lost), true);
                kill(child, group, say);
            }
            signal = signals.next() => {
                interrupts += u32::from(signal == Signal::SIGINT);
                if interrupts > 1 {
                    killed = true;
                    kill(child, group, say);
                } else {
                    send_all(child, group, signal);
                }
            }
            place = watchdog.ended(), if !killed => {
                let replaced = watchdog.replace(place, now() + lease.remaining()).await;
                if !say_replaced(&replaced, say) {
                    (ending, killed) = (Some(Ended::Lost), true);
                    kill(child, group, say);
                }
            }
            why = &mut end_requested, if ending.is_none() => {
                say.warn("asked", json!({}), &format!("{why}; the command is ended"));
                ending = Some(Ended::Requested);
                kill_at = Some(Instant::now() + command.grace);
                send_all(child, group, Signal::SIGTERM);
            }
            _ = beat.tick() => {
                let left = lease.remaining();
                watchdog.until(now() + left).await;
                if terminal.is_some() {
                    go_on(child, group);
                }
                if ending.is_none() && left <= command.grace + MARGIN {
                    let text = "the lease cannot be renewed; the command gets TERM, and KILL \
                                before the lease ends";
                    say.warn("losing", json!({"left_ms": left.as_millis()}), text);
                    ending = Some(Ended::Lost);
                    send_all(child, group, Signal::SIGTERM);
                } else if ending.is_none() && command.at_most.is_some_and(|m| began.elapsed() > m) {
                    say.warn("too_long", json!({}), "the command runs for too long; it is ended");
                    ending = Some(Ended::TooLong);
                    kill_at = Some(Instant::now() + command.grace);
                    send_all(child, group, Signal::SIGTERM);
                }
                let late = kill_at.is_some_and(|at| Instant::now() >= at);
                if !killed && (late || left <= MARGIN) {
                    killed = true;
                    kill(child, group, say);
                }
            }
        }
    }
}

/// Reports that a watchdog (a process that kills the command when its lease ends) was replaced or
/// could not be replaced. Returns true if the watchdog was replaced.
fn say_replaced(replaced: &io::Result<()>, say: Say) -> bool {
    match replaced {
        Ok(()) => {
            let text = "one of the two processes that end the command with its lease was killed; \
                        another one has its place";
            say.warn("watchdog", json!({}), text);
        }
        Err(e) => {
            let text = format!(
                "a process that ends the command with its lease was killed, and none can take its \
                 place ({e}); the command is killed"
            );
            say.warn("no_watchdog", json!({ "why": e.to_string() }), &text);
        }
    }
    replaced.is_ok()
}

/// Reports an error of reading the command's end. The command was started, so `palisade` does not
/// report that the start failed.
fn unseen(e: &io::Error, say: Say) -> Ended {
    say.warn("unseen", json!({}), &format!("it is unknown how the command ended: {e}"));
    Ended::Signal(0)
}

/// Returns the end of a command. If the lease is over, the end is `Lost`. Otherwise the end is
/// `ending`, the reason for which `palisade` ended the command. Without such a reason the end is
/// `status`, the command's own end.
fn how_it_ended(ending: Option<Ended>, over: bool, status: Ended) -> Ended {
    if over { Ended::Lost } else { ending.unwrap_or(status) }
}

/// Sends a signal to the process group. An error means that the group has already ended, and is
/// ignored.
fn send(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// Sends a signal to the process group. Also sends the signal to the command if the command has
/// left the group, for example with `setsid`.
fn send_all(child: &Child, group: Pid, signal: Signal) {
    send(group, signal);
    if let Some(pid) = pid(child)
        && getpgid(Some(pid)).is_ok_and(|its| its != group)
    {
        let _ = signal::kill(pid, signal);
    }
}

/// Kills the process group and the command. The kill of the group succeeds even if the command
/// cannot be killed, because the group has other members: the watchdogs, which kill the group when
/// the lease ends. For this reason the command is checked separately.
fn kill(child: &Child, group: Pid, say: Say) {
    send_all(child, group, Signal::SIGKILL);
    let Some(pid) = pid(child) else { return };
    if signal::kill(pid, None) == Err(Errno::EPERM) {
        let text = format!(
            "the command (process {pid}) still runs: it has become another user's, so this \
             program cannot end it, not even when the lease ends"
        );
        say.warn("still_runs", json!({ "pid": pid.as_raw() }), &text);
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

/// Continues a command that was stopped from the terminal (Ctrl-Z). A stopped command is not left
/// stopped, because its lease does not stop either.
fn go_on(child: &Child, group: Pid) {
    let Some(pid) = pid(child) else { return };
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
    if let Ok(WaitStatus::Stopped(..)) = waitid(Id::Pid(pid), flags) {
        send(group, Signal::SIGCONT);
    }
}

/// Ends the processes that a command has left in its process group, except processes of another
/// user.
async fn clear(group: Pid, grace: Duration, lease: &LostSignal, say: Say) {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return;
    }
    let _killed = Killed(group);
    let text = "the command left processes behind; they are killed";
    say.progress("clearing", json!({}), text);
    send(group, Signal::SIGTERM);
    gone(group, grace, || lease.remaining() > MARGIN).await;
    send(group, Signal::SIGKILL);
    gone(group, DIES, || true).await;
    if killpg(group, None) == Err(Errno::EPERM) {
        let text = format!(
            "the command left processes behind that still run: they are another user's, so this \
             program cannot end them (process group {group})"
        );
        say.warn("still_runs", json!({ "group": group.as_raw() }), &text);
    }
}

/// A process group that is killed when the value is dropped. This value is created after the end of
/// the watchdogs, the processes that kill the group when the lease ends.
struct Killed(Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        send(self.0, Signal::SIGKILL);
    }
}

/// Waits until the process group has no process that `palisade` may signal. Returns early after
/// `within`, or when `time` returns false because no time is left.
async fn gone(group: Pid, within: Duration, time: impl Fn() -> bool) {
    let until = Instant::now() + within;
    while killpg(group, None).is_ok() && Instant::now() < until && time() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The terminal while the command's process group is the terminal's foreground group.
struct Terminal;

impl Terminal {
    /// Makes the group the terminal's foreground group. Does nothing unless this program reads from
    /// a terminal and is in the foreground.
    fn give(group: Pid) -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(&stdin).ok()? != getpgrp() {
            return None;
        }
        tcsetpgrp(&stdin, group).ok()?;
        // The kernel stopped the command if it read from the terminal before this call. So the
        // command is continued.
        send(group, Signal::SIGCONT);
        Some(Self)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // This program is in the background here. Without the mask, SIGTTOU would stop this
        // program.
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTTOU);
        if mask.thread_block().is_ok() {
            let _ = tcsetpgrp(io::stdin(), getpgrp());
            let _ = mask.thread_unblock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_signal_before_the_start_is_told_from_one_to_the_command() {
        let killed = ExitStatus::from_raw(15);
        assert_eq!(Ended::of(killed, false), Ended::Cannot(143));
        assert_eq!(Ended::of(killed, true), Ended::Signal(15));
        assert_eq!(Ended::of(ExitStatus::from_raw(127 << 8), false), Ended::Cannot(127));
    }
}
