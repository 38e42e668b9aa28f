//! Two locks that a client process acquires together.

use std::sync::Arc;

use crate::client::{Actor, Guard, tried, waited};
use crate::dice::Dice;
use crate::names;
use crate::plan::{Parting, ms};
use crate::trace::Event;

impl Actor {
    /// Acquires the first two locks together, holds them, and gives them up.
    pub(crate) async fn several(
        &self,
        (wait, renew): (u64, bool),
        (span, parting): (u64, Parting),
        dice: Dice,
    ) {
        let (client, task) = (self.client, self.task);
        self.world.tell(Event::Asks { client, task, name: 0 });
        let requested_at = self.world.micros();
        let multi = self.redlock.multi([names::lock(1), names::lock(0)]).auto_renew(renew);
        let multi = multi.acquire_timeout(ms(wait)).durability(self.plan.durability);
        let multi = multi.build().expect("settings fit together");
        let got = match wait {
            0 => tried(multi.try_acquire().await, Guard::Several),
            _ => waited(multi.acquire().await, Guard::Several),
        };
        let guard = match got {
            Ok(guard) => Arc::new(guard),
            Err(taken) => return self.world.tell(Event::Refused { client, task, name: 0, taken }),
        };
        let asked = (requested_at, false);
        let second = self.also_holds(1, Arc::clone(&guard), asked);
        let first = self.also_holds(0, guard, asked);
        self.write(&second, 1);
        let first = self.hold(first, span, (9, renew), dice).await;
        self.write(&second, 0);
        if parting != Parting::Forget {
            let (hold, how) = (second.id, parting);
            self.world.tell(Event::Parts { hold, client, name: 1, how });
            self.world.parts(second.id);
        }
        drop(second);
        self.part(first, parting).await;
    }
}
