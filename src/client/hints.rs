//! Wake-up hints: who waits for which key, and which node has spoken of it.
//!
//! Each node keeps a queue of the handles that wait for a lock, and wakes the first; candidates of
//! an election are not in it, and a release wakes the handles of all. A release reaches the nodes
//! one after the other; waking somebody at the first hint would make it meet the rest of the old
//! lock. So one waiter or candidate of the handle is woken when a *majority* of nodes hinted, and a
//! waiter a little after the first hint, because nodes may name different handles. Observers, who
//! only read, are woken at each hint. Those who wait for the end of a claim are woken by a majority
//! too, all at once: it is the same answer for all. Hints may be lost: every waiter has its own
//! timer as well. And hints may be forged, so wake-ups that bring nothing are held apart.

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

/// On average wake-ups are so far apart at least, but for those that brought the lock.
const APART: Duration = Duration::from_millis(10);
/// Time added to the round trips for which a lock is reserved, because timers and the machine are
/// no finer; and the longest reservation.
const NEEDS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Attempts in one pause of all waiters of a handle but the first, together.
const CROWD: f64 = 64.0;
/// Most wake-ups at once.
const BURST: u32 = 16;

/// Holds wake-ups apart: forging a hint costs much less than the requests that follow it.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// Time of the next wake-up if they came evenly.
    next: Moment,
}

impl Floor {
    /// Somebody was woken at `now`: for how long it waits before it asks.
    pub(crate) fn wake(&mut self, now: Moment) -> Duration {
        let at = self.next.max(now - APART * BURST);
        self.next = at + APART;
        at.since(now)
    }

    /// The last wake-up was right: the lock had been given back, or the claim was over.
    fn forgive(&mut self) {
        self.next = self.next - APART;
    }
}

#[derive(Debug)]
pub(crate) struct Hints {
    n: usize,
    /// Number of this handle in the queues of the nodes.
    id: u64,
    keys: Mutex<HashMap<Arc<str>, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// True for each node that hinted since a waiter asked last.
    heard: Vec<bool>,
    /// Since when each waits, with its number; the longest first.
    since: BTreeSet<(Moment, u64)>,
    /// The number of the next one.
    next: u64,
    turn: Arc<Notify>,
    first: Arc<Notify>,
    news: Arc<Notify>,
    /// Those who wait for the end of the same claim.
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

    /// A node said that something about the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        if let Some(entry) = self.keys().get_mut(key) {
            entry.news.notify_waiters();
            entry.hear(node, self.n);
        }
    }

    /// A node said that it is the turn of this handle, or another one. False if it is of this one
    /// and nobody here waits any more.
    pub(crate) fn turn(&self, node: usize, key: &str, waiter: u64) -> bool {
        if waiter != self.id {
            return true;
        }
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(key).filter(|e| !e.since.is_empty()) else { return false };
        entry.hear(node, self.n);
        true
    }

    /// The value of a lock's key at a node that reserved it for this handle.
    pub(crate) fn reservation(&self) -> OwnerToken {
        OwnerToken::reserved_for(self.id)
    }

    /// Takes a place among those who watch the key, or wait in the queue for it since `since`.
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
    fn hear(&mut self, node: usize, n: usize) {
        self.heard.resize(n, false);
        if std::mem::replace(&mut self.heard[node], true) {
            return;
        }
        let heard = self.heard.iter().filter(|heard| **heard).count();
        if heard == majority(n) {
            self.turn.notify_one();
            self.all.notify_waiters();
        } else if heard == 1 {
            self.first.notify_one();
        }
    }
}

