//! Test tools (feature `test-util`): a clock that a test controls, and snapshots of the data of a
//! node in memory, from which a test restores what a fault would leave.
//!
//! The package `palisade-testing` adds faults in front of any node, crash points and the contract
//! suite. The manual shows how to use both: [testing code that uses
//! palisade](crate::manual::testing).

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};
