//! The deterministic simulator of palisade.
//!
//! The real library runs on simulated nodes and networks in virtual time. It includes the client
//! side, and the locks, keys and elections. Each run has one seed. The seed decides the plan. The
//! plan and the code decide everything else, so the same seed always gives exactly the same trace.
//! The invariants of all runs are in the module `invariants`.

mod client;
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
