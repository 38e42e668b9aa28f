//! What must hold in every run, one promise a file. Each sees every event in order and says what
//! is broken; none knows how the library works.

mod durable;
mod exclusion;
mod fencing;
mod handlers;
mod keys;
mod loss;
mod observe;
mod quarantine;
mod results;
mod tasks;
mod terms;
mod tokens;
mod waiters;

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

/// All of them.
pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<exclusion::Exclusion>::default(),
        Box::<tokens::Tokens>::default(),
        Box::<fencing::Fencing>::default(),
        Box::<durable::Durable>::default(),
        Box::<loss::LossTold>::default(),
        Box::<keys::Keys>::default(),
        Box::<quarantine::Quarantine>::default(),
        Box::<results::Results>::default(),
        Box::<handlers::Handlers>::default(),
        Box::<terms::Terms>::default(),
        Box::<observe::Observe>::default(),
        Box::<waiters::Waiters>::default(),
        Box::<tasks::Tasks>::default(),
    ]
}
