//! The state of an idempotency key, combined from the answers of all nodes.

use std::time::Duration;

use palisade::internal::lineage::Marker;
use palisade::internal::{RecordRead, attempts};

/// The state and the last claim of an idempotency key, combined from the answers of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyFacts {
    /// The key, in the form that callers use.
    pub key: String,
    /// State of the key.
    pub state: KeyState,
    /// Time until the lease of the running claim ends, if the lease is not renewed. `None` if no
    /// claim runs.
    pub remaining: Option<Duration>,
    /// Number of attempts that began and still count: the most that a majority of the nodes may
    /// have counted, as a call counts them. An attempt without an effect is taken back and does not
    /// count.
    pub attempts: u32,
    /// Time since the last claim was granted, computed from its fencing token. The error is at most
    /// twice `clock_error`. If a node lost data shortly before the claim, `age` may be too short by
    /// more than that.
    pub age: Duration,
    /// The highest ballot that a node has, as text. It is different for each claim.
    pub ballot: String,
    /// True if the nodes may have lost attempts of the key: the key has no result, and too few
    /// nodes have a record from their present data history.
    pub forgotten: bool,
    /// Number of nodes that have a record of the key.
    pub nodes: usize,
    /// Time until the first record of the key expires. A copy of the request that comes later runs
    /// again, unless it has a `created_at`.
    pub expires_in: Duration,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// A majority of the nodes has a result.
    Stored,
    /// Fewer than a majority of the nodes have a result. The next call stores this result on a
    /// majority, and does not run the handler.
    Unsettled,
    /// A claim of the key is running: a process runs the handler.
    Running,
    /// An attempt began and left no result. With `at_most_once` the key is parked: its calls do not
    /// run. To store a result, use [`Call::resolve`](palisade::idempotency::Call::resolve). To let
    /// the key run again, use [`Change::Rerun`](super::Change::Rerun).
    Lapsed,
    /// No attempt counts any more: each was given back, or an operator removed it. The next call
    /// runs as if it were the first.
    Free,
}

impl KeyState {
    /// Returns the state as the one word that the program `palisade` prints.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Unsettled => "unsettled",
            Self::Running => "running",
            Self::Lapsed => "lapsed",
            Self::Free => "free",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(super) attempts: u32,
    pub(super) left: Duration,
    pub(super) result: bool,
    pub(super) expires: Duration,
    /// The highest ballot, as text from the server.
    pub(super) fence: String,
    pub(super) age: Duration,
    /// The node stored the ballot in its present data history.
    pub(super) current: bool,
}

/// What a node has under the key of a record.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are records")]
pub(super) enum Found {
    Nothing,
    /// Another program's value, or a record of another version.
    Foreign,
    Record(RecordRead),
}

/// What one node has of some keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeRecords {
    /// `None` if that is unknown.
    pub(super) history: Option<Duration>,
    /// `None` for a key without a record.
    pub(super) records: Vec<Option<Seen>>,
    /// In the order of the keys.
    pub(super) found: Vec<Found>,
    /// The node's clock, in microseconds since 1970.
    pub(super) micros: u64,
    pub(super) marker: Vec<u8>,
    /// The marker; `None` if there is none.
    pub(super) lineage: Option<Marker>,
}

