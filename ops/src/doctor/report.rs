//! What the doctor found.

use std::fmt;

use serde::Serialize;

use palisade::internal::{SENTENCE_MAX, Secrets};

/// Most characters of a command. It is larger than for sentences, because a command must not be
/// cut.
const COMMAND_MAX: usize = 8_000;

/// The result of a check for one subject, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A failover or restart can grant a lock twice or lose it, or nothing is granted at all.
    Error,
    /// Locks may be lost in a rare situation, or wait longer than necessary.
    Warning,
    /// It could not be read: neither good nor bad.
    Unknown,
    /// Good to know.
    Info,
    /// As it should be.
    Fine,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Info => "info",
            Self::Fine => "fine",
        })
    }
}

/// The result of one check for one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The check's id, as `min-replicas`.
    pub check: &'static str,
    /// What was checked: a group, a server, a Sentinel, the set of nodes.
    pub subject: String,
    /// How good or bad it is.
    pub verdict: Verdict,
    /// What is wrong, or why it is unknown, in one sentence; empty if all is well.
    pub says: String,
    /// The values that were read.
    pub read: String,
    /// Why it matters, with what was measured.
    pub why: &'static str,
    /// Commands that correct it, one per entry, with the addresses and values of this deployment.
    pub mend: Vec<String>,
}

impl Finding {
    fn new(verdict: Verdict, says: impl Into<String>, read: impl Into<String>) -> Self {
        // `checks::run` fills in `check` and `why`.
        let (says, read, subject) = (says.into(), read.into(), String::new());
        Self { check: "", subject, verdict, says, read, why: "", mend: Vec::new() }
    }

    /// All is well; `read` shows the values.
    pub(crate) fn fine(read: impl Into<String>) -> Self {
        Self::new(Verdict::Fine, "", read)
    }

    /// The facts could not be read, because of `why`.
    pub(crate) fn unknown(why: impl fmt::Display) -> Self {
        Self::new(Verdict::Unknown, format!("unknown ({why})"), "")
    }

    pub(crate) fn error(says: impl Into<String>, read: impl Into<String>) -> Self {
        Self::new(Verdict::Error, says, read)
    }

    pub(crate) fn warning(says: impl Into<String>, read: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, says, read)
    }

    pub(crate) fn info(says: impl Into<String>, read: impl Into<String>) -> Self {
        Self::new(Verdict::Info, says, read)
    }

    /// Names the subject.
    pub(crate) fn on(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    /// Adds the commands that correct it.
    pub(crate) fn mend(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.mend.extend(commands);
        self
    }
}

/// All findings, the worst first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Whether any server or Sentinel answered.
    pub reached: bool,
    /// The result of every check for every subject.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The sentences contain text from servers, so secrets and control characters are removed.
    pub(crate) fn new(reached: bool, findings: Vec<Finding>, secrets: &Secrets) -> Self {
        let clean = |text: String| secrets.sentence(&text, SENTENCE_MAX);
        let cleaned = |f: Finding| Finding {
            subject: clean(f.subject),
            says: clean(f.says),
            read: clean(f.read),
            mend: f.mend.iter().map(|command| secrets.sentence(command, COMMAND_MAX)).collect(),
            ..f
        };
        let mut findings: Vec<Finding> = findings.into_iter().map(cleaned).collect();
        findings.sort_by_key(|f| f.verdict);
        Self { reached, findings }
    }

    /// How many findings have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|f| f.verdict == verdict).count()
    }

    /// The exit code for a program: 69 if nothing could be reached, 2 after errors, 1 after
    /// warnings if `strict`, else 0. Unknown values do not count.
    pub fn exit_code(&self, strict: bool) -> u8 {
        if !self.reached {
            69
        } else if self.count(Verdict::Error) > 0 {
            2
        } else {
            u8::from(strict && self.count(Verdict::Warning) > 0)
        }
    }

    /// All fields of all findings, as JSON.
    ///
    /// # Panics
    /// Never: texts, numbers and lists are always JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and lists are always JSON")
    }
}
