//! Nodes: independent lock servers, one vote each.
//!
//! [`RedisNode`] is one server, [`SentinelNode`] a group that Sentinels watch, [`ClusterNode`] a
//! whole cluster, and [`MemoryNode`] lives in the memory of this process, for tests and embedded
//! use. A program can add other kinds by implementing [`spi::LockNode`]; see [`spi`].

mod builder;
pub(crate) mod cluster;
mod event;
mod failover_times;
pub(crate) mod lineage;
mod link;
mod lock_node;
pub(crate) mod memory;
mod min_replicas;
pub(crate) mod min_replicas_rule;
pub(crate) mod redis;
pub(crate) mod sentinel;
pub mod spi;

pub use self::builder::NodeBuilder;
pub use self::cluster::{ClusterNode, ClusterNodeBuilder, ClusterSettings};
pub(crate) use self::event::DURABLE_REFUTED;
pub(crate) use self::event::NodeSignal;
pub use self::event::{HistoryCause, NamedEvent, NodeEvent, NodeEvents};
pub use self::failover_times::FailoverTimes;
pub(crate) use self::lock_node::{BoxFuture, LockNode};
pub use self::redis::{RedisNode, RedisNodeBuilder, ServerSettings};
pub use crate::dial::credentials::{
    Credentials, CredentialsAnswer, CredentialsProvider, PasswordFile,
};
pub use crate::metrics::NodeMetrics;
pub use crate::op::Loss;
pub use memory::{MemoryNode, MemoryNodeBuilder};
pub use sentinel::{GroupSettings, MinReplicas, SentinelNode, SentinelNodeBuilder, SentinelStatus};
