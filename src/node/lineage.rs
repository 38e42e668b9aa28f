//! Which servers each node of a handle has been, as far as receipts need it.
//!
//! Two sources report a server, in any order and any number of times: the facts of a batch, and the
//! node's hint when it connected. What they say is only ever compared by
//! [`receipt::fate`](crate::receipt::fate), so a late report of an earlier server changes nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::receipt::{Fate, Server, Written, fate, shared};

/// Servers remembered per node; a chain that is longer ends as `Unknown`.
const SEEN: usize = 16;

/// The servers of the nodes of one handle.
#[derive(Debug)]
pub(crate) struct Lineage {
    lines: Vec<Line>,
    /// How often a node became another server.
    switches: AtomicUsize,
}

#[derive(Debug, Default)]
struct Line {
    /// The present history, for a look without the lock; 0 if none is known.
    present: AtomicU64,
    seen: Mutex<Vec<Server>>,
}

impl Line {
    fn seen(&self) -> MutexGuard<'_, Vec<Server>> {
        // Each change is one statement.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lineage {
    pub(crate) fn new(n: usize) -> Self {
        let lines = (0..n).map(|_| Line::default()).collect();
        Self { lines, switches: AtomicUsize::new(0) }
    }

    /// Somebody says what server the node is. True for the first one, and for another one than
    /// before; not for an earlier one, whose answer came late or which does not know yet that it
    /// was replaced.
    pub(crate) fn hear(&self, node: usize, server: Server) -> bool {
        let line = &self.lines[node];
        if line.present.load(Ordering::Acquire) == server.history_id && server.history_id != 0 {
            return false;
        }
        let mut seen = line.seen();
        if seen.last().is_some_and(|now| now.history_id == server.history_id) {
            return false;
        }
        // Never back to a server whose successor is known: it is stale, whatever it believes.
        if shared(server.history_id, &seen).is_some() {
            return false;
        }
        if seen.len() >= SEEN {
            seen.remove(0);
        }
        if !seen.is_empty() {
            self.switches.fetch_add(1, Ordering::AcqRel);
        }
        seen.push(server);
        line.present.store(server.history_id, Ordering::Release);
        true
    }

    /// Whether no node has ever become another server, so that every write is there.
    pub(crate) fn is_calm(&self) -> bool {
        self.switches.load(Ordering::Acquire) == 0
    }

    /// The node's present history.
    pub(crate) fn present(&self, node: usize) -> u64 {
        self.lines[node].present.load(Ordering::Acquire)
    }

    /// What became of a write on the node.
    pub(crate) fn fate(&self, node: usize, write: Written) -> Fate {
        let line = &self.lines[node];
        if line.present.load(Ordering::Acquire) == write.history_id {
            return Fate::Standing;
        }
        fate(write, &line.seen())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::Predecessor;

    fn server(history_id: u64, before: Option<(u64, u64)>) -> Server {
        let predecessor = before.map(|(history_id, offset)| Predecessor { history_id, offset });
        Server { history_id, predecessor }
    }

    #[test]
    fn a_late_word_of_the_replaced_server_is_no_switch_back() {
        let lineage = Lineage::new(1);
        assert!(lineage.hear(0, server(1, None)));
        assert!(lineage.is_calm());
        assert!(lineage.hear(0, server(2, Some((1, 50)))));
        assert!(!lineage.hear(0, server(2, None)));
        assert!(!lineage.hear(0, server(1, None)));
        assert_eq!(lineage.present(0), 2);
        let write = |offset| Written { history_id: 1, offset: Some(offset) };
        assert_eq!(lineage.fate(0, write(49)), Fate::Survived);
        assert_eq!(lineage.fate(0, write(50)), Fate::Lost);
        assert!(!lineage.is_calm());
    }

    #[test]
    fn between_unrelated_servers_there_is_a_way_back() {
        let lineage = Lineage::new(1);
        lineage.hear(0, server(1, None));
        lineage.hear(0, server(2, None));
        assert!(lineage.hear(0, server(1, None)));
        assert_eq!(lineage.present(0), 1);
    }

    #[test]
    fn what_is_long_ago_is_forgotten_and_unknown() {
        let lineage = Lineage::new(1);
        for g in 1..=40 {
            lineage.hear(0, server(g, (g > 1).then(|| (g - 1, 1_000))));
        }
        let fate = |history_id| lineage.fate(0, Written { history_id, offset: Some(1) });
        assert_eq!(fate(39), Fate::Survived);
        assert_eq!(fate(2), Fate::Unknown);
    }
}
