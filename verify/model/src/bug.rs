//! Bugs that are put back, each in front of the rules or machines: what a node does with an op, or
//! what a client makes of an answer.

use palisade::internal::model::{Answer, NodeValue};
use palisade::node::spi::{Batch, Claim, LockMode, Op, Remembered, Reply, Terms};
use palisade::{FencingToken, Moment};

use crate::judge::look;

/// One rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A node deletes the lock whoever releases it.
    ReleaseIgnoresOwner,
    /// An extension is awaited, and counts, until the end of the validity that it would give.
    RevivesLapsedLease,
    /// The answer of one node counts for two nodes.
    CountsOneNodeTwice,
    /// A node that has lost its data grants at once.
    NoQuarantine,
    /// Fences are not raised to the token.
    FenceNotRaised,
    /// Validity begins with the answers.
    ValidFromAnswer,
    /// Validity leaves no room for the drift of clocks.
    NoDrift,
    /// A lost attempt releases nothing.
    NoUndo,
    /// A reader is granted where a writer is.
    ReaderBesideWriter,
    /// A writer is granted where readers are.
    WriterBesideReader,
    /// Permits of different slots count together.
    PermitsCounted,
    /// A claim does not see a result.
    ClaimIgnoresResult,
    /// A result is stored whatever ballot was promised.
    CompleteIgnoresBallot,
    /// The handler runs although an earlier attempt has begun.
    AttemptsIgnored,
    /// The result of one node is returned.
    ResultOfOneNode,
    /// A result that the claim has found is not adopted.
    NothingAdopted,
}

fn held_by(node: &NodeValue, op: &Op, clock: (Moment, u64), terms: Terms) -> Option<Reply> {
    let (Op::Acquire { keys, .. } | Op::Release { keys, .. }) = op else { return None };
    let ops = vec![Op::Inspect { keys: keys.clone(), wait: false }];
    let batch = Batch { terms, not_after: None, remembers: Remembered::default(), ops };
    node.clone().execute(clock.0, clock.1, &batch).items.remove(0).ok()
}

impl Bug {
    /// What the node is asked in place of `op`, or what it answers without looking.
    pub(crate) fn before(
        self,
        node: &NodeValue,
        op: &mut Op,
        clock: (Moment, u64),
        terms: Terms,
    ) -> Option<Answer> {
        let there = || held_by(node, &*op, clock, terms);
        let (now_owner, fence) = match self {
            Self::ReleaseIgnoresOwner | Self::ReaderBesideWriter => match there() {
                Some(Reply::Holder(Some(holder))) => (holder.owner, holder.fence),
                _ => return None,
            },
            Self::WriterBesideReader => match there() {
                Some(Reply::Readers(readers)) => (None, readers.fence),
                _ => return None,
            },
            _ => (None, 0),
        };
        match (self, op) {
            (Self::ReleaseIgnoresOwner, Op::Release { owner, .. }) => *owner = now_owner?,
            (Self::ReaderBesideWriter, Op::Acquire { mode: LockMode::Shared, .. }) => {
                return Some(Ok(Reply::Granted { fence }));
            }
            (Self::WriterBesideReader, Op::Acquire { mode: LockMode::Exclusive, .. }) => {
                return Some(Ok(Reply::Granted { fence: fence + 1 }));
            }
            (Self::FenceNotRaised, Op::Raise { .. } | Op::RaiseClaim { .. }) => {
                return Some(Ok(Reply::Done));
            }
            (Self::ClaimIgnoresResult, Op::Claim(Claim { force, .. })) => *force = true,
            (Self::CompleteIgnoresBallot, Op::Complete { ballot, .. }) => {
                let ops = vec![look(true)];
                let batch = Batch { terms, not_after: None, remembers: Remembered::default(), ops };
                let found = node.clone().execute(clock.0, clock.1, &batch).items.remove(0);
                if let Ok(Reply::Record { state: Some(state), .. }) = found {
                    let above = ballot.token.get().max(state.fence + 1);
                    ballot.token = FencingToken::new(above);
                }
            }
            _ => {}
        }
        None
    }

    /// What the node answers in place of `reply`.
    pub(crate) fn after(self, reply: &mut Answer) {
        if let (Self::ClaimIgnoresResult, Ok(Reply::Claimed { record, .. })) = (self, reply) {
            *record = None;
        }
    }
}
