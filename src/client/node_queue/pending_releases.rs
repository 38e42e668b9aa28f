//! Releases and unclaims that a node has not confirmed, and results that it has not stored. A
//! release is repeated until the node executes it when no unanswered request of its owner can still
//! take effect, or until the ttl has ended the lock.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::pending::Pending;
use crate::time::Moment;
use crate::token::OwnerToken;

/// If there are more, the oldest is dropped, and its lock ends by the ttl.
const MOST: usize = 32_768;
/// First and longest pause between two tries, while the node does not answer.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(super) struct PendingReleases {
    queue: VecDeque<(Moment, Pending)>,
    wait: Duration,
}

impl Default for PendingReleases {
    fn default() -> Self {
        Self { queue: VecDeque::new(), wait: WAIT.0 }
    }
}

impl PendingReleases {
    pub(super) fn due(&self) -> Option<Moment> {
        self.queue.front().map(|(due, _)| *due)
    }

    pub(super) fn take(&mut self, now: Moment, most: usize) -> Vec<Pending> {
        let mut taken = Vec::new();
        while taken.len() < most && self.due().is_some_and(|due| due <= now) {
            taken.extend(self.queue.pop_front().map(|(_, o)| o).filter(|o| o.is_needed(now)));
        }
        taken
    }

    pub(super) fn push(&mut self, owed: Pending, now: Moment, pause: Duration) {
        if !owed.is_needed(now + pause) {
            return;
        }
        if self.queue.len() >= MOST {
            self.queue.pop_front();
        }
        self.queue.push_back((now + pause, owed));
    }

    pub(super) fn push_failed(&mut self, owed: Pending, now: Moment) {
        self.push(owed, now, self.wait);
    }

    pub(super) fn answered(&mut self, yes: bool) {
        self.wait = if yes { WAIT.0 } else { (self.wait * 2).min(WAIT.1) };
    }
}

/// Each with the time until which they may take effect, in µs by the node's clock. Beyond `MOST`,
/// `all_owners` has the latest of these times, for every owner.
#[derive(Debug, Default)]
pub(super) struct InDoubt {
    owners: HashMap<OwnerToken, u64>,
    all_owners: Option<u64>,
}

impl InDoubt {
    pub(super) fn about(&mut self, owner: OwnerToken, not_after: u64) {
        let until = self.owners.entry(owner).or_insert(not_after);
        *until = not_after.max(*until);
        if self.owners.len() > MOST {
            let all = self.owners.drain().map(|(_, until)| until);
            self.all_owners = all.chain(self.all_owners).max();
        }
    }

    pub(super) fn known(&mut self, micros: u64) {
        self.owners.retain(|_, until| *until >= micros);
        self.all_owners = self.all_owners.filter(|until| *until >= micros);
    }

    pub(super) fn lasts(&self, owner: &OwnerToken, micros: u64) -> Option<Duration> {
        let until = self.owners.get(owner).copied().max(self.all_owners)?;
        let left = until.checked_sub(micros)?;
        Some(Duration::from_micros(left) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockKeys;
    use crate::op::{LockMode, Op};

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn owed(number: u128, until: u64) -> Pending {
        let owner = OwnerToken::from_random(number);
        let op =
            Op::Release { mode: LockMode::Exclusive, keys: LockKeys::new("k"), owner, meta: false };
        Pending::release(op, at(until), 0, None, at(until))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_due_comes_in_order_and_not_after_its_ttl() {
        let mut queue = PendingReleases::default();
        queue.push(owed(1, 100), at(0), ms(10));
        queue.push(owed(2, 15), at(0), ms(10));
        queue.push(owed(3, 100), at(0), ms(30));
        queue.push(owed(4, 5), at(0), ms(10));
        assert_eq!(queue.due(), Some(at(10)));
        assert_eq!(queue.take(at(9), 8).len(), 0);
        let taken = queue.take(at(20), 8);
        assert_eq!(taken.iter().map(|o| o.op.clone()).collect::<Vec<_>>(), [owed(1, 0).op.clone()]);
        assert_eq!(queue.due(), Some(at(30)));
    }

    #[test]
    fn the_queue_is_bounded_and_keeps_the_newest() {
        let mut queue = PendingReleases::default();
        for i in 0..MOST as u128 + 5 {
            queue.push(owed(i, 1_000), at(0), ms(1));
        }
        let all = queue.take(at(1), usize::MAX);
        assert_eq!(all.len(), MOST);
        assert_eq!(all[0].op, owed(5, 0).op);
    }

    #[test]
    fn pauses_grow_until_the_node_answers() {
        let mut queue = PendingReleases::default();
        let mut pause = |answered| {
            queue.answered(answered);
            queue.push_failed(owed(1, 100_000), at(0));
            let due = queue.due().unwrap();
            queue.take(at(10_000), 1);
            due.since(at(0))
        };
        assert_eq!(pause(false), ms(100));
        for _ in 0..6 {
            pause(false);
        }
        assert_eq!(pause(false), ms(1_000));
        assert_eq!(pause(true), ms(50));
    }

    #[test]
    fn a_doubt_ends_past_the_deadline_of_what_got_no_answer() {
        let (a, b) = (OwnerToken::from_random(1), OwnerToken::from_random(2));
        let mut in_doubt = InDoubt::default();
        assert_eq!(in_doubt.lasts(&a, 1), None);
        in_doubt.about(a, 2_000);
        in_doubt.about(a, 1_000);
        assert_eq!(in_doubt.lasts(&b, 1), None, "it is of one owner only");
        assert_eq!(in_doubt.lasts(&a, 2_001), None);
        assert_eq!(in_doubt.lasts(&a, 2_000), Some(ms(1)), "at its deadline it may still run");
        assert_eq!(in_doubt.lasts(&a, 1_000), Some(ms(2)));
        in_doubt.about(b, 8_000);
        in_doubt.known(5_000);
        assert_eq!(in_doubt.lasts(&b, 8_000), Some(ms(1)));
        in_doubt.known(8_001);
        assert!(in_doubt.owners.is_empty(), "nothing piles up");
    }

    #[test]
    fn doubts_about_very_many_owners_become_one_about_all() {
        let mut in_doubt = InDoubt::default();
        let unknown = OwnerToken::from_random(5 * MOST as u128);
        for i in 0..3 * MOST as u128 {
            in_doubt.about(OwnerToken::from_random(i), 1_000 + i as u64);
            let is_about_all = in_doubt.lasts(&unknown, 1_000).is_some();
            assert_eq!(is_about_all, i >= MOST as u128, "after {} owners", i + 1);
            assert!(in_doubt.owners.len() <= MOST, "a silent node costs memory without end");
        }
        let last = 1_000 + 3 * MOST as u64 - 1;
        for owner in [0, 7, 5 * MOST as u128].map(OwnerToken::from_random) {
            assert!(in_doubt.lasts(&owner, 1_000).is_some(), "no owner is left out");
        }
        in_doubt.known(last + 1);
        assert!(in_doubt.owners.is_empty() && in_doubt.all_owners.is_none(), "it ends");
        assert_eq!(in_doubt.lasts(&OwnerToken::from_random(0), last + 1), None);
    }
}
