//! Interface for programs that add a kind of node: the trait, and the types in its methods.
//!
//! To add a kind of node, implement only [`LockNode`], and run the contract suite of the package
//! `palisade-testing` on the new kind. The documentation of each [`Op`] defines the behaviour of a
//! node, and [`MemoryNode`](crate::MemoryNode) is the reference. A node that wraps another node
//! forwards every method. Programs that only use nodes do not need this module.

pub use super::event::NodeSignal;
pub use super::lock_node::{BoxFuture, LockNode};
pub use crate::durability::BarrierPoint;
#[doc(hidden)]
pub use crate::env::Task;
pub use crate::env::{Env, SystemEnv};
pub use crate::name::LockKeys;
pub use crate::op::{
    Ballot, Batch, Began, Claim, ClaimEnd, Enlist, Facts, FingerprintBytes, Holder, IfHeld,
    Lineage, Listed, LockMode, Loss, MAX_ENTRY, MAX_LISTED, NotAfter, Op, Place, QuarantineId,
    Queued, Readers, RecordKey, RecordState, Remembered, Replies, Reply, SharedGrant, SlotGrant,
    Slots, StoredRecord, StoredSteps, Terms, TimedFacts, Want,
};
pub use crate::token::OwnerToken;
