//! Actions of simulated clients on a cron job. Each client takes part in the job, and one of the
//! clients runs each tick.

use std::sync::Arc;

use palisade::Failed;
use palisade_cron::{Cron, Interrupted, Job, Overlap, Tick};
use tokio::time::{sleep, timeout};

use crate::client::Actor;
use crate::names;
use crate::orders::Believes;
use crate::plan::{Policy, ms};
use crate::trace::Event;

impl Actor {
    pub(crate) async fn tick(&self, span: u64, takes: u64) {
        let interrupted = match self.plan.orders.policy {
            Policy::Once => Interrupted::Leave,
            Policy::Rerun | Policy::Least => Interrupted::Rerun,
        };
        let overlap = if self.plan.seed & 16 == 0 { Overlap::Allow } else { Overlap::Skip };
        let job = Job::new("job", "* * * * * *").interrupted(interrupted).overlap(overlap);
        let cron = Cron::new(&self.redlock);
        let run = cron.run(job, |tick| self.attend(tick, takes));
        // `run` does not end by itself. The timeout ends it.
        let _ = timeout(ms(span), run).await;
    }

    async fn attend(&self, tick: Tick, takes: u64) -> Result<(), Failed> {
        let (client, name) = (self.client, names::tick(tick.unix_seconds()));
        let (token, attempt) = (tick.fencing_token().get(), tick.attempt());
        let value = self.world.next_value();
        self.world.tell(Event::Starts { client, name, token, attempt, value, print: 0 });
        let belief = Box::new(move || Some(tick.remaining()));
        let hold = self.world.claims((client, name), token, belief);
        let _believes = Believes { world: Arc::clone(&self.world), hold };
        sleep(ms(takes)).await;
        Ok(())
    }
}
