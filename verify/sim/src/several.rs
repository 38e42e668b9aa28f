//! Two locks that a simulated client process acquires together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::client::{Actor, Guard, tried, waited};
use crate::dice::Dice;
use crate::names;
use crate::plan::{Parting, ms};
use crate::run::Handle;
use crate::trace::Event;
use crate::world::World;

impl Actor {
    /// Acquires the first two locks in the plan of the simulated run together, holds them, and
    /// gives them up.
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

/// Makes all clients hold each of two names in turn, almost without a gap, until the first client
/// has acquired both names together.
pub(crate) fn beside_busy_names(world: &Arc<World>, handles: &[Handle]) -> Vec<JoinHandle<()>> {
    let both = [names::calm(60), names::calm(61)];
    let (is_over, mut tasks) = (Arc::<AtomicBool>::default(), Vec::new());
    for (process, redlock, settings) in handles {
        for name in both.iter().chain(&both) {
            let mutex = redlock.mutex(name).ttl(ms(settings.max_ttl)).acquire_timeout(ms(5_000));
            let mutex = mutex.build().expect("settings fit together");
            let is_over = Arc::clone(&is_over);
            tasks.push(process.run(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(guard) = mutex.acquire().await else { return };
                    sleep(ms(6)).await;
                    let _ = guard.release().await;
                }
            }));
        }
    }
    if let Some((process, redlock, settings)) = handles.first() {
        let name = names::number_of(&both[0]);
        let multi = redlock.multi(both).ttl(ms(settings.max_ttl)).acquire_timeout(ms(5_000));
        let multi = multi.build().expect("settings fit together");
        let world = Arc::clone(world);
        tasks.push(process.run(async move {
            sleep(ms(50)).await;
            let got = multi.acquire().await;
            is_over.store(true, Ordering::Relaxed);
            match got {
                Ok(guard) => drop(guard.release().await),
                Err(_) => world.tell(Event::NotServed { client: 0, name }),
            }
        }));
    }
    tasks
}
