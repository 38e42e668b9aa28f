//! palisade
#![warn(missing_docs)]

// values: no IO, no clock
pub mod config;
pub mod error;
pub mod name;
pub mod op;
pub mod time;
pub mod token;
// clocks and dice, handed in
pub mod env;
// who is the master of a Sentinel group
pub mod sentinel;
// nodes: one vote each
pub mod node;

pub use token::{FencingToken, OwnerToken};
