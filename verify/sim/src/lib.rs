//! The deterministic simulator of palisade.
//!
//! The real library runs on simulated nodes and networks in virtual time. Each run has one seed.
//! The plan of a run follows from the seed, and everything else follows from the plan and the code,
//! so the same seed always gives exactly the same trace. The rules that all runs must keep are in
//! the module `invariants`.

mod client;
mod cluster;
mod dice;
mod elections;
mod invariants;
mod link;
mod names;
mod node;
mod orders;
mod permits;
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
