//! Fences that are ahead of this machine's clock, by key: the next proposal must be larger.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Without an entry, the next attempt may need one more round.
const MOST: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct FencesAhead {
    /// Fencing token, and sequence number of the answer.
    seen: HashMap<Arc<str>, (u64, u64)>,
    order: BTreeMap<u64, Arc<str>>,
    next: u64,
}

impl FencesAhead {
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    pub(super) fn of(&self, key: &str) -> Option<u64> {
        self.seen.get(key).map(|(fence, _)| *fence)
    }

    pub(super) fn saw(&mut self, key: &str, fence: u64) {
        self.next += 1;
        let at = self.next;
        if let Some((known, before)) = self.seen.get_mut(key) {
            *known = fence;
            let key = self.order.remove(&std::mem::replace(before, at));
            self.order.extend(key.map(|key| (at, key)));
            return;
        }
        if self.seen.len() >= MOST
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.seen.remove(&oldest);
        }
        let key: Arc<str> = key.into();
        self.seen.insert(Arc::clone(&key), (fence, at));
        self.order.insert(at, key);
    }

    pub(super) fn forget(&mut self, key: &str) {
        if let Some((_, at)) = self.seen.remove(key) {
            self.order.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_was_seen_longest_ago_is_forgotten_first() {
        let mut ahead = FencesAhead::default();
        // `a` is stored first and again at the end, so `z` is the oldest by time.
        ahead.saw("a", 1);
        ahead.saw("z", 1);
        for i in 2..MOST as u64 {
            ahead.saw(&format!("m{i}"), i);
        }
        ahead.saw("a", 7);
        ahead.saw("new", 9);
        assert_eq!((ahead.of("a"), ahead.of("z"), ahead.of("new")), (Some(7), None, Some(9)));
        assert_eq!((ahead.seen.len(), ahead.order.len()), (MOST, MOST));
        ahead.forget("a");
        ahead.forget("a");
        assert_eq!(
            (ahead.of("a"), ahead.seen.len(), ahead.order.len()),
            (None, MOST - 1, MOST - 1)
        );
    }
}
