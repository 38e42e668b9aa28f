//! The candidates of an election, merged from the lists of a majority of nodes. An entry on a
//! majority is in at least one answer of any majority; one on fewer nodes may be listed or not, and
//! nothing is decided by the list.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::NodeOutcome;
use crate::op::{Listed, Reply};
use crate::quorum::answers::Answers;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;
use crate::token::OwnerToken;

/// A candidate's entry, merged from the lists of all nodes that have the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<W> {
    pub owner: OwnerToken,
    /// Time until the last node drops the entry. A new write of the entry extends this time.
    pub remaining: Duration,
    pub content: W,
}

#[derive(Clone, Debug)]
pub struct Listing<R> {
    by: Moment,
    read: R,
    answers: Answers,
}

impl<W, R: Fn(&[u8]) -> Option<(u64, W)>> Listing<R> {
    /// `read` returns the content of an entry and the number that orders the entries of one owner.
    pub fn new(n: usize, by: Moment, read: R) -> Self {
        Self { by, read, answers: Answers::new(n) }
    }

    fn merged(&self) -> Vec<Candidate<W>> {
        let mut all: BTreeMap<OwnerToken, (u64, Candidate<W>)> = BTreeMap::new();
        for Listed { owner, remaining, entry } in self.lists().flatten() {
            let Some((number, content)) = (self.read)(entry) else { continue };
            let new = Candidate { owner: *owner, remaining: *remaining, content };
            match all.get_mut(owner) {
                Some((latest, seen)) => {
                    seen.remaining = seen.remaining.max(*remaining);
                    if number > *latest {
                        (*latest, seen.content) = (number, new.content);
                    }
                }
                None => drop(all.insert(*owner, (number, new))),
            }
        }
        all.into_values().map(|(_, candidate)| candidate).collect()
    }

    fn lists(&self) -> impl Iterator<Item = &Vec<Listed>> {
        self.answers.replies().filter_map(|reply| match reply {
            Reply::Candidates(all) => Some(all),
            _ => None,
        })
    }
}

impl<W, R: Fn(&[u8]) -> Option<(u64, W)>> Machine for Listing<R> {
    type Decision = Result<Vec<Candidate<W>>, Vec<NodeOutcome>>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision> {
        self.answers.put_read(node, reply, |r| matches!(r, Reply::Candidates(_)));
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision> {
        if self.lists().count() >= self.answers.need() {
            return Progress::Decided(Ok(self.merged()));
        }
        if now >= self.by || self.answers.silent() == 0 {
            return Progress::Decided(Err(self.answers.outcomes(&NodeOutcome::no_answer())));
        }
        Progress::Wait(self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{NodeError, NodeFault};

    const BY: Moment = Moment::from_nanos(1);

    /// `x` is an error, `.` no answer, `-` an empty list; else entries, each a letter for the owner
    /// and the entry's number.
    fn reply(cell: &str, node: usize) -> Option<Answer> {
        let listed = |text: &str| Listed {
            owner: OwnerToken::from_random(u128::from(text.as_bytes()[0])),
            remaining: Duration::from_secs(10 + node as u64),
            entry: text.as_bytes().into(),
        };
        match cell {
            "." => None,
            "x" => Some(Err(NodeError::not_executed(NodeFault::Unreachable, ""))),
            "-" => Some(Ok(Reply::Candidates(Vec::new()))),
            all => Some(Ok(Reply::Candidates(all.split(',').map(listed).collect()))),
        }
    }

    fn read(entry: &[u8]) -> Option<(u64, String)> {
        let text = String::from_utf8(entry.to_vec()).unwrap();
        Some((text[1..].parse().ok()?, text))
    }

    fn shown(progress: Progress<Result<Vec<Candidate<String>>, Vec<NodeOutcome>>>) -> String {
        match progress {
            Progress::Decided(Ok(all)) => {
                let one = |c: &Candidate<_>| format!("{} for {}", c.content, c.remaining.as_secs());
                let mut all: Vec<_> = all.iter().map(one).collect();
                all.sort();
                all.join(", ")
            }
            Progress::Decided(Err(outcomes)) => format!("no quorum of {}", outcomes.len()),
            _ => "pending".into(),
        }
    }

    #[test]
    fn what_a_majority_has_written_down() {
        for (cells, early, late) in [
            (".", "pending", "no quorum of 1"),
            ("-", "", ""),
            ("a1", "a1 for 10", "a1 for 10"),
            ("x", "no quorum of 1", "no quorum of 1"),
            ("a1 a1 .", "a1 for 11", "a1 for 11"),
            ("a1 . a2", "a2 for 12", "a2 for 12"),
            ("a2 a1 .", "a2 for 11", "a2 for 11"),
            ("a1 - .", "a1 for 10", "a1 for 10"),
            ("- a1,b3 .", "a1 for 11, b3 for 11", "a1 for 11, b3 for 11"),
            ("a1,b1 b2,a1 .", "a1 for 11, b2 for 11", "a1 for 11, b2 for 11"),
            ("a1 a? .", "a1 for 10", "a1 for 10"),
            ("a1 . .", "pending", "no quorum of 3"),
            ("a1 x .", "pending", "no quorum of 3"),
            ("a1 x x", "no quorum of 3", "no quorum of 3"),
            ("a1 x a1", "a1 for 12", "a1 for 12"),
        ] {
            let mut machine = Listing::new(cells.split(' ').count(), BY, read);
            let mut seen = machine.on_time(Moment::default());
            for (node, cell) in cells.split(' ').enumerate() {
                if let Some(reply) = reply(cell, node) {
                    seen = machine.on_reply(Moment::default(), node, &reply);
                }
            }
            assert_eq!(shown(seen), early, "{cells}");
            assert_eq!(shown(machine.on_time(BY)), late, "{cells} at the deadline");
        }
    }
}
