//! Errors of the inbox and the fence.

use palisade::FencingToken;

/// The error of [`once`](crate::inbox::once): the effect was not booked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The database returned an error.
    #[error("inbox of {key:?}: the database refused: {error}")]
    #[non_exhaustive]
    Sql {
        /// Key of the call.
        key: String,
        /// The database's error.
        #[source]
        error: sqlx::Error,
    },
    /// The result cannot be written as JSON, or the stored result cannot be read as this type.
    #[error("inbox of {key:?}: {what}: {error}")]
    #[non_exhaustive]
    Codec {
        /// Key of the call.
        key: String,
        /// The conversion that failed.
        what: &'static str,
        /// The parser's error.
        #[source]
        error: serde_json::Error,
    },
    /// The row belongs to another request: its fingerprint differs from this call's.
    #[error(
        "inbox of {key:?}: another request took effect under this key (its fingerprint differs); \
         send this one under a new key"
    )]
    #[non_exhaustive]
    Mismatch {
        /// Key of the call.
        key: String,
    },
    /// The row has no result: another program or a person wrote it, or it was deleted during the
    /// call.
    #[error(
        "inbox of {key:?}: its row has no result, or was deleted during the call; if it is there, \
         look what wrote it, then set `result` or delete the row; if it is gone, call again"
    )]
    #[non_exhaustive]
    NoResult {
        /// Key of the call.
        key: String,
    },
}

/// A refused write: the row was written after its version was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} was not written: its version is not {version} any more; read it again, and \
     decide again"
)]
#[non_exhaustive]
pub struct Changed {
    /// Name of the resource that was to be written.
    pub resource: String,
    /// The version that was read.
    pub version: i64,
}

/// A refused write: a newer holder has already written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} was not written under fencing token {token}{}: a newer holder has written it; \
     stop and acquire again",
    .seen.map(|seen| format!(", for it has seen {seen}")).unwrap_or_default()
)]
#[non_exhaustive]
pub struct Stale {
    /// Name of the resource that was to be written.
    pub resource: String,
    /// The fencing token of the refused write.
    pub token: FencingToken,
    /// The largest fencing token that the resource has seen, if it is known.
    pub seen: Option<i64>,
}
