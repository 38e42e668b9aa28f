//! Types for the stored data that the answers of nodes contain.

use std::sync::Arc;
use std::time::Duration;

use crate::token::{FencingToken, OwnerToken};

/// Result of an idempotency key, as a node stores it under the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Ballot under which the result was stored.
    pub token: FencingToken,
    /// Bytes of the result; `None` if it was too large to be kept.
    pub value: Option<Arc<[u8]>>,
}

/// Finished steps of a handler that has stored no result yet, as a node stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSteps {
    /// Ballot under which the steps were stored.
    pub token: FencingToken,
    /// All steps, encoded by the caller.
    pub list: Arc<[u8]>,
}

/// Holder of a lock, as one node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Token of the owner; `None` if another program's value is under the key. It is
    /// [`OwnerToken::KEPT`] if the lock is free by the node's clock, but the node does not grant
    /// it, because there may still be a holder.
    pub owner: Option<OwnerToken>,
    /// Largest fencing token that this node has for the lock.
    pub fence: u64,
    /// Time until the lock expires on this node; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// Metadata that the holder has published beside the lock, for example an election's value.
    pub meta: Option<Arc<[u8]>>,
}

/// The readers of a lock on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Fence of the lock on this node.
    pub fence: u64,
    /// Number of readers.
    pub count: u32,
    /// Readers in the order in which their grants end, the latest end first; at most
    /// [`MAX_LISTED`].
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
    /// Fencing token of the highest ballot that the node has promised: it refuses lower ballots.
    pub fence: u64,
    /// Number of claims of the key that the node has granted. Claims that ended as `Undone` or
    /// `Repeatable` do not count.
    pub attempt: u32,
    /// Time until the lease of the running claim ends; `None` if no claim runs.
    pub lease: Option<Duration>,
    /// Result, if the record is completed.
    pub record: Option<StoredRecord>,
}

/// Fields of [`Op::Enlist`](super::Op::Enlist), the request to write a candidate's entry in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enlist {
    /// Key of the list of candidates.
    pub key: super::RecordKey,
    /// Owner token of the candidate whose entry this is.
    pub owner: OwnerToken,
    /// Time from now after which the node drops the entry, unless it is written again.
    pub ttl: Duration,
    /// Content of the entry, one to [`MAX_ENTRY`] bytes; `None` removes the owner's entry.
    pub entry: Option<Arc<[u8]>>,
    /// True if the node shall notify all candidates that watch the list, so that they read this
    /// entry soon.
    pub news: bool,
}

/// Most entries in one list of candidates, and most readers that one answer shows.
pub const MAX_LISTED: usize = 64;
/// Longest content of a candidate's entry, in bytes.
pub const MAX_ENTRY: usize = 1_024;

/// An entry in a list of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Owner token of the candidate whose entry this is.
    pub owner: OwnerToken,
    /// Time until the entry expires, unless it is written again.
    pub remaining: Duration,
    /// Content of the entry, as the candidate wrote it.
    pub entry: Arc<[u8]>,
}
