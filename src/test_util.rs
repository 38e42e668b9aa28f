//! Test tools (feature `test-util`): a clock that a test controls, and snapshots of a memory node's
//! data, with which a test can restore what a server would have after a fault.
//!
//! The package `palisade-testing` adds faults in front of any node, crash points and the contract
//! suite. The manual has examples for both: [testing code that uses
//! palisade](crate::manual::testing).

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};
