//! Faults and operator actions (restart, flush, failover, stepped clock), so that tests and
//! simulations see the same quarantines as production.

use std::time::Duration;

use super::quarantine::{Clock, Windows};
use super::{Data, MemoryNode, RecordChange, State};
use crate::node::NodeEvent;
use crate::node::lineage::{Handover, Process, ReplicationId, millis};
use crate::op::Lineage;
use crate::time::Moment;

/// A copy of a [`MemoryNode`]'s data at one moment, as on a replica that lags behind.
#[derive(Clone, Debug)]
pub struct MemorySnapshot {
    data: Data,
    machine: Machine,
}

/// Keys of a slot of a cluster.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotKeys {
    Marker,
    Note,
    /// The one that shows whether the slot was away.
    Stays,
    /// Locks, lists and records.
    Names,
}

/// What a snapshot of a machine with its memory has besides the data.
#[derive(Clone, Copy, Debug)]
struct Machine {
    seed: u64,
    lives: u64,
    replid: ReplicationId,
    process: Process,
    evicted: u64,
}

impl MemorySnapshot {
    /// Returns what the data say about themselves, as [`MemoryNode::lineage`] does.
    #[doc(hidden)]
    pub fn lineage(&self) -> Option<Lineage> {
        self.data.kept.lineage()
    }
}

/// They need the feature `test-util`.
impl MemoryNode {
    /// Restarts the node without its data. It begins a quarantine, and gives no fence below a new
    /// floor, which is above all fences that it may have given before.
    pub fn restart_empty(&self) {
        self.reborn(|state| state.data = Data::default());
    }

    /// Restarts the node without its data, as [`restart_empty`](Self::restart_empty) does, and
    /// marks it as a node whose earlier data a client has seen. So it reports lost data and is not
    /// taken for a new node.
    pub fn lose_data(&self) {
        self.restart_empty();
        self.state().is_known = true;
    }

    /// Restarts the node with all its data. Nothing is lost, but no client can know that, so a
    /// quarantine begins.
    pub fn restart_keeping(&self) {
        self.reborn(|_| ());
    }

    /// Closes the node for a planned handover. The node refuses every batch until
    /// [`Self::hand_over`], but for `span` at most.
    ///
    /// Returns false if the node was not closed. That is so in a quarantine, and while leases from
    /// before an earlier handover may still run.
    #[must_use = "it may not be closed"]
    pub fn close(&self, span: Duration) -> bool {
        let mut state = self.state();
        let clock = self.clock(&state);
        let (shown, epoch) = (state.nature(0).shown(&state.data.kept, clock), state.epoch);
        let Some(marker) = &mut state.data.kept.marker else { return true };
        let closed = marker.close(&shown, epoch, millis(span));
        closed.map(|closed| *marker = closed).is_ok()
    }

    /// Completes a planned handover: another server takes over in a new data history, with data
    /// that are certainly complete, so no quarantine begins.
    pub fn hand_over(&self) {
        let clock = self.clock(&self.state());
        self.reborn(|_| ());
        let mut state = self.state();
        let (shown, epoch) = (state.nature(0).shown(&state.data.kept, clock), state.epoch);
        if let Some(marker) = &mut state.data.kept.marker {
            *marker = marker.taken_over(&shown, epoch);
        }
    }

    /// The time until which the node is closed for a planned handover, by its marker and even if it
    /// has passed. [`Self::open`] and [`Self::finish_handover`] identify the closing by it.
    #[doc(hidden)]
    pub fn closing(&self) -> Option<u64> {
        match self.state().data.kept.marker?.handover {
            Some(Handover::Closed(till)) => Some(till),
            _ => None,
        }
    }

    /// Opens the node, if its marker states `closing`. If it was promoted since, a quarantine
    /// begins with the next batch.
    #[doc(hidden)]
    pub fn open(&self, closing: u64) {
        if let Some(marker) = &mut self.state().data.kept.marker {
            marker.handover.take_if(|state| *state == Handover::Closed(closing));
        }
    }

