//! Promises whose violations the world finds and reports as events.

use super::{Rule, rule};
use crate::names::{self, PERMITS};
use crate::trace::Event;

/// Maximum time, in microseconds, by which a request may take effect after its deadline. Server
/// clocks have a resolution of one millisecond.
const PRECISION: u64 = 2_000;
/// Maximum time, in microseconds, by which `lost()` may report the loss of a lease late. Timers
/// have a resolution of one millisecond, and the clocks of processes run at different rates.
const TIMER: u64 = 4_000;

/// Returns a rule that each event breaks for which `is` returns true.
fn none(
    name: &'static str,
    source: &'static str,
    is: impl Fn(&Event) -> bool + Send + 'static,
) -> Rule {
    rule(name, source, move |_, event| if is(event) { Err(event.to_string()) } else { Ok(()) })
}

/// Returns the rules that hold in each run. If `served` is true, a free lock must be granted.
pub(super) fn always(served: bool) -> Vec<Rule> {
    vec![
        // The simulator records which grants the replicas of each node have confirmed, and reports
        // a grant that too few nodes have on their replicas (rule durability 1 in docs/design).
        none(
            "a grant is as durable as requested",
            "docs/design/durability.md, 1: AllReplicas counts after the replicas have it; fewer \
             are rolled back",
            |event| matches!(event, Event::Unkept { .. }),
        ),
        // `lost()` must report the loss of a lease in time, and a lost lease must never become
        // valid again (README, promise 3; renewal 5).
        none(
            "no lease is lost silently",
            "README, promise 3: a holder learns that it lost, at the latest when its own deadline \
             passes",
            |event| match event {
                Event::LossReported { late, .. } => *late > TIMER,
                _ => matches!(event, Event::Revived { .. }),
            },
        ),
        // Each key of a lock ends with its ttl. If a living process released the lock or cancelled
        // its acquire, the key is deleted as soon as the messages of the process have arrived
        // (rule locks 8 in docs/design).
        none(
            "no key is left behind",
            "docs/design/locks.md, 8: release by token on all nodes, with the caller's future \
             gone as well",
            |event| matches!(event, Event::KeyLeft { .. }),
        ),
        none(
            "no quarantine without a loss",
            "docs/design/quarantine.md: the history goes on while a server proves that it lost \
             nothing",
            |event| matches!(event, Event::Needless { .. }),
        ),
        none(
            "nothing takes effect after its deadline",
            "op::Batch::not_after: after this the batch must not take effect",
            |event| matches!(event, Event::LateEffect { late, .. } if *late > PRECISION),
        ),
        // Each caller that waits for a lock is served or refused in time (README, promise 6;
        // overview 7).
        none(
            "every waiter is answered in time",
            "README, promise 6: every wait ends by its own deadline",
            move |event| match event {
                Event::NotServed { .. } => served,
                _ => matches!(event, Event::Overdue { .. } | Event::Stuck),
            },
        ),
        // The simulator reports this event after all handles and guards were dropped, so no task of
        // the library may still run.
        none("no task outlives its handles", "a handle's tasks end with it", |event| {
            matches!(event, Event::TasksLeft(_))
        }),
        // A call for all permits returns all of them or none. Other rules check that no permit has
        // two holders, and that a call which was refused leaves nothing on the nodes (rule
        // semaphore 10).
        none("all permits or none", "docs/design/semaphore.md, rule 10", |event| match *event {
            Event::AllPermits { slots, permits, .. } => {
                slots != (1 << PERMITS) - 1 || permits != usize::from(PERMITS)
            }
            _ => false,
        }),
    ]
}

/// Returns two rules: two guards of one name are never valid at the same time, and two claims of
/// one key are never valid at the same time (README, promises 1 and 4; locks 2; idempotency 1). The
/// simulator compares all guards and claims after each event.
pub(super) fn exclusion() -> [Rule; 2] {
    let overlap = |of_key: bool| {
        move |event: &Event| match event {
            Event::Overlap { name, .. } => names::is_key(*name) == of_key,
            _ => false,
        }
    };
    [
        none(
            "one holder per name",
            "README, promise 1: two validity intervals of the same name never overlap",
            overlap(false),
        ),
        none(
            "one claim per key",
            "Context::is_valid: while the claim is ours no other handler has the key",
            overlap(true),
        ),
    ]
}

/// Returns the rule that no client receives the reply "vacant" (no holder) for a name that had a
/// valid holder from the request to the reply (rules election 4, quarantine 9 in docs/design).
pub(super) fn vacant() -> Rule {
    none(
        "no vacant answer while a holder is valid",
        "docs/design/election.md, 4: no owner that could still reach a majority: vacant",
        |event| matches!(event, Event::Vacant { hold: Some(_), .. }),
    )
}
