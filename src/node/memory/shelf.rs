//! A map whose entries die by the clock: lazily when touched, and by a sweep so that names that are
//! never used again do not accumulate.

use std::collections::HashMap;
use std::sync::Arc;

/// Below this many entries no sweep is worth its time.
const SWEEP_MIN: usize = 1024;

/// An entry that knows when it is gone.
pub(super) trait Perish: Default {
    /// Drops what has expired at `now`; false if nothing of the entry is left.
    fn refresh(&mut self, now: u64) -> bool;
}

/// Entries by key. Their order is never visible.
#[derive(Clone, Debug)]
pub(super) struct Shelf<V> {
    map: HashMap<Arc<str>, V>,
    sweep_at: usize,
}

impl<V> Default for Shelf<V> {
    fn default() -> Self {
        Self { map: HashMap::new(), sweep_at: SWEEP_MIN }
    }
}

impl<V: Perish> Shelf<V> {
    /// Entries in memory, expired ones that were not yet swept included.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// The entry if anything of it is alive.
    pub(super) fn live(&mut self, key: &str, now: u64) -> Option<&mut V> {
        if !self.map.get_mut(key)?.refresh(now) {
            self.map.remove(key);
        }
        self.map.get_mut(key)
    }

    /// The entry, made if it is not there.
    pub(super) fn open(&mut self, key: &str, now: u64) -> &mut V {
        if self.live(key, now).is_none() && self.map.len() >= self.sweep_at {
            self.map.retain(|_, v| v.refresh(now));
            // Doubling makes the sweeps cost a constant per insertion.
            self.sweep_at = SWEEP_MIN.max(2 * self.map.len());
            self.map.shrink_to(self.sweep_at);
        }
        self.map.entry(Arc::from(key)).or_default()
    }
}
