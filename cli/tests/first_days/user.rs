//! A user who knows nothing but the log: types the commands that stand there, exactly as they stand
//! there, and does what the program then says.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::support::logs::Log;
use crate::worker::Worker;

/// Time between two looks of the user.
const LOOK: Duration = Duration::from_millis(500);
/// Only a server that answers nothing exceeds it, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LATE: [&str; 5] = [
    "was not executed",
    "no answer before the deadline",
    "no answer until the call ended",
    "cannot connect",
    "not read on",
];

pub(crate) struct User {
    log: Log,
    /// Length of the log when the event happened.
    read: usize,
    next: Instant,
    typed: Vec<String>,
    /// How many of these were typed again, because the busy server did not answer in time.
    again: usize,
    is_initialised: bool,
    is_decided: bool,
}

impl User {
    pub(crate) fn new(log: Log) -> Self {
        let typed = Vec::new();
        let (is_initialised, is_decided) = (false, false);
        Self { log, read: 0, next: Instant::now(), typed, again: 0, is_initialised, is_decided }
    }

    /// Begins to read the log and to count commands.
    pub(crate) fn begins(&mut self) {
        self.read = self.log.text().len();
        self.typed.clear();
        self.again = 0;
    }

    pub(crate) fn typed(&self) -> &[String] {
        &self.typed
    }

    pub(crate) fn again(&self) -> usize {
        self.again
    }

    /// Types the command into a shell, and returns its output. Types it again as long as it says
    /// that the busy server did not answer in time.
    pub(crate) async fn types(&mut self, command: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            self.typed.push(command.to_owned());
            let said = shell(command).await;
            let is_late = LATE.iter().any(|words| said.contains(words));
            if !is_late || Instant::now() > end {
                return said;
            }
            self.again += 1;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Looks at the log, and acts if a warning names a command.
    pub(crate) async fn looks(&mut self, is_new: bool, worker: &mut Worker) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + LOOK;
        let log = self.log.text()[self.read..].to_owned();
        if is_new {
            if let (false, Some(init)) = (self.is_initialised, command(&log, "palisade init")) {
                self.is_initialised = true;
                let said = self.types(&init).await;
                assert!(said.contains("marked at"), "{said}");
            }
            return;
        }
        // The line is there when a call has met the loss, after the quarantine.
        let forgotten: String =
            log.lines().filter(|line| line.contains("keys_forgotten")).take(1).collect();
        let Some(incidents) = command(&forgotten, "palisade idem incidents") else { return };
        if self.is_decided {
            return;
        }
        let mut said = self.types(&incidents).await;
        if worker.has_waiting_effects() {
            for way in ["give the calls `created_at`", "Call::resolve"] {
                assert!(said.contains(way), "{said}");
            }
            if !worker.has_births() {
                worker.restart_with_births();
            }
            worker.resolve_by_ledger().await;
            said = self.types(&incidents).await;
        }
        let Some(decide) = line_with(&said, "palisade idem decide --all --run") else {
            assert!(said.contains("no key waits"), "{said}");
            self.next = Instant::now() + 10 * LOOK;
            return;
        };
        let plan = self.types(&decide).await;
        let Some(confirmed) = command(&plan, "palisade idem decide") else {
            panic!("{plan}");
        };
        let done = self.types(&confirmed).await;
        assert!(done.contains("on 1 of 1 nodes"), "{done}");
        self.is_decided = true;
    }
}

async fn shell(command: &str) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PALISADE_")) {
        shell.env_remove(name);
    }
    shell.arg("-c").arg(command).env("PATH", format!("{}:{path}", bin.display()));
    let out = shell.output().await.expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(!said.contains("Usage: "), "{command}: {said}");
    said
}

/// Returns the first command in backquotes that begins so.
fn command(text: &str, begins: &str) -> Option<String> {
    text.split('`').skip(1).step_by(2).find(|one| one.starts_with(begins)).map(ToOwned::to_owned)
}

/// Returns the rest of a line from these words on.
fn line_with(text: &str, begins: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains(begins))?;
    Some(line[line.find(begins)?..].to_owned())
}
