//! The audit, the log of the actions of visitors. It also contains the refused actions.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::internal::SENTENCE_MAX;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::history::now_ms;

const KEPT: usize = 200;
/// Maximum number of refused requests that are written within `WINDOW`.
const REFUSED: u32 = 30;
const WINDOW: Duration = Duration::from_secs(60);

/// One action: who, when, what, why, from where, and the result. An action that is performed has
/// two lines: one before it begins, and one with its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditLine {
    /// Number of the action, the same in both of its lines. 0 if the request was refused before an
    /// action began.
    pub id: u64,
    /// Time in ms since 1970.
    pub at: u64,
    /// Name of the user.
    pub by: String,
    /// Role of the user: `read` or `act`; `none` if the user is not known.
    pub role: &'static str,
    /// Address of the user.
    pub from: String,
    /// The action, such as `force-release`.
    pub action: String,
    /// The lock, election, key, loss of data or job that the action is about.
    pub target: String,
    /// The reason that the user gave.
    pub reason: String,
    /// Parts of the request that decide about its effect: the holder that was to lose its lock, the
    /// digest of a result, the kind of a decision.
    pub detail: String,
    /// `begun` in the line before the action. In the line with the result: `done`, `unchanged`,
    /// `partly`, `refused`, `unknown` or `failed`.
    pub result: &'static str,
    /// The result as a sentence.
    pub text: String,
}

impl AuditLine {
    /// Returns this line of the audit as a JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id, "at_ms": self.at, "by": self.by, "role": self.role, "from": self.from,
            "action": self.action, "target": self.target, "detail": self.detail,
            "reason": self.reason,
            "result": self.result, "text": self.text,
        })
    }
}

impl fmt::Display for AuditLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, target, detail, by, from, reason, result, text, .. } = self;
        write!(f, "{action} of {target:?} ")?;
        if !detail.is_empty() {
            write!(f, "({detail}) ")?;
        }
        write!(f, "by {by} from {from}: {result}: {text} (reason: {reason:?})")
    }
}

/// Function that receives each line of the audit, for example to write it to a file.
pub type Sink = Arc<dyn Fn(&AuditLine) + Send + Sync>;

/// The audit of one console.
pub(crate) struct Audits {
    sink: Option<Sink>,
    kept: Mutex<VecDeque<AuditLine>>,
    running: watch::Sender<BTreeMap<u64, AuditLine>>,
    last: Mutex<u64>,
    /// Beginning of the present period of length `WINDOW`, and the number of refused requests since
    /// then.
    refused: Mutex<(Option<Instant>, u32)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Audits {
    pub(crate) fn new(sink: Option<Sink>) -> Self {
        let (running, last) = (watch::Sender::default(), Mutex::default());
        Self { sink, kept: Mutex::default(), running, last, refused: Mutex::default() }
    }

    pub(crate) fn begun(&self, mut line: AuditLine) -> u64 {
        let id = {
            let mut last = locked(&self.last);
            *last += 1;
            *last
        };
        (line.id, line.result) = (id, "begun");
        self.running.send_modify(|all| drop(all.insert(id, line.clone())));
        self.write(line);
        id
    }

    /// Writes the result of an action, and returns its line; `None` if the action already has a
    /// result.
    pub(crate) fn ended(&self, id: u64, result: &'static str, text: &str) -> Option<AuditLine> {
        let mut line = None;
        self.running.send_modify(|all| line = all.remove(&id));
        let mut line = line?;
        (line.result, line.text) = (result, text.to_owned());
        line.at = now_ms();
        self.write(line.clone());
        Some(line)
    }

    /// Writes a line about a request that was refused before its action began. Within `WINDOW`,
    /// only `REFUSED` of these lines are written, so that a stranger cannot fill the audit log.
    pub(crate) fn refused(&self, mut line: AuditLine) {
        let n = {
            let mut refused = locked(&self.refused);
            if refused.0.is_none_or(|began| began.elapsed() >= WINDOW) {
                *refused = (Some(Instant::now()), 0);
            }
            refused.1 = refused.1.saturating_add(1);
            refused.1
        };
        if n > REFUSED {
            return;
        }
        line.result = "refused";
        if n == REFUSED {
            line.text += "; further refused requests of this minute are not written";
        }
        // The texts of a refused request may be of any length, so they are cut.
        for text in [&mut line.target, &mut line.reason, &mut line.detail] {
            *text = text.chars().take(SENTENCE_MAX).collect();
        }
        self.write(line);
    }

    /// Waits until no action is under way, at most for `limit`. Then writes the result `unknown`
    /// for each action that is still under way.
    pub(crate) async fn end(&self, limit: Duration) {
        let mut running = self.running.subscribe();
        drop(timeout(limit, running.wait_for(BTreeMap::is_empty)).await);
        let left: Vec<u64> = self.running.borrow().keys().copied().collect();
        for id in left {
            self.ended(id, "unknown", "the console ended before the action did");
        }
    }

    fn write(&self, line: AuditLine) {
        tracing::warn!(
            target: "palisade_console",
            event = "action",
            id = line.id,
            action = line.action,
            of = line.target,
            detail = line.detail,
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
        let mut kept = locked(&self.kept);
        // The audit's page shows an action only once, so the line with the result replaces the line
        // of the beginning.
        kept.retain(|one| line.id == 0 || one.id != line.id);
        kept.truncate(KEPT - 1);
        kept.push_front(line);
    }

    pub(crate) fn latest(&self) -> Vec<Value> {
        locked(&self.kept).iter().map(AuditLine::to_json).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audits() -> (Audits, Arc<Mutex<Vec<AuditLine>>>) {
        let lines = Arc::<Mutex<Vec<AuditLine>>>::default();
        let sink = Arc::clone(&lines);
        (Audits::new(Some(Arc::new(move |line| locked(&sink).push(line.clone())))), lines)
    }

    #[tokio::test]
    async fn an_action_that_outlives_the_console_has_an_unknown_result() {
        let (audits, lines) = audits();
        let (first, _) = (audits.begun(AuditLine::default()), audits.begun(AuditLine::default()));
        assert!(audits.ended(first, "done", "it is done").is_some());
        audits.end(Duration::from_millis(20)).await;
        let results: Vec<_> = locked(&lines).iter().map(|line| (line.id, line.result)).collect();
        assert_eq!(results, [(1, "begun"), (2, "begun"), (1, "done"), (2, "unknown")]);
        assert!(audits.ended(2, "done", "late").is_none());
        assert_eq!(audits.latest().len(), 2, "the page shows each action once");
    }

    #[test]
    fn refused_requests_cannot_fill_the_audit() {
        let (audits, lines) = audits();
        for _ in 0..1_000 {
            audits.refused(AuditLine { reason: "x".repeat(9_000), ..AuditLine::default() });
        }
        assert_eq!(locked(&lines).len(), REFUSED as usize);
        assert!(locked(&lines).iter().all(|line| line.reason.len() == SENTENCE_MAX));
        locked(&audits.refused).0 = None;
        audits.refused(AuditLine::default());
        assert_eq!(locked(&lines).len(), REFUSED as usize + 1);
    }
}
