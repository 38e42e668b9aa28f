//! For tests (feature `test-util`): time that a test decides, and what a fault leaves of the data
//! of a node in memory.
//!
//! Faults in front of any node, crash points and the contract suite are the package
//! `palisade-testing`. How to use both is in the manual:
//! [testing code that uses palisade](crate::manual::testing).

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};
