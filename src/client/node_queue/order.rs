//! What leaves together, in the order in which it is executed.
//!
//! Releases go first, so that a node can do them in one go and what waits for the names finds them
//! free. None overtakes anything but acquires by others: those were sent while the lock was held,
//! so their order cannot be observed. Everything else keeps its order; above all a release stays
//! behind its own acquire, and behind the extension that could put the lock back. An acquire that
//! meets its own release before either left is not sent at all, nor is the release. Neither is a
//! release behind an acquire that was too late to be sent: the queue of a frozen node would soon
//! hold nothing else.

use std::collections::HashSet;

use super::{Asked, Job};
use crate::client::reply_collector::Origin;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::token::OwnerToken;

#[derive(Default)]
pub(super) struct BatchOrder {
    releases: (Vec<Op>, Vec<Asked>),
    others: (Vec<Op>, Vec<Asked>),
    /// Whose acquire was not sent, and nothing else since.
    unsent: HashSet<OwnerToken>,
}

impl BatchOrder {
    /// Room for so many.
    pub(super) fn for_up_to(most: usize) -> Self {
        let lists = || (Vec::with_capacity(most), Vec::with_capacity(most));
        Self { releases: lists(), others: lists(), unsent: HashSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.releases.0.len() + self.others.0.len()
    }

    /// This one is too late and is not sent.
    pub(super) fn leave_out(&mut self, op: &Op) {
        if matches!(op, Op::Acquire { .. } | Op::Claim(_)) {
            self.unsent.extend(op.owner());
        }
    }

    pub(super) fn take(&mut self, job: Job) {
        let Job { op, deadline, mut asker } = job;
        // It takes back what was not sent; anything else of its owner may need to be taken back.
        let unsent = !self.unsent.is_empty();
        let unsent = unsent && op.owner().is_some_and(|owner| self.unsent.remove(owner));
        if unsent && op.is_undo() {
            return asker.post(Ok(Reply::Absent), Origin::default());
        }
        let who = Asked {
            again: op.shows_result().then(|| Box::new((op.clone(), deadline))),
            owed: asker.owes(&op),
            vote: is_vote(&op),
            owner: if op.is_undo() { None } else { op.owner().copied() },
            reasserts: reasserts(&op),
            asker: Some(asker),
        };
        let first = match &op {
            Op::Release { owner, .. } => {
                if let Some(at) = self.acquire_of(owner) {
                    return self.cancel(at, who);
                }
                self.others.0.iter().all(|o| is_anothers(o, owner))
            }
            _ => false,
        };
        let side = if first { &mut self.releases } else { &mut self.others };
        side.0.push(op);
        side.1.push(who);
    }

    /// Where the acquire of this owner is, if that is all that it asks for.
    fn acquire_of(&self, me: &OwnerToken) -> Option<usize> {
        let mine = |op: &Op| op.owner() == Some(me);
        let at = self.others.0.iter().position(mine)?;
        let alone = !self.others.0[at + 1..].iter().any(mine);
        (alone && matches!(self.others.0[at], Op::Acquire { .. })).then_some(at)
    }

    /// An acquire that was given up before it left, and its release: neither is sent.
    fn cancel(&mut self, at: usize, release: Asked) {
        self.others.0.remove(at);
        let acquire = self.others.1.remove(at);
        if let Some(asker) = acquire.asker {
            let detail = "given up before it was sent";
            asker.post(Err(NodeError::not_executed(NodeFault::Closed, detail)), Origin::default());
        }
        if let Some(asker) = release.asker {
            asker.post(Ok(Reply::Absent), Origin::default());
        }
    }

    pub(super) fn finish(self) -> (Vec<Op>, Vec<Asked>) {
        let (mut all, mut others) = (self.releases, self.others);
        all.0.append(&mut others.0);
        all.1.append(&mut others.1);
        all
    }
}

/// An acquire by somebody else.
fn is_anothers(op: &Op, me: &OwnerToken) -> bool {
    matches!(op, Op::Acquire { owner, .. } if owner != me)
}

/// Ops whose yes counts as a vote for a holder.
fn is_vote(op: &Op) -> bool {
    matches!(
        op,
        Op::Acquire { .. }
            | Op::Raise { .. }
            | Op::Extend { .. }
            | Op::Claim(_)
            | Op::RaiseClaim { .. }
            | Op::ExtendClaim { .. }
    )
}

fn reasserts(op: &Op) -> Option<OwnerToken> {
    match op {
        Op::Extend { owner, reassert: Some(_), .. }
        | Op::ExtendClaim { owner, reassert: Some(_), .. } => Some(*owner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::client::node_queue::Sink;
    use crate::client::node_queue::pending::Asker;
    use crate::client::reply_collector::ReplyCollector;
    use crate::name::LockKeys;
    use crate::time::Moment;
    use crate::token::FencingToken;

    const TTL: Duration = Duration::from_secs(1);

    /// The `at`th op of its batch, which its ttl or token says.
    fn op(kind: u8, name: u8, owner: u8, at: u32) -> Op {
        let keys = LockKeys::new(&format!("{name}"));
        let owner = OwnerToken::from_random(owner.into());
        let token = FencingToken::new(at.into());
        match kind {
            0..4 => Op::Acquire {
                keys,
                owner,
                ttl: TTL * at,
                proposal: at.into(),
                if_held: at.is_multiple_of(7).then_some(crate::op::IfHeld::Watch),
            },
            4..8 => Op::Release { keys, owner, meta: at.is_multiple_of(7) },
            8 => Op::Extend { keys, owner, ttl: TTL, token, meta: None, reassert: None },
            _ => Op::Inspect { keys, wait: false },
        }
    }

    fn gathered(ops: &[Op]) -> (Vec<Op>, Vec<Asked>) {
        let mut gather = BatchOrder::default();
        for (at, op) in ops.iter().enumerate() {
            // Each is pending until its place in the queue, which identifies its caller.
            let until = Moment::from_nanos(at as u64);
            let asker = Asker::new(Sink::Owed(ReplyCollector::new(1), 0, until), &Arc::default());
            gather.take(Job { op: op.clone(), deadline: until, asker });
        }
        gather.finish()
    }

    /// Where each op of the batch was in the queue.
    fn places(asked: &[Asked]) -> Vec<usize> {
        let place = |a: &Asked| a.owed.as_ref().map(|o| o.until.as_nanos() as usize);
        asked.iter().map(|a| place(a).expect("all are owed")).collect()
    }

    /// Whether it cannot be observed that `late` came before `early`, which was requested first.
    fn may_pass(late: &Op, early: &Op) -> bool {
        match (late, early) {
            (Op::Release { owner: mine, .. }, Op::Acquire { owner, .. }) => owner != mine,
            _ => false,
        }
    }

    /// Acquires that are followed by their release, with nothing of their owner in between, and
    /// those releases.
    fn cancelled(ops: &[Op]) -> Vec<usize> {
        let mut open: Vec<usize> = Vec::new();
        let mut gone = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let mine: Vec<usize> = open
                .iter()
                .copied()
                .filter(|i| ops[*i].owner().is_some() && ops[*i].owner() == op.owner())
                .collect();
            match (op, &mine[..]) {
                (Op::Release { .. }, [one]) if matches!(ops[*one], Op::Acquire { .. }) => {
                    gone.extend([*one, at]);
                    open.retain(|i| i != one);
                }
                // A release leaves first if nothing but acquires by others is before it.
                (Op::Release { owner, .. }, [])
                    if open.iter().all(|i| is_anothers(&ops[*i], owner)) => {}
                _ => open.push(at),
            }
        }
        gone
    }

    proptest! {
        #![proptest_config(crate::fuzzing::config())]

        #[test]
        fn nothing_is_lost_and_nothing_overtakes_what_it_may_not(
            all in proptest::collection::vec((0_u8..10, 0_u8..3, 0_u8..3), 0..24),
        ) {
            let queued = |((kind, name, owner), at): (&(u8, u8, u8), u32)| {
                op(*kind, *name, *owner, at)
            };
            let ops: Vec<Op> = all.iter().zip(1..).map(queued).collect();
            let (batch, asked) = gathered(&ops);
            let places = places(&asked);
            let mut seen = [places.clone(), cancelled(&ops)].concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ops.len()).collect::<Vec<_>>());
            for (i, place) in places.iter().enumerate() {
                prop_assert_eq!(&batch[i], &ops[*place], "an asker gets the answer to another op");
                for earlier in places[i + 1..].iter().filter(|p| *p < place) {
                    let right = may_pass(&ops[*place], &ops[*earlier]);
                    prop_assert!(right, "{} passed {}: {:?}", place, earlier, ops);
                }
            }
        }
    }

