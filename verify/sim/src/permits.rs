//! Actions of simulated client processes on semaphores.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use palisade::node::spi::Env as _;
use palisade::{AcquireError, Permits, Semaphore};
use tokio::time::sleep;

use crate::client::{Actor, Guard, cut, tried, waited};
use crate::dice::Dice;
use crate::names;
use crate::plan::{Parting, ms};
use crate::process::Gated;
use crate::trace::{Event, HoldId};

impl Actor {
    fn pool(&self, name: usize, (wait, renew): (u64, bool), how: Parting) -> Semaphore {
        let mut pool = self
            .redlock
            .semaphore(names::pool(name), names::PERMITS)
            .acquire_timeout(ms(wait))
            .auto_renew(renew)
            .durability(self.plan.durability);
        if how == Parting::Forget {
            pool = pool.max_hold(ms(2 * self.settings.ttl));
        }
        pool.build().expect("settings fit together")
    }

    pub(crate) async fn ask_permit(
        &self,
        name: usize,
        wait: u64,
        renew: bool,
        how: Parting,
    ) -> Option<Guard> {
        let (client, task, n) = (self.client, self.task, names::slot(name, 0));
        self.world.tell(Event::Asks { client, task, name: n });
        let pool = self.pool(name, (wait, renew), how);
        let began = (Gated(Arc::clone(&self.process)).now(), self.process.stood_still().1);
        let got = if wait == 0 {
            tried(pool.try_acquire().await, Guard::Permit)
        } else {
            waited(pool.acquire().await, Guard::Permit)
        };
        self.must_be_in_time(began, wait);
        match got {
            Ok(guard) => Some(guard),
            Err(taken) => {
                self.got_no_permit((name, &pool), taken).await;
                None
            }
        }
    }

    /// Reports that a call was refused. Then asks for the holders of the permits.
    async fn got_no_permit(&self, (name, pool): (usize, &Semaphore), taken: bool) {
        let (client, task, n) = (self.client, self.task, names::slot(name, 0));
        self.world.tell(Event::Refused { client, task, name: n, taken });
        let requested_at = self.world.micros();
        let seen = pool.inspect().await;
        if seen.is_ok_and(|seen| seen.available() == usize::from(names::PERMITS)) {
            for slot in 0..names::PERMITS {
                self.world.vacant((client, names::slot(name, slot)), requested_at);
            }
        }
    }

    /// Acquires all permits of a semaphore together, holds them, and gives them up. The future is
    /// dropped after `polls` polls.
    pub(crate) async fn all_permits(
        &self,
        name: usize,
        (wait, renew, polls): (u64, bool, u32),
        (span, parting): (u64, Parting),
        dice: Dice,
    ) {
        let (client, task, n) = (self.client, self.task, names::slot(name, 0));
        self.world.tell(Event::Asks { client, task, name: n });
        let pool = self.pool(name, (wait, renew), parting);
        let requested_at = self.world.micros();
        let began = (Gated(Arc::clone(&self.process)).now(), self.process.stood_still().1);
        let got = cut(polls, pool.acquire_many(names::PERMITS)).await;
        self.must_be_in_time(began, wait);
        let permits = match got {
            None => return self.world.tell(Event::Cancelled { client, task, name: n }),
            Some(Err(e)) => {
                let taken = matches!(e, AcquireError::TimedOut { .. });
                return self.got_no_permit((name, &pool), taken).await;
            }
            Some(Ok(permits)) => Arc::new(permits),
        };
        let slots = permits.slots().iter().fold(0, |all, (slot, _)| all | 1 << slot);
        let all = Event::AllPermits { client, name: n, slots, permits: permits.slots().len() };
        self.world.tell(all);
        let holds = self.holds_permits(name, &permits, requested_at);
        self.hold_permits(&permits, &holds, (span, renew), dice).await;
        for (hold, name, _) in &holds {
            self.world.tell(Event::Parts { hold: *hold, client, name: *name, how: parting });
        }
        if parting == Parting::Forget {
            let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            return forgotten.push(permits);
        }
        for (hold, ..) in holds {
            self.world.parts(hold);
        }
        let Ok(permits) = Arc::try_unwrap(permits) else { return };
        match parting {
            Parting::Drop | Parting::Forget => drop(permits),
            Parting::CutShort(polls) => {
                cut(polls, permits.release()).await;
            }
            Parting::Release | Parting::HandOver => {
                let _ = permits.release().await;
            }
        }
    }

    /// Registers a holder of each of the permits. Returns each hold with the number of its slot and
    /// its token.
    fn holds_permits(
        &self,
        name: usize,
        permits: &Arc<Permits>,
        requested_at: u64,
    ) -> Vec<(HoldId, u16, u64)> {
        let hold = |slot, token| {
            let (weak, env) = (Arc::downgrade(permits), Gated(Arc::clone(&self.process)));
            // The user's code needs all permits together. So it relies on none of them after the
            // first one has ended.
            let left = move |all: Arc<Permits>| {
                if all.is_valid() { all.valid_until().since(env.now()) } else { Duration::ZERO }
            };
            let belief = Box::new(move || weak.upgrade().map(&left));
            let (name, terms) = (names::slot(name, slot), (token, false, false));
            (self.world.holds((self.client, name), terms, requested_at, belief), name, token)
        };
        permits.slots().iter().map(|(slot, token)| hold(*slot, token.get())).collect()
    }

    /// Writes to the resource that each permit's slot protects, for the time `span` or until a
    /// permit is lost.
    async fn hold_permits(
        &self,
        permits: &Permits,
        holds: &[(HoldId, u16, u64)],
        (span, renew): (u64, bool),
        mut dice: Dice,
    ) {
        let end = self.world.start.elapsed() + ms(span);
        loop {
            for (hold, name, token) in holds {
                self.uses((*hold, false), *name, *token, dice.range(0, 3));
            }
            if !renew && dice.chance(400) {
                // The extension lasts until all permits are extended or have ended, so it may last
                // longer than the first permit.
                tokio::select! {
                    biased;
                    () = permits.lost() => {}
                    _ = permits.extend() => {}
                }
            }
            let left = end.saturating_sub(self.world.start.elapsed());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = permits.lost() => {
                    for (hold, ..) in holds {
                        self.reported(*hold, permits.valid_until());
                    }
                    return;
                }
                () = sleep(ms(9).min(left)) => {}
            }
        }
    }
}
