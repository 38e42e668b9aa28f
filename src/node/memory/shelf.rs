//! A map whose entries expire by the clock: on access and by sweeps, so that names that are never
//! used again do not accumulate.

use std::collections::HashMap;
use std::sync::Arc;

const SWEEP_MIN: usize = 1024;

pub(super) trait Perish: Default {
    /// Returns false if nothing of the entry is left at `now`.
    fn refresh(&mut self, now: u64) -> bool;
}

/// The order in which the map iterates has no effect.
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
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn live(&mut self, key: &str, now: u64) -> Option<&mut V> {
        if !self.map.get_mut(key)?.refresh(now) {
            self.map.remove(key);
        }
        self.map.get_mut(key)
    }

    pub(super) fn open(&mut self, key: &str, now: u64) -> &mut V {
        if self.live(key, now).is_none() && self.map.len() >= self.sweep_at {
            self.map.retain(|_, v| v.refresh(now));
            // Only when the map has doubled, so sweeps cost constant time per insertion.
            self.sweep_at = SWEEP_MIN.max(2 * self.map.len());
            self.map.shrink_to(self.sweep_at);
        }
        self.map.entry(Arc::from(key)).or_default()
    }

    /// Puts `value` in the place of the entry, or removes the entry if nothing of `value` is left.
    pub(super) fn put(&mut self, key: &str, mut value: V, now: u64) {
        if !value.refresh(now) {
            self.map.remove(key);
        } else if let Some(entry) = self.map.get_mut(key) {
            *entry = value;
        } else {
            *self.open(key, now) = value;
        }
    }
}
