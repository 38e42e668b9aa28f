//! Observations of a client: lines of JSON. Each is written at once, so the file of a killed client
//! has all lines that it wrote before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{Answer, EventKind, Nanos, TaskId, Verb};
use crate::wire::Ledger;

/// Mode of a grant. It decides which other grants of the same name may be valid at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Exclusive,
    /// Grant of a reader. Other readers may have grants at the same time.
    Shared,
    /// A permit of a semaphore, with its slot.
    Slot(u16),
    /// A degraded guard, which a client gets when too few nodes answer. It has no lock and no
    /// token, and excludes only callers of its own process.
    Degraded,
}

/// A grant, as its caller sees it just after the call has returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Names that are held; several only for a multi-lock.
    pub(crate) names: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) token: u64,
    /// Time just before the call that got this grant.
    pub(crate) since: Nanos,
    /// Time at which the call received its position in the queue of waiters. Calls that begin later
    /// must be served after this call. Only calls for a fair lock get a position.
    #[serde(default)]
    pub(crate) queued: Option<Nanos>,
    /// Time until which the holder may rely on the grant.
    pub(crate) until: Nanos,
    /// Token of the hand-over ticket that the caller redeemed to get this grant.
    #[serde(default)]
    pub(crate) ticket: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// The task got this grant. Its earlier grants that are not over stay valid.
    Held(Grant),
    /// At the time of this observation, the guard of all grants of the task reported that it was
    /// valid. Just afterwards the guard reported the deadline `until`.
    Valid { until: Nanos },
    /// The owner of a reentrant lock acquired it once more, and got this token.
    Inner { token: u64 },
    /// The task no longer relies on its grants. It releases them after it has written this line of
    /// the log.
    Over,
}

/// One observation of a task. A task has at most one guard at a time. The guard of several permits
/// counts as several grants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: Nanos,
    pub(crate) who: TaskId,
    pub(crate) what: What,
}

/// Destination of a task's observations.
pub(crate) enum Journal {
    File(Rc<Log>),
    Ledger(Ledger),
}

impl Journal {
    pub(crate) async fn add(
        &mut self,
        (at, who): (Nanos, TaskId),
        name: &str,
        what: What,
    ) -> io::Result<()> {
        match self {
            Self::File(log) => log.add(&Line { at, who, what }),
            Self::Ledger(ledger) => {
                let name = Arc::from(name);
                ledger.report_at(at, EventKind::Lock { name, seen: what }).await
            }
        }
    }

    /// Runs an operation of the library. If this task's observations of its locks go to the ledger
    /// of `nemesis` and not to a file, reports the operation's beginning and its end to the ledger.
    pub(crate) async fn verb<T>(
        &mut self,
        (verb, name): (Verb, &str),
        within: Duration,
        call: impl Future<Output = T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> io::Result<T> {
        match self {
            Self::File(_) => Ok(call.await),
            Self::Ledger(ledger) => ledger.verb(verb, &Arc::from(name), within, call, answer).await,
        }
    }
}

/// File with the observations of one client process.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    pub(crate) fn add(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&self.0).write_all(&text)
    }
}

/// Returns the observations of all clients. Those of one task are in the order in which they were
/// written.
pub(crate) fn read(dir: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        if path.extension().is_none_or(|ext| ext != "jsonl") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        // If the client was killed while it wrote, the last line is incomplete. It is left out.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let line = serde_json::from_str(line);
            lines.push(line.map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?);
        }
    }
    Ok(lines)
}
