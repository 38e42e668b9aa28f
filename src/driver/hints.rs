//! Wake-up hints: who waits for which key, and which node has spoken of it.
//!
//! A release reaches the nodes one after the other; waking a waiter at the first hint would make it
//! meet the rest of the old lock. So one waiter is woken when a *majority* of nodes has hinted.
//! Observers, who only read, are woken at each hint. Those who wait for the end of a claim are
//! woken by a majority too, all at once: it is the same answer for all. Hints may be lost: every
//! waiter has its own timer as well. And hints may be forged, so wake-ups that bring nothing are
//! held apart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::{Notified, OwnedNotified};

use crate::quorum::majority::majority;
use crate::time::Moment;

/// On average wake-ups are so far apart at least, but for those that brought the lock.
const APART: Duration = Duration::from_millis(10);
/// So many may come at once.
const BURST: u32 = 16;

/// Holds wake-ups apart: forging a hint costs much less than the requests that follow it.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// When the next would come if they came evenly.
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
    keys: Mutex<HashMap<Arc<str>, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// How often each node hinted, and how often a majority did.
    heard: Vec<u32>,
    turns: u32,
    waiters: usize,
    queue: Arc<Notify>,
    observers: Arc<Notify>,
    /// Those who wait for the end of the same claim.
    all: Arc<Notify>,
    floor: Floor,
}

impl Hints {
    pub(crate) fn new(n: usize) -> Self {
        Self { n, keys: Mutex::default() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node said that something about the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(key) else { return };
        entry.observers.notify_waiters();
        // Counted node by node: a straggler's hint of the last release is none of the next.
        entry.heard.resize(self.n, 0);
        entry.heard[node] += 1;
        let ahead = entry.heard.iter().filter(|heard| **heard > entry.turns).count();
        if ahead >= majority(self.n) {
            entry.turns += 1;
            entry.queue.notify_one();
            entry.all.notify_waiters();
        }
    }

    /// Takes a place among those who wait for the key.
    pub(crate) fn wait(self: &Arc<Self>, key: &str) -> Waiting {
        let mut keys = self.keys();
        let key: Arc<str> = match keys.get_key_value(key) {
            Some((k, _)) => Arc::clone(k),
            None => Arc::from(key),
        };
        let entry = keys.entry(Arc::clone(&key)).or_default();
        entry.waiters += 1;
        let [queue, observers, all] = [&entry.queue, &entry.observers, &entry.all].map(Arc::clone);
        drop(keys);
        Waiting { hints: Arc::clone(self), key, queue, observers, all }
    }
}

/// A place among the waiters; given up on drop.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    queue: Arc<Notify>,
    observers: Arc<Notify>,
    all: Arc<Notify>,
}

impl Waiting {
    /// Resolves when it is this waiter's turn to try. First come, first woken.
    ///
    /// # Cancellation safety
    /// A turn that was given to a dropped future passes to the next waiter.
    pub(crate) async fn turn(&self) {
        self.queue.notified().await;
    }

    /// It was this waiter's turn at `now`: for how long it waits before it tries. All who wait for
    /// a key are held apart together.
    pub(crate) fn floor(&self, now: Moment) -> Duration {
        self.hints.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.floor.wake(now))
    }

    /// The hint was true: the lock had been given back, whoever has it now.
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
        self.observers.notified()
    }

    /// Resolves when a majority of nodes has hinted after this call (not: after the first poll),
    /// for everybody who waits: the end of a claim is news for all of them.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn ended(&self) -> OwnedNotified {
        Arc::clone(&self.all).notified_owned()
    }

    /// Lets the next waiter try: it will be refused and so renew our request for hints at the
    /// nodes, which forgot it when they hinted.
    pub(crate) fn pass_on(&self) {
        self.queue.notify_one();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut keys = self.hints.keys();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.waiters -= 1;
            if entry.waiters == 0 {
                keys.remove(&self.key);
            }
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