    /// The last step of a planned handover, on the promoted server: it goes on without a
    /// quarantine. False if its marker does not state `closing`, or less than `apart` is left until
    /// then.
    #[doc(hidden)]
    #[must_use = "it may begin a quarantine"]
    pub fn finish_handover(&self, closing: u64, apart: Duration) -> bool {
        let mut state = self.state();
        let clock = self.clock(&state);
        let (shown, epoch) = (state.nature(0).shown(&state.data.kept, clock), state.epoch);
        let Some(marker) = &mut state.data.kept.marker else { return false };
        let holds = marker.handover == Some(Handover::Closed(closing));
        let finished = marker.finish(&shown, epoch, millis(apart)).ok().filter(|_| holds);
        finished.map(|finished| *marker = finished).is_some()
    }

    /// Deletes all data, also the marker, as `FLUSHALL` does. The process continues.
    pub fn flush_all(&self) {
        self.state().data = Data::default();
    }

    /// Returns a copy of the node's present data.
    pub fn snapshot(&self) -> MemorySnapshot {
        let state = self.state();
        let State { seed, lives, replid, process, evicted, .. } = *state;
        let machine = Machine { seed, lives, replid, process, evicted };
        MemorySnapshot { data: state.data.clone(), machine }
    }

    /// Sets the node back to `snapshot` in a new data history, as if it had lost its last writes,
    /// or as if a replica that lagged behind had been promoted.
    pub fn restore(&self, snapshot: MemorySnapshot) {
        self.reborn(|state| state.data = snapshot.data);
    }

    /// Steps both clocks of the node, the one for expiry and the wall clock, forward.
    pub fn jump_clock(&self, forwards: Duration) {
        self.state().offset += forwards;
    }

    /// For the next batches. `read` is the longest of the servers whose settings the client has
    /// read, `unread` of the others.
    #[doc(hidden)]
    pub fn set_failover_windows(&self, read: Duration, unread: Duration) {
        self.state().windows = Windows { read, longest: read.max(unread) };
    }

    /// Declares that a restart loses nothing, as
    /// [`RedisNodeBuilder::durable`](crate::node::RedisNodeBuilder::durable) does.
    #[doc(hidden)]
    pub fn set_durable(&self, declared: bool) {
        self.state().durable = declared;
    }

    /// Sets the epoch in which the clients of the next batches were told that this server is the
    /// master; `None` without Sentinels.
    #[doc(hidden)]
    pub fn set_epoch(&self, epoch: Option<u64>) {
        self.state().epoch = epoch;
    }

    /// As a slot of a cluster: sets the epoch in which a majority of the masters named this server
    /// to the clients of the next batches, the lowest one since which all words named it, and when
    /// its keys were being moved, by this node's clock in µs.
    #[doc(hidden)]
    pub fn set_named(&self, epoch: u64, since: u64, disturbed: Option<u64>) {
        let mut state = self.state();
        (state.epoch, state.watched) = (Some(epoch), Some(since));
        state.disturbed = disturbed;
    }

    /// Moves keys of a slot of a cluster to another server, as `MIGRATE` does.
    #[doc(hidden)]
    pub fn migrate(&self, to: &Self, keys: SlotKeys) {
        let mut data = self.state().data.clone();
        let mut there = to.state().data.clone();
        match keys {
            SlotKeys::Marker => there.kept.marker = data.kept.marker.take().or(there.kept.marker),
            SlotKeys::Note => there.kept.note = data.kept.note.take().or(there.kept.note),
            SlotKeys::Stays => {
                (data.kept.is_raw, there.kept.is_raw) = (false, false);
            }
            SlotKeys::Names if data.len() > 0 => {
                there = Data { kept: there.kept, ..data.clone() };
                data = Data { kept: data.kept, ..Data::default() };
            }
            SlotKeys::Names => {}
        }
        self.state().data = data;
        to.state().data = there;
    }

    /// Returns what the data say about themselves, or `None` if they have no marker.
    #[doc(hidden)]
    pub fn lineage(&self) -> Option<Lineage> {
        self.state().data.kept.lineage()
    }

    /// Gives the data another name (`master_replid`) without a loss. The process continues.
    #[doc(hidden)]
    pub fn rename_data(&self) {
        let name = self.0.env.random() as u64;
        self.state().replid = ReplicationId::of(name);
    }

