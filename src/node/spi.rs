//! For kinds of nodes of your own: the trait, and the language that nodes speak.
//!
//! Implement [`LockNode`], and let it pass the contract suite of the package
//! `palisade-testing`; nothing else is asked of a node. What each [`Op`] means is written at it,
//! [`MemoryNode`](crate::MemoryNode) is the reference, and a wrapper of another node hands on every
//! method. Programs that only use nodes need nothing from here.

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