    #[test]
    fn a_release_follows_its_acquire_only_if_that_was_sent() {
        let (acquire, release, extend) = (op(0, 0, 1, 1), op(4, 0, 1, 2), op(8, 0, 1, 3));
        let sent = |late: &Op, ops: &[Op]| {
            let mut gather = BatchOrder::default();
            gather.leave_out(late);
            for op in ops {
                let asker = Asker::new(Sink::Mail(ReplyCollector::new(1), 0), &Arc::default());
                gather.take(Job { op: op.clone(), deadline: Moment::default(), asker });
            }
            gather.finish().0
        };
        let again = op(4, 0, 2, 4);
        assert_eq!(sent(&acquire, &[release.clone(), again.clone()]), [again]);
        // What comes behind it may have put the lock there.
        let put_back = [extend.clone(), release.clone()];
        assert_eq!(sent(&acquire, &put_back), put_back);
        // An extension that was too late says nothing of the acquire before it.
        assert_eq!(sent(&extend, std::slice::from_ref(&release)), [release]);
    }

    #[test]
    fn releases_leave_first_as_one_run() {
        let ops: Vec<Op> =
            (1..9).map(|at| op(if at % 2 == 0 { 5 } else { 0 }, 0, at as u8, at)).collect();
        let (batch, _) = gathered(&ops);
        let releases = batch.iter().take_while(|op| matches!(op, Op::Release { .. })).count();
        assert_eq!(releases, 4);
    }
}
