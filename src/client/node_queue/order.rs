//! Contents of a batch, in the order in which the node executes them.
//!
//! Releases go first, so that a node can execute them together, and so that the acquires behind
//! them find the locks free. A release overtakes nothing except acquires by other owners. These
//! were requested while the lock was held, so that their order cannot be observed. All other
//! requests keep their order; above all, a release stays behind its own acquire, and behind an
//! extension that could put the lock back. If an acquire meets its own release before either was
//! sent, neither is sent. A release is also not sent if its acquire was too late to be sent,
//! because the queue of a frozen node would soon hold nothing but such releases.

use std::collections::HashSet;

use super::pending::Pending;
use crate::client::reply_collector::Origin;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::token::OwnerToken;

/// Requests of the next batch, in the order in which the node executes them.
#[derive(Default)]
pub(super) struct BatchOrder {
    releases: Vec<Pending>,
    others: Vec<Pending>,
    /// Owners whose acquire or claim was too late to be sent, and from which no other request has
    /// come since.
    unsent: HashSet<OwnerToken>,
}

impl BatchOrder {
    /// Makes an empty batch with room for `most` requests.
    pub(super) fn for_up_to(most: usize) -> Self {
        let list = || Vec::with_capacity(most);
        Self { releases: list(), others: list(), unsent: HashSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.releases.len() + self.others.len()
    }

    /// Records that this op is not sent, because its deadline has passed.
    pub(super) fn leave_out(&mut self, op: &Op) {
        if op.is_new_work() {
            self.unsent.extend(op.owner());
        }
    }

    pub(super) fn take(&mut self, pending: Pending) {
        let op = &pending.op;
        // If the owner's acquire was not sent, a release has nothing to take back and is answered
        // at once. Any other request takes the owner out of `unsent`, because it may itself need a
        // release later.
        let unsent = !self.unsent.is_empty();
        let unsent = unsent && op.owner().is_some_and(|owner| self.unsent.remove(owner));
        if unsent && op.is_undo() {
            return pending.answer(Ok(Reply::Absent), &Origin::default());
        }
        let first = match op {
            Op::Release { owner, .. } => {
                if let Some(at) = self.acquire_of(owner) {
                    return self.cancel(at, pending);
                }
                self.others.iter().all(|other| is_anothers(&other.op, owner))
            }
            _ => false,
        };
        if first { &mut self.releases } else { &mut self.others }.push(pending);
    }

    /// Returns the index of this owner's acquire, provided that the batch has no other request of
    /// the owner.
    fn acquire_of(&self, me: &OwnerToken) -> Option<usize> {
        let mine = |pending: &Pending| pending.op.owner() == Some(me);
        let at = self.others.iter().position(mine)?;
        let alone = !self.others[at + 1..].iter().any(mine);
        (alone && matches!(self.others[at].op, Op::Acquire { .. })).then_some(at)
    }

    /// Takes an acquire out of the batch that was given up before it was sent, and answers it and
    /// its release. Neither is sent.
    fn cancel(&mut self, at: usize, release: Pending) {
        let error = NodeError::not_executed(NodeFault::Closed, "given up before it was sent");
        self.others.remove(at).answer(Err(error), &Origin::default());
        release.answer(Ok(Reply::Absent), &Origin::default());
    }

    pub(super) fn finish(mut self) -> Vec<Pending> {
        self.releases.append(&mut self.others);
        self.releases
    }
}

/// Returns true if `op` is an acquire by another owner than `me`.
fn is_anothers(op: &Op, me: &OwnerToken) -> bool {
    matches!(op, Op::Acquire { owner, .. } if owner != me)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::client::reply_collector::ReplyCollector;
    use crate::name::LockKeys;
    use crate::time::Moment;
    use crate::token::FencingToken;

    const TTL: Duration = Duration::from_secs(1);

    /// Makes the op at the place `at` of a batch; its ttl or its token shows the place.
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

    fn gathered(ops: &[Op]) -> Vec<Pending> {
        let mut batch = BatchOrder::default();
        for (at, op) in ops.iter().enumerate() {
            // The deadline is the request's place in the queue, so that the request can be
            // recognised.
            let (deadline, replies) = (Moment::from_nanos(at as u64), ReplyCollector::new(1));
            batch.take(Pending::new(op.clone(), deadline, 0, &replies));
        }
        batch.finish()
    }

    /// Returns the place in the queue of each op of the batch.
    fn places(batch: &[Pending]) -> Vec<usize> {
        batch.iter().map(|pending| pending.deadline.as_nanos() as usize).collect()
    }

    /// Returns true if callers cannot observe that `late` ran before `early`, which was requested
    /// first.
    fn may_pass(late: &Op, early: &Op) -> bool {
        match (late, early) {
            (Op::Release { owner: mine, .. }, Op::Acquire { owner, .. }) => owner != mine,
            _ => false,
        }
    }

    /// Returns the places of all acquires that are followed by their own release, with no other op
    /// of the owner in between, and the places of these releases.
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
                // A release is sent first if only acquires by other owners are before it.
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
            let batch = gathered(&ops);
            let places = places(&batch);
            let mut seen = [places.clone(), cancelled(&ops)].concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ops.len()).collect::<Vec<_>>());
            for (i, place) in places.iter().enumerate() {
                let asked = &ops[*place];
                prop_assert_eq!(&batch[i].op, asked, "a caller gets the answer to another op");
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
            let mut batch = BatchOrder::default();
            batch.leave_out(late);
            for op in ops {
                let replies = ReplyCollector::new(1);
                batch.take(Pending::new(op.clone(), Moment::default(), 0, &replies));
            }
            batch.finish().iter().map(|pending| pending.op.clone()).collect::<Vec<_>>()
        };
        let again = op(4, 0, 2, 4);
        assert_eq!(sent(&acquire, &[release.clone(), again.clone()]), [again]);
        // The extension behind the acquire may have put the lock there.
        let put_back = [extend.clone(), release.clone()];
        assert_eq!(sent(&acquire, &put_back), put_back);
        // An extension that was too late does not show that the acquire before it was not sent.
        assert_eq!(sent(&extend, std::slice::from_ref(&release)), [release]);
    }

    #[test]
    fn releases_leave_first_as_one_run() {
        let ops: Vec<Op> =
            (1..9).map(|at| op(if at % 2 == 0 { 5 } else { 0 }, 0, at as u8, at)).collect();
        let batch = gathered(&ops);
        let releases = batch.iter().take_while(|p| matches!(p.op, Op::Release { .. })).count();
        assert_eq!(releases, 4);
    }
}
