//! Wake-up hints, by which nodes tell that a lock may be free or a claim may be over. This module
//! knows which callers of the handle wait for which key, and which nodes have sent a hint about the
//! key.
//!
//! Each node keeps a queue of the handles that wait for a lock, and a release wakes the first
//! handle in it. Candidates of an election are not in the queue: they watch, and a release wakes
//! all handles that watch. A release reaches the nodes one after the other, so a caller that tried
//! at the first hint would still meet the old lock on the other nodes. Therefore one waiter or
//! candidate of the handle is woken when a *majority* of nodes has hinted. A waiter is also woken a
//! little after the first hint, because the nodes may have named different handles. Observers, who
//! only read, are woken at each hint. Callers that wait for the end of a claim are also woken by a
//! majority of nodes, but all at once, because all of them get the same answer. Hints may be lost,
//! so every waiter has a timer of its own. Hints may be forged, so a [`Floor`] limits the rate of
//! wake-ups that find no change.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::futures::{Notified, OwnedNotified};
use tokio::sync::{Notify, broadcast};

use crate::node::{LockNode, NodeSignal};
use crate::op::{IfHeld, LockMode, Place};
use crate::quorum::majority::majority;
use crate::time::Moment;
use crate::token::OwnerToken;

/// Shortest time between two wake-ups, on average. Wake-ups that found a change are not counted.
const APART: Duration = Duration::from_millis(10);
/// Time that is added to the round trips for which a released lock is reserved, because timers are
/// no more precise.
const SPARE: Duration = Duration::from_millis(2);
/// Most attempts that all waiters of a handle behind the first one make together during one pause.
const CROWD: f64 = 64.0;
/// Most wake-ups that may follow each other without a pause.
const BURST: u32 = 16;

/// Limit on the rate of wake-ups. It is needed because other programs can forge a hint, which costs
/// them much less than the requests that follow it cost the nodes.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// Time at which the next wake-up would come if all were `APART` from each other.
    next: Moment,
}

impl Floor {
    /// Counts a wake-up at `now`, and returns the time to wait before the nodes are asked.
    pub(crate) fn wake(&mut self, now: Moment) -> Duration {
        let at = self.next.max(now - APART * BURST);
        self.next = at + APART;
        at.since(now)
    }

    /// Takes the last wake-up out of the count of useless ones, because the lock had in fact been
    /// released.
    fn forgive(&mut self) {
        self.next = self.next - APART;
    }
}

#[derive(Debug)]
pub(crate) struct Hints {
    n: usize,
    /// Number by which this handle is known in the nodes' queues. Its readers wait there under
    /// another number ([`waiter`](Self::waiter)).
    id: u64,
    keys: Mutex<HashMap<Arc<str>, Entry>>,
    /// The same for the readers of each key.
    shared: Mutex<HashMap<Arc<str>, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// True for each node that has hinted since the last request of a waiter was sent.
    hinted: Vec<bool>,
    /// For each caller in the queue, the time at which its wait began, and its number. The caller
    /// that has waited longest is first.
    since: BTreeSet<(Moment, u64)>,
    /// Number of the caller that was registered last.
    next: u64,
    turn: Arc<Notify>,
    first: Arc<Notify>,
    news: Arc<Notify>,
    /// Wakes all callers that wait for the end of the claim.
    all: Arc<Notify>,
    observers: usize,
    floor: Floor,
}

impl Hints {
    pub(crate) fn new(n: usize, id: u64) -> Self {
        Self { n, id, keys: Mutex::default(), shared: Mutex::default() }
    }

    /// Returns the waiters of a mode; those that watch are among the exclusive ones.
    fn keys(&self, mode: LockMode) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        let keys = match mode {
            LockMode::Exclusive => &self.keys,
            LockMode::Shared => &self.shared,
        };
        keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number by which the nodes' queues know the waiters of this mode.
    fn waiter(&self, mode: LockMode) -> u64 {
        match mode {
            LockMode::Exclusive => self.id,
            LockMode::Shared => self.id ^ 1,
        }
    }

