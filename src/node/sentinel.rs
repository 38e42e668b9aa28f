//! A Sentinel-monitored group as one node, one vote.
//!
//! Which server is the master is never assumed: a majority of the known Sentinels has to name it,
//! none of them under an older epoch than was decided upon before, it has to call itself master on
//! the very connection that is then used, and its min-replicas check has to be as strong as
//! required. After a doubt (time-out, `READONLY`, a lost connection, another master or epoch) the
//! connection is dropped and everything is asked anew. See [`SentinelNode`].

mod find;
mod settings;
mod status;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::broadcast;

pub use self::status::SentinelStatus;
pub use crate::sentinel::min_replicas::MinReplicas;

use self::find::Finder;
use self::settings::Settings;
use super::link::{self, Link, LinkOptions};
use super::{BoxFuture, FailoverTimes, LockNode, NodeEvent};
use crate::durability::{BarrierPoint, Durability};
use crate::env::{Env, SystemEnv};
use crate::error::{ConfigError, NodeError};
use crate::op::{Batch, Replies};
use crate::sentinel::min_replicas::check_guard;
use crate::time::Moment;
#[cfg(feature = "tls")]
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Longest time to connect to the master and log in, once it is found.
const CONNECT: Duration = Duration::from_secs(1);

/// A Redis or Valkey group (a master and its replicas) that Sentinels watch over.
///
/// ```no_run
/// use palisade::node::SentinelNode;
/// # fn main() -> Result<(), palisade::error::ConfigError> {
/// let node = SentinelNode::new("orders-a", ["s1:26379", "s2:26379", "s3:26379"])?
///     .password("data servers' password")
///     .sentinel_password("Sentinels' password");
/// # drop(node);
/// # Ok(())
/// # }
/// ```
///
/// **Guard.** By default the node does not vote ([`NodeFault::GuardMissing`]) while the master
/// lacks `min-replicas-to-write 1`, or has a `min-replicas-max-lag` above 10 s or one that breaks
/// the rule `max_lag + 2 s ≤ down-after`. Only this check bounds how long a master that was
/// replaced may still accept writes, and the quarantine after a failover is as long as the longest
/// lease plus that bound. Without it nothing bounds that; the error names the command.
///
/// **Permissions.** A profile for each user is in `sentinel-conf/` of the source. At the Sentinels
/// the documented minimal client profile is enough; where `SUBSCRIBE` is not allowed the node
/// polls; where `SENTINEL MASTER` is not allowed, epochs and the lag rule cannot be checked. On the
/// data servers `CONFIG GET` is used where it is allowed, to know how strong the check is; where it
/// is not allowed, `INFO` shows at least whether it is on.
///
/// **Durability.** All replicas are those that the Sentinels know, those included that are down,
/// and any that is attached without being known; each is counted for itself (durability 3). One
/// with priority 0 is waited for, too. One that left the group for good has to be forgotten
/// (`SENTINEL RESET`).
///
/// **What it asks.** Sentinels: every second (and after each event) the master's address, its facts
/// and the other Sentinels. Master: its identity and its min-replicas settings, on each new
/// connection and every ten seconds of use.
///
/// [`NodeFault::GuardMissing`]: crate::error::NodeFault::GuardMissing
pub struct SentinelNode {
    settings: Settings,
    env: Arc<dyn Env>,
    /// Made at the first use, when all settings are known.
    link: OnceLock<Link<Finder>>,
}

impl SentinelNode {
    /// A group by the name under which its Sentinels know it, and the Sentinels as `host:port`.
    /// Those not given here are learned; give at least those of two boxes. Connects to nothing yet.
    ///
    /// # Errors
    /// No name or no Sentinels, control characters, an address that is not `host:port`, the same
    /// address twice, more than 16 of them.
    pub fn new<I>(name: impl Into<String>, sentinels: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let settings = Settings::new(name.into(), sentinels.into_iter().map(Into::into))?;
        Ok(Self { settings, env: Arc::new(SystemEnv), link: OnceLock::new() })
    }

