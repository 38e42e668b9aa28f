//! Test tools (feature `test-util`): a clock that a test controls, and snapshots of a memory node's
//! data. The package `palisade-testing` adds faults, crash points and the contract suite: see the
//! manual's page [testing code that uses palisade](crate::manual::testing).

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};
