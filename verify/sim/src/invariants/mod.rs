//! Invariants that must hold in each run, one in each file. An invariant receives all events in
//! order and reports a violation. No invariant depends on the code of the library.

mod accepted;
mod claims;
mod deadlines;
mod durable;
mod exclusion;
mod fencing;
mod handlers;
mod keys;
mod loss;
mod observe;
mod once;
mod order;
mod permits;
mod quarantine;
mod requests;
mod results;
mod steps;
mod tasks;
mod terms;
mod tickets;
mod tokens;
mod vacant;
mod waiters;

use crate::plan::{Clocks, Promises};
use crate::trace::Event;

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the violated invariant.
    pub invariant: &'static str,
    /// Document or item that states the invariant.
    pub source: &'static str,
    /// Description of the violation.
    pub what: String,
}

/// A rule that must hold in a run.
pub(crate) trait Invariant: Send {
    fn name(&self) -> &'static str;
    /// Returns the document or item that states the invariant.
    fn source(&self) -> &'static str;
    /// Checks an event at the true time `at`, in microseconds.
    fn see(&mut self, at: u64, event: &Event) -> Result<(), String>;
}

/// Returns the invariants that hold under the assumptions of `promises`.
pub(crate) fn all(promises: Promises) -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<durable::Durable>::default(),
        Box::<loss::SilentLoss>::default(),
        Box::<keys::Keys>::default(),
        Box::<quarantine::Quarantine>::default(),
        Box::<requests::Requests>::default(),
        Box::new(deadlines::Deadlines),
        Box::new(waiters::Waiters::new(promises.served)),
        Box::<tasks::Tasks>::default(),
        Box::<permits::Permits>::default(),
    ];
    if promises.accepts > 0 {
        // If a claim and its result were lost in an accepted loss, the key may get a second result.
        all.push(Box::new(accepted::Accepted::new(promises.accepts, promises.window)));
    } else {
        let one = promises.once || promises.clocks != Clocks::Apart;
        all.push(Box::new(results::Results::new(one)));
        all.push(Box::new(handlers::Handlers::new(promises.clocks == Clocks::Right)));
        if promises.steps {
            all.push(Box::<steps::Steps>::default());
        }
        if promises.once {
            all.push(Box::<once::Once>::default());
        }
    }
    if promises.clocks != Clocks::Step {
        all.push(Box::<exclusion::Exclusion>::default());
        all.push(Box::<claims::Claims>::default());
    }
    if promises.clocks == Clocks::Right {
        all.push(Box::<tokens::Tokens>::default());
        all.push(Box::<fencing::Fencing>::default());
        all.push(Box::<terms::Terms>::default());
        all.push(Box::<tickets::Tickets>::default());
        all.push(Box::<observe::Observe>::default());
    }
    if promises.clocks == Clocks::Right && promises.vacant {
        all.push(Box::new(order::Order::new(promises)));
        all.push(Box::<vacant::Vacant>::default());
    }
    all
}
