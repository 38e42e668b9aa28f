//! The leader of an election, as a majority of nodes report it.
//!
//! The nodes answer at different times. The results are correct all the same:
//! 1. If an owner leads throughout the read, each node of its majority reports it. So if no owner
//!    has a majority, and no further answer can change that, there was a moment without a leader.
//! 2. Metadata are numbered. If some were written to a majority, every majority that names the
//!    leader has a node with them, so the highest number is never older.
//! 3. A node that did not answer, or may have lost a lock, may name any owner or none. It can
//!    prevent a decision, but never cause one.

use std::time::Duration;

use crate::error::NodeOutcome;
use crate::op::{Holder, Reply};
use crate::quorum::answers::Answers;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;
use crate::token::OwnerToken;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight<W> {
    Leads { content: W, remaining: Duration },
    Mute,
    Vacant,
    NoQuorum(Vec<NodeOutcome>),
}

#[derive(Clone, Debug)]
pub struct Leading<R> {
    by: Moment,
    read: R,
    answers: Answers,
}

impl<W, R: Fn(OwnerToken, &Holder) -> Option<(u64, W)>> Leading<R> {
    /// `read` returns the owner's metadata and their number, and must refuse those of another
    /// owner.
    pub fn new(n: usize, by: Moment, read: R) -> Self {
        Self { by, read, answers: Answers::new(n) }
    }

    fn favourite(&self) -> (usize, Option<OwnerToken>) {
        let mut owners: Vec<OwnerToken> = self.held().map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        let runs = owners.chunk_by(|a, b| a == b);
        runs.map(|run| (run.len(), run.first().copied())).max().unwrap_or((0, None))
    }

    /// Not another program's value, nor a lock that is kept after a planned handover.
    fn held(&self) -> impl Iterator<Item = (OwnerToken, &Holder)> {
        self.answers.replies().filter_map(|reply| match reply {
            Reply::Holder(Some(holder)) => {
                let owner = holder.owner.filter(|owner| *owner != OwnerToken::KEPT)?;
                Some((owner, holder))
            }
            _ => None,
        })
    }

    fn of(&self, leader: OwnerToken) -> impl Iterator<Item = &Holder> {
        self.held().filter(move |(owner, _)| *owner == leader).map(|(_, holder)| holder)
    }

    fn content_of(&self, leader: OwnerToken) -> Option<W> {
        let content = self.of(leader).filter_map(|holder| (self.read)(leader, holder));
        content.max_by_key(|(number, _)| *number).map(|(_, content)| content)
    }

    fn remaining_of(&self, leader: OwnerToken, need: usize) -> Duration {
        let rests = self.of(leader).map(|holder| holder.remaining.unwrap_or_default());
        let mut rests: Vec<Duration> = rests.collect();
        rests.sort_unstable_by(|a, b| b.cmp(a));
        rests.get(need - 1).copied().unwrap_or_default()
    }
}

impl<W, R: Fn(OwnerToken, &Holder) -> Option<(u64, W)>> Machine for Leading<R> {
    type Decision = Sight<W>;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Sight<W>> {
        let fits = |r: &Reply| matches!(r, Reply::Holder(_) | Reply::Quarantined { .. });
        self.answers.put_read(node, reply, fits);
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Sight<W>> {
        let need = self.answers.need();
        let last = now >= self.by || self.answers.silent() == 0;
        let (votes, owner) = self.favourite();
        let owner = owner.filter(|_| votes >= need);
        // Without a certain answer, any owner may have the lock there, or none.
        let unknown = self.answers.n() - self.answers.count(is_certain);
        Progress::Decided(if let Some(owner) = owner {
            match self.content_of(owner) {
                Some(content) => {
                    Sight::Leads { content, remaining: self.remaining_of(owner, need) }
                }
                None if last => Sight::Mute,
                None => return Progress::Wait(self.by),
            }
        } else if votes + unknown < need {
            Sight::Vacant
        } else if last {
            Sight::NoQuorum(self.answers.outcomes(&NodeOutcome::no_answer()))
        } else {
            return Progress::Wait(self.by);
        })
    }
}

fn is_certain(reply: &Reply) -> bool {
    let kept = |holder: &Holder| holder.owner == Some(OwnerToken::KEPT);
    matches!(reply, Reply::Holder(holder) if !holder.as_ref().is_some_and(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{NodeError, NodeFault};
    use crate::op::{Began, QuarantineId};

    /// `a`, `b`: this owner; `a1`: with metadata number 1; `-`: free; `k`: kept after a planned
    /// handover; `q`: in quarantine; `x`: an error; `.`: no answer.
    fn reply(cell: &str, node: usize) -> Option<Result<Reply, NodeError>> {
        let held = |owner: u128, content: &str| Holder {
            owner: Some(OwnerToken::from_random(owner)),
            fence: 1,
            remaining: Some(Duration::from_secs(10 + node as u64)),
            meta: content.parse::<u64>().ok().map(|_| cell.as_bytes().into()),
        };
        Some(Ok(Reply::Holder(match cell.split_at(1) {
            (".", _) => return None,
            ("-", _) => None,
            ("k", _) => Some(Holder { owner: Some(OwnerToken::KEPT), ..held(0, "") }),
            ("q", _) => {
                let (remaining, id) =
                    (Duration::from_secs(3), QuarantineId { history: 1, since: 1 });
                return Some(Ok(Reply::Quarantined { remaining, id, began: Began::Known }));
            }
            ("x", _) => return Some(Err(NodeError::not_executed(NodeFault::Unreachable, ""))),
            (owner, content) => Some(held(u128::from(owner.as_bytes()[0]), content)),
        })))
    }

    fn read(_: OwnerToken, holder: &Holder) -> Option<(u64, String)> {
        let content = String::from_utf8(holder.meta.as_ref()?.to_vec()).unwrap();
        Some((content[1..].parse().unwrap(), content))
    }

    const BY: Moment = Moment::from_nanos(1);

    fn reported(progress: &Progress<Sight<String>>) -> String {
        let Progress::Decided(sight) = progress else { return "pending".into() };
        match sight {
            Sight::Leads { content, remaining } => format!("{content} for {}", remaining.as_secs()),
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
            ("k", "no quorum", "no quorum"),
            ("k k -", "no quorum", "no quorum"),
            ("k - -", "vacant", "vacant"),
            ("a1 k a1", "a1 for 10", "a1 for 10"),
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
            let mut machine = Leading::new(cells.split(' ').count(), BY, read);
            let mut sight = machine.on_time(Moment::default());
            for (node, cell) in cells.split(' ').enumerate() {
                if let Some(reply) = reply(cell, node) {
                    sight = machine.on_reply(Moment::default(), node, &reply);
                }
            }
            assert_eq!(reported(&sight), early, "{cells}");
            assert_eq!(reported(&machine.on_time(BY)), late, "{cells} at the deadline");
        }
    }

    #[test]
    fn no_quorum_keeps_every_cause() {
        let mut machine = Leading::new(3, BY, read);
        for (node, cell) in ["q", "x", "a1"].into_iter().enumerate() {
            machine.on_reply(Moment::default(), node, &reply(cell, node).unwrap());
        }
        let Progress::Decided(Sight::NoQuorum(outcomes)) = machine.on_time(BY) else {
            panic!("a verdict")
        };
        assert!(matches!(
            &outcomes[..],
            [NodeOutcome::Quarantined { .. }, NodeOutcome::Failed(_), NodeOutcome::Held(Some(_))]
        ));
    }
}