    /// Takes in a node's hint that the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            if let Some(entry) = self.keys(mode).get_mut(key) {
                entry.news.notify_waiters();
                entry.hint_from(node, self.n, mode);
            }
        }
    }

    /// Takes in a node's hint that a lock is free and that the handle `waiter` is the first in its
    /// queue. Returns the mode in which the lock is reserved if `waiter` is this handle but none of
    /// its callers waits any more, so that it has to give the lock back.
    pub(crate) fn turn(&self, node: usize, key: &str, waiter: u64) -> Option<LockMode> {
        let modes = [LockMode::Exclusive, LockMode::Shared];
        let mode = modes.into_iter().find(|mode| waiter == self.waiter(*mode))?;
        let mut keys = self.keys(mode);
        let Some(entry) = keys.get_mut(key).filter(|e| !e.since.is_empty()) else {
            return Some(mode);
        };
        entry.hint_from(node, self.n, mode);
        None
    }

    /// Returns the value that a node stores in a lock's key while the lock is reserved for this
    /// handle, or for readers.
    pub(crate) fn reservation(&self, mode: LockMode) -> OwnerToken {
        match mode {
            LockMode::Exclusive => OwnerToken::reserved_for(self.id),
            LockMode::Shared => OwnerToken::READERS,
        }
    }

    /// Registers a caller for hints about the key. The caller waits in the key's queue for a grant
    /// of this mode since that time, or only watches the key if `queued` is `None`.
    pub(crate) fn wait(self: &Arc<Self>, key: &str, queued: Option<(LockMode, Moment)>) -> Waiting {
        let mode = queued.map_or(LockMode::Exclusive, |(mode, _)| mode);
        let mut keys = self.keys(mode);
        let key: Arc<str> = match keys.get_key_value(key) {
            Some((k, _)) => Arc::clone(k),
            None => Arc::from(key),
        };
        let entry = keys.entry(Arc::clone(&key)).or_default();
        entry.next += 1;
        let since = queued.map(|(_, since)| (since, entry.next));
        entry.since.extend(since);
        entry.observers += usize::from(since.is_none());
        let [turn, first, news, all] =
            [&entry.turn, &entry.first, &entry.news, &entry.all].map(Arc::clone);
        drop(keys);
        Waiting { hints: Arc::clone(self), key, mode, since, turn, first, news, all }
    }
}

impl Entry {
    fn hint_from(&mut self, node: usize, n: usize, mode: LockMode) {
        self.hinted.resize(n, false);
        if std::mem::replace(&mut self.hinted[node], true) {
            return;
        }
        let hinted = self.hinted.iter().filter(|hinted| **hinted).count();
        if hinted == majority(n) {
            wake(&self.turn, mode);
            self.all.notify_waiters();
        } else if hinted == 1 {
            wake(&self.first, mode);
        }
    }
}

/// Wakes the caller that comes next. Readers do not exclude each other, so all that wait now are
/// woken.
fn wake(callers: &Notify, mode: LockMode) {
    if mode.is_shared() {
        callers.notify_waiters();
    }
    // If no caller waits now, the hint is kept for one whose request is under way.
    callers.notify_one();
}

/// Registration of a caller that waits for a key or watches it. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    mode: LockMode,
    since: Option<(Moment, u64)>,
    turn: Arc<Notify>,
    first: Arc<Notify>,
    news: Arc<Notify>,
    all: Arc<Notify>,
}

