//! Interface for writing a kind of node outside this crate: the trait, and the types of its
//! messages.
//!
//! To add a kind of node, implement [`LockNode`], and nothing else, and run the contract suite of
//! the package `palisade-testing` on it. The documentation of each [`Op`] defines what a node has
//! to do, and [`MemoryNode`](crate::MemoryNode) is the reference. A node that wraps another one
//! forwards every method. Programs that only use nodes need nothing from this module.

pub use super::event::NodeSignal;
pub use super::lock_node::{BoxFuture, LockNode};
pub use crate::durability::BarrierPoint;
#[doc(hidden)]
pub use crate::env::Task;
pub use crate::env::{Env, SystemEnv};
pub use crate::name::LockKeys;
pub use crate::op::{
    Batch, Began, Claim, ClaimEnd, Enlist, Facts, FingerprintBytes, Holder, IfHeld, Listed, Loss,
    MAX_ENTRY, MAX_LISTED, NotAfter, Op, Place, QuarantineId, RecordKey, RecordState, Replies,
    Reply, StoredRecord, StoredSteps, Terms, TimedFacts,
};
pub use crate::token::OwnerToken;
