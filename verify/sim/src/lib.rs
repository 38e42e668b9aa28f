//! The deterministic simulator of palisade.
//!
//! The real library (its client side, and what is built on them) runs over simulated nodes
//! and networks under virtual time. One run is one seed: the seed decides the plan, the plan and
//! the code decide everything else, so that a seed gives the same trace bit for bit. What must hold
//! in every run is in `invariants`, one promise a file.

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
mod shrink;
pub mod soak;
mod strangers;
mod ticks;
mod trace;
mod world;

pub use invariants::Violation;
pub use plan::{Order, Scene, Tamper};
