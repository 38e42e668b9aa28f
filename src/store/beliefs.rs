//! What a client believes of one server: the records of claims that it has seen last, and locks
//! that were not as it had assumed. A wrong belief costs a round trip, and changes no reply.

use std::collections::HashMap;

use super::planned::Planned;
use super::record::{Shown, value};
use super::{lists, lock, locks, permits, records};
use crate::name::LockKeys;
use crate::op::{Op, RecordKey};
use crate::rules::header::Header;

/// Running claims of one client, and those that it gave back. With more it believes nothing.
const MOST: usize = 16_384;
/// Bytes of their steps, and of results. With more it believes only the last one.
const MOST_BYTES: usize = 8 << 20;
/// Readers of one lock that are written together. Lua passes at most some thousand values to a
/// command.
const RUN_MAX: usize = 1_000;
/// Lists of candidates, of some 70 kB each at most.
const LISTS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Beliefs {
    records: HashMap<RecordKey, Shown>,
    /// Of the records.
    bytes: usize,
    /// For the next plan alone.
    locks: HashMap<LockKeys, Vec<lock::Shown>>,
    lists: HashMap<RecordKey, lists::Believed>,
}

impl Beliefs {
    pub(crate) fn needs_plans(&self, ops: &[Op]) -> bool {
        let is_shown = |op: &Op| {
            let keys = op.lock_keys().filter(|_| !self.locks.is_empty());
            keys.is_some_and(|keys| self.locks.contains_key(keys))
        };
        let is_planned = |op: &Op| op.own_key().is_some() || locks::is_planned(op);
        ops.iter().any(|op| is_planned(op) || is_shown(op))
    }

    /// For the ops, each with those behind it that are written with it. `None` for one that needs
    /// no plan, or is written with another.
    pub(crate) fn plan_all(&mut self, h: &Header, ops: &[Op]) -> Vec<Option<Planned>> {
        let mut plans = Vec::with_capacity(ops.len());
        // Before this place each op has a plan of its own.
        let mut single = 0;
        let of_permits: Vec<&LockKeys> = ops.iter().filter_map(permits::keys).collect();
        while let Some(op) = ops.get(plans.len()) {
            let run = &ops[plans.len()..];
            let is_same = |other: &&Op| locks::are_readers(op, other);
            let count = run.iter().take(RUN_MAX).take_while(is_same).count().max(1);
            let many = if plans.len() < single { 1 } else { count };
            let planned = self.plan(h, &run[..many]);
            let together = planned.as_ref().map_or(1, Planned::count);
            if together < many {
                single = plans.len() + count;
            }
            let end = plans.len() + together;
            plans.push(planned);
            plans.resize(end, None);
        }
        for keys in of_permits {
            self.locks.remove(keys);
        }
        plans
    }

    /// What is planned for a record is believed to come true.
    fn plan(&mut self, h: &Header, run: &[Op]) -> Option<Planned> {
        let op = run.first()?;
        if let Op::Enlist(enlist) = op {
            let believed = self.lists.remove(&enlist.key).unwrap_or_default();
            return Some(Planned::List(lists::plan(h, enlist, believed)));
        }
        let Some(key) = op.record_key() else {
            let keys = op.lock_keys().filter(|_| locks::can_be_planned(op));
            // The slots of a semaphore are one key, and most ops of a batch are about several.
            let shown = match permits::keys(op) {
                Some(keys) => self.locks.get(keys).cloned(),
                None => keys.and_then(|keys| self.locks.remove(keys)),
            };
            return locks::plan(h, run, shown).map(Planned::Lock);
        };
        let planned = records::plan(h, op, self.records.get(key).cloned());
        if planned.becomes.is_some() {
            self.learn(key, planned.becomes.clone(), false);
        }
        Some(Planned::Record(planned))
    }

    pub(crate) fn learn_lock(&mut self, keys: &LockKeys, shown: Vec<lock::Shown>) {
        if self.locks.len() >= MOST {
            self.locks.clear();
        }
        self.locks.insert(keys.clone(), shown);
    }

    pub(crate) fn learn_list(&mut self, key: &RecordKey, shown: lists::Believed) {
        if self.lists.len() >= LISTS {
            self.lists.clear();
        }
        self.lists.insert(key.clone(), shown);
    }

    /// The server has executed nothing of this. The last plan comes first.
    pub(crate) fn forget(&mut self, planned: Planned) {
        if let Planned::Record(records::Planned { op, believed, .. }) = planned
            && let Some(key) = op.record_key()
        {
            self.learn(key, believed, true);
        }
    }

    /// A result is kept only for the next plan: claims that expect no record are shown it in one
    /// round trip, too.
    pub(crate) fn learn(&mut self, key: &RecordKey, shown: Option<Shown>, for_next_plan: bool) {
        let before = self.records.remove(key);
        self.bytes -= before.map_or(0, |shown| value(&shown.row).len());
        // What was not read is as large here as it is there.
        let is_small = |s: &Shown| s.row.result.is_none() && (s.is_whole || s.row.steps.is_none());
        let Some(shown) = shown.filter(|shown| for_next_plan || is_small(shown)) else { return };
        let bytes = value(&shown.row).len();
        if self.records.len() >= MOST || self.bytes + bytes > MOST_BYTES {
            // Without it the next answer that has room shows the whole result. The one for which
            // this answer had room is believed, so each answer settles a claim.
            if !shown.is_whole && shown.row.result.is_some() {
                return;
            }
            self.records.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.records.insert(key.clone(), shown);
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
            assert!(beliefs.records.len() <= MOST);
        }
        let list = 64 << 10;
        for i in 0..3 * MOST_BYTES / list {
            beliefs.learn(&key(i), Some(shown(list, 0)), false);
            let bytes: usize = beliefs.records.values().map(|shown| value(&shown.row).len()).sum();
            assert_eq!(bytes, beliefs.bytes);
            assert!((list..=MOST_BYTES).contains(&bytes), "{bytes} bytes");
        }
    }

    #[test]
    fn the_last_result_is_believed_for_the_next_plan_whatever_its_length() {
        let mut beliefs = Beliefs::default();
        for i in 0..4 {
            beliefs.learn(&key(i), Some(shown(0, MOST_BYTES + 1)), true);
            assert_eq!(beliefs.records.keys().collect::<Vec<_>>(), [&key(i)]);
        }
        let cut = Shown { is_whole: false, ..shown(0, MOST_BYTES) };
        beliefs.learn(&key(9), Some(cut), true);
        assert_eq!(beliefs.records.keys().collect::<Vec<_>>(), [&key(3)]);
        beliefs.learn(&key(3), Some(shown(0, 1)), false);
        assert_eq!((beliefs.records.len(), beliefs.bytes), (0, 0));
    }
}
