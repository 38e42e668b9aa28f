//! What clients do with idempotency keys: handlers that finish, fail, hang past their lease or are
//! dropped half-way, and callers that come back.

use std::sync::Arc;
use std::time::Duration;

use palisade::Idempotency;
use palisade::idempotency::{Context, Failed, Outcome};
use tokio::time::sleep;

use crate::client::{Actor, cut};
use crate::names;
use crate::plan::{HandlerPlan, ms};
use crate::trace::Event;
use crate::world::World;

/// How long records are kept: longer than any run.
const RETENTION: Duration = Duration::from_secs(600);

impl Actor {
    /// One call under a key.
    pub(crate) async fn order(&self, key: usize, wait: u64, handler: HandlerPlan) {
        let orders = Idempotency::builder(&self.redlock);
        let orders = if self.plan.rerun { orders.at_least_once() } else { orders.at_most_once() };
        let orders = orders
            .namespace("sim")
            .lease(ms(self.plan.ttl))
            .retention(RETENTION)
            .durability(self.plan.durability())
            .build()
            .expect("plans keep the inequalities of the settings");
        let (client, name) = (self.client, names::number_of(&names::order(key)));
        self.world.tell(Event::Calls { client, name });
        let world = Arc::clone(&self.world);
        let call = orders.key(names::order(key)).wait(ms(wait));
        let run = call.run(move |cx| handle(world, (client, name), cx, handler));
        let Some(outcome) = cut(handler.polls, run).await else {
            return self.world.tell(Event::Cancelled { client, task: self.task, name });
        };
        let (value, executed) = match outcome {
            Ok(Outcome::Executed { value, .. }) => (value, true),
            Ok(Outcome::Replayed(value)) => (value, false),
            // Failed, in flight, parked, or not known to be stored: nothing was promised.
            _ => return self.world.tell(Event::NoResult { client, name }),
        };
        self.world.tell(Event::Result { client, name, value, executed });
    }
}

/// The handler: each start has a result of its own, so that two starts can be told apart.
async fn handle(
    world: Arc<World>,
    (client, name): (usize, u16),
    cx: Context,
    plan: HandlerPlan,
) -> Result<u64, Failed> {
    let (token, attempt) = (cx.fencing_token().get(), cx.attempt());
    let value = world.next_value();
    world.tell(Event::Starts { client, name, token, attempt, value });
    sleep(ms(plan.span)).await;
    match plan.fails {
        0 => Ok(value),
        1 => Err(Failed::unknown("failed")),
        _ => Err(Failed::no_effect("failed before it did anything")),
    }
}
