//! Fields of a claim, and the states in which one ends.

use std::time::Duration;

use super::{FingerprintBytes, RecordKey};
use crate::token::OwnerToken;

/// Fields of [`Op::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Key of the record.
    pub key: RecordKey,
    /// Owner; a fresh one per attempt.
    pub owner: OwnerToken,
    /// Time for which the handler may run before others may take over.
    pub lease: Duration,
    /// Time for which the record is kept.
    pub retention: Duration,
    /// Wall clock of the caller or a larger value, in microseconds since 1970.
    pub proposal: u64,
    /// Fingerprint of the request; `None`: fingerprints are not compared.
    pub fingerprint: Option<FingerprintBytes>,
    /// Claim even if there is a completed record (repair).
    pub force: bool,
    /// Earliest time at which any copy of this request was made, in milliseconds since 1970: a node
    /// that has lost nothing since then knows if the key was ever claimed.
    pub born: Option<u64>,
    /// Longest loss of the node's data that the caller accepts: a loss that is proved to be no
    /// longer counts as none. Zero: none is accepted.
    pub accepted: Duration,
    /// Time of the request, in milliseconds since 1970. A request older than the retention is
    /// answered `TooOld`: its record may be gone.
    pub created: Option<u64>,
    /// If another owner's lease runs, publish a hint when that owner stores a result or gives the
    /// claim back. No hint comes when the lease lapses.
    pub wait: bool,
}

/// State in which [`Op::Unclaim`] ends an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimEnd {
    /// The attempt did nothing: it is not counted, and if no earlier attempt is left the key is as
    /// new.
    Undone,
    /// The attempt may be repeated: it is not counted, but the fingerprint stays.
    Repeatable,
    /// The attempt may have acted and left no result: it counts, as if its lease had lapsed now.
    Lapsed,
}
