//! How much of a lane's work is not done: what was asked and has no answer, and what is owed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// What one lane has yet to do.
#[derive(Debug, Default)]
pub(crate) struct Load {
    asked: AtomicUsize,
    owed: AtomicUsize,
    /// What one op of a large batch took lately, in nanoseconds; 0: not known.
    each: AtomicU64,
}

impl Load {
    /// Clean-ups that the node has not confirmed.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
    }

    /// How many requests have no answer yet, and how long they will take, by the last batches.
    pub(super) fn backlog(&self) -> (usize, Duration) {
        let asked = self.asked.load(Ordering::Relaxed);
        let each = self.each.load(Ordering::Relaxed);
        (asked, Duration::from_nanos(each.saturating_mul(asked as u64)))
    }

    /// So many ops together took so long. Only the lane's task says so.
    pub(super) fn took(&self, ops: usize, span: Duration) {
        let now = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX) / (ops as u64).max(1);
        let before = self.each.load(Ordering::Relaxed);
        let each = if before == 0 { now } else { before - before / 8 + now / 8 };
        self.each.store(each, Ordering::Relaxed);
    }

    /// Nothing is queued, nothing under way, nothing owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.load(Ordering::SeqCst) == 0 && self.owed() == 0
    }
}

/// One request, or one clean-up, for as long as it is not done.
#[derive(Debug)]
pub(super) struct Counted {
    load: Arc<Load>,
    part: fn(&Load) -> &AtomicUsize,
}

impl Counted {
    pub(super) fn asked(load: &Arc<Load>) -> Self {
        Self::new(load, |load| &load.asked)
    }

    pub(super) fn owed(load: &Arc<Load>) -> Self {
        Self::new(load, |load| &load.owed)
    }

    fn new(load: &Arc<Load>, part: fn(&Load) -> &AtomicUsize) -> Self {
        part(load).fetch_add(1, Ordering::SeqCst);
        Self { load: Arc::clone(load), part }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.part)(&self.load).fetch_sub(1, Ordering::SeqCst);
    }
}
