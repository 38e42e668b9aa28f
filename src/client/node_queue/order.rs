//! The order of a batch. Releases come first, before acquires by other owners, which were requested
//! while the lock was held; all other requests keep their order.
//!
//! An acquire and a release of the same owner that both wait are not sent, nor a release whose
//! acquire missed its deadline; else the queue of a frozen node would soon contain only those. Both
//! apply only to the first request of an owner: after an earlier one the node may hold a grant.

use std::collections::HashSet;

use super::pending::Pending;
use crate::client::round::Origin;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::token::OwnerToken;

#[derive(Default)]
pub(super) struct BatchOrder {
    releases: Vec<Pending>,
    others: Vec<Pending>,
    unsent: HashSet<OwnerToken>,
}

impl BatchOrder {
    pub(super) fn for_up_to(most: usize) -> Self {
        let list = || Vec::with_capacity(most);
        Self { releases: list(), others: list(), unsent: HashSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.releases.len() + self.others.len()
    }

    pub(super) fn leave_out(&mut self, op: &Op) {
        if op.begins_owner() {
            self.unsent.extend(op.owner());
        }
    }

    pub(super) fn take(&mut self, pending: Pending) {
        let op = &pending.op;
        // The node holds nothing for such an owner.
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

    /// Only if it is the owner's first request, and the batch has no other of the owner.
    fn acquire_of(&self, me: &OwnerToken) -> Option<usize> {
        let mine = |pending: &Pending| pending.op.owner() == Some(me);
        let at = self.others.iter().position(mine)?;
        let alone = !self.others[at + 1..].iter().any(mine);
        let op = &self.others[at].op;
        (alone && matches!(op, Op::Acquire { .. }) && op.begins_owner()).then_some(at)
    }

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

fn is_anothers(op: &Op, me: &OwnerToken) -> bool {
    matches!(op, Op::Acquire { owner, .. } if owner != me)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::client::round::Inbox;
    use crate::name::LockKeys;
    use crate::op::LockMode;
    use crate::time::Moment;
    use crate::token::FencingToken;

    const TTL: Duration = Duration::from_secs(1);

    fn op(kind: u8, name: u8, owner: u8, at: u32) -> Op {
        let keys = LockKeys::new(&format!("{name}"));
        let owner = OwnerToken::from_random(owner.into());
        let token = FencingToken::new(at.into());
        match kind {
            0..4 => Op::Acquire {
                mode: LockMode::Exclusive,
                keys,
                owner,
                ttl: TTL * at,
                proposal: at.into(),
                if_held: at.is_multiple_of(7).then_some(crate::op::IfHeld::Watch),
            },
            4..8 => {
                Op::Release { mode: LockMode::Exclusive, keys, owner, meta: at.is_multiple_of(7) }
            }
            8 => Op::Extend {
                mode: LockMode::Exclusive,
                keys,
                owner,
                ttl: TTL,
                token,
                meta: None,
                reassert: None,
            },
            _ => Op::Inspect { keys, wait: false },
        }
    }

    fn gathered(ops: &[Op]) -> Vec<Pending> {
        let mut batch = BatchOrder::default();
        for (at, op) in ops.iter().enumerate() {
            // By the deadline the test recognises the request.
            let deadline = Moment::from_nanos(at as u64);
            batch.take(Pending::new(op.clone(), deadline, 0, &Inbox::new(1)));
        }
        batch.finish()
    }

    fn places(batch: &[Pending]) -> Vec<usize> {
        batch.iter().map(|pending| pending.deadline.as_nanos() as usize).collect()
    }

    /// Callers cannot observe the change of order.
    fn may_pass(late: &Op, early: &Op) -> bool {
        match (late, early) {
            (Op::Release { owner: mine, .. }, Op::Acquire { owner, .. }) => owner != mine,
            _ => false,
        }
    }

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
                batch.take(Pending::new(op.clone(), Moment::default(), 0, &Inbox::new(1)));
            }
            batch.finish().iter().map(|pending| pending.op.clone()).collect::<Vec<_>>()
        };
        let again = op(4, 0, 2, 4);
        assert_eq!(sent(&acquire, &[release.clone(), again.clone()]), [again]);
        // The extension may have created the lock again, so the release is sent.
        let put_back = [extend.clone(), release.clone()];
        assert_eq!(sent(&acquire, &put_back), put_back);
        // The acquire before the extension may have been sent.
        assert_eq!(sent(&extend, std::slice::from_ref(&release)), [release]);
    }

    /// Such an acquire may repeat one that the node has executed.
    #[test]
    fn a_release_follows_an_acquire_that_may_be_a_repetition() {
        use crate::op::{IfHeld, Slots};
        let from = OwnerToken::from_random(9);
        let only = IfHeld::TakeOnly { from, token: FencingToken::new(1) };
        let moved = LockMode::Slot(Slots::any(3).exactly(1));
        let repeats = [
            (LockMode::Exclusive, Some(only)),
            (LockMode::Exclusive, Some(IfHeld::TakeFrom(from))),
            (moved, None),
        ];
        for (its_mode, take) in repeats {
            let (mut acquire, release) = (op(0, 0, 1, 1), op(4, 0, 1, 2));
            if let Op::Acquire { mode, if_held, .. } = &mut acquire {
                (*mode, *if_held) = (its_mode, take);
            }
            let both = [acquire.clone(), release.clone()];
            let sent: Vec<Op> = gathered(&both).iter().map(|pending| pending.op.clone()).collect();
            assert_eq!(sent, both, "only the first attempt was taken back");
            let mut batch = BatchOrder::default();
            batch.leave_out(&acquire);
            batch.take(Pending::new(release, Moment::default(), 0, &Inbox::new(1)));
            assert_eq!(batch.len(), 1, "an earlier attempt may have been executed");
        }
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
