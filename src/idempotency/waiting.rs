//! What consumers leave at their brokers until an operator has acted, for the health and the
//! metrics of a namespace.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::Idempotency;
use super::metrics::Counters;
use crate::health::Waiting;
use crate::sync::SyncMutex;

/// Since when, and why.
type Cause = Option<(Instant, String)>;

/// What one consumer leaves at its broker until an operator has acted. While this value exists,
/// [`Idempotency::health`] and the metrics of the namespace report it.
#[derive(Debug)]
pub struct Waits {
    counters: Arc<Counters>,
    state: SyncMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    takes_none: Cause,
    held: u64,
    holds: Cause,
}

#[derive(Debug, Default)]
pub(super) struct AllWaits(SyncMutex<Vec<Weak<Waits>>>);

impl AllWaits {
    pub(super) fn read(&self) -> Vec<Waiting> {
        let all = self.0.lock().clone();
        all.iter().filter_map(Weak::upgrade).flat_map(|one| one.read()).collect()
    }
}

impl Waits {
    /// Makes the report of a consumer with the results of this namespace.
    pub fn new(keys: &Idempotency) -> Arc<Self> {
        let new = Self { counters: Arc::clone(&keys.counters), state: SyncMutex::default() };
        let new = Arc::new(new);
        let mut all = keys.waits.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&new));
        drop(all);
        new
    }

    /// Reports since when, and why, the consumer takes no messages at all; `None` if it takes some.
    pub fn takes_none(&self, why: Option<(Instant, String)>) {
        self.state.lock().takes_none = why;
    }

    /// Reports how many messages are held, and since when, and why.
    pub fn holds(&self, messages: u64, why: Option<(Instant, String)>) {
        let mut state = self.state.lock();
        self.counters.holds(messages.cast_signed() - state.held.cast_signed());
        (state.held, state.holds) = (messages, why);
    }

    /// Returns the report, as it is a part of [`Idempotency::health`].
    pub fn read(&self) -> Vec<Waiting> {
        let state = self.state.lock();
        let waiting = |messages, (since, why): &(Instant, String)| Waiting {
            messages,
            waited: since.elapsed(),
            why: why.clone(),
        };
        let none = state.takes_none.as_ref().map(|cause| waiting(0, cause));
        none.into_iter().chain(state.holds.as_ref().map(|c| waiting(state.held, c))).collect()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.holds(0, None);
    }
}
