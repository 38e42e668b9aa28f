//! Receipts: the place of a write in a node's data history, and the effect of a failover on it.
//!
//! A server's history has an identity (the *history*) and an offset that counts the bytes of its
//! replication stream. A promoted replica, and a server that restarts from its snapshot, begin a
//! new history. They report the history before it and the offset up to which they have it. So a
//! client that noted `(history, offset)` after a write can tell, without reading the data, whether
//! the new server has the write. Pure: facts in, [`Fate`] out.

use std::sync::Arc;

/// The history before another one: the later one has all of `history_id` before `offset`, and
/// nothing after. (Redis: `master_replid2` and `second_repl_offset`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The history before.
    pub history_id: u64,
    /// The first offset that is no longer shared.
    pub offset: u64,
}

/// What a failover did to the last confirmed write of a lease on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The node still is the server that confirmed it, with the same data history. Deletions by
    /// hand there (`FLUSHALL`) cannot be detected.
    Standing,
    /// Another server took over and has the write. By that server's clock, it may have expired
    /// since.
    Survived,
    /// Another server took over and does not have the write: an earlier one of the same lease may
    /// be there, with less time.
    Lost,
    /// Another server took over, and it is unknown whether it has the write: treat it as lost.
    Unknown,
}

impl Fate {
    /// Whether the write is certainly there.
    #[must_use]
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Standing | Self::Survived)
    }

    /// A short name for logs and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Survived => "survived",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The last write of a lease that one node confirmed, and its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The node's name.
    pub node: Arc<str>,
    /// The data history in which the write was confirmed.
    pub history_id: u64,
    /// The history's length after the write, or later; `None` if the node does not report it; then
    /// it is unknown after a failover whether the write was kept.
    pub offset: Option<u64>,
    /// The fate of the write, as far as it is known now.
    pub fate: Fate,
}

/// A confirmed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) history_id: u64,
    pub(crate) offset: Option<u64>,
}

/// A history and its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) history_id: u64,
    pub(crate) predecessor: Option<Predecessor>,
}

/// The fate of `write`, if the last of `seen` is the node's current server.
///
/// Goes back from it, predecessor by predecessor: offsets go on when a replica is promoted, so what
/// lies before every fork on the way was copied every time. A link that was not seen proves
/// nothing: `Unknown`.
pub(crate) fn fate(write: Written, seen: &[Server]) -> Fate {
    let Some(now) = seen.last() else { return Fate::Unknown };
    if now.history_id == write.history_id {
        return Fate::Standing;
    }
    match (write.offset, shared(write.history_id, seen)) {
        (Some(offset), Some(end)) if offset < end => Fate::Survived,
        (Some(_), Some(_)) => Fate::Lost,
        _ => Fate::Unknown,
    }
}

/// Up to which offset the last of `seen` has the history of its ancestor `history`; `None` if
/// that is no known ancestor.
pub(crate) fn shared(history_id: u64, seen: &[Server]) -> Option<u64> {
    let mut at = *seen.last()?;
    let mut end = u64::MAX;
    // At most one step per server, so that invalid circular data end, too.
    for _ in seen {
        let before = at.predecessor?;
        end = end.min(before.offset);
        if before.history_id == history_id {
            return Some(end);
        }
        at = *seen.iter().rev().find(|s| s.history_id == before.history_id)?;
    }
    None
}

#[cfg(test)]
mod tests;
