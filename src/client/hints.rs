//! Wake-up hints: which callers wait for which key, and which nodes have hinted about it.
//!
//! Each node keeps a queue of the handles that wait for a lock, and wakes the first. Candidates of
//! an election are not in the queue: a release wakes all handles that watch. A release reaches the
//! nodes one after the other; a caller that is woken at the first hint would still meet the old
//! lock on the other nodes. So one waiter or candidate of the handle is woken when a *majority* of
//! nodes has hinted. A waiter is also woken a little after the first hint, because nodes may name
//! different handles. Observers, who only read, are woken at each hint. Callers that wait for the
//! end of a claim are woken by a majority too, all at once, because all of them get the same
//! answer. Hints may be lost: every waiter has its own timer as well. And hints may be forged: a
//! [`Floor`] limits the rate of wake-ups that find no change.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::futures::{Notified, OwnedNotified};
use tokio::sync::{Notify, broadcast};

use crate::node::{LockNode, NodeSignal};
use crate::op::{IfHeld, Place};
use crate::quorum::majority::majority;
use crate::time::Moment;
use crate::token::OwnerToken;

/// Least average time between two wake-ups; wake-ups that found a change are not counted.
const APART: Duration = Duration::from_millis(10);
/// Time added to the round trips for which a lock is reserved, because timers and the machine are
/// no more precise; and the longest reservation.
const NEEDS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Number of attempts per pause that all waiters of a handle make together, the first waiter not
/// counted.
const CROWD: f64 = 64.0;
/// Most wake-ups without a pause between them.
const BURST: u32 = 16;

/// A limit to the rate of wake-ups: forging a hint costs much less than the requests that follow
/// it.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// Time of the next wake-up if wake-ups were evenly spaced.
    next: Moment,
}

impl Floor {
    /// Counts a wake-up at `now`, and returns the time to wait before the nodes are asked.
    pub(crate) fn wake(&mut self, now: Moment) -> Duration {
        let at = self.next.max(now - APART * BURST);
        self.next = at + APART;
        at.since(now)
    }

    /// Takes the last wake-up out of the count: the lock had been released, or the claim was over.
    fn forgive(&mut self) {
        self.next = self.next - APART;
    }
}

#[derive(Debug)]
pub(crate) struct Hints {
    n: usize,
    /// Number by which the nodes' queues know this handle.
    id: u64,
    keys: Mutex<HashMap<Arc<str>, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// True for each node that hinted since a waiter asked last.
    hinted: Vec<bool>,
    /// Start of the wait of each waiter in the queue, with its number; the longest wait first.
    since: BTreeSet<(Moment, u64)>,
    /// Number of the last waiter or observer.
    next: u64,
    turn: Arc<Notify>,
    first: Arc<Notify>,
    news: Arc<Notify>,
    /// Notifies those who wait for the end of the same claim.
    all: Arc<Notify>,
    observers: usize,
    floor: Floor,
}

impl Hints {
    pub(crate) fn new(n: usize, id: u64) -> Self {
        Self { n, id, keys: Mutex::default() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a hint that the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        if let Some(entry) = self.keys().get_mut(key) {
            entry.news.notify_waiters();
            entry.hint_from(node, self.n);
        }
    }

    /// Takes in a hint that it is the turn of the handle `waiter`. Returns false if that is this
    /// handle and no caller here waits any more.
    pub(crate) fn turn(&self, node: usize, key: &str, waiter: u64) -> bool {
        if waiter != self.id {
            return true;
        }
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(key).filter(|e| !e.since.is_empty()) else { return false };
        entry.hint_from(node, self.n);
        true
    }

    /// Returns the value that a node stores in a lock's key while the lock is reserved for this
    /// handle.
    pub(crate) fn reservation(&self) -> OwnerToken {
        OwnerToken::reserved_for(self.id)
    }

    /// Registers a caller that watches the key (`since` is `None`), or waits in its queue since
    /// `since`.
    pub(crate) fn wait(self: &Arc<Self>, key: &str, since: Option<Moment>) -> Waiting {
        let mut keys = self.keys();
        let key: Arc<str> = match keys.get_key_value(key) {
            Some((k, _)) => Arc::clone(k),
            None => Arc::from(key),
        };
        let entry = keys.entry(Arc::clone(&key)).or_default();
        entry.next += 1;
        let since = since.map(|since| (since, entry.next));
        entry.since.extend(since);
        entry.observers += usize::from(since.is_none());
        let [turn, first, news, all] =
            [&entry.turn, &entry.first, &entry.news, &entry.all].map(Arc::clone);
        drop(keys);
        Waiting { hints: Arc::clone(self), key, since, turn, first, news, all }
    }
}

impl Entry {
    fn hint_from(&mut self, node: usize, n: usize) {
        self.hinted.resize(n, false);
        if std::mem::replace(&mut self.hinted[node], true) {
            return;
        }
        let hinted = self.hinted.iter().filter(|hinted| **hinted).count();
        if hinted == majority(n) {
            self.turn.notify_one();
            self.all.notify_waiters();
        } else if hinted == 1 {
            self.first.notify_one();
        }
    }
}

/// Registration of a caller that waits or watches; it ends on drop.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    since: Option<(Moment, u64)>,
    turn: Arc<Notify>,
    first: Arc<Notify>,
    news: Arc<Notify>,
    all: Arc<Notify>,
}