    /// Puts older data in place of the present ones. The process continues, and neither its
    /// counters nor the name of its data change.
    #[doc(hidden)]
    pub fn put_back(&self, snapshot: MemorySnapshot) {
        self.state().data = snapshot.data;
    }

    /// Puts back a snapshot of the whole machine with its memory: the data, the process with its
    /// counters, and the name of the data are those of then.
    #[doc(hidden)]
    pub fn put_back_whole(&self, snapshot: MemorySnapshot) {
        let mut state = self.state();
        let Machine { seed, lives, replid, process, evicted } = snapshot.machine;
        (state.seed, state.lives, state.replid) = (seed, lives, replid);
        (state.process, state.evicted, state.data) = (process, evicted, snapshot.data);
    }

    /// Follows another server, whose data are `snapshot`, and is a master again, all in the same
    /// process.
    #[doc(hidden)]
    pub fn follow(&self, snapshot: MemorySnapshot) {
        self.rename_data();
        let mut state = self.state();
        state.data = snapshot.data;
        state.process.calls += 2;
        state.process.inputs = state.process.inputs.map(|inputs| inputs + 1_000);
    }

    /// Deletes all locks and records because the memory is full, and counts that. The process
    /// continues, and the marker stays.
    #[doc(hidden)]
    pub fn evict(&self) {
        let mut state = self.state();
        state.data = Data { kept: state.data.kept, ..Data::default() };
        state.evicted += 1;
    }

    /// Sets the counters of the process to zero, as `CONFIG RESETSTAT` does, but for that of the
    /// evicted keys.
    #[doc(hidden)]
    pub fn reset_counters(&self) {
        let mut state = self.state();
        let run = state.process.run;
        state.process = Process { run, was_reset: true, ..Process::fresh() };
    }

    /// Puts another program's lock under `key`, which expires after `ttl` or, with `None`, never.
    pub fn put_foreign(&self, key: &str, ttl: Option<Duration>) {
        let mut state = self.state();
        let now = self.clock(&state).now;
        let till = ttl.map(|d| (Moment::from_nanos(now) + d).as_nanos());
        state.data.locks.row(key, now).put_foreign(till);
    }

    /// Runs `SET key value NX PX ttl` as another program. Returns true if that program has the lock
    /// now.
    #[doc(hidden)]
    pub fn set_foreign(&self, key: &str, ttl: Duration) -> bool {
        let mut state = self.state();
        let now = self.clock(&state).now;
        let row = state.data.locks.row(key, now);
        let is_free = row.is_empty();
        if is_free {
            row.put_foreign(Some((Moment::from_nanos(now) + ttl).as_nanos()));
        }
        is_free
    }

    /// Acts as another program that releases its lock: deletes `key` if it has another program's
    /// value.
    #[doc(hidden)]
    pub fn delete_foreign(&self, key: &str) {
        let mut state = self.state();
        let now = self.clock(&state).now;
        state.data.locks.delete_foreign(key, now);
    }

    /// As `palisade idem rerun` and `purge`, if the highest ballot is still `seen`. False if the
    /// node is closed, the ballot is another one, a claim runs, or the record has a result.
    #[doc(hidden)]
    pub fn change_record(&self, key: &str, seen: u64, change: RecordChange) -> bool {
        let mut state = self.state();
        let Clock { now, micros } = self.clock(&state);
        let (marker, wall) = (state.data.kept.marker, micros / 1_000);
        let handover = marker.and_then(|m| m.handover);
        if matches!(handover, Some(Handover::Closed(till)) if wall < till) {
            return false;
        }
        // Leases from before a planned handover may last longer than this clock shows.
        let settling = marker.filter(|m| m.settles(wall).is_some());
        let longer = settling.map_or(0, |m| m.quarantine * 1_000_000);
        state.data.records.change((key, seen), change, (now, longer))
    }

    fn reborn(&self, change: impl FnOnce(&mut State)) {
        self.state().reborn(change);
        self.tell(NodeEvent::Down);
        self.tell(NodeEvent::Up);
    }
}
