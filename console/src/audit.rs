//! The audit: a line for each action of a visitor, also for one that was refused.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// Number of lines that the console keeps for its page.
const KEPT: usize = 200;

/// One action: who, when, what, why, from where, and the result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditLine {
    /// Time in ms since 1970.
    pub at: u64,
    /// Name of the user.
    pub by: String,
    /// Role of the user: `read` or `act`.
    pub role: &'static str,
    /// Address of the user.
    pub from: String,
    /// The action, such as `force-release`.
    pub action: String,
    /// The lock, election, key, loss or job.
    pub target: String,
    /// The reason that the user gave.
    pub reason: String,
    /// `done`, `unchanged`, `refused`, `unknown` or `failed`.
    pub result: &'static str,
    /// The result as a sentence.
    pub text: String,
}

impl AuditLine {
    /// Returns the line as a JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "at_ms": self.at, "by": self.by, "role": self.role, "from": self.from,
            "action": self.action, "target": self.target, "reason": self.reason,
            "result": self.result, "text": self.text,
        })
    }
}

impl fmt::Display for AuditLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, target, by, from, reason, result, text, .. } = self;
        write!(
            f,
            "{action} of {target:?} by {by} from {from}: {result}: {text} (reason: {reason:?})"
        )
    }
}

/// Function that receives each line, for example to write it to a file.
pub type Sink = Arc<dyn Fn(&AuditLine) + Send + Sync>;

/// The audit of one console.
pub(crate) struct Audits {
    sink: Option<Sink>,
    kept: Mutex<VecDeque<AuditLine>>,
}

impl Audits {
    pub(crate) fn new(sink: Option<Sink>) -> Self {
        Self { sink, kept: Mutex::default() }
    }

    pub(crate) fn write(&self, line: AuditLine) {
        tracing::warn!(
            target: "palisade_console",
            event = "action",
            action = line.action,
            of = line.target,
            by = line.by,
            role = line.role,
            from = line.from,
            reason = line.reason,
            result = line.result,
            text = line.text,
            "an operator acted in the console"
        );
        if let Some(sink) = &self.sink {
            sink(&line);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front(line);
    }

    /// Returns the last lines, the latest first.
    pub(crate) fn latest(&self) -> Vec<Value> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(AuditLine::to_json).collect()
    }
}
