//! The doctor's report.

use std::fmt;

use serde::Serialize;

use palisade::internal::{SENTENCE_MAX, Secrets};

/// In characters. A command must not be cut, so this limit is larger than `SENTENCE_MAX`.
pub(super) const COMMAND_MAX: usize = 8_000;

/// The verdict of a check for one subject. The verdicts are ordered from the worst to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// After a failover or a restart, a lock can be granted twice or lost; or the nodes grant no
    /// lock at all.
    Error,
    /// In a rare situation locks are lost, or callers wait longer than necessary.
    Warning,
    /// The doctor could not read the values that the check needs, so the fault may or may not be
    /// there.
    Unknown,
    /// Information that needs no action.
    Info,
    /// No fault was found.
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
    /// The check's id, such as `min-replicas`.
    pub check: &'static str,
    /// The group, server, Sentinel or set of nodes that was checked.
    pub subject: String,
    /// The severity of the finding.
    pub verdict: Verdict,
    /// The fault, or the reason for which the needed values are unknown, in one sentence. Empty if
    /// there is no fault.
    pub message: String,
    /// The values that were read.
    pub evidence: String,
    /// The reason for which the fault matters, with measured figures.
    pub why: &'static str,
    /// Commands that correct the fault, one command in each entry. Commands contain the addresses
    /// and values of this deployment.
    pub fix: Vec<String>,
}

impl Finding {
    fn new(verdict: Verdict, message: impl Into<String>, evidence: impl Into<String>) -> Self {
        // `checks::run` sets `check` and `why` later, `on` sets `subject`.
        let (message, evidence, subject) = (message.into(), evidence.into(), String::new());
        Self { check: "", subject, verdict, message, evidence, why: "", fix: Vec::new() }
    }

    pub(crate) fn fine(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Fine, "", evidence)
    }

    pub(crate) fn unknown(why: impl fmt::Display) -> Self {
        Self::new(Verdict::Unknown, format!("unknown ({why})"), "")
    }

    pub(crate) fn error(message: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Error, message, evidence)
    }

    pub(crate) fn warning(message: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, message, evidence)
    }

    pub(crate) fn info(message: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Info, message, evidence)
    }

    pub(crate) fn on(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    /// Adds commands that only look, if there is none that corrects the fault.
    pub(crate) fn or_look(self, commands: impl IntoIterator<Item = String>) -> Self {
        if self.fix.is_empty() { self.fix(commands) } else { self }
    }

    pub(crate) fn fix(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.fix.extend(commands);
        self
    }
}

/// All findings of an examination, the worst first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// True if any server or Sentinel answered.
    pub reached: bool,
    /// The result of every check for every subject.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The texts of the findings contain text from servers.
    pub(crate) fn new(reached: bool, findings: Vec<Finding>, secrets: &Secrets) -> Self {
        let clean = |text: String| secrets.sentence(&text, SENTENCE_MAX);
        let cleaned = |f: Finding| Finding {
            subject: clean(f.subject),
            message: clean(f.message),
            evidence: clean(f.evidence),
            fix: f.fix.iter().map(|command| secrets.sentence(command, COMMAND_MAX)).collect(),
            ..f
        };
        let mut findings: Vec<Finding> = findings.into_iter().map(cleaned).collect();
        findings.sort_by_key(|f| f.verdict);
        Self { reached, findings }
    }

    /// Of other nodes, too.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.findings.extend(other.findings);
        self.findings.sort_by_key(|f| f.verdict);
        Self { reached: self.reached || other.reached, ..self }
    }

    /// Returns the number of findings with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|f| f.verdict == verdict).count()
    }

    /// Returns the exit code for a program: 69 if no server was reached, 2 after errors, 1 after
    /// warnings if `strict` is true, else 0. Findings with the verdict `Unknown` do not change the
    /// code.
    pub fn exit_code(&self, strict: bool) -> u8 {
        if !self.reached {
            69
        } else if self.count(Verdict::Error) > 0 {
            2
        } else {
            u8::from(strict && self.count(Verdict::Warning) > 0)
        }
    }

    /// Returns all fields of all findings as JSON.
    ///
    /// # Panics
    /// Never: texts, numbers and lists are always JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and lists are always JSON")
    }
}
