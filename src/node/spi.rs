//! Interface for kinds of nodes outside this crate: the trait, and the types of its messages.
//!
//! Implement [`LockNode`], and run the contract suite of the package `palisade-testing`; a node
//! needs nothing else. Each [`Op`] documents its meaning, [`MemoryNode`](crate::MemoryNode) is the
//! reference, and a wrapper of another node forwards every method. Programs that only use nodes
//! need nothing from here.

pub use super::event::NodeSignal;
pub use super::lock_node::{BoxFuture, LockNode};
pub use crate::durability::BarrierPoint;
#[doc(hidden)]
pub use crate::env::Task;
pub use crate::env::{Env, SystemEnv};
pub use crate::name::LockKeys;
pub use crate::op::{
    Batch, Began, Claim, ClaimEnd, Enlist, Facts, FingerprintBytes, Holder, IfHeld, Listed,
    LockMode, Loss, MAX_ENTRY, MAX_LISTED, NotAfter, Op, Place, QuarantineId, Readers,
    RecordKey, RecordState, Replies, Reply, SharedGrant, StoredRecord, StoredSteps, Terms, TimedFacts,
};
pub use crate::token::OwnerToken;
