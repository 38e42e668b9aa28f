//! The actions that the plan of a simulated run gives to the clients' tasks.

use super::{Action, Ms, Plan, Theme};
use crate::dice::Dice;

/// Way in which a holder gives up a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parting {
    Release,
    Drop,
    Forget,
    /// Releases the lock, but drops the future of the release after this number of polls.
    CutShort(u32),
    /// Hands the lock over with a ticket, which another client may find and redeem.
    HandOver,
}

/// Use of a lock by its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Uses {
    Writes,
    /// Writes to the resource. Before that, waits for the fair lock, in the order of the nodes'
    /// tickets.
    WritesFairly,
    Reads,
    /// Reads from the resource, with leases of a quarter of the usual length.
    ReadsBriefly,
    /// Writes to the resource, downgrades to a reader after half of the time, and then reads.
    Downgrades,
    /// Holds a permit of a semaphore, and writes to the resource of the permit's slot.
    Permit,
}

/// Behaviour of a handler with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HandlerPlan {
    /// Duration of the handler.
    pub(crate) span: Ms,
    /// Result of the handler: 0 means success, 1 a failure, 2 a failure without effect, and 3 a
    /// failure that may be repeated.
    pub(crate) fails: u64,
    /// Number of polls after which the future of the call is dropped.
    pub(crate) polls: u32,
}

/// An operator's decision about a parked key, whose handler does not run without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Decision {
    /// The handler may run again.
    Rerun,
    /// The handler may run again, and the record of its finished steps is deleted.
    Purge,
    /// The operator stores the result.
    Resolve,
}

impl Action {
    /// Action that exchanges one message with every node.
    pub(super) const GREETING: Self = Self::Lock {
        uses: Uses::Writes,
        name: 0,
        wait: 0,
        hold: 0,
        every: 1,
        renew: false,
        parting: Parting::Release,
    };