impl Waiting {
    /// Resolves when it is time to try: when a majority of nodes has hinted, and in the queue also
    /// `soon` after the first hint. The callers of a handle are woken in the order in which they
    /// came.
    ///
    /// # Cancellation safety
    /// A turn that was given to a dropped future passes to the next waiter of this handle.
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

    /// Returns true if this caller waits in the queue; false if it watches.
    pub(crate) fn is_queued(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the `if_held` part of the request that is about to be sent, and clears the hints
    /// received so far. In the queue it is the place of this handle: that of its first waiter.
    pub(crate) fn request(&self, now: Moment, round_trip: Duration) -> IfHeld {
        let mut keys = self.hints.keys();
        let entry = keys.get_mut(&self.key);
        let first = entry.and_then(|entry| {
            entry.hinted.clear();
            entry.since.first().copied()
        });
        let Some((since, _)) = first.filter(|_| self.is_queued()) else { return IfHeld::Watch };
        // The hint arrives after half a round trip (if a minority hinted, two round trips later),
        // and the request takes another half.
        let needs = (4 * round_trip).saturating_add(NEEDS.0).min(NEEDS.1);
        IfHeld::Queue(Place { waiter: self.hints.id, waited: now.since(since), needs })
    }

    /// Returns how long to pause without a hint. The first waiter of the handle in the queue asks
    /// for all of them. The others ask now and then, in case the first is not polled: together
    /// `CROWD` times in one pause, however many wait.
    pub(crate) fn pause(&self, pause: Duration, random: u128) -> Duration {
        let keys = self.hints.keys();
        let Some(entry) = keys.get(&self.key) else { return pause };
        if self.since.is_none() || entry.since.first() == self.since.as_ref() {
            return pause;
        }
        let times = entry.since.len() as f64 / CROWD;
        let share = f64::from(random as u32) / f64::from(u32::MAX);
        // `times` pauses on average, and never less than one.
        pause.saturating_add(
            Duration::try_from_secs_f64(pause.as_secs_f64() * 2.0 * share * times)
                .unwrap_or(Duration::MAX),
        )
    }

    /// Returns true if other callers of this handle are in the queue, so that the handle has its
    /// place there.
    pub(crate) fn is_behind(&self) -> bool {
        self.hints.keys().get(&self.key).is_some_and(|e| self.is_queued() && e.since.len() > 1)
    }

    /// Returns the nodes that hinted since the last request, if no other caller of the handle is in
    /// the queue: what these nodes reserved for the handle is not needed.
    pub(crate) fn unused(&self) -> Vec<usize> {
        if !self.is_queued() {
            return Vec::new();
        }
        let mut keys = self.hints.keys();
        let Some(entry) = keys.get_mut(&self.key).filter(|entry| entry.since.len() == 1) else {
            return Vec::new();
        };
        let hinted = std::mem::take(&mut entry.hinted);
        hinted.iter().enumerate().filter_map(|(node, hinted)| hinted.then_some(node)).collect()
    }

    /// Counts a wake-up of this waiter at `now`, and returns the time to wait before it tries. All
    /// waiters of a key share one limit.
    pub(crate) fn floor(&self, now: Moment) -> Duration {
        self.hints.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.floor.wake(now))
    }

    /// Records that the hint was right: the lock had been released, though another owner may have
    /// it now.
    pub(crate) fn was_right(&self) {
        if let Some(entry) = self.hints.keys().get_mut(&self.key) {
            entry.floor.forgive();
        }
    }

    /// Resolves at the next hint for the key after this call (not: after the first poll), so that
    /// the caller may read in between.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn any(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Resolves when a majority of nodes has hinted after this call (not: after the first poll),
    /// for all callers that wait: the end of a claim concerns all of them. Hints from before this
    /// call do not count, so a late hint about one claim is not taken for the end of the next.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn ended(&self) -> OwnedNotified {
        if let Some(entry) = self.hints.keys().get_mut(&self.key) {
            entry.hinted.clear();
        }
        Arc::clone(&self.all).notified_owned()
    }

    /// Lets the next waiter of this handle try: its attempt will be refused, which registers the
    /// handle in the nodes' queues again. The handle lost its place there when it was woken.
    pub(crate) fn pass_on(&self) {
        self.turn.notify_one();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut keys = self.hints.keys();
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

/// Calls `deliver` with each signal of a node until the node is gone, and with `None` if signals
/// were missed.
pub(super) async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&T, Option<NodeSignal>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            // Hints may be lost: the waiters' own timers replace them.
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
        // A forged hint arrives as soon as the last wake-up is over.
        while now.since(begun) < Duration::from_secs(1) {
            now = now + floor.wake(now) + Duration::from_micros(200);
            woken += 1;
        }
        assert!((BURST..=BURST + 102).contains(&woken), "{woken}");
        // The forging has stopped: nothing is delayed any more.
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
