//! A group that Sentinels monitor, as one node with one vote. A server is used as master only if a
//! majority of the known Sentinels names it in one epoch, no older than accepted before, it reports
//! itself as master on the connection that is then used, and its min-replicas check is as strong as
//! required.

mod builder;
mod find;
mod settings;
mod status;

use std::fmt;
use std::sync::Arc;

use tokio::sync::broadcast;

pub use self::builder::{GroupAccess, SentinelNodeBuilder};
pub use self::settings::GroupSettings;
pub(super) use self::settings::address_map;
pub use self::status::SentinelStatus;
pub use super::min_replicas_rule::MinReplicas;

use self::find::Finder;
use super::builder::{NodeBuilder, NodeSettings};
use super::link::{Link, node_over_link};
use super::{BoxFuture, FailoverTimes, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::error::{ConfigError, NodeError};
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// A Redis or Valkey group that Sentinels monitor.
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
/// **Min-replicas check.** By default the node does not vote ([`NodeFault::MinReplicasMissing`]) in
/// three cases: the master lacks `min-replicas-to-write 1`, its `min-replicas-max-lag` is above 10
/// s, or the lag breaks the rule `max_lag + 2 s ≤ down-after`. Only this check bounds the time for
/// which a replaced master may still accept writes. The quarantine after a failover is as long as
/// the longest lease plus that bound. The error names the command that corrects the settings.
///
/// **Permissions.** The directory `sentinel-conf/` of the source code has an ACL profile for each
/// user. At the Sentinels the documented minimal client profile is enough. If the user may not
/// `SUBSCRIBE`, the node only polls. If the user may not send `INFO`, the health does not name
/// Sentinels in tilt. If the user may not send `SENTINEL MASTER`, the node cannot
/// check epochs and the lag rule. On the data servers, the node reads the strength of the
/// min-replicas check with `CONFIG GET`. If the user may not send `CONFIG GET`, `INFO` shows only
/// that the check is on or off.
///
/// **Durability.** [`Durability::AllReplicas`] waits for every replica that the Sentinels report,
/// including replicas that are down. It also waits for every replica that is attached to the master
/// and that the Sentinels do not report (durability 3). A replica with priority 0 counts, too.
/// After a replica has left the group for good, an operator has to remove it from the Sentinels
/// (`SENTINEL RESET`).
///
/// **Requests.** The node asks the Sentinels every second, and after each of their events, for the
/// master's address, its facts and the other Sentinels. The node reads the identity and the
/// min-replicas settings of the master, and asks the Sentinels for the replicas, on each new
/// connection, and every ten seconds while it is used. It logs in to each replica once a minute.
///
/// [`NodeFault::MinReplicasMissing`]: crate::error::NodeFault::MinReplicasMissing
pub struct SentinelNode {
    name: Arc<str>,
    url: Arc<str>,
    link: Link<Finder>,
}

impl SentinelNode {
    /// Makes a node for the group `name`. The Sentinels use the same name for the group.
    /// `sentinels` are the addresses of the Sentinels as `host:port`. All other settings have the
    /// defaults of [`SentinelNode::builder`].
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

    /// Returns a builder for the group `name`. The Sentinels use the same name for the group.
    /// `sentinels` are the addresses of the Sentinels as `host:port`. These Sentinels report the
    /// other Sentinels of the group to the node, so give Sentinels on at least two machines.
    pub fn builder<I>(name: impl Into<String>, sentinels: I) -> SentinelNodeBuilder
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let own = GroupSettings::new(name.into(), sentinels.into_iter().map(Into::into));
        let data = Endpoint::anywhere();
        NodeBuilder::new(own.map(|own| NodeSettings::new(data, MinReplicas::Require, own)))
    }

    /// Returns the present state of the group, for operators. This method sends no request.
    pub fn status(&self) -> SentinelStatus {
        let mut status = self.link.resolver().status();
        status.last_error = status.last_error.or_else(|| self.link.trouble());
        status
    }
}

node_over_link! {
    SentinelNode;

    fn failover(&self) -> Option<FailoverTimes> {
        self.link.resolver().failover()
    }

    /// Most of the Sentinels are in tilt, or they know no replica, or may promote none (each is
    /// down or has priority 0). The first is known only if the user may send `INFO` to the
    /// Sentinels, the last ten seconds later at most while the node is used.
    fn no_failover(&self) -> Option<&'static str> {
        self.link.resolver().no_failover()
    }
}

impl fmt::Debug for SentinelNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelNode").field("name", &self.name).finish_non_exhaustive()
    }
}
