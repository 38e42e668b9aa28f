//! Test tools (feature `test-util`): a clock that a test controls, and snapshots of the data of a
//! node in memory, for the data that a fault leaves.
//!
//! Faults in front of any node, crash points and the contract suite are the package
//! `palisade-testing`. How to use both is in the manual:
//! [testing code that uses palisade](crate::manual::testing).

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};
