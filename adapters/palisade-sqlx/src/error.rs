//! The errors of the inbox and of fenced writes. The inbox is a table whose rows record effects.

use palisade::FencingToken;

/// The error of [`once`](crate::inbox::once). The effect did not happen in this call. There is one
/// exception: if the database failed during the commit, the effect may have happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The database refused a statement, or the program could not reach the database.
    #[error("inbox of {key:?}: the database refused: {error}")]
    #[non_exhaustive]
    Sql {
        /// Namespace and key of the call, separated by `:`.
        key: String,
        /// The error that sqlx returned.
        #[source]
        error: sqlx::Error,
    },
    /// JSON does not keep the result of the effect (`NaN`, or `Some(None)`), and the effect was
    /// rolled back. Or the result in the key's row cannot be read as the caller's type.
    #[error("inbox of {key:?}: {what}: {error}")]
    #[non_exhaustive]
    Codec {
        /// Namespace and key of the call, separated by `:`.
        key: String,
        /// Name of the conversion that failed.
        what: &'static str,
        /// The error that `serde_json` returned.
        #[source]
        error: serde_json::Error,
    },
    /// The key's row belongs to another request: the row's fingerprint differs from the fingerprint
    /// of this call. The effect did not run.
    #[error(
        "inbox of {key:?}: another request took effect under this key (its fingerprint differs); \
         send this one under a new key"
    )]
    #[non_exhaustive]
    Mismatch {
        /// Namespace and key of the call, separated by `:`.
        key: String,
    },
    /// The key's row in the inbox has no result. Another program or a person wrote the row, or the
    /// row was deleted during the call.
    #[error(
        "inbox of {key:?}: its row has no result, or was deleted during the call; if it is there, \
         look what wrote it, then set `result` or delete the row; if it is gone, call again"
    )]
    #[non_exhaustive]
    NoResult {
        /// Namespace and key of the call, separated by `:`.
        key: String,
    },
    /// The key's row is older than the retention, and may be that of an earlier attempt at this
    /// request: the nodes keep the record of a key longer if it is tried again. Or the key is used
    /// again, by a request with the same fingerprint. The effect did not run. Do not
    /// [`purge`](crate::inbox::purge) the namespace before a person has looked at the row.
    #[error(
        "inbox of {key:?}: its row is older than the retention: an earlier attempt at this request \
         took effect, or the key is used again; after an earlier attempt set the row's \
         `counts_until` to a later time, and if the key is used again, delete the row; do not \
         purge before that"
    )]
    #[non_exhaustive]
    Outlived {
        /// Namespace and key of the call, separated by `:`.
        key: String,
    },
}

/// The error of a write that was refused, because the row was changed after the program had read
/// its version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} was not written: its version is not {version} any more; read it again, and \
     decide again"
)]
#[non_exhaustive]
pub struct Changed {
    /// Name of the resource that was to be written.
    pub resource: String,
    /// The version that was read before the write.
    pub version: i64,
}

/// The error of a refused write or read. A later holder of the lock has already written; or, for a
/// write, a later reader has read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} refused fencing token {token}{}: a later holder has used it; stop and acquire \
     again",
    .seen.map(|seen| format!(", for it has seen {seen}")).unwrap_or_default()
)]
#[non_exhaustive]
pub struct Stale {
    /// Name of the resource that was to be written or read.
    pub resource: String,
    /// The fencing token of the refused write or read.
    pub token: FencingToken,
    /// The largest fencing token with which the resource was written or read; `None` if this token
    /// is unknown.
    pub seen: Option<i64>,
}
