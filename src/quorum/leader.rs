//! Who leads, as a majority of nodes tells it: a read, decided without waiting for the slowest.
//!
//! The answers are not taken at one instant. Three facts make the verdicts sound all the same:
//! 1. Whoever leads throughout the read is seen as owner on each node of its majority, so if every
//!    answer that could still matter is in and no owner has a majority, there was a moment without
//!    a leader: *vacant* is true.
//! 2. A word (the proclaimed value) that was written to a majority is among the words of any
//!    majority that names its owner, and words are numbered: the highest is never older than it.
//! 3. A node that may have forgotten (quarantine) or did not answer counts for every owner and for
//!    none: it can prevent a verdict, never make one.

use std::time::Duration;

use crate::error::{NodeError, NodeOutcome};
use crate::quorum::majority::majority;
use crate::token::OwnerToken;

/// What one node said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<W> {
    /// The key is one of our locks.
    Held {
        /// Whose.
        owner: OwnerToken,
        /// Until it expires there.
        remaining: Duration,
        /// The owner's own words with their number; words of any other owner are not handed in.
        words: Option<(u64, W)>,
    },
    /// Nothing there, or another program's value: none of ours leads by this node.
    Absent,
    /// What was there may have been forgotten, for so long, and whether there are no data at all.
    Quarantined(Duration, bool),
    /// No answer that counts.
    Failed(NodeError),
}

/// What the answers so far mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight<W> {
    /// Not decided.
    Pending,
    /// A majority names one owner, who has said this.
    Leads {
        /// The latest of its words.
        words: W,
        /// Until its majority is gone, unless it renews.
        remaining: Duration,
    },
    /// A majority names one owner, who has not said anything yet.
    Mute,
    /// No owner has a majority.
    Vacant,
    /// Too few answers that count.
    NoQuorum(Vec<NodeOutcome>),
}

/// The machine of one read.
#[derive(Clone, Debug)]
pub struct Leading<W> {
    answers: Vec<Option<Answer<W>>>,
}

impl<W: Clone> Leading<W> {
    /// A read over `n` nodes.
    pub fn new(n: usize) -> Self {
        Self { answers: (0..n).map(|_| None).collect() }
    }

    /// A node answered, or failed to.
    pub fn on_answer(&mut self, node: usize, answer: Answer<W>) -> Sight<W> {
        self.answers[node] = Some(answer);
        self.sight(false)
    }

    /// The deadline has come: whoever is silent stays so.
    pub fn on_time(&mut self) -> Sight<W> {
        self.sight(true)
    }

    fn sight(&self, last: bool) -> Sight<W> {
        let need = majority(self.answers.len());
        let silent = self.answers.iter().filter(|a| a.is_none()).count();
        let (votes, owner) = self.favourite();
        if let Some(owner) = owner.filter(|_| votes >= need) {
            if let Some(words) = self.words_of(owner) {
                return Sight::Leads { words, remaining: self.remaining_of(owner, need) };
            }
            // A node that is still silent may be the one that has the words.
            return if silent == 0 || last { Sight::Mute } else { Sight::Pending };
        }
        let unknown = self.answers.iter().filter(|a| may_be_anybodys(a.as_ref())).count();
        if votes + unknown < need {
            return Sight::Vacant;
        }
        if silent == 0 || last { Sight::NoQuorum(self.outcomes()) } else { Sight::Pending }
    }

    /// The owner named most often, and how often.
    fn favourite(&self) -> (usize, Option<OwnerToken>) {
        let mut owners: Vec<OwnerToken> = self.held().map(|(owner, ..)| owner).collect();
        owners.sort_unstable();
        let runs = owners.chunk_by(|a, b| a == b);
        runs.map(|run| (run.len(), run.first().copied())).max().unwrap_or((0, None))
    }

    fn held(&self) -> impl Iterator<Item = (OwnerToken, Duration, Option<&(u64, W)>)> {
        self.answers.iter().filter_map(|a| match a {
            Some(Answer::Held { owner, remaining, words }) => {
                Some((*owner, *remaining, words.as_ref()))
            }
            _ => None,
        })
    }

    fn words_of(&self, leader: OwnerToken) -> Option<W> {
        let words = self.held().filter(|(owner, ..)| *owner == leader).filter_map(|(.., w)| w);
        words.max_by_key(|(number, _)| *number).map(|(_, w)| w.clone())
    }

    /// When fewer than a majority are left.
    fn remaining_of(&self, leader: OwnerToken, need: usize) -> Duration {
        let of_leader = self.held().filter(|(owner, ..)| *owner == leader);
        let mut rests: Vec<Duration> = of_leader.map(|(_, rest, _)| rest).collect();
        rests.sort_unstable_by(|a, b| b.cmp(a));
        rests.get(need - 1).copied().unwrap_or_default()
    }

