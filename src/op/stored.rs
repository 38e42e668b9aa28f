//! Data that nodes store, as they answer them.

use std::sync::Arc;
use std::time::Duration;

use crate::token::{FencingToken, OwnerToken};

/// A completed result as a node stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Ballot under which the result was stored.
    pub token: FencingToken,
    /// Bytes of the result; `None` if it was too large to be kept.
    pub value: Option<Arc<[u8]>>,
}

/// The finished steps of a handler as a node stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSteps {
    /// Ballot under which the steps were stored.
    pub token: FencingToken,
    /// All steps, encoded by the caller.
    pub list: Arc<[u8]>,
}

/// The holder of a lock on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Token of the owner; `None` for another program's value. [`OwnerToken::KEPT`] while the lock
    /// is free and kept for a holder that may still exist.
    pub owner: Option<OwnerToken>,
    /// Fence of this node.
    pub fence: u64,
    /// Time until expiry; `None` without expiry.
    pub remaining: Option<Duration>,
    /// Metadata of the holder.
    pub meta: Option<Arc<[u8]>>,
}

/// The readers of a lock on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Fence of this node.
    pub fence: u64,
    /// Number of readers.
    pub count: u32,
    /// Readers whose grants end last, the last one first; at most [`MAX_LISTED`].
    pub listed: Vec<SharedGrant>,
}

/// A reader of a lock on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedGrant {
    /// Token of the owner.
    pub owner: OwnerToken,
    /// Time until its grant expires.
    pub remaining: Duration,
}

/// State of an idempotency key on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// Highest ballot that was promised.
    pub fence: u64,
    /// Number of claims that were seen.
    pub attempt: u32,
    /// Rest of the running lease, if one runs.
    pub lease: Option<Duration>,
    /// Result, if the record is completed.
    pub record: Option<StoredRecord>,
}

/// Fields of [`Op::Enlist`](super::Op::Enlist).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enlist {
    /// Key of the list.
    pub key: super::RecordKey,
    /// Owner of the entry.
    pub owner: OwnerToken,
    /// Time for which the entry stays, from now.
    pub ttl: Duration,
    /// Content of the entry, one to [`MAX_ENTRY`] bytes; `None` removes the owner's entry.
    pub entry: Option<Arc<[u8]>>,
    /// Send a hint to all that wrote an entry, so that they read this one soon.
    pub news: bool,
}

/// Most entries in one list, and most readers that one answer shows.
pub const MAX_LISTED: usize = 64;
/// Longest entry in bytes.
pub const MAX_ENTRY: usize = 1_024;

/// An entry in a list of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Owner of the entry.
    pub owner: OwnerToken,
    /// Time until the entry expires, unless it is written again.
    pub remaining: Duration,
    /// Content of the entry.
    pub entry: Arc<[u8]>,
}
