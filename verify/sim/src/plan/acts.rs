//! What the tasks of clients do.

use super::{Act, Ms, Plan, Theme};
use crate::dice::Dice;

/// How a holder parts with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parting {
    Release,
    Drop,
    Forget,
    /// Releases, and drops the future of the release after so many polls.
    CutShort(u32),
}

/// What becomes of a call under an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HandlerPlan {
    /// How long the handler runs.
    pub(crate) span: Ms,
    /// 0 returns a result, 1 fails, 2 fails and says that nothing was done, 3 that it may be done
    /// again.
    pub(crate) fails: u64,
    /// The call's future is dropped after so many polls.
    pub(crate) polls: u32,
}

/// What an operator decides about a key that is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Decision {
    /// It may run again.
    Rerun,
    /// It may, and its steps are forgotten.
    Purge,
    /// What its result is.
    Resolve,
}

/// How many idempotency keys there are.
pub(super) const KEYS: u64 = 3;

impl Plan {
    pub(super) fn some_acts(&self, client: usize, task: u64) -> Vec<Act> {
        let mut d = Dice::new(self.seed, 100 + 10 * client as u64 + task);
        let rounds = match self.theme {
            Theme::Tokens | Theme::Fleet => d.range(6, 12),
            _ => d.range(3, 7),
        };
        let busy = d.chance(500);
        (0..rounds).flat_map(|_| [self.pause(&mut d, busy), self.act(&mut d)]).collect()
    }

    fn pause(&self, d: &mut Dice, busy: bool) -> Act {
        let settings = &self.stages[0];
        let span = match d.range(0, 19) {
            // Once in a while long enough for the fences, or the records, to be forgotten.
            0 => settings.max_ttl + 4 * settings.clock_error + 1_000,
            1..=4 if !self.orders.births.is_empty() => {
                let margin = 2 * settings.clock_error;
                settings.retention.saturating_sub(margin) + d.range(0, 2 * margin + 4)
            }
            n if busy || n < 8 => d.range(0, 20),
            _ => d.range(0, settings.ttl),
        };
        Act::Think(span)
    }

    fn act(&self, d: &mut Dice) -> Act {
        let ttl = self.stages[0].ttl;
        if d.chance(self.orders.share) {
            return self.order(d);
        }
        if d.chance(self.elections) {
            if d.chance(400) {
                return Act::Watch { seat: 0, span: d.range(ttl / 2, 4 * ttl) };
            }
            let wait = d.pick(&[ttl, 3 * ttl]);
            let span = d.pick(&[5, ttl, 3 * ttl]);
            let every = d.range(3, ttl);
            let parting = d.pick(&[Parting::Release, Parting::Drop, Parting::CutShort(2)]);
            return Act::Lead { seat: 0, wait, span, every, parting };
        }
        let name = d.range(0, self.names as u64 - 1) as usize;
        if self.theme == Theme::Tokens {
            // As many grants as there can be.
            let (wait, hold) = (6 * ttl, d.pick(&[0, 3, 10]));
            let parting = Parting::Release;
            return Act::Lock { name, wait, hold, every: 5, renew: true, parting };
        }
        let wait = d.pick(&[0, ttl, 3 * ttl, 6 * ttl]);
        if d.chance(150) {
            return Act::Cancelled { name, wait, polls: d.range(1, 12) as u32 };
        }
        let hold = d.pick(&[0, 5, ttl / 2, ttl * 3 / 2, ttl * 3]);
        let parting = match d.range(0, 9) {
            0..=5 => Parting::Release,
            6 | 7 => Parting::Drop,
            8 => Parting::CutShort(d.range(0, 5) as u32),
            _ => Parting::Forget,
        };
        let every = d.range(3, ttl / 4);
        Act::Lock { name, wait, hold, every, renew: d.chance(800), parting }
    }

    fn order(&self, d: &mut Dice) -> Act {
        let ttl = self.stages[0].ttl;
        let wait = d.pick(&[0, ttl / 2, 2 * ttl]);
        let span = d.pick(&[0, 3, ttl / 3, ttl, 2 * ttl]);
        let fails = d.pick(&[0, 0, 0, 0, 1, 1, 2, 3]);
        let polls = if d.chance(200) { d.range(1, 14) as u32 } else { u32::MAX };
        let handler = HandlerPlan { span, fails, polls };
        let print = if self.orders.prints { d.pick(&[1, 1, 1, 2]) } else { 0 };
        Act::Order { key: d.pick(&[0, 0, 1, 2]), print, wait, handler }
    }
}
