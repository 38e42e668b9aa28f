//! Observations of a client: lines of JSON that its process appends to a file of its own.
//!
//! A line is one write to the file. So the lines that a client wrote before it was killed stay.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::event::{Nanos, TaskId};

/// Mode of a grant. It decides which other grants may be beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    Exclusive,
    /// A reader.
    Shared,
    /// A permit of a semaphore, with its slot.
    Slot(u16),
    /// A degraded guard. It has no lock and no token, and excludes only callers of its own process.
    Degraded,
}

/// A grant, as its caller sees it just after the call has returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Grant {
    /// Names that are held; several only for a multi-lock.
    pub(super) names: Vec<String>,
    pub(super) mode: Mode,
    pub(super) token: u64,
    /// Time just before the call.
    pub(super) since: Nanos,
    /// Time at which the call knew that its place in the queue counts. Only callers of a fair lock
    /// learn it.
    #[serde(default)]
    pub(super) queued: Option<Nanos>,
    /// End of the validity.
    pub(super) until: Nanos,
    /// Token of the ticket that was redeemed for this grant.
    #[serde(default)]
    pub(super) ticket: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    Held(Grant),
    /// At the time of the line, the guard reported that it was valid, and then this deadline.
    Valid {
        until: Nanos,
    },
    /// The owner entered its lock once more, and got this token.
    Inner {
        token: u64,
    },
    /// The task no longer relies on its lock. It releases the lock after this line.
    Over,
}

/// One observation. A task has at most one grant at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) at: Nanos,
    pub(super) who: TaskId,
    pub(super) what: What,
}

/// File of one client process.
pub(super) struct Log(File);

impl Log {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    pub(super) fn add(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&self.0).write_all(&text)
    }
}

/// Returns the lines of all clients, those of one task in their order.
pub(super) fn read(dir: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        if path.extension().is_none_or(|ext| ext != "jsonl") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        // The last line is cut short if its writer was killed in the middle of it.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let line = serde_json::from_str(line);
            lines.push(line.map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?);
        }
    }
    Ok(lines)
}