    fn outcomes(&self) -> Vec<NodeOutcome> {
        let outcome = |a: &Option<Answer<W>>| match a {
            None => NodeOutcome::no_answer(),
            Some(Answer::Held { remaining, .. }) => NodeOutcome::Held(Some(*remaining)),
            Some(Answer::Absent) => NodeOutcome::Refused,
            Some(Answer::Quarantined(rest, empty)) => NodeOutcome::quarantined(*rest, *empty),
            Some(Answer::Failed(e)) => NodeOutcome::Failed(e.clone()),
        };
        self.answers.iter().map(outcome).collect()
    }
}

fn may_be_anybodys<W>(answer: Option<&Answer<W>>) -> bool {
    matches!(answer, None | Some(Answer::Quarantined(..) | Answer::Failed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeFault;

    /// One letter a node: `a`/`b` held without words, `a1` with words number 1, `-` absent,
    /// `q` quarantined, `x` failed, `.` silent.
    fn answer(cell: &str, node: usize) -> Option<Answer<String>> {
        let held = |owner: u128, words: &str| Answer::Held {
            owner: OwnerToken::from_random(owner),
            remaining: Duration::from_secs(10 + node as u64),
            words: words.parse().ok().map(|n| (n, cell.to_owned())),
        };
        Some(match cell.split_at(1) {
            (".", _) => return None,
            ("-", _) => Answer::Absent,
            ("q", _) => Answer::Quarantined(Duration::from_secs(3), false),
            ("x", _) => Answer::Failed(NodeError::not_executed(NodeFault::Unreachable, "")),
            (owner, words) => held(u128::from(owner.as_bytes()[0]), words),
        })
    }

    fn told(sight: &Sight<String>) -> String {
        match sight {
            Sight::Pending => "pending".into(),
            Sight::Leads { words, remaining } => format!("{words} for {}", remaining.as_secs()),
            Sight::Mute => "mute".into(),
            Sight::Vacant => "vacant".into(),
            Sight::NoQuorum(_) => "no quorum".into(),
        }
    }

    #[test]
    fn what_a_majority_tells() {
        for (cells, early, late) in [
            (".", "pending", "no quorum"),
            ("-", "vacant", "vacant"),
            ("a1", "a1 for 10", "a1 for 10"),
            ("a", "mute", "mute"),
            ("q", "no quorum", "no quorum"),
            ("a1 a1 .", "a1 for 10", "a1 for 10"),
            ("a1 a2 .", "a2 for 10", "a2 for 10"),
            (". a1 a1", "a1 for 11", "a1 for 11"),
            ("a1 a1 a1", "a1 for 11", "a1 for 11"),
            ("a1 b1 .", "pending", "no quorum"),
            ("a1 b1 x", "no quorum", "no quorum"),
            ("a1 b1 -", "vacant", "vacant"),
            ("a1 b1 c1", "vacant", "vacant"),
            ("- - .", "vacant", "vacant"),
            ("- . .", "pending", "no quorum"),
            ("a1 - .", "pending", "no quorum"),
            ("a1 - -", "vacant", "vacant"),
            ("a a .", "pending", "mute"),
            ("a a a3", "a3 for 11", "a3 for 11"),
            ("a1 a b2", "a1 for 10", "a1 for 10"),
            ("a a b9", "mute", "mute"),
            ("- q q", "no quorum", "no quorum"),
            ("- - q", "vacant", "vacant"),
            ("a1 q a1", "a1 for 10", "a1 for 10"),
            ("x x .", "pending", "no quorum"),
            ("a1 a1 b1 b1 .", "pending", "no quorum"),
            ("a1 a1 b1 b1 a1", "a1 for 10", "a1 for 10"),
            ("a1 a1 b1 b1 -", "vacant", "vacant"),
            ("- - - . .", "vacant", "vacant"),
        ] {
            let mut machine = Leading::new(cells.split(' ').count());
            let mut sight = machine.sight(false);
            for (node, cell) in cells.split(' ').enumerate() {
                if let Some(answer) = answer(cell, node) {
                    sight = machine.on_answer(node, answer);
                }
            }
            assert_eq!(told(&sight), early, "{cells}");
            assert_eq!(told(&machine.on_time()), late, "{cells} at the deadline");
        }
    }

    #[test]
    fn no_quorum_keeps_every_cause() {
        let mut machine = Leading::new(3);
        for (node, cell) in ["q", "x", "a1"].into_iter().enumerate() {
            machine.on_answer(node, answer(cell, node).unwrap());
        }
        let Sight::NoQuorum(outcomes) = machine.on_time() else { panic!("a verdict") };
        assert!(matches!(
            &outcomes[..],
            [NodeOutcome::Quarantined { .. }, NodeOutcome::Failed(_), NodeOutcome::Held(Some(_))]
        ));
    }
}
