//! Runs candidates of an election as processes of the example `election`, and reads their output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::program::program;

/// One line of a candidate's output: an event as JSON.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) event: String,
    pub(crate) term: u64,
    pub(crate) at_ms: f64,
}

/// A candidate process. It is killed on drop.
pub(crate) struct Candidate {
    child: Child,
    lines: Receiver<Line>,
}

impl Candidate {
    /// Starts a candidate that proclaims `value`, with the further arguments `args`.
    pub(crate) fn start(value: &str, args: &[String]) -> Self {
        let mut child = Command::new(program("election"))
            .args(["--value", value, "--seconds", "600"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example can be run");
        let out = child.stdout.take().expect("a pipe");
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("each line is JSON");
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Returns the next line, if it arrives within this time.
    pub(crate) fn line(&self, within: Duration) -> Option<Line> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the candidate ended; see its output"),
        }
    }

    /// Returns the first line with this event, if one arrives within `limit`. Skips lines with
    /// other events.
    pub(crate) fn within(&self, event: &str, limit: Duration) -> Option<Line> {
        let until = Instant::now() + limit;
        loop {
            let line = self.line(until.saturating_duration_since(Instant::now()))?;
            if line.event == event {
                return Some(line);
            }
        }
    }

    /// Waits for a line with this event, and skips lines with other events. Panics after two
    /// minutes without a line.
    pub(crate) fn expect(&self, event: &str) -> Line {
        for _ in 0..100 {
            let line = self.line(Duration::from_secs(120));
            let line = line.unwrap_or_else(|| panic!("no `{event}` for two minutes"));
            if line.event == event {
                return line;
            }
        }
        panic!("a hundred lines and no `{event}`")
    }

    /// Makes the candidate resign. The candidate campaigns again a little later.
    pub(crate) fn resign(&mut self) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "resign").expect("it listens");
    }

    /// Kills the candidate with SIGKILL. Returns the time just before the kill, in milliseconds
    /// since 1970.
    pub(crate) fn kill(&mut self) -> f64 {
        let at = now_ms();
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        at
    }

    /// Sends SIGTERM: the candidate resigns and ends. Returns true if the candidate ended
    /// successfully.
    pub(crate) fn terminate(&mut self) -> bool {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill(1)");
        self.child.wait().expect("it ends").success()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1e3
}
