//! Wake-up hints: who waits for which key, and which node has spoken of it.
//!
//! A release reaches the nodes one after the other; waking a waiter at the first hint would make it
//! meet the rest of the old lock. So one waiter is woken when a *majority* of nodes has hinted.
//! Observers, who only read, are woken at each hint. Hints may be lost: every waiter has its own
//! timer as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::quorum::majority::majority;

#[derive(Debug)]
pub(crate) struct Hints {
    need: u32,
    keys: Mutex<HashMap<Arc<str>, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Nodes that hinted since the last wake-up.
    nodes: u32,
    waiters: usize,
    queue: Arc<Notify>,
    observers: Arc<Notify>,
}

impl Hints {
    pub(crate) fn new(n: usize) -> Self {
        Self { need: majority(n) as u32, keys: Mutex::default() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node said that something about the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(key) else { return };
        entry.observers.notify_waiters();
        entry.nodes |= 1 << node;
        if entry.nodes.count_ones() >= self.need {
            entry.nodes = 0;
            entry.queue.notify_one();
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
        let (queue, observers) = (Arc::clone(&entry.queue), Arc::clone(&entry.observers));
        drop(keys);
        Waiting { hints: Arc::clone(self), key, queue, observers }
    }
}

/// A place among the waiters; given up on drop.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    queue: Arc<Notify>,
    observers: Arc<Notify>,
}

impl Waiting {
    /// Resolves when it is this waiter's turn to try. First come, first woken.
    ///
    /// # Cancellation safety
    /// A turn that was given to a dropped future passes to the next waiter.
    pub(crate) async fn turn(&self) {
        self.queue.notified().await;
    }

    /// Resolves at any hint for the key that comes after this call (not: after the first poll), so
    /// that one may read in between.
    ///
    /// # Cancellation safety
    /// Dropping it loses nothing but the hint.
    pub(crate) fn any(&self) -> Notified<'_> {
        self.observers.notified()
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
