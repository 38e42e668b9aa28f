//! What a client believes of the records on one server: those of claims that it has seen last. A
//! wrong belief costs a round trip, and changes no reply.

use std::collections::HashMap;

use super::record::{Shown, value};
use super::records::{Planned, plan};
use crate::op::{Op, RecordKey};
use crate::rules::header::Header;

/// Running claims of one client, and those that it gave back. With more it believes nothing.
const MOST: usize = 16_384;
/// Bytes of their steps, and of results. With more it believes only the last one.
const MOST_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct Beliefs {
    shown: HashMap<RecordKey, Shown>,
    bytes: usize,
}

impl Beliefs {
    /// `None` for an op on no record. What is planned is believed to come true.
    pub(crate) fn plan(&mut self, h: &Header, op: &Op) -> Option<Planned> {
        let key = op.record_key()?;
        let planned = plan(h, op, self.shown.get(key).cloned());
        if planned.becomes.is_some() {
            self.learn(key, planned.becomes.clone(), false);
        }
        Some(planned)
    }

    /// The server has executed nothing of this. The last plan comes first.
    pub(crate) fn forget(&mut self, planned: Planned) {
        if let Some(key) = planned.op.record_key().cloned() {
            self.learn(&key, planned.believed, true);
        }
    }

    /// A result is kept only for the next plan: claims that expect no record are shown it in one
    /// round trip, too.
    pub(crate) fn learn(&mut self, key: &RecordKey, shown: Option<Shown>, for_next_plan: bool) {
        let before = self.shown.remove(key);
        self.bytes -= before.map_or(0, |shown| value(&shown.row).len());
        // What was not read is as large here as it is there.
        let is_small = |s: &Shown| s.row.result.is_none() && (s.is_whole || s.row.steps.is_none());
        let Some(shown) = shown.filter(|shown| for_next_plan || is_small(shown)) else { return };
        let bytes = value(&shown.row).len();
        if self.shown.len() >= MOST || self.bytes + bytes > MOST_BYTES {
            // Without it the next answer that has room shows the whole result. The one for which
            // this answer had room is believed, so each answer settles a claim.
            if !shown.is_whole && shown.row.result.is_some() {
                return;
            }
            self.shown.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.shown.insert(key.clone(), shown);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::op::{StoredRecord, StoredSteps};
    use crate::rules::records::Row;
    use crate::token::FencingToken;

    fn shown(steps: usize, result: usize) -> Shown {
        let token = FencingToken::new(5);
        let some = |len: usize| (len > 0).then(|| Arc::from(vec![b'v'; len]));
        let steps = some(steps).map(|list| StoredSteps { token, list });
        let result = some(result).map(|value| StoredRecord { token, value: Some(value) });
        Shown {
            row: Row { fence: 5, steps, result, ..Row::default() },
            is_whole: true,
            is_awaited: false,
        }
    }

    fn key(i: usize) -> RecordKey {
        format!("k{i}").as_str().into()
    }

    #[test]
    fn what_is_believed_has_a_limit_in_records_and_in_bytes() {
        let mut beliefs = Beliefs::default();
        for i in 0..3 * MOST {
            beliefs.learn(&key(i), Some(shown(0, 0)), false);
            assert!(beliefs.shown.len() <= MOST);
        }
        let list = 64 << 10;
        for i in 0..3 * MOST_BYTES / list {
            beliefs.learn(&key(i), Some(shown(list, 0)), false);
            let bytes: usize = beliefs.shown.values().map(|shown| value(&shown.row).len()).sum();
            assert_eq!(bytes, beliefs.bytes);
            assert!((list..=MOST_BYTES).contains(&bytes), "{bytes} bytes");
        }
    }

    #[test]
    fn the_last_result_is_believed_for_the_next_plan_whatever_its_length() {
        let mut beliefs = Beliefs::default();
        for i in 0..4 {
            beliefs.learn(&key(i), Some(shown(0, MOST_BYTES + 1)), true);
            assert_eq!(beliefs.shown.keys().collect::<Vec<_>>(), [&key(i)]);
        }
        let cut = Shown { is_whole: false, ..shown(0, MOST_BYTES) };
        beliefs.learn(&key(9), Some(cut), true);
        assert_eq!(beliefs.shown.keys().collect::<Vec<_>>(), [&key(3)]);
        beliefs.learn(&key(3), Some(shown(0, 1)), false);
        assert_eq!((beliefs.shown.len(), beliefs.bytes), (0, 0));
    }
}