/// A place among those who wait or watch; given up on drop.
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
    /// Resolves when it is time to try: when a majority of nodes says so, and in the queue also
    /// `soon` after the first that does. First come, first woken.
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

    /// Returns true if it waits in the queue, and does not watch.
    pub(crate) fn is_queued(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the request to the nodes, which are about to be asked. In the queue it is the place
    /// of this handle: that of its first waiter. Hints from before are of no more use.
    pub(crate) fn request(&self, now: Moment, round_trip: Duration) -> IfHeld {
        let mut keys = self.hints.keys();
        let entry = keys.get_mut(&self.key);
        let first = entry.and_then(|entry| {
            entry.heard.clear();
            entry.since.first().copied()
        });
        let Some((since, _)) = first.filter(|_| self.is_queued()) else { return IfHeld::Watch };
        // It hears after half a round trip, or of a minority two later, and asks in another half.
        let needs = (4 * round_trip).saturating_add(NEEDS.0).min(NEEDS.1);
        IfHeld::Queue(Place { waiter: self.hints.id, waited: now.since(since), needs })
    }

    /// Returns how long to pause without a hint. The first waiter of the handle in the queue asks
    /// for all. The others ask now and then, in case the first is not polled: together `CROWD`
    /// times in one pause, however many wait.
    pub(crate) fn pause(&self, pause: Duration, random: u128) -> Duration {
        let keys = self.hints.keys();
        let Some(entry) = keys.get(&self.key) else { return pause };
        if self.since.is_none() || entry.since.first() == self.since.as_ref() {
            return pause;
        }
        let times = entry.since.len() as f64 / CROWD;
        let share = f64::from(random as u32) / f64::from(u32::MAX);
        // On average `times` pauses, and never less than one.
        pause.saturating_add(
            Duration::try_from_secs_f64(pause.as_secs_f64() * 2.0 * share * times)
                .unwrap_or(Duration::MAX),
        )
    }

    /// Returns true if others of this handle are in the queue, so that it has its place.
    pub(crate) fn is_behind(&self) -> bool {
        self.hints.keys().get(&self.key).is_some_and(|e| self.is_queued() && e.since.len() > 1)
    }

    /// Returns the nodes that named this handle since it asked last, if no other waiter is here:
    /// their reservations are of no use to it.
    pub(crate) fn unused(&self) -> Vec<usize> {
        if !self.is_queued() {
            return Vec::new();
        }
        let mut keys = self.hints.keys();
        let Some(entry) = keys.get_mut(&self.key).filter(|entry| entry.since.len() == 1) else {
            return Vec::new();
        };
        let heard = std::mem::take(&mut entry.heard);
        heard.iter().enumerate().filter_map(|(node, heard)| heard.then_some(node)).collect()
    }

    /// It was this waiter's turn at `now`: for how long it waits before it tries. All who wait for
    /// a key are held apart together.
    pub(crate) fn floor(&self, now: Moment) -> Duration {
        self.hints.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.floor.wake(now))
    }

    /// The hint was true: the lock had been given back, though another may have it now.
    pub(crate) fn was_right(&self) {
        if let Some(entry) = self.hints.keys().get_mut(&self.key) {
            entry.floor.forgive();
        }
    }

    /// Resolves at any hint for the key that comes after this call (not: after the first poll), so
    /// that one may read in between.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn any(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Resolves when a majority of nodes has hinted after this call (not: after the first poll),
    /// for everybody who waits: the end of a claim is news for all of them. Hints from before do
    /// not count, so that of a straggler is none of the next end.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn ended(&self) -> OwnedNotified {
        if let Some(entry) = self.hints.keys().get_mut(&self.key) {
            entry.heard.clear();
        }
        Arc::clone(&self.all).notified_owned()
    }

    /// Lets the next waiter of this handle try: it will be refused and so take a place at the
    /// nodes, where the handle lost its place when it was woken.
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

/// Forwards a node's hints until the receiver is gone; nothing where some were missed.
pub(super) async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&T, Option<NodeSignal>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            // Hints may be lost, the waiters' own timers replace them.
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
        // Somebody forges a hint as soon as it would be received.
        while now.since(begun) < Duration::from_secs(1) {
            now = now + floor.wake(now) + Duration::from_micros(200);
            woken += 1;
        }
        assert!((BURST..=BURST + 102).contains(&woken), "{woken}");
        // It is over: nothing is held back any more.
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
