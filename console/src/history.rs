//! The console's memory of what happened: a bounded list of entries.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

const KEPT: usize = 1_000;

pub(crate) fn now_ms() -> u64 {
    millis(SystemTime::now())
}

/// Returns a time in ms since 1970.
pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Info,
    Warn,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
        }
    }
}

/// An entry of the history: something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) level: Level,
    pub(crate) kind: &'static str,
    pub(crate) node: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) text: String,
}

impl Entry {
    pub(crate) fn of(level: Level, kind: &'static str, name: &str, text: String) -> Self {
        Self { level, kind, node: None, name: Some(name.to_owned()), text }
    }

    pub(crate) fn node(level: Level, kind: &'static str, node: &str, text: String) -> Self {
        Self { level, kind, node: Some(node.to_owned()), name: None, text }
    }
}

#[derive(Default)]
struct Kept {
    next: u64,
    entries: VecDeque<(u64, u64, Entry)>,
}

#[derive(Default)]
pub(crate) struct History(Mutex<Kept>);

impl History {
    pub(crate) fn add(&self, entry: Entry) -> Value {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.next += 1;
        let (id, at) = (kept.next, now_ms());
        let shown = object(id, at, &entry);
        kept.entries.truncate(KEPT - 1);
        kept.entries.push_front((id, at, entry));
        shown
    }

    /// Returns the latest entries that are older than the entry `before`, the latest first, and
    /// true if there are more.
    pub(crate) fn latest(
        &self,
        before: Option<u64>,
        limit: usize,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> (Vec<Value>, bool) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let older = |id: u64| before.is_none_or(|before| id < before);
        let mut meant = kept.entries.iter().filter(|(id, _, one)| older(*id) && is_meant(one));
        let shown = meant.by_ref().take(limit).map(|(id, at, one)| object(*id, *at, one));
        let shown: Vec<Value> = shown.collect();
        let more = meant.next().is_some();
        (shown, more)
    }
}

fn object(id: u64, at: u64, entry: &Entry) -> Value {
    json!({
        "id": id, "at_ms": at, "level": entry.level.word(), "kind": entry.kind,
        "node": entry.node, "name": entry.name, "text": entry.text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_dropped_and_pages_follow_each_other() {
        let history = History::default();
        for n in 0..KEPT + 5 {
            history.add(Entry::of(Level::Info, "tick", &format!("job{}", n % 2), n.to_string()));
        }
        let (all, more) = history.latest(None, 2 * KEPT, |_| true);
        assert_eq!((all.len(), more), (KEPT, false));
        assert_eq!(all[0]["text"], (KEPT + 4).to_string());
        let (first, more) = history.latest(None, 3, |entry| entry.name.as_deref() == Some("job1"));
        assert_eq!((first.len(), more), (3, true));
        let last = first[2]["id"].as_u64();
        let (second, _) = history.latest(last, 1, |_| true);
        assert_eq!(second[0]["id"].as_u64().map(|id| id + 1), last);
    }
}