impl Waiting {
    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.hints.keys(self.mode)
    }

    /// Resolves when it is time for this caller to try: when a majority of nodes has hinted or, if
    /// the caller is in the queue, `soon` after the first hint. Several callers of the handle are
    /// woken one by one, in the order in which they began to wait; readers are woken together.
    ///
    /// # Cancellation safety
    /// If the future is dropped after it was chosen, the next waiter of this handle is woken
    /// instead.
    pub(crate) async fn turn(&self, soon: Duration) {
        tokio::select! {
            biased;
            () = self.turn.notified() => {}
            () = async {
                self.first.notified().await;
                tokio::time::sleep(soon).await;
            }, if self.is_queued() => {}
        }
    }

    /// Returns true if this caller waits in the queue; false if it only watches.
    pub(crate) fn is_queued(&self) -> bool {
        self.since.is_some()
    }

    /// Returns what the request that is about to be sent asks of a node on which another owner has
    /// the lock: a hint and, if this caller is in the queue, a place there. A handle has one place,
    /// which counts from the beginning of its longest wait. A reader's request states its own wait,
    /// because the nodes compare it with those of the writers (readers 9). The hints received so
    /// far are cleared.
    pub(crate) fn request(&self, now: Moment, round_trip: Duration) -> IfHeld {
        let mut keys = self.keys();
        let entry = keys.get_mut(&self.key);
        let first = entry.and_then(|entry| {
            entry.hinted.clear();
            entry.since.first().copied()
        });
        let own = if self.mode.is_shared() { self.since } else { first };
        let Some((since, _)) = own.filter(|_| self.is_queued()) else { return IfHeld::Watch };
        // The lock has to stay reserved for three round trips: half of one until the hint arrives,
        // two if only a minority of nodes hinted, and half of one for the request. The fourth is in
        // reserve.
        let needs = (4 * round_trip).saturating_add(SPARE).min(Place::RESERVED_MAX);
        let waiter = self.hints.waiter(self.mode);
        IfHeld::Queue(Place { waiter, waited: now.since(since), needs })
    }

    /// Returns the length of this caller's pause if no hint comes. The first waiter in the queue
    /// asks the nodes on behalf of all waiters of the handle, after `pause`. The others pause
    /// longer, so that together they ask at most `CROWD` times in one pause, however many wait.
    /// They ask at all because the first one may not be polled.
    pub(crate) fn pause(&self, pause: Duration, random: u128) -> Duration {
        let keys = self.keys();
        let Some(entry) = keys.get(&self.key) else { return pause };
        if self.since.is_none() || entry.since.first() == self.since.as_ref() {
            return pause;
        }
        let times = entry.since.len() as f64 / CROWD;
        let share = f64::from(random as u32) / f64::from(u32::MAX);
        // On average the result is `pause` and `times` more of them.
        pause.saturating_add(
            Duration::try_from_secs_f64(pause.as_secs_f64() * 2.0 * share * times)
                .unwrap_or(Duration::MAX),
        )
    }

    /// Returns true if this caller and other callers of the handle are in the queue, so that the
    /// nodes have a place for the handle already.
    pub(crate) fn is_behind(&self) -> bool {
        self.keys().get(&self.key).is_some_and(|e| self.is_queued() && e.since.len() > 1)
    }

    /// Returns true if other callers of the handle are in the queue.
    pub(crate) fn has_others(&self) -> bool {
        self.keys().get(&self.key).is_some_and(|entry| entry.since.len() > 1)
    }

    /// Returns the nodes that hinted since the last request, if no other caller of the handle is in
    /// the queue. The locks that these nodes have reserved for the handle are not needed, so they
    /// can be given back.
    pub(crate) fn unused(&self) -> Vec<usize> {
        if !self.is_queued() {
            return Vec::new();
        }
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(&self.key).filter(|entry| entry.since.len() == 1) else {
            return Vec::new();
        };
        let hinted = std::mem::take(&mut entry.hinted);
        hinted.iter().enumerate().filter_map(|(node, hinted)| hinted.then_some(node)).collect()
    }

    /// Returns the mode in which this caller waits; that of one that only watches is exclusive.
    pub(crate) fn mode(&self) -> LockMode {
        self.mode
    }

    /// Returns true if callers of this handle that are woken together may all be granted.
    pub(crate) fn is_shared(&self) -> bool {
        self.mode.is_shared()
    }

    /// Counts a wake-up of this caller at `now`, and returns the time to wait before it tries. All
    /// waiters for the same key share one limit.
    pub(crate) fn floor(&self, now: Moment) -> Duration {
        self.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.floor.wake(now))
    }

    /// Records that the last hint was right, so that its wake-up does not count. The lock had been
    /// released, even if another owner has it now.
    pub(crate) fn was_right(&self) {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.floor.forgive();
        }
    }

    /// Returns a future that resolves at the next hint about the key. Hints count from this call
    /// on, not only from the first poll, so the caller may read the key before it awaits the
    /// future.
    ///
    /// # Cancellation safety
    /// Dropping the future loses nothing but the hint.
    pub(crate) fn any(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Returns a future that resolves when a majority of nodes has hinted. Hints count from this
    /// call on, not only from the first poll. Earlier ones do not count, so that a late hint about
    /// one claim is not taken for the end of the next. All callers that wait are woken at once,
    /// because the end of a claim concerns all of them.
    ///
    /// # Cancellation safety
    /// Dropping the future loses nothing but the hint.
    pub(crate) fn ended(&self) -> OwnedNotified {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.hinted.clear();
        }
        Arc::clone(&self.all).notified_owned()
    }

    /// Wakes the next waiter of this handle, so that it makes an attempt. The attempt will be
    /// refused, and that puts the handle into the nodes' queues again. It lost its place there when
    /// a node woke it.
    pub(crate) fn pass_on(&self) {
        wake(&self.turn, self.mode);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(&self.key) else { return };
        match self.since {
            Some(place) => {
                entry.since.remove(&place);
            }
            None => entry.observers -= 1,
        }
        if entry.since.is_empty() && entry.observers == 0 {
            keys.remove(&self.key);
        }
    }
}

/// Calls `deliver` with each signal of a node until the node or `target` is gone. If signals were
/// missed, calls it with `None`.
pub(super) async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&T, Option<NodeSignal>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            // Hints may be lost, because each waiter also has a timer.
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        match target.upgrade() {
            Some(target) => deliver(&target, event),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_that_bring_nothing_are_held_apart_after_a_burst() {
        let mut floor = Floor::default();
        let mut now = Moment::from_nanos(1_000_000_000_000);
        let mut woken = 0;
        let begun = now;
        // The forger sends the next hint as soon as the last wake-up is over.
        while now.since(begun) < Duration::from_secs(1) {
            now = now + floor.wake(now) + Duration::from_micros(200);
            woken += 1;
        }
        assert!((BURST..=BURST + 102).contains(&woken), "{woken}");
        // No more hints are forged, so nothing is delayed any more.
        now = now + Duration::from_secs(1);
        for _ in 0..=BURST {
            assert_eq!(floor.wake(now), Duration::ZERO);
        }
        assert!(!floor.wake(now).is_zero());
    }

    #[test]
    fn wake_ups_that_were_right_are_never_held_back() {
        let mut floor = Floor::default();
        let mut now = Moment::from_nanos(1_000_000_000_000);
        for _ in 0..10_000 {
            assert_eq!(floor.wake(now), Duration::ZERO);
            floor.forgive();
            now = now + Duration::from_micros(100);
        }
    }
}