/// `None` if no node has one.
pub(super) fn facts(key: String, all: &[Option<NodeRecords>], i: usize) -> Option<KeyFacts> {
    let (read, n) = (|| all.iter().flatten(), all.len());
    let seen: Vec<&Seen> = read().filter_map(|node| node.records[i].as_ref()).collect();
    let age = seen.iter().map(|s| s.age).min()?;
    // A history that is older than the life of the record forgot no attempt.
    let life = |s: &Seen| s.age + s.expires;
    let longest = seen.iter().map(|s| life(s)).max()?;
    let count = |node: &NodeRecords| {
        let is_older = |life| node.history.is_some_and(|history| history > life);
        match &node.records[i] {
            Some(seen) => (seen.attempts, seen.current && is_older(life(seen))),
            None => (0, is_older(longest)),
        }
    };
    let counts: Vec<(u32, bool)> = read().map(count).collect();
    let attempts = attempts(&counts, n - counts.len(), n);
    let results = seen.iter().filter(|s| s.result).count();
    let remaining = seen.iter().filter(|s| !s.result).map(|s| s.left).max().unwrap_or_default();
    let state = if results > n / 2 {
        KeyState::Stored
    } else if !remaining.is_zero() {
        KeyState::Running
    } else if results > 0 {
        KeyState::Unsettled
    } else if attempts > 0 {
        KeyState::Lapsed
    } else {
        KeyState::Free
    };
    let current = seen.iter().filter(|s| s.current).count();
    Some(KeyFacts {
        key,
        state,
        remaining: (state == KeyState::Running).then_some(remaining),
        attempts,
        age,
        ballot: seen
            .iter()
            .map(|s| &s.fence)
            .max_by_key(|fence| fence.parse::<u128>().unwrap_or_default())
            .cloned()
            .unwrap_or_default(),
        forgotten: state != KeyState::Stored && current <= n / 2,
        nodes: seen.len(),
        expires_in: seen.iter().map(|s| s.expires).min().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of three nodes each. `?`: unread. `.`: no record, and a history that is older than each
    /// claim; `.-`: one that began since. d: a result. r: a claim that runs for this number of
    /// seconds. l: this number of attempts. A minus behind these: stored before the last loss of
    /// data; a plus: the loss came within the life of the record, and the node stored it since.
    fn of(cells: &str) -> KeyFacts {
        let seen = |cell: &str| {
            let current = !cell.ends_with('-');
            let cell = cell.trim_end_matches(['-', '+']);
            let (what, number) = cell.split_at(1);
            let number: u32 = number.parse().unwrap();
            Seen {
                attempts: if what == "r" { 1 } else { number },
                left: Duration::from_secs(if what == "r" { number.into() } else { 0 }),
                result: what == "d",
                expires: Duration::from_secs(9),
                fence: number.to_string(),
                age: Duration::from_secs(number.into()),
                current,
            }
        };
        let node = |cell: &str| match cell {
            "?" => None,
            "." => Some((Duration::from_secs(1_000), None)),
            ".-" => Some((Duration::ZERO, None)),
            _ if cell.ends_with('+') => Some((Duration::from_secs(5), Some(seen(cell)))),
            _ => Some((Duration::from_secs(1_000), Some(seen(cell)))),
        };
        let node = |cell| {
            node(cell).map(|(history, record)| NodeRecords {
                history: Some(history),
                records: vec![record],
                ..NodeRecords::default()
            })
        };
        let nodes: Vec<_> = cells.split(' ').chain(["?"; 2]).take(3).map(node).collect();
        facts("k".to_owned(), &nodes, 0).unwrap()
    }

    #[test]
    fn the_state_of_a_key_follows_from_all_nodes() {
        for (cells, state) in [
            ("d1 d1 d1", KeyState::Stored),
            ("d1 d1 r5", KeyState::Stored),
            ("d1 r5 r3", KeyState::Running),
            ("d1 l1", KeyState::Unsettled),
            ("r5", KeyState::Running),
            ("l1 l2 l0", KeyState::Lapsed),
            ("l0 l0", KeyState::Free),
        ] {
            assert_eq!(of(cells).state, state, "{cells}");
        }
    }

    #[test]
    fn the_attempts_are_the_most_that_a_majority_may_have_counted() {
        for (cells, state, attempts) in [
            ("l1 . .", KeyState::Free, 0),
            ("l1 l0 l0", KeyState::Free, 0),
            ("l1 l0 .", KeyState::Free, 0),
            ("l1 ?", KeyState::Lapsed, 1),
            ("l1 ? .", KeyState::Lapsed, 1),
            ("l1 l0 ?", KeyState::Lapsed, 1),
            ("l1 l1 l0", KeyState::Lapsed, 1),
            ("l3 l2 l1", KeyState::Lapsed, 2),
            ("l1 .- .", KeyState::Lapsed, 1),
            ("l1 l0- l0", KeyState::Lapsed, 1),
            ("l1- l0 l0", KeyState::Free, 0),
            ("l1 l0 l0+", KeyState::Lapsed, 1),
        ] {
            assert_eq!((of(cells).state, of(cells).attempts), (state, attempts), "{cells}");
        }
    }

    #[test]
    fn what_is_told_of_a_key_follows_from_all_nodes() {
        assert_eq!(of("d1 r5 r3").remaining, Some(Duration::from_secs(5)));
        assert_eq!(of("d1 d1 r5").remaining, None);
        assert_eq!((of("l1 l2").attempts, of("l1 l2").nodes), (2, 2));
        assert_eq!(of("l3 l2").age, Duration::from_secs(2));
        assert_eq!(of("l9 l10 l2").ballot, "10", "ballots are compared as numbers");
    }

    #[test]
    fn a_key_that_too_few_nodes_have_in_their_present_history_may_be_forgotten() {
        for (cells, forgotten) in [
            ("l1 l1 l1-", false),
            ("l1 l1- l1-", true),
            ("l1", true),
            ("d1- d1- d1-", false),
            ("d1 l1-", true),
        ] {
            assert_eq!(of(cells).forgotten, forgotten, "{cells}");
        }
    }
}
