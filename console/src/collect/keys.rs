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
            // Keys that run or were never read come first, then those whose reading is the oldest.
            let mut by_namespace: BTreeMap<&str, Vec<(bool, u64, &str)>> = BTreeMap::new();
            for ((namespace, key), row) in &model.keys {
                let is_due = may_change(row) && now.saturating_sub(row.at) > FRESH;
                by_namespace.entry(namespace).or_default().push((!is_due, row.at, key));
            }
            for keys in by_namespace.values_mut() {
                keys.sort_unstable();
            }
            let neediest = by_namespace.into_iter().min_by_key(|(_, keys)| (keys[0].0, keys[0].1));
            let Some((namespace, keys)) = neediest else { return };
            let keys = keys.into_iter().take(MOST).map(|(_, _, key)| key.to_owned());
            (namespace.to_owned(), keys.collect::<Vec<_>>())
        };
        let Ok(records) = Records::new(&shared.deployment, shared.prefix(), &namespace) else {
            return;
        };
        self.requests += 1;
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
