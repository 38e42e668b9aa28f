//! For tests (feature `test-util`): time that a test decides, faults in front of any node, and the
//! suite that every node kind passes.
//!
//! How to use it is in the manual: [testing code that uses palisade](crate::manual::testing).

pub mod crash;

pub use crate::env::TokioEnv;
pub use crate::node::memory::{MemorySnapshot, RecordChange};

/// The suite that every node kind passes.
pub mod contract {
    pub use crate::node::contract::*;
}

/// Faults in front of any node.
pub mod fault {
    pub use crate::node::fault::*;
}
