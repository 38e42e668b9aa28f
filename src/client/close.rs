//! Closes a handle. `close` releases no lock that is still held, because another owner could get it
//! while the holder still works; it stops its renewal, so the guard reports the loss at the
//! deadline.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::Core;
use crate::error::Resource;
use crate::op::Op;

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;

const LOOK: Duration = Duration::from_millis(5);

/// Result of [`Redlock::close`](crate::Redlock::close): the unfinished work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says what is still held or owed"]
pub struct CloseReport {
    /// Leases that are still held. They are no longer renewed. At its deadline each guard reports
    /// the loss, and the nodes drop the lease. If the guard is released or dropped before its
    /// deadline and the runtime still runs, the lease is still released on the nodes.
    pub held: Vec<Resource>,
    /// Nodes that have not confirmed every release and every stored result, each with its number of
    /// unconfirmed requests. If a lock is not released, it ends by its ttl.
    pub owed: Vec<(Arc<str>, usize)>,
}

impl CloseReport {
    /// Returns true if no lease is held, and each node has confirmed all releases and stored
    /// results.
    pub fn is_clean(&self) -> bool {
        self.held.is_empty() && self.owed.is_empty()
    }
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("closed, nothing is held and nothing is owed");
        }
        f.write_str("closed")?;
        for of in &self.held {
            write!(f, "; {of} is still held, until its ttl ends it")?;
        }
        for (node, owed) in &self.owed {
            write!(f, "; {node}: {owed} releases without an answer, their ttl ends what is left")?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Closing {
    state: AtomicU8,
    /// `close` waits for the end of all operations, because each may acquire a lease.
    operations: AtomicUsize,
    begun: Notify,
}

#[derive(Debug)]
pub(crate) struct Operation<'a>(&'a Closing);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Closing {
    pub(crate) fn enter(&self) -> Option<Operation<'_>> {
        self.operations.fetch_add(1, Ordering::SeqCst);
        // Counted before the state is checked: either `close` finds the operation, or this finds
        // `CLOSING`.
        let operation = Operation(self);
        self.is_open().then_some(operation)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) == OPEN
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLOSED
    }

    pub(crate) fn refuses(&self, op: &Op) -> bool {
        matches!(op, Op::Claim(_)) && !self.is_open()
    }

    fn begin(&self) {
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst);
        self.begun.notify_waiters();
    }

    pub(crate) async fn begun(&self) {
        let begun = self.begun.notified();
        tokio::pin!(begun);
        begun.as_mut().enable();
        if self.is_open() {
            begun.await;
        }
    }
}

impl Core {
    pub(crate) async fn close(&self, within: Duration) -> CloseReport {
        self.closing.begin();
        let end = self.env.now() + within;
        // Without a tokio runtime `close` cannot wait.
        let waits = self.timer().is_ok();
        loop {
            let now = self.env.now();
            if !waits || now >= end || (self.is_quiet() && !self.renewer.holds(now)) {
                break;
            }
            tokio::time::sleep(LOOK.min(end.since(now))).await;
        }
        let left = self.left();
        self.closing.state.store(CLOSED, Ordering::SeqCst);
        left
    }

    fn left(&self) -> CloseReport {
        let now = self.env.now();
        let held = self.renewer.leases().into_iter().filter(|lease| lease.is_valid(now));
        let owed = self.names.iter().zip(&self.queues);
        let owed = owed.map(|(name, queue)| (Arc::clone(name), queue.load().owed()));
        CloseReport {
            held: held.map(|lease| lease.resource()).collect(),
            owed: owed.filter(|(_, owed)| *owed > 0).collect(),
        }
    }

    fn is_quiet(&self) -> bool {
        self.closing.operations.load(Ordering::SeqCst) == 0
            && self.queues.iter().all(|queue| queue.load().is_idle())
    }
}
