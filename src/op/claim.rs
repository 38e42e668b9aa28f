//! Fields of a claim, its ballot, and the states in which it ends.

use std::time::Duration;

use super::{FingerprintBytes, RecordKey};
use crate::token::{FencingToken, OwnerToken};

/// Fields of [`Op::Claim`](super::Op::Claim), the request to claim an idempotency key.
///
/// Another program's value under a record's key fails every op on the record
/// ([`NodeFault::ForeignKey`](crate::error::NodeFault::ForeignKey)) and stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Key of the idempotency record.
    pub key: RecordKey,
    /// Owner token; each attempt has a new token.
    pub owner: OwnerToken,
    /// Time for which the handler may run before others may take over.
    pub lease: Duration,
    /// Time for which the record is kept.
    pub retention: Duration,
    /// Fencing token of the ballot that the claim proposes: the caller's wall clock in µs since
    /// 1970, or a larger value.
    pub proposal: u64,
    /// Fingerprint of the request; `None` if fingerprints are not compared.
    pub fingerprint: Option<FingerprintBytes>,
    /// True if the key is to be claimed even if it has a result, so that the caller can store this
    /// result on a majority (repair).
    pub force: bool,
    /// Earliest time at which any copy of this request was made, in milliseconds since 1970; `None`
    /// if it is unknown. A node that has lost no data since then certainly has every claim of the
    /// key.
    pub born: Option<u64>,
    /// Longest loss of the node's data that the caller accepts. A loss that is proved to be at most
    /// this long counts as none; zero accepts no loss.
    pub accepted: Duration,
    /// Time at which the request was made, in milliseconds since 1970; `None` if it is unknown. A
    /// request older than the retention is answered `TooOld`, because its record may be gone.
    pub created: Option<u64>,
    /// True if the caller wants to be notified when another owner's running claim is over. The node
    /// notifies the caller when that owner stores a result or gives the claim back, but not if the
    /// claim's lease only ends.
    pub wait: bool,
}

/// Ballot of a claim, with the retention and the fingerprint that each write under it stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// Key of the idempotency record.
    pub key: RecordKey,
    /// Owner token of the claim.
    pub owner: OwnerToken,
    /// Fencing token of the claim, which a majority of the nodes has promised.
    pub token: FencingToken,
    /// Time for which the record is kept.
    pub retention: Duration,
    /// Fingerprint of the request; `None` if fingerprints are not compared.
    pub fingerprint: Option<FingerprintBytes>,
}

/// State in which [`Op::Unclaim`](super::Op::Unclaim) ends an attempt to run a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimEnd {
    /// The attempt did nothing, so it is not counted. If there was no other attempt, the key counts
    /// as never claimed.
    Undone,
    /// The attempt may be repeated, so it is not counted, but the fingerprint is kept.
    Repeatable,
    /// The attempt may have had an effect but has left no result, so it is counted.
    Lapsed,
}
