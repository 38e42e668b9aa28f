//! Actions of client processes on semaphores.

use std::sync::Arc;

use palisade::node::spi::Env as _;

use crate::client::{Actor, Guard, tried, waited};
use crate::names;
use crate::plan::{Parting, ms};
use crate::process::Gated;
use crate::trace::Event;

impl Actor {
    /// Acquires a permit of a semaphore.
    pub(crate) async fn ask_permit(
        &self,
        name: usize,
        wait: u64,
        renew: bool,
        how: Parting,
    ) -> Option<Guard> {
        let (client, task, n) = (self.client, self.task, names::slot(name, 0));
        self.world.tell(Event::Asks { client, task, name: n });
        let mut pool = self
            .redlock
            .semaphore(names::pool(name), names::PERMITS)
            .acquire_timeout(ms(wait))
            .auto_renew(renew)
            .durability(self.plan.durability);
        if how == Parting::Forget {
            pool = pool.max_hold(ms(2 * self.settings.ttl));
        }
        let pool = pool.build().expect("settings fit together");
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
                self.world.tell(Event::Refused { client, task, name: n, taken });
                let requested_at = self.world.micros();
                let seen = pool.inspect().await;
                if seen.is_ok_and(|seen| seen.available() == usize::from(names::PERMITS)) {
                    for slot in 0..names::PERMITS {
                        self.world.vacant((client, names::slot(name, slot)), requested_at);
                    }
                }
                None
            }
        }
    }
}