    /// Changes half of the actions that acquire one permit: they acquire all permits together.
    pub(super) fn may_want_all_permits(&mut self, d: &mut Dice) {
        if let Self::Lock { uses: Uses::Permit, name, wait, hold, renew, parting, .. } = *self
            && parting != Parting::HandOver
            && d.chance(500)
        {
            let polls = if d.chance(200) { d.range(1, 14) as u32 } else { u32::MAX };
            *self = Self::AllPermits { name, wait, hold, renew, polls, parting };
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskPlan {
    pub(crate) client: usize,
    pub(crate) actions: Vec<Action>,
}

/// Number of idempotency keys.
pub(super) const KEYS: u64 = 3;

impl Plan {
    pub(super) fn draw_actions(&self, client: usize, task: u64) -> Vec<Action> {
        let mut d = Dice::new(self.seed, 100 + 10 * client as u64 + task);
        let rounds = match self.theme {
            Theme::Tokens | Theme::Fleet => d.range(6, 12),
            _ => d.range(3, 7),
        };
        let busy = d.chance(500);
        let mut actions: Vec<Action> =
            (0..rounds).flat_map(|_| [self.pause(&mut d, busy), self.action(&mut d)]).collect();
        // Each kind of change of an action has its own stream of random numbers, so it does not
        // change the other values that are drawn for the actions.
        let mut d = Dice::new(self.seed, 3_000 + 10 * client as u64 + task);
        for action in &mut actions {
            if let Action::Lock { uses, .. } = action
                && d.chance(self.readers)
            {
                *uses = d.pick(&[Uses::Reads, Uses::Reads, Uses::ReadsBriefly, Uses::Downgrades]);
            }
        }
        let mut d = Dice::new(self.seed, 4_000 + 10 * client as u64 + task);
        for action in &mut actions {
            if let Action::Lock { uses, .. } = action
                && d.chance(self.permits)
            {
                *uses = Uses::Permit;
            }
        }
        let mut d = Dice::new(self.seed, 6_000 + 10 * client as u64 + task);
        for action in &mut actions {
            if let Action::Lock { uses: Uses::Writes, wait, hold, renew, parting, .. } = *action
                && d.chance(self.several)
            {
                *action = Action::Several { wait, hold, renew, parting };
            }
        }
        let mut d = Dice::new(self.seed, 7_000 + 10 * client as u64 + task);
        for action in &mut actions {
            if let Action::Lock { uses: uses @ Uses::Writes, .. } = action
                && d.chance(self.fair)
            {
                *uses = Uses::WritesFairly;
            }
        }
        let mut d = Dice::new(self.seed, 5_000 + 10 * client as u64 + task);
        for action in &mut actions {
            match action {
                Action::Lock { parting: parting @ (Parting::Release | Parting::Drop), .. }
                    if d.chance(self.hand_overs) =>
                {
                    *parting = Parting::HandOver;
                }
                Action::Think(span) if d.chance(self.hand_overs) => {
                    let (wait, hold) = (d.range(0, *span), d.pick(&[0, 5, self.stages[0].ttl]));
                    let parting = d.pick(&[Parting::Release, Parting::Drop, Parting::HandOver]);
                    *action = Action::Resume { name: 0, wait, hold, polls: u32::MAX, parting };
                }
                _ => {}
            }
        }
        let mut d = Dice::new(self.seed, 8_000 + 10 * client as u64 + task);
        for action in &mut actions {
            action.may_want_all_permits(&mut d);
        }
        actions
    }

    fn pause(&self, d: &mut Dice, busy: bool) -> Action {
        let settings = &self.stages[0];
        let span = match d.range(0, 19) {
            // One pause in twenty is so long that fences and records of keys can expire.
            0 => settings.max_ttl + 4 * settings.clock_error + 1_000,
            1..=4 if !self.orders.births.is_empty() => {
                let margin = 2 * settings.clock_error;
                settings.retention.saturating_sub(margin) + d.range(0, 2 * margin + 4)
            }
            n if busy || n < 8 => d.range(0, 20),
            _ => d.range(0, settings.ttl),
        };
        Action::Think(span)
    }

    fn action(&self, d: &mut Dice) -> Action {
        let ttl = self.stages[0].ttl;
        if d.chance(self.orders.share) {
            return self.order(d);
        }
        if d.chance(self.elections) {
            if d.chance(400) {
                return Action::Watch { seat: 0, span: d.range(ttl / 2, 4 * ttl) };
            }
            let wait = d.pick(&[ttl, 3 * ttl]);
            let span = d.pick(&[5, ttl, 3 * ttl]);
            let every = d.range(3, ttl);
            let parting = d.pick(&[Parting::Release, Parting::Drop, Parting::CutShort(2)]);
            return Action::Lead { seat: 0, wait, span, every, parting };
        }
        let name = d.range(0, self.names as u64 - 1) as usize;
        if self.theme == Theme::Tokens {
            // A plan whose theme is fencing tokens needs as many grants as possible.
            let (wait, hold) = (6 * ttl, d.pick(&[0, 3, 10]));
            let parting = Parting::Release;
            let uses = Uses::Writes;
            return Action::Lock { uses, name, wait, hold, every: 5, renew: true, parting };
        }
        let wait = d.pick(&[0, ttl, 3 * ttl, 6 * ttl]);
        if d.chance(150) {
            return Action::Cancelled { name, wait, polls: d.range(1, 12) as u32 };
        }
        let hold = d.pick(&[0, 5, ttl / 2, ttl * 3 / 2, ttl * 3]);
        let parting = match d.range(0, 9) {
            0..=5 => Parting::Release,
            6 | 7 => Parting::Drop,
            8 => Parting::CutShort(d.range(0, 5) as u32),
            _ => Parting::Forget,
        };
        let every = d.range(3, ttl / 4);
        let (uses, renew) = (Uses::Writes, d.chance(800));
        Action::Lock { uses, name, wait, hold, every, renew, parting }
    }

    fn order(&self, d: &mut Dice) -> Action {
        let ttl = self.stages[0].ttl;
        let wait = d.pick(&[0, ttl / 2, 2 * ttl]);
        let span = d.pick(&[0, 3, ttl / 3, ttl, 2 * ttl]);
        let fails = d.pick(&[0, 0, 0, 0, 1, 1, 2, 3]);
        let polls = if d.chance(200) { d.range(1, 14) as u32 } else { u32::MAX };
        let handler = HandlerPlan { span, fails, polls };
        let print = if self.orders.prints { d.pick(&[1, 1, 1, 2]) } else { 0 };
        Action::Order { key: d.pick(&[0, 0, 1, 2]), print, wait, handler }
    }
}
