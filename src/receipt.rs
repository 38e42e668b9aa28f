//! Receipts: where in a node's data history a write stands, and what a change of servers did to it.
//!
//! A server's history has an identity (the *generation*) and an offset that counts the bytes of its
//! replication stream. A promoted replica, and a server that comes back from its snapshot, begin a
//! new generation and say which one they went on from and up to which offset they have it. So
//! whoever noted `(generation, offset)` after a write knows, without asking for the data, whether
//! the new server has it. Pure: facts in, [`Fate`] out.

use std::sync::Arc;

/// The history that a generation went on from: it has all of `generation` that lies before
/// `offset`, and nothing after. (Redis: `master_replid2` and `second_repl_offset`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The generation before.
    pub generation: u64,
    /// The first offset that is not shared any more.
    pub offset: u64,
}

/// What became of the last confirmed write of a lease on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The node still is the server that confirmed it.
    Standing,
    /// Another server took over and has the write.
    Survived,
    /// Another server took over and does not have the write: an earlier one of the same lease may
    /// stand there, with less time.
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

    /// One word for logs and reports.
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
    pub generation: u64,
    /// The history's length after the write, or later; `None` if the node does not tell, and then
    /// no change of servers can be shown to have kept the write.
    pub offset: Option<u64>,
    /// What is known of it at this moment.
    pub fate: Fate,
}

/// A confirmed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) generation: u64,
    pub(crate) offset: Option<u64>,
}

/// A generation and what it went on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) generation: u64,
    pub(crate) predecessor: Option<Predecessor>,
}

/// What became of `write`, if the last of `seen` is the node's server now.
///
/// Goes back from it, predecessor by predecessor: offsets go on when a replica is promoted, so
/// what lies before every fork on the way has been handed on every time. A link that nobody saw
/// proves nothing: `Unknown`.
pub(crate) fn fate(write: Written, seen: &[Server]) -> Fate {
    let Some(now) = seen.last() else { return Fate::Unknown };
    if now.generation == write.generation {
        return Fate::Standing;
    }
    match (write.offset, shared(write.generation, seen)) {
        (Some(offset), Some(end)) if offset < end => Fate::Survived,
        (Some(_), Some(_)) => Fate::Lost,
        _ => Fate::Unknown,
    }
}

/// Up to which offset the last of `seen` has the history of its ancestor `generation`; `None` if
/// that is no known ancestor.
pub(crate) fn shared(generation: u64, seen: &[Server]) -> Option<u64> {
    let mut at = *seen.last()?;
    let mut end = u64::MAX;
    // As many steps as servers: garbage that goes round in a circle ends too.
    for _ in seen {
        let before = at.predecessor?;
        end = end.min(before.offset);
        if before.generation == generation {
            return Some(end);
        }
        at = *seen.iter().rev().find(|s| s.generation == before.generation)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xa;
    const B: u64 = 0xb;
    const C: u64 = 0xc;

    fn first(generation: u64) -> Server {
        Server { generation, predecessor: None }
    }

    fn from(generation: u64, before: u64, offset: u64) -> Server {
        Server { generation, predecessor: Some(Predecessor { generation: before, offset }) }
    }

    fn of(generation: u64, offset: u64, seen: &[Server]) -> Fate {
        fate(Written { generation, offset: Some(offset) }, seen)
    }

    #[test]
    fn a_write_survives_exactly_below_the_fork() {
        let seen = [first(A), from(B, A, 100)];
        assert_eq!(of(A, 99, &seen), Fate::Survived);
        assert_eq!(of(A, 100, &seen), Fate::Lost);
        assert_eq!(of(A, 101, &seen), Fate::Lost);
        assert_eq!(of(B, 101, &seen), Fate::Standing);
        assert_eq!(of(A, 5, &seen[..1]), Fate::Standing);
    }

    #[test]
    fn what_cannot_be_shown_is_unknown() {
        assert_eq!(of(A, 1, &[]), Fate::Unknown);
        // An append-only file hides continuity; an unrelated server has none.
        assert_eq!(of(A, 1, &[first(A), first(B)]), Fate::Unknown);
        assert_eq!(of(A, 1, &[first(A), from(B, C, 100)]), Fate::Unknown);
        // No ROLE, no offset.
        let blind = Written { generation: A, offset: None };
        assert_eq!(fate(blind, &[first(A), from(B, A, 100)]), Fate::Unknown);
        assert_eq!(fate(blind, &[first(A)]), Fate::Standing);
    }

    #[test]
    fn a_second_switch_is_judged_through_the_first() {
        let seen = [first(A), from(B, A, 100), from(C, B, 150)];
        assert_eq!(of(A, 99, &seen), Fate::Survived);
        assert_eq!(of(A, 120, &seen), Fate::Lost, "lost at the first");
        assert_eq!(of(B, 149, &seen), Fate::Survived);
        assert_eq!(of(B, 150, &seen), Fate::Lost);
        // The second fork may lie before the first: the second server lagged behind both.
        let seen = [first(A), from(B, A, 100), from(C, B, 90)];
        assert_eq!(of(A, 89, &seen), Fate::Survived);
        assert_eq!(of(A, 95, &seen), Fate::Lost, "survived the first, lost at the second");
    }

    #[test]
    fn a_switch_that_nobody_saw_makes_it_unknown() {
        // B was missed: nothing says what it had of A.
        assert_eq!(of(A, 1, &[first(A), from(C, B, 150)]), Fate::Unknown);
        // The write's own server was never listed, but the new one names it.
        assert_eq!(of(A, 1, &[from(B, A, 100)]), Fate::Survived);
    }

    #[test]
    fn there_and_back_is_not_as_if_nothing_had_happened() {
        // A → B → A: the first server again, promoted anew, so under a new generation.
        let again = 0xa2;
        let seen = [first(A), from(B, A, 100), from(again, B, 150)];
        assert_eq!(of(A, 99, &seen), Fate::Survived);
        assert_eq!(of(A, 140, &seen), Fate::Lost, "it was resynchronised with B");
        // Back on the very generation, with no known relation: that data stands where it stood.
        assert_eq!(of(A, 99, &[first(A), first(B), first(A)]), Fate::Standing);
        assert_eq!(of(B, 99, &[first(A), first(B), first(A)]), Fate::Unknown);
    }

    #[test]
    fn garbage_that_goes_round_in_a_circle_ends() {
        let seen = [from(A, B, 10), from(B, A, 10)];
        assert_eq!(of(C, 1, &seen), Fate::Unknown);
        let own = [from(A, A, 10)];
        assert_eq!(of(C, 1, &own), Fate::Unknown);
    }
}
