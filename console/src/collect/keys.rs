//! The states of idempotency keys, of one namespace in each reading.

use std::collections::BTreeMap;

use palisade_ops::{KeyFacts, KeyState, Records};

use crate::history::{Entry, Level, now_ms};
use crate::model::KeyRow;
use crate::start::Shared;

/// Maximum number of keys whose records one request reads.
const MOST: usize = 200;
/// Time in ms after which a key that may change is read again.
const FRESH: u64 = 300;

/// Preference, in ms, for keys whose state may change by itself (see `may_change`). Such a key is
/// read before another key, unless the last reading of the other key is older by more than this
/// time. All keys are read again, because a call or an operator may change each of them.
const PREFERRED: u64 = 2_000;

/// Returns the place of a key in the order of readings: the key with the smallest place is read
/// next. `at` is the time of the key's last reading.
fn place(at: u64, may_change: bool, now: u64) -> u64 {
    let is_due = may_change && now.saturating_sub(at) > FRESH;
    at + if is_due { 0 } else { PREFERRED }
}

/// Returns true if the state of the key may change without a new call under this key, because the
/// key was not read yet or a claim of it is running.
fn may_change(row: &KeyRow) -> bool {
    row.facts.as_ref().is_none_or(|facts| facts.state == KeyState::Running)
}

pub(super) type Chosen = (Records, Vec<String>);

/// Returns the keys whose records are to be read now. All are of one namespace: that of the key
/// which is the next to be read.
pub(super) fn to_read(shared: &Shared) -> Option<Chosen> {
    choose(shared, |_| true)
}

/// Returns keys that were never read, of one namespace.
pub(super) fn new(shared: &Shared) -> Option<Chosen> {
    choose(shared, |row| row.at == 0)
}

fn choose(shared: &Shared, is_meant: impl Fn(&KeyRow) -> bool) -> Option<Chosen> {
    let now = now_ms();
    let model = shared.model();
    let meant = model.keys.iter().filter(|(_, row)| is_meant(row));
    let placed = meant.map(|(id, row)| (place(row.at, may_change(row), now), id));
    let ((_, neediest), rest) = (placed.clone().min()?, placed);
    let keys = rest.filter(|(_, (namespace, _))| *namespace == neediest.0);
    let mut keys: Vec<_> = keys.map(|(place, (_, key))| (place, key)).collect();
    if keys.len() > MOST {
        keys.select_nth_unstable(MOST);
        keys.truncate(MOST);
    }
    let records = Records::new(&shared.deployment, shared.prefix(), &neediest.0).ok()?;
    Some((records, keys.into_iter().map(|(_, key)| key.clone()).collect()))
}

/// Stores the records of these keys in the model. `unread` are the nodes that could not be read.
pub(super) fn note(
    shared: &Shared,
    (records, keys): Chosen,
    (facts, unread): (Vec<KeyFacts>, &[(String, String)]),
) {
    let mut happened = Vec::new();
    {
        let mut model = shared.model();
        if 2 * unread.len() >= model.votes.len().max(1) {
            return;
        }
        let mut found: BTreeMap<String, _> =
            facts.into_iter().map(|facts| (facts.key.clone(), facts)).collect();
        for key in keys {
            let id = (records.namespace().to_owned(), key);
            let Some(facts) = found.remove(&id.1) else {
                if unread.is_empty() {
                    model.keys.remove(&id);
                } else if let Some(row) = model.keys.get_mut(&id) {
                    // Some nodes could not be read, so the key may be stored there. The key's row
                    // in the model counts as just read, so that the other keys are read before this
                    // key is tried again.
                    row.at = now_ms();
                }
                continue;
            };
            let Some(row) = model.keys.get_mut(&id) else { continue };
            let before = row.facts.as_ref().map(|facts| facts.state);
            if before.is_some_and(|before| before != facts.state) {
                happened.extend(change(&id, facts.state));
            }
            (row.facts, row.at) = (Some(facts), now_ms());
        }
    }
    shared.all_happened(happened);
}

fn change((namespace, key): &(String, String), state: KeyState) -> Option<Entry> {
    let name = format!("{namespace}/{key}");
    match state {
        KeyState::Lapsed => {
            let text =
                format!("the run of key {key:?} (namespace {namespace:?}) ended without a result");
            Some(Entry::of(Level::Warn, "key_parked", &name, text))
        }
        KeyState::Stored => {
            let text = format!("key {key:?} (namespace {namespace:?}) has its result");
            Some(Entry::of(Level::Info, "key_done", &name, text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_key_does_not_keep_the_other_namespaces_from_being_read() {
        let mut all = [("orders", true, 0), ("mails", false, 0), ("jobs", false, 0)];
        let mut read = Vec::new();
        for now in (100_000..120_000).step_by(400) {
            let next = all.iter_mut().min_by_key(|(_, changes, at)| place(*at, *changes, now));
            let (name, _, at) = next.unwrap();
            *at = now;
            read.push(*name);
        }
        let count = |name: &str| read.iter().filter(|one| **one == name).count();
        assert!(count("mails") >= 5 && count("jobs") >= 5, "{read:?}");
        assert!(count("orders") > count("mails") + count("jobs"), "{read:?}");
    }
}
