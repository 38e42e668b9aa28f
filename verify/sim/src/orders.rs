//! Actions of simulated clients on idempotency keys. Handlers succeed, fail, hang longer than their
//! lease, or are dropped before their end. Callers repeat their calls.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::Idempotency;
use palisade::idempotency::{Context, Failed, Lapsed, Outcome};
use tokio::time::sleep;

use crate::client::{Actor, cut};
use crate::names;
use crate::plan::{Birth, HandlerPlan, Policy, ms, wall};
use crate::trace::{Event, HoldId};
use crate::world::World;

/// Names of the steps of a handler.
const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

fn created(birth: &Birth) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(wall(birth.at * 1_000_000, birth.error * 1_000))
}

impl Actor {
    pub(crate) fn orders(&self) -> Idempotency {
        let (plan, settings) = (&self.plan.orders, &self.settings);
        let orders = self.redlock.idempotency("sim");
        let orders = match plan.policy {
            Policy::Once => orders.at_most_once(),
            Policy::Rerun => orders.at_most_once().on_lapsed(Lapsed::Rerun),
            Policy::Least => orders.at_least_once(),
        };
        let mut orders = orders
            .lease(ms(settings.ttl))
            .retention(ms(settings.retention))
            .durability(self.plan.durability);
        if plan.accepts > 0 {
            orders = orders.accept_loss(ms(plan.accepts));
        }
        if plan.max_result > 0 {
            orders = orders.max_result(plan.max_result);
        }
        orders.build().expect("plans keep the inequalities of the settings")
    }

    pub(crate) async fn order(&self, key: usize, print: u8, wait: u64, handler: HandlerPlan) {
        let mut call = self.orders().key(names::order(key)).in_flight_timeout(ms(wait));
        if let Some(birth) = self.plan.orders.births.get(key) {
            // A call can be made only after its request was created.
            sleep(ms(birth.at).saturating_sub(self.world.start.elapsed())).await;
            call = call.created_at(created(birth));
        }
        if print > 0 {
            call = call.fingerprint(&print);
        }
        let (client, name) = (self.client, names::number_of(&names::order(key)));
        self.world.tell(Event::Calls { client, name });
        let (world, steps) = (Arc::clone(&self.world), self.plan.handler_steps());
        let run = call.run(move |cx| handle(world, (client, name, print), cx, handler, steps));
        let Some(outcome) = cut(handler.polls, run).await else {
            return self.world.tell(Event::Cancelled { client, task: self.task, name });
        };
        // The remaining outcomes give the caller no result. The handler failed or is running, the
        // key is parked, or the result may not be stored.
        let none = |why| Event::NoResult { client, name, why };
        self.world.tell(match outcome {
            Ok(Outcome::Executed { value, kept, .. }) => {
                Event::Result { client, name, value, print, executed: true, kept }
            }
            Ok(Outcome::Replayed(value)) => {
                Event::Result { client, name, value, print, executed: false, kept: true }
            }
            Ok(Outcome::NotKept) => Event::NotKept { client, name },
            Ok(Outcome::TooOld) => none("too old"),
            Ok(Outcome::InFlight { .. }) => none("in flight"),
            Ok(Outcome::Mismatch) => none("another request's key"),
            Ok(Outcome::Parked(_)) => none("parked"),
            Ok(_) => none("of a new kind"),
            Err(_) => none("failed"),
        });
    }
}

/// Claim on which a handler relies. It counts as held until this value is dropped.
pub(crate) struct Believes {
    pub(crate) world: Arc<World>,
    pub(crate) hold: HoldId,
}

impl Drop for Believes {
    fn drop(&mut self) {
        self.world.parts(self.hold);
    }
}

/// Runs a simulated handler. Each start of a handler gets a result of its own, so the trace can
/// distinguish the starts.
async fn handle(
    world: Arc<World>,
    (client, name, print): (usize, u16, u8),
    cx: Context,
    plan: HandlerPlan,
    steps: usize,
) -> Result<u64, Failed> {
    let (token, attempt) = (cx.fencing_token().get(), cx.attempt());
    let value = world.next_value();
    world.tell(Event::Starts { client, name, token, attempt, value, print });
    let seen = cx.clone();
    let hold = world.claims((client, name), token, Box::new(move || Some(seen.remaining())));
    let _believes = Believes { world: Arc::clone(&world), hold };
    if steps == 0 {
        sleep(ms(plan.span)).await;
    }
    for (step, label) in STEPS.into_iter().enumerate().take(steps) {
        let work = async {
            world.tell(Event::StepBegins { name, step, token });
            sleep(ms(plan.span / steps as u64)).await;
            Ok::<_, Failed>(value)
        };
        cx.step(label, work).await?;
        world.tell(Event::StepDone { name, step, token });
    }
    match plan.fails {
        0 => Ok(value),
        1 => Err(Failed::unknown("failed")),
        2 => {
            world.tell(Event::NoEffect { name, value });
            Err(Failed::no_effect("failed before it did anything"))
        }
        _ => {
            world.tell(Event::NoEffect { name, value });
            Err(Failed::retry("may be done again"))
        }
    }
}
