//! Rules that must hold in each run of the simulator. A rule receives all events in order and
//! reports a violation. No rule depends on the code of the library.

mod accepted;
mod fencing;
mod handlers;
mod observe;
mod once;
mod order;
mod quarantine;
mod reported;
mod requests;
mod results;
mod steps;
mod terms;
mod tickets;
mod tokens;

use crate::plan::{Clocks, Guarantees};
use crate::trace::Event;

/// A violation of an invariant, which is a rule that must hold in each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the violated invariant.
    pub invariant: &'static str,
    /// Document or item that states the invariant.
    pub source: &'static str,
    /// Description of the violation.
    pub what: String,
}

/// Function that checks an event. The first argument is the true time of the event, in
/// microseconds.
type See = Box<dyn FnMut(u64, &Event) -> Result<(), String> + Send>;

/// A rule that must hold in a run.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Document or item that states the rule.
    pub(crate) source: &'static str,
    pub(crate) see: See,
}

fn rule(
    name: &'static str,
    source: &'static str,
    see: impl FnMut(u64, &Event) -> Result<(), String> + Send + 'static,
) -> Rule {
    Rule { name, source, see: Box::new(see) }
}

pub(crate) fn all(guarantees: Guarantees) -> Vec<Rule> {
    let mut all = reported::always(guarantees.served);
    all.extend([quarantine::quarantine(), requests::requests()]);
    all.extend(guarantees.longest.map(quarantine::ends));
    if guarantees.accepts > 0 {
        // A short loss of data, which the keys' settings accept, may include both a claim and its
        // result. Then the key may get a second result.
        all.push(accepted::accepted(guarantees.accepts, guarantees.window));
    } else {
        let one = guarantees.once || guarantees.clocks != Clocks::Apart;
        all.push(results::results(one));
        all.push(handlers::handlers(guarantees.clocks == Clocks::Right));
        if guarantees.steps {
            all.push(steps::steps());
        }
        if guarantees.once {
            all.push(once::once());
        }
    }
    if guarantees.clocks != Clocks::Step {
        all.extend(reported::exclusion());
    }
    if guarantees.clocks == Clocks::Right {
        all.extend([tokens::tokens(), fencing::fencing(), terms::terms()]);
        all.extend([tickets::tickets(), observe::observe()]);
        if guarantees.vacant {
            all.extend([order::order(guarantees), reported::vacant()]);
        }
    }
    all
}
