//! What a client remembers of a node's data.

use super::Facts;

/// As wide as its field in the marker.
const GENERATIONS: u64 = 999_999;

/// Which data a node has, and how far they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Random identifier of the deployment, the same on all its votes; 0 if the data have no name.
    pub deployment: u64,
    /// Random identifier of the vote, kept by replication, restarts and failovers; 0 if the data
    /// have no name.
    pub vote: u64,
    /// Number of data histories of this vote so far; 0 if no data were seen.
    pub generation: u64,
    /// Random identifier of the data history.
    pub history: u64,
    /// Number of writes that count in this history (quarantine 18).
    pub seq: u64,
    /// The server's clock at the last of these writes, in milliseconds since 1970.
    pub note: u64,
}

/// What a client's handle remembers of one node and sends with each batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Reading of the node's clock (µs since 1970) at the first answer; `None` before it.
    pub known_since: Option<u64>,
    /// The newest data that the node has answered with. Before the first answer all fields are 0,
    /// except the deployment that the handle's settings name.
    pub newest: Lineage,
    /// True if another node shows the same vote, so the node's address may have led there.
    pub is_shared: bool,
}

pub(crate) fn next_generation(generation: u64) -> u64 {
    generation % GENERATIONS + 1
}

/// By the shorter way round. 0 comes before all.
pub(crate) fn precedes(first: u64, second: u64) -> bool {
    if first == 0 || second == 0 {
        return first < second;
    }
    let ahead = (second % GENERATIONS + GENERATIONS - first % GENERATIONS) % GENERATIONS;
    (1..=GENERATIONS / 2).contains(&ahead)
}

impl Remembered {
    /// `deployment` is 0 if the handle's settings name none.
    pub(crate) fn of(deployment: u64) -> Self {
        Self { newest: Lineage { deployment, ..Lineage::default() }, ..Self::default() }
    }

    /// What it says about data of this vote (quarantine 22).
    pub(crate) fn about(self, vote: u64) -> Self {
        if self.is_shared && self.newest.vote != vote {
            Self::of(self.newest.deployment)
        } else {
            self
        }
    }

    /// Keeps the newer of what is remembered and what a node has answered.
    pub fn learn(&mut self, facts: &Facts) {
        let is_other =
            self.newest.vote != 0 && ![0, self.newest.vote].contains(&facts.lineage.vote);
        if is_other {
            *self = Self::of(self.newest.deployment);
        }
        self.known_since.get_or_insert(facts.node_micros);
        let (old, new) = (self.newest, facts.lineage);
        let is_same = (new.history, new.generation) == (old.history, old.generation);
        let is_older = precedes(new.generation, old.generation) || is_same && new.seq < old.seq;
        if !is_older {
            let name = |new, old| if new == 0 { old } else { new };
            self.newest = Lineage {
                deployment: name(new.deployment, old.deployment),
                vote: name(new.vote, old.vote),
                ..new
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_histories_are_counted_round() {
        let half = GENERATIONS / 2;
        for (first, second, is_before) in [
            (0, 1, true),
            (0, 0, false),
            (1, 0, false),
            (5, 5, false),
            (5, 6, true),
            (6, 5, false),
            (GENERATIONS, 1, true),
            (1, GENERATIONS, false),
            (1, 1 + half, true),
            (1, 2 + half, false),
        ] {
            assert_eq!(precedes(first, second), is_before, "{first} and {second}");
        }
        assert_eq!([0, 5, GENERATIONS].map(next_generation), [1, 6, 1]);
    }
}
