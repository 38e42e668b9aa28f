//! Faults and operator actions (restart, flush, failover, stepped clock) as methods of a node in
//! memory, so that tests and simulations meet quarantines as production does.

use std::time::Duration;

use super::quarantine::Windows;
use super::records::RecordChange;
use super::{Data, MemoryNode, State};
use crate::node::NodeEvent;
use crate::time::Moment;

/// A copy of a [`MemoryNode`]'s data at one moment, as on a replica that lags behind.
#[derive(Clone, Debug)]
pub struct MemorySnapshot(Data);

/// Faults, with the feature `test-util`.
impl MemoryNode {
    /// Restarts the process without its data: quarantine, floor.
    pub fn restart_empty(&self) {
        self.reborn(|state| state.data = Data::default());
    }

    /// Restarts the node without its data, as [`restart_empty`](Self::restart_empty) does, but with
    /// the knowledge that another client has seen the data before: the node is not taken for a new
    /// one.
    pub fn lose_data(&self) {
        self.restart_empty();
        self.state().is_known = true;
    }

    /// Restarts the process with all its data (nothing was lost, but no client can know that).
    pub fn restart_keeping(&self) {
        self.reborn(|_| ());
    }

    /// Closes the node for a planned handover: until [`Self::hand_over`], and for at most `span`,
    /// it answers nothing.
    ///
    /// Returns false if it was not closed: it is in a quarantine, or settles after another
    /// handover.
    #[must_use = "it may not be closed"]
    pub fn close(&self, span: Duration) -> bool {
        let mut state = self.state();
        let now = self.clock(&state).now;
        state.data.marker.as_mut().is_none_or(|marker| marker.close(now, span))
    }

    /// Lets another server take over in a new history, with data that are certainly complete.
    pub fn hand_over(&self) {
        let now = self.clock(&self.state()).now;
        self.reborn(|state| {
            // Identity of the history that begins.
            let history_id = state.seed.wrapping_add(state.lives + 1);
            if let Some(marker) = &mut state.data.marker {
                marker.continue_in(history_id, now);
            }
        });
    }

    /// Returns the closing that is in the data, even if its time is over: for [`Self::open`] and
    /// [`Self::finish_handover`].
    #[doc(hidden)]
    pub fn closing(&self) -> Option<u64> {
        self.state().data.marker.and_then(|marker| marker.closing())
    }

    /// Opens the node if this closing is in its data. A server that was promoted with it begins a
    /// quarantine.
    #[doc(hidden)]
    pub fn open(&self, closing: u64) {
        if let Some(marker) = &mut self.state().data.marker {
            marker.open(closing);
        }
    }

    /// Does the last step of a planned handover on the server that was promoted: it continues where
    /// the closed one stopped. Returns false if its data do not hold this closing, or if less than
    /// `apart` (the largest difference between two clocks) is left of it.
    #[doc(hidden)]
    #[must_use = "it may begin a quarantine"]
    pub fn finish_handover(&self, closing: u64, apart: Duration) -> bool {
        let mut state = self.state();
        let (now, history_id) = (self.clock(&state).now, state.history_id());
        let marker = state.data.marker.as_mut();
        marker.is_some_and(|marker| marker.finish(history_id, closing, now, apart))
    }

    /// Deletes all data, the marker included, as `FLUSHALL` does; the process stays.
    pub fn flush_all(&self) {
        self.state().data = Data::default();
    }

    /// Returns a copy of the present data.
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot(self.state().data.clone())
    }

    /// Sets the node back to `snapshot` in a new history: it lost its last writes, or a replica
    /// that lagged behind was promoted.
    pub fn restore(&self, snapshot: MemorySnapshot) {
        self.reborn(|state| state.data = snapshot.0);
    }

    /// Steps both clocks of the node forward.
    pub fn jump_clock(&self, forwards: Duration) {
        self.state().offset += forwards;
    }

    /// Sets L as the sender of the next batches knows it: `read` by all servers of the group whose
    /// settings it has read, `unread` with those that it has not.
    #[doc(hidden)]
    pub fn set_failover_windows(&self, read: Duration, unread: Duration) {
        self.state().windows = Windows { read, longest: read.max(unread) };
    }

    /// Puts another program's lock under `key`, for `ttl` or without an end.
    pub fn put_foreign(&self, key: &str, ttl: Option<Duration>) {
        let mut state = self.state();
        let now = self.clock(&state).now;
        let till = ttl.map(|d| (Moment::from_nanos(now) + d).as_nanos());
        state.data.locks.put_foreign(key, now, till);
    }

    /// Runs another program's `SET key value NX PX ttl`; returns true if it has the lock now.
    #[doc(hidden)]
    pub fn set_foreign(&self, key: &str, ttl: Duration) -> bool {
        let mut state = self.state();
        let now = self.clock(&state).now;
        state.data.locks.set_foreign(key, now, (Moment::from_nanos(now) + ttl).as_nanos())
    }

    /// Runs another program's script that deletes the key if the value is its own.
    #[doc(hidden)]
    pub fn delete_foreign(&self, key: &str) {
        let mut state = self.state();
        let now = self.clock(&state).now;
        state.data.locks.delete_foreign(key, now);
    }

    /// Changes the record of a key whose promise was `seen`, as `palisade idem rerun` and `purge`
    /// do. Returns false if that is refused: the node is closed, or the record runs, has a result,
    /// or is not as it was seen.
    #[doc(hidden)]
    pub fn change_record(&self, key: &str, seen: u64, change: RecordChange) -> bool {
        let mut state = self.state();
        let now = self.clock(&state).now;
        let marker = state.data.marker;
        if marker.is_some_and(|m| m.closed(now).is_some()) {
            return false;
        }
        let longer = marker.map_or(0, |m| m.claims_last(now));
        state.data.records.change((key, seen), change, (now, longer))
    }

    fn reborn(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        state.lives += 1;
        drop(state);
        self.tell(NodeEvent::Down);
        self.tell(NodeEvent::Up);
    }
}
