//! How much of a queue's work is not done: what was asked and has no answer, and what is owed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What one queue has yet to do.
#[derive(Debug, Default)]
pub(crate) struct Load {
    asked: AtomicUsize,
    owed: AtomicUsize,
}

impl Load {
    /// Clean-ups that the node has not confirmed.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
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
