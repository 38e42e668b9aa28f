//! What must hold in every run, one promise a file. Each sees every event in order and says what
//! is broken; none knows how the library works.

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
mod quarantine;
mod requests;
mod results;
mod steps;
mod tasks;
mod terms;
mod tokens;
mod vacant;
mod waiters;

use crate::plan::{Clocks, Promises};
use crate::trace::Event;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub invariant: &'static str,
    /// Where it is made.
    pub source: &'static str,
    /// What was seen.
    pub what: String,
}

/// A promise.
pub(crate) trait Invariant: Send {
    fn name(&self) -> &'static str;
    /// Where the promise is made.
    fn source(&self) -> &'static str;
    /// Looks at an event; true microseconds.
    fn see(&mut self, at: u64, event: &Event) -> Result<(), String>;
}

/// Those that hold in a world with these assumptions.
pub(crate) fn all(promises: Promises) -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<durable::Durable>::default(),
        Box::<loss::LossTold>::default(),
        Box::<keys::Keys>::default(),
        Box::<quarantine::Quarantine>::default(),
        Box::<requests::Requests>::default(),
        Box::new(deadlines::Deadlines),
        Box::new(waiters::Waiters::new(promises.served)),
        Box::<tasks::Tasks>::default(),
    ];
    if promises.accepts > 0 {
        // A result that was lost with its claim may be followed by another one.
        all.push(Box::new(accepted::Accepted::new(promises.accepts, promises.window)));
    } else {
        all.push(Box::<results::Results>::default());
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
        all.push(Box::<observe::Observe>::default());
    }
    if promises.clocks == Clocks::Right && promises.vacant {
        all.push(Box::<vacant::Vacant>::default());
    }
    all
}
