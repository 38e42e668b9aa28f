//! Errors of the inbox and the fence.

use palisade::FencingToken;

/// An effect was not booked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The database refused.
    #[error("inbox of {key:?}: the database refused: {error}")]
    #[non_exhaustive]
    Sql {
        /// Of which key.
        key: String,
        /// Its answer.
        #[source]
        error: sqlx::Error,
    },
    /// The result cannot be written as JSON, or what is stored cannot be read as this type.
    #[error("inbox of {key:?}: {what}: {error}")]
    #[non_exhaustive]
    Codec {
        /// Of which key.
        key: String,
        /// What could not be turned into what.
        what: &'static str,
        /// Why.
        #[source]
        error: serde_json::Error,
    },
    /// The row is another request's: its fingerprint is not this call's.
    #[error(
        "inbox of {key:?}: another request took effect under this key (its fingerprint differs); \
         send this one under a new key"
    )]
    #[non_exhaustive]
    Mismatch {
        /// Of which key.
        key: String,
    },
    /// A row of the table's first form is under this namespace and key. It has no prefix, so it
    /// may be of another deployment's request. Nothing was run.
    #[error(
        "inbox of {key:?}: palisade_inbox_unnamed has a row of this namespace and key, which does \
         not tell the prefix; look whether this request took effect. If not, delete that row; \
         otherwise store the result by `palisade idem resolve`"
    )]
    #[non_exhaustive]
    Unnamed {
        /// Of which key.
        key: String,
    },
    /// No result: the row was written by another program or by hand, or it was deleted while the
    /// call was running.
    #[error(
        "inbox of {key:?}: its row has no result, or was deleted during the call; if it is there, \
         look what wrote it, then set `result` or delete the row; if it is gone, call again"
    )]
    #[non_exhaustive]
    NoResult {
        /// Of which key.
        key: String,
    },
}

/// A write was refused: the row was written since the version was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} was not written: its version is not {version} any more; read it again, and \
     decide again"
)]
#[non_exhaustive]
pub struct Changed {
    /// What was to be written.
    pub resource: String,
    /// The version that was read.
    pub version: i64,
}

/// A write was refused: a newer holder has written before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource:?} was not written under fencing token {token}{}: a newer holder has written it; \
     stop and acquire again",
    .seen.map(|seen| format!(", for it has seen {seen}")).unwrap_or_default()
)]
#[non_exhaustive]
pub struct Stale {
    /// What was to be written.
    pub resource: String,
    /// The token under which it was to be written.
    pub token: FencingToken,
    /// The largest token that the resource has seen, if that is known.
    pub seen: Option<i64>,
}

/// Result of a statement with `fence <= …` in its condition that changed `rows` rows.
pub(crate) fn not_stale(rows: u64, resource: &str, token: FencingToken) -> Result<(), Stale> {
    if rows > 0 {
        return Ok(());
    }
    Err(Stale { resource: resource.to_owned(), token, seen: None })
}

/// Result of a statement with `version = …` in its condition that changed `rows` rows.
pub(crate) fn unchanged(rows: u64, resource: &str, version: i64) -> Result<(), Changed> {
    if rows > 0 {
        return Ok(());
    }
    Err(Changed { resource: resource.to_owned(), version })
}