    /// The ACL user at the data servers. Default: the server's default user.
    #[must_use]
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.settings.data.username = Some(name.into());
        self
    }

    /// The password at the data servers.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.data.password = Some(password.into());
        self
    }

    /// The ACL user at the Sentinels. Never falls back to the data servers' user.
    #[must_use]
    pub fn sentinel_username(mut self, name: impl Into<String>) -> Self {
        self.settings.access.username = Some(name.into());
        self
    }

    /// The password at the Sentinels. Never falls back to the data servers' password.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.settings.access.password = Some(password.into());
        self
    }

    /// The database index, 0 by default. All clients of a lock must use the same.
    ///
    /// # Errors
    /// Above 2 147 483 647.
    pub fn db(mut self, db: u32) -> Result<Self, ConfigError> {
        self.settings.data.endpoint().db(db)?;
        self.settings.data.db = db;
        Ok(self)
    }

    /// How strong the min-replicas check has to be: at least `replicas` (1 by default, at least 1)
    /// with acknowledgements not older than `max_lag` (10 s by default; whole seconds, at least
    /// one). With an odd number of servers n, `n / 2` replicas exclude that two halves of the group
    /// both satisfy it.
    ///
    /// # Errors
    /// `replicas` of 0 (that is [`MinReplicas::Off`]), `max_lag` not in whole seconds or outside
    /// one second to one hour.
    pub fn min_replicas(mut self, replicas: u32, max_lag: Duration) -> Result<Self, ConfigError> {
        check_guard(replicas, max_lag)?;
        self.settings.rule.replicas = replicas;
        self.settings.rule.max_lag = max_lag;
        Ok(self)
    }

    /// What to do while the check is off or weaker than required. Default [`MinReplicas::Require`].
    #[must_use]
    pub fn guard(mut self, policy: MinReplicas) -> Self {
        self.settings.rule.policy = policy;
        self
    }

    /// For how long a replaced master may go on accepting writes, where the check gives no bound:
    /// with [`MinReplicas::Warn`] or `Off`. Default 15 s: a master that was cut off is demoted
    /// about eleven seconds after the *heal*. The cut itself may last any time, so this is a hope
    /// and not a bound. Where `CONFIG GET` is not allowed it is the least that is counted on; by
    /// default that is the lag of [`Self::min_replicas`] and 2 s. All clients must agree; on the
    /// server the longest wins.
    ///
    /// # Errors
    /// More than one day.
    pub fn failover_window(mut self, window: Duration) -> Result<Self, ConfigError> {
        settings::check_span("failover_window", window, Duration::ZERO)?;
        self.settings.rule.window = Some(window);
        Ok(self)
    }

    /// Grants from a server without a marker at once, instead of waiting as after a loss of data.
    /// Only for tests and embedded runs, where no lock can exist on a fresh server. Default
    /// `false`.
    #[must_use]
    pub fn trust_fresh(mut self, trust: bool) -> Self {
        self.settings.trust_fresh = trust;
        self
    }

    /// Lets the group vote although its master deletes keys when its memory is full (`maxmemory`
    /// set and a policy other than `noeviction`). Default `false`; as
    /// [`RedisNodeBuilder::allow_eviction`](super::RedisNodeBuilder::allow_eviction).
    #[must_use]
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.settings.allow_eviction = allow;
        self
    }

    /// How long each Sentinel may take to answer, connecting included. Default 250 ms. All are
    /// asked at once, so this is what a frozen one can cost at the most.
    ///
    /// # Errors
    /// Below 1 ms or above one minute.
    pub fn sentinel_deadline(mut self, deadline: Duration) -> Result<Self, ConfigError> {
        settings::check_pause("sentinel_deadline", deadline)?;
        self.settings.within = deadline;
        Ok(self)
    }

    /// How often the Sentinels are asked whether the master is still the same. Default 1 s, ± 10 %.
    /// Their events make it come sooner, but events may be lost.
    ///
    /// # Errors
    /// Below 1 ms or above one minute.
    pub fn poll_every(mut self, every: Duration) -> Result<Self, ConfigError> {
        settings::check_pause("poll_every", every)?;
        self.settings.poll_every = every;
        Ok(self)
    }

    /// Where this client reaches the addresses that the Sentinels report (NAT, container networks):
    /// from `ip:port` to `host:port`. Also applied to Sentinels that are learned.
    ///
    /// # Errors
    /// Names the entry that is not `host:port`.
    pub fn map_address(
        mut self,
        map: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        self.settings.map = settings::address_map(map)?;
        Ok(self)
    }

    /// Clocks and randomness other than the machine's own, for simulators.
    #[must_use]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    fn link(&self) -> &Link<Finder> {
        self.link.get_or_init(|| {
            let options = LinkOptions {
                trust_fresh: self.settings.trust_fresh,
                allow_eviction: self.settings.allow_eviction,
                name: self.settings.name.clone(),
                connect_timeout: CONNECT + 2 * self.settings.within,
                env: self.env.clone(),
            };
            Link::new(Finder::new(&self.settings, self.env.clone()), options)
        })
    }

    /// What is known of the group at this moment, for operators. Sends nothing.
    pub fn status(&self) -> SentinelStatus {
        let mut status = self.link().resolver().status();
        status.last_error = status.last_error.or_else(|| self.link().trouble());
        status
    }
}

