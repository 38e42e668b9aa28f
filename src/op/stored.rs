//! What nodes store, as they show it.

use std::sync::Arc;
use std::time::Duration;

use crate::token::{FencingToken, OwnerToken};

/// A completed result as a node stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The ballot it was stored under.
    pub token: FencingToken,
    /// The result's bytes; `None` if it was too large to be kept.
    pub value: Option<Arc<[u8]>>,
}

/// The finished steps of a handler as a node stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSteps {
    /// The ballot they were stored under.
    pub token: FencingToken,
    /// All of them, in the form of the caller.
    pub list: Arc<[u8]>,
}

/// The holder of a lock on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner's token; `None` for a foreign client's value. [`OwnerToken::KEPT`] while the lock
    /// is free and kept for a holder that may still be there.
    pub owner: Option<OwnerToken>,
    /// This node's fence.
    pub fence: u64,
    /// Until expiry; `None` without.
    pub remaining: Option<Duration>,
    /// The holder's metadata.
    pub meta: Option<Arc<[u8]>>,
}

/// An idempotency key's state on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The highest ballot promised.
    pub fence: u64,
    /// Claims seen.
    pub attempt: u32,
    /// Rest of the running lease, if one runs.
    pub lease: Option<Duration>,
    /// The result, if completed.
    pub record: Option<StoredRecord>,
}

/// The fields of [`Op::Enlist`](super::Op::Enlist).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enlist {
    /// The list.
    pub key: super::RecordKey,
    /// Whose entry.
    pub owner: OwnerToken,
    /// For how long it stays, from now.
    pub ttl: Duration,
    /// What it says, one to [`MAX_ENTRY`] bytes; without one the owner's entry is taken out.
    pub entry: Option<Arc<[u8]>>,
    /// Others should read it soon: hint to all who wrote an entry.
    pub news: bool,
}

/// Most entries in one list.
pub const MAX_LISTED: usize = 64;
/// Longest entry in bytes.
pub const MAX_ENTRY: usize = 1_024;

/// An entry in a list of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whose.
    pub owner: OwnerToken,
    /// Until it is gone, unless it is written again.
    pub remaining: Duration,
    /// What it says.
    pub entry: Arc<[u8]>,
}
