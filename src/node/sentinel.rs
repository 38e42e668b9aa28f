//! A group that Sentinels monitor, as one node with one vote.
//!
//! The node never assumes which server is the master. A majority of the known Sentinels has to name
//! it, and none of them under an older epoch than was accepted before. The server has to report
//! itself as master on the very connection that is then used. And its min-replicas check has to be
//! as strong as required. After a doubt (time-out, `READONLY`, a lost connection, another master or
//! epoch) the connection is dropped, and all of this is checked again. See [`SentinelNode`].

mod builder;
mod find;
mod settings;
mod status;

use std::fmt;
use std::sync::Arc;

use tokio::sync::broadcast;

pub use self::builder::{GroupAccess, SentinelNodeBuilder};
pub use self::status::SentinelStatus;
pub use super::min_replicas_rule::MinReplicas;

use self::find::Finder;
use super::link::{self, Link};
use super::{BoxFuture, FailoverTimes, LockNode, NodeSignal};
use crate::durability::{BarrierPoint, Durability};
use crate::error::{ConfigError, NodeError};
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// A Redis or Valkey group (a master and its replicas) that Sentinels monitor.
///
/// ```no_run
/// use palisade::node::SentinelNode;
/// # fn main() -> Result<(), palisade::error::ConfigError> {
/// let node = SentinelNode::builder("orders-a", ["s1:26379", "s2:26379", "s3:26379"])
///     .password("data servers' password")
///     .sentinel_password("Sentinels' password")
///     .build()?;
/// # drop(node);
/// # Ok(())
/// # }
/// ```
///
/// **Min-replicas check.** By default the node does not vote ([`NodeFault::MinReplicasMissing`])
/// while the master lacks `min-replicas-to-write 1`, or has a `min-replicas-max-lag` above 10 s or
/// one that breaks the rule `max_lag + 2 s ≤ down-after`. Only this check bounds the time for which
/// a replaced master may still accept writes, and the quarantine after a failover is as long as the
/// longest lease plus that bound. The error names the command that corrects it.
///
/// **Permissions.** The directory `sentinel-conf/` of the source code has an ACL profile for each
/// user. At the Sentinels the documented minimal client profile is enough. If the user may not
/// `SUBSCRIBE`, the node only polls; if it may not send `SENTINEL MASTER`, epochs and the lag rule
/// cannot be checked. On the data servers the node reads with `CONFIG GET`, if that is allowed, how
/// strong the min-replicas check is; otherwise `INFO` shows at least whether it is on.
///
/// **Durability.** [`Durability::AllReplicas`] waits for every replica that the Sentinels know,
/// including those that are down, and for every replica that is attached to the master although the
/// Sentinels do not know it (durability 3). A replica with priority 0 is waited for, too. A replica
/// that left the group for good has to be removed from the Sentinels (`SENTINEL RESET`).
///
/// **Requests.** The node asks the Sentinels every second, and after each of their events, for the
/// master's address, its facts and the other Sentinels. It asks the master for its identity and its
/// min-replicas settings on each new connection and every ten seconds of use.
///
/// [`NodeFault::MinReplicasMissing`]: crate::error::NodeFault::MinReplicasMissing
pub struct SentinelNode {
    name: Arc<str>,
    link: Link<Finder>,
}

impl SentinelNode {
    /// Makes the node of the group that its Sentinels know as `name`. `sentinels` are their
    /// addresses as `host:port`. All other settings have the defaults of [`SentinelNode::builder`].
    ///
    /// # Errors
    /// The name is empty or has white space or control characters, an address is not `host:port` or
    /// is given twice, or there is no Sentinel or more than 16.
    pub fn new<I>(name: impl Into<String>, sentinels: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::builder(name, sentinels).build()
    }

    /// Begins the settings of the group that its Sentinels know as `name`. `sentinels` are their
    /// addresses as `host:port`. The node learns of Sentinels that are not given from those that
    /// are, so give Sentinels on at least two machines.
    pub fn builder<I>(name: impl Into<String>, sentinels: I) -> SentinelNodeBuilder
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        SentinelNodeBuilder::new(name.into(), sentinels.into_iter().map(Into::into))
    }

    /// Returns what the node knows about its group now, for operators. Sends no request.
    pub fn status(&self) -> SentinelStatus {
        let mut status = self.link.resolver().status();
        status.last_error = status.last_error.or_else(|| self.link.trouble());
        status
    }
}

impl LockNode for SentinelNode {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.link.call(batch, deadline)
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(self.link.barrier(after, level, deadline))
    }

    /// Returns how many batches may be under way at once on the one connection, where the server
    /// answers in order.
    fn depth(&self) -> usize {
        link::DEPTH
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.link.events()
    }

    /// Returns the group's name at its Sentinels.
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Returns the durations of a failover, once the Sentinels have reported their settings
    /// (`SENTINEL MASTER`).
    fn failover(&self) -> Option<FailoverTimes> {
        self.link.resolver().failover()
    }

    fn address(&self) -> Option<Arc<str>> {
        self.link.address()
    }

    fn first_facts(&self) -> Option<TimedFacts> {
        self.link.first_facts()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.link.server()
    }
}

impl fmt::Debug for SentinelNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelNode").field("name", &self.name).finish_non_exhaustive()
    }
}
