//! Results that this process has seen stored, by choice (feature `cache`).
//!
//! Only what was answered as the key's result gets in, so it is on a majority, at the namespace's
//! durability level, and final (idempotency 1).

use std::sync::Arc;

use crate::driver::claim::ClaimTerms;

/// The value that was kept, if it was.
type Kept = Option<Arc<[u8]>>;

/// Empty unless [`IdempotencyBuilder::cache`](super::IdempotencyBuilder::cache) was called.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    #[cfg(feature = "cache")]
    results: Option<moka::sync::Cache<crate::op::RecordKey, Entry>>,
}

#[cfg(feature = "cache")]
#[derive(Clone, Debug)]
struct Entry {
    /// As the call said it that was answered with it.
    fingerprint: Option<crate::op::FingerprintBytes>,
    kept: Kept,
}

#[cfg(feature = "cache")]
impl Cache {
    /// Of at most so many bytes, keys and what it needs for itself included; each entry for so
    /// long.
    pub(super) fn new(bytes: u64, keep: std::time::Duration) -> Self {
        const OWN: usize = 200;
        let size = |key: &crate::op::RecordKey, entry: &Entry| {
            let value = entry.kept.as_ref().map_or(0, |value| value.len());
            u32::try_from(key.len() + value + OWN).unwrap_or(u32::MAX)
        };
        let results = moka::sync::Cache::builder().max_capacity(bytes).weigher(size);
        Self { results: Some(results.time_to_live(keep).build()) }
    }

    /// The result of a call that says the same of its request as the one that was answered.
    pub(super) fn get(&self, terms: &ClaimTerms) -> Option<Kept> {
        let entry = self.results.as_ref()?.get(&terms.key)?;
        (entry.fingerprint == terms.fingerprint).then_some(entry.kept)
    }

    pub(super) fn put(&self, terms: &ClaimTerms, kept: &Kept) {
        if let Some(results) = &self.results {
            let entry = Entry { fingerprint: terms.fingerprint, kept: kept.clone() };
            results.insert(Arc::clone(&terms.key), entry);
        }
    }
}

#[cfg(not(feature = "cache"))]
#[expect(clippy::unused_self, reason = "it has nothing without the feature")]
impl Cache {
    pub(super) fn get(&self, _: &ClaimTerms) -> Option<Kept> {
        None
    }

    pub(super) fn put(&self, _: &ClaimTerms, _: &Kept) {}
}
