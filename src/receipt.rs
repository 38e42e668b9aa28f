//! Receipts: where in a node's data history a write is, and what a change of servers did to it.
//!
//! A server's history has an identity (the *history*) and an offset that counts the bytes of its
//! replication stream. A promoted replica, and a server that comes back from its snapshot, begin a
//! new history and say which one they went on from and up to which offset they have it. So a
//! client that noted `(history, offset)` after a write knows, without reading the data, whether
//! the new server has it. Pure: facts in, [`Fate`] out.

use std::sync::Arc;

/// The history that a history went on from: it has all of `history` that lies before
/// `offset`, and nothing after. (Redis: `master_replid2` and `second_repl_offset`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The history before.
    pub history_id: u64,
    /// The first offset that is not shared any more.
    pub offset: u64,
}

/// What became of the last confirmed write of a lease on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The node still is the server that confirmed it, with the same data history. What somebody
    /// deletes by hand there (`FLUSHALL`) cannot be seen.
    Standing,
    /// Another server took over and has the write, with all that came after it on the way: it may
    /// have run out since by that server's clock.
    Survived,
    /// Another server took over and does not have the write: an earlier one of the same lease may
    /// be there, with less time.
    Lost,
    /// Another server took over, and whether it has the write cannot be shown: treat it as lost.
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

/// The last write of a lease that one node confirmed, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The node's name.
    pub node: Arc<str>,
    /// The data history the write was confirmed in.
    pub history_id: u64,
    /// The history's length after the write, or later; `None` if the node does not report it, and
    /// then no change of servers can be shown to have kept the write.
    pub offset: Option<u64>,
    /// What is known of it at this moment.
    pub fate: Fate,
}

/// A confirmed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) history_id: u64,
    pub(crate) offset: Option<u64>,
}

/// A history and what it went on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) history_id: u64,
    pub(crate) predecessor: Option<Predecessor>,
}

/// What became of `write`, if the last of `seen` is the node's server now.
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
    // As many steps as servers: garbage that goes round in a circle ends too.
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
