//! The deterministic simulator of palisade.
//!
//! The real library (its client side, and the locks, keys and elections built on it) runs over
//! simulated nodes and networks under virtual time. One run is one seed: the seed decides the plan,
//! the plan and the code decide everything else, so a seed always gives the same trace, bit for
//! bit. The promises that must hold in every run are in `invariants`, one in each file.

mod client;
mod dice;
mod elections;
mod invariants;
mod link;
mod names;
mod node;
mod orders;
mod plan;
mod process;
mod run;
mod several;
mod shrink;
pub mod soak;
mod strangers;
mod tickets;
mod ticks;
mod trace;
mod world;

pub use invariants::Violation;
pub use plan::{Order, Scene, Tamper};
