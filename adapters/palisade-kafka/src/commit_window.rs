//! Computes the offset that may be committed for a partition. All messages before this offset are
//! finished.

use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Offsets of the messages that were read and are not finished yet.
    open: BTreeSet<i64>,
    /// The offset after the last message that was read from the partition.
    next: Option<i64>,
    /// The offset that librdkafka commits next, or has committed.
    stored: Option<i64>,
}

impl Window {
    pub(crate) fn begin(&mut self, offset: i64) {
        self.open.insert(offset);
        self.next = Some(offset + 1);
    }

    pub(crate) fn finish(&mut self, offset: i64) {
        self.open.remove(&offset);
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the largest offset before which all messages are finished; `None` if no message was
    /// read.
    fn prefix(&self) -> Option<i64> {
        self.open.first().copied().or(self.next)
    }

    /// Returns the offset to commit, unless librdkafka has stored it already.
    pub(crate) fn unstored(&self) -> Option<i64> {
        self.prefix().filter(|prefix| self.stored != Some(*prefix))
    }

    /// Records that librdkafka has stored this offset. Returns true if the offset may be below the
    /// offset that was committed last: if it is the first offset of this assignment, or if it is
    /// lower than the offset before, for example because the topic was deleted and created again.
    /// librdkafka does not commit a lower offset by itself.
    pub(crate) fn stored(&mut self, offset: i64) -> bool {
        self.stored.replace(offset).is_none_or(|before| offset < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_finished_without_a_gap_is_committed() {
        let mut window = Window::default();
        assert_eq!(window.unstored(), None, "nothing was read");
        // These offsets have a hole (7 and 8), because the compaction of a topic removes messages.
        for offset in [5, 6, 9, 10] {
            window.begin(offset);
        }
        let after = |window: &mut Window, offset| {
            window.finish(offset);
            window.unstored()
        };
        assert_eq!(after(&mut window, 6), Some(5), "5 is not finished");
        window.stored(5);
        assert_eq!(after(&mut window, 10), None, "nothing new");
        assert_eq!(after(&mut window, 5), Some(9));
        window.stored(9);
        assert_eq!((after(&mut window, 9), window.open()), (Some(11), 0));
    }

    #[test]
    fn no_order_of_finishing_commits_what_is_open() {
        // Builds all orders in which five messages can be finished.
        let mut orders = vec![vec![]];
        for _ in 0..5 {
            let longer = orders.iter().flat_map(|order: &Vec<i64>| {
                let rest = (0..5).filter(|n| !order.contains(n));
                rest.map(|n| [order.as_slice(), &[n]].concat()).collect::<Vec<_>>()
            });
            orders = longer.collect();
        }
        assert_eq!(orders.len(), 120);
        for order in orders {
            let mut window = Window::default();
            (0..5).for_each(|offset| window.begin(offset));
            for done in 1..=5 {
                window.finish(order[done - 1]);
                let finished = &order[..done];
                let want = (0..=5).find(|n| !finished.contains(n)).unwrap();
                assert_eq!(window.prefix(), Some(want), "{finished:?}");
            }
        }
    }
    #[test]
    fn a_topic_that_begins_again_is_followed() {
        let mut window = Window::default();
        window.begin(1_000);
        window.finish(1_000);
        assert!(window.stored(1_001), "the group may have committed more");
        window.begin(0);
        assert_eq!(window.unstored(), Some(0));
        window.finish(0);
        assert_eq!(window.unstored(), Some(1));
        assert!(window.stored(1));
        window.begin(1);
        window.finish(1);
        assert_eq!((window.unstored(), window.stored(2)), (Some(2), false));
    }
}