#[cfg(feature = "tls")]
impl SentinelNode {
    /// TLS to the data servers, with the system's or the given root certificate (PEM) and, if
    /// given, a client certificate with its key (PEM). The address that the Sentinels announce must
    /// be in the servers' certificates: else name what is in them by [`Self::tls_server_name`],
    /// have the Sentinels announce host names, or use [`Self::map_address`].
    ///
    /// # Errors
    /// PEM that cannot be used; no rustls crypto provider installed in this process.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(
        mut self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, ConfigError> {
        self.settings.data.tls = Some(transport("tls", root.as_deref(), client.as_ref())?);
        Ok(self)
    }

    /// TLS to the Sentinels, as [`Self::tls`] and independent of it.
    ///
    /// # Errors
    /// PEM that cannot be used; no rustls crypto provider installed in this process.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn sentinel_tls(
        mut self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, ConfigError> {
        self.settings.access.tls =
            Some(transport("sentinel_tls", root.as_deref(), client.as_ref())?);
        Ok(self)
    }

    /// The name that every data server's certificate is for, where the Sentinels announce IP
    /// addresses: they are connected to where they are announced, and the certificate is looked at
    /// as this name's. Needs [`Self::tls`]; the Sentinels are not concerned.
    ///
    /// # Errors
    /// Neither a host name nor an IP address.
    pub fn tls_server_name(mut self, name: impl AsRef<str>) -> Result<Self, ConfigError> {
        crate::tls::server_name("tls_server_name", name.as_ref())?;
        self.settings.data.tls_name = Some(name.as_ref().into());
        Ok(self)
    }

    /// The name that every Sentinel's certificate is for, as [`Self::tls_server_name`] and
    /// independent of it. Needs [`Self::sentinel_tls`].
    ///
    /// # Errors
    /// Neither a host name nor an IP address.
    pub fn sentinel_tls_server_name(mut self, name: impl AsRef<str>) -> Result<Self, ConfigError> {
        crate::tls::server_name("sentinel_tls_server_name", name.as_ref())?;
        self.settings.access.tls_name = Some(name.as_ref().into());
        Ok(self)
    }
}

impl LockNode for SentinelNode {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        Box::pin(self.link().call(batch, deadline))
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(self.link().barrier(after, level, deadline))
    }

    /// One connection, and the server answers in order.
    fn depth(&self) -> usize {
        link::DEPTH
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.link().events()
    }

    /// The group's name at its Sentinels.
    fn name(&self) -> Arc<str> {
        self.settings.name.clone()
    }

    /// Known after the first contact, if the Sentinels report it (`SENTINEL MASTER`).
    fn failover(&self) -> Option<FailoverTimes> {
        self.link().resolver().failover()
    }

    fn address(&self) -> Option<Arc<str>> {
        self.link().address()
    }
}

impl fmt::Debug for SentinelNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelNode")
            .field("name", &self.settings.name)
            .field("sentinels", &self.settings.sentinels)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
fn transport(
    field: &'static str,
    root: Option<&[u8]>,
    client: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Tls, ConfigError> {
    Tls::new(field, root, client.map(|(chain, key)| (&chain[..], &key[..])))
}
