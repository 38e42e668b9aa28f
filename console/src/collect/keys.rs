//! The states of idempotency keys. Each reading asks for the keys of one namespace.

use std::collections::BTreeMap;

use palisade_ops::{KeyState, Records};

use super::Collector;
use crate::history::{Entry, Level, now_ms};
use crate::model::KeyRow;

/// Number of keys in one reading.
const MOST: usize = 400;
/// Age of a reading after which a key that may change is read again.
const FRESH: u64 = 1_500;

/// Time in ms by which the reading of a key that may change is preferred. A key that does not
/// change is read again nevertheless, because a call or another operator may change it.
const PREFERRED: u64 = 10_000;

/// Returns the place of a key in the order of readings, of which the smallest is next. `at` is the
/// time of its last reading.
fn place(at: u64, may_change: bool, now: u64) -> u64 {
    let is_due = may_change && now.saturating_sub(at) > FRESH;
    at + if is_due { 0 } else { PREFERRED }
}

/// Returns true if the key may change without a further call.
fn may_change(row: &KeyRow) -> bool {
    row.facts.as_ref().is_none_or(|facts| facts.state == KeyState::Running)
}

impl Collector {
    /// Reads the keys of the namespace that needs it most.
    pub(super) async fn records(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let now = now_ms();
        let (namespace, keys) = {
            let model = shared.model();
            let mut by_namespace: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
            for ((namespace, key), row) in &model.keys {
                by_namespace
                    .entry(namespace)
                    .or_default()
                    .push((place(row.at, may_change(row), now), key));
            }
            for keys in by_namespace.values_mut() {
                keys.sort_unstable();
            }
            let neediest = by_namespace.into_iter().min_by_key(|(_, keys)| keys[0].0);
            let Some((namespace, keys)) = neediest else { return };
            let keys = keys.into_iter().take(MOST).map(|(_, key)| key.to_owned());
            (namespace.to_owned(), keys.collect::<Vec<_>>())
        };
        let Ok(records) = Records::new(&shared.deployment, shared.prefix(), &namespace) else {
            return;
        };
        let Ok((facts, unread)) = self.survey.records(&records, &keys).await else { return };
        let mut happened = Vec::new();
        {
            let mut model = shared.model();
            if 2 * unread.len() >= model.votes.len().max(1) {
                return;
            }
            let mut found: BTreeMap<String, _> =
                facts.into_iter().map(|facts| (facts.key.clone(), facts)).collect();
            for key in keys {
                let id = (namespace.clone(), key);
                let Some(facts) = found.remove(&id.1) else {
                    if unread.is_empty() {
                        model.keys.remove(&id);
                    } else if let Some(row) = model.keys.get_mut(&id) {
                        // The other keys come first, and then this one again.
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
        for now in (100_000..200_000).step_by(2_000) {
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
