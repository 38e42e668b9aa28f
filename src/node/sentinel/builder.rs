//! Settings of a [`SentinelNode`], all checked when it is built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::SentinelNode;
use super::find::Finder;
use super::settings::{self, Settings};
use crate::dial::endpoint::Endpoint;
use crate::env::{Env, SystemEnv};
use crate::error::ConfigError;
use crate::node::link::{Link, LinkOptions};
use crate::sentinel::min_replicas::{MinReplicas, check_min_replicas};
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Longest time to connect to the master and log in, once it is found.
const CONNECT: Duration = Duration::from_secs(1);

/// Settings of a [`SentinelNode`], begun by [`SentinelNode::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct SentinelNodeBuilder {
    /// Or the first that was refused.
    settings: Result<Settings, ConfigError>,
    env: Arc<dyn Env>,
}

/// A group with its logins.
#[derive(Clone)]
pub struct GroupAccess {
    /// Name of the master.
    pub name: String,
    /// `host:port` of its Sentinels.
    pub sentinels: Vec<String>,
    /// Login and transport at data servers, without a place.
    pub data: Endpoint,
    /// Login and transport at Sentinels, without a place.
    pub sentinel: Endpoint,
}

impl fmt::Debug for SentinelNodeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.settings.as_ref().map(|s| &s.name);
        f.debug_struct("SentinelNodeBuilder").field("name", &name).finish_non_exhaustive()
    }
}

impl SentinelNodeBuilder {
    pub(super) fn new(name: String, sentinels: impl Iterator<Item = String>) -> Self {
        Self { settings: Settings::new(name, sentinels), env: Arc::new(SystemEnv) }
    }

    /// Where and how the group is reached.
    pub(crate) fn access(&self) -> Result<GroupAccess, ConfigError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        Ok(GroupAccess {
            name: settings.name.to_string(),
            sentinels: settings.sentinels.iter().map(ToString::to_string).collect(),
            data: settings.data.endpoint(),
            sentinel: settings.access.endpoint(),
        })
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        if let Ok(settings) = &mut self.settings {
            change(settings);
        }
        self
    }

    fn try_set(mut self, change: impl FnOnce(&mut Settings) -> Result<(), ConfigError>) -> Self {
        self.settings = self.settings.and_then(|mut s| change(&mut s).map(|()| s));
        self
    }

    /// The ACL user at the data servers. Default: the server's default user.
    pub fn username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.data.username = Some(name.into()))
    }

    /// The password at the data servers.
    pub fn password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.data.password = Some(password.into()))
    }

    /// The ACL user at the Sentinels. Never falls back to the data servers' user.
    pub fn sentinel_username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.access.username = Some(name.into()))
    }

    /// The password at the Sentinels. Never falls back to the data servers' password.
    pub fn sentinel_password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.access.password = Some(password.into()))
    }

    /// The database index, at most 2 147 483 647; 0 by default. All clients of a lock must use the
    /// same.
    pub fn db(self, db: u32) -> Self {
        self.try_set(|s| {
            s.data.endpoint().db(db)?;
            s.data.db = db;
            Ok(())
        })
    }

    /// How strong the min-replicas check has to be: at least `replicas` (1 by default, at least 1;
    /// none is [`MinReplicas::Off`]) with acknowledgements not older than `max_lag` (10 s by
    /// default; whole seconds, one second to one hour). With an odd number of servers n, `n / 2`
    /// replicas exclude that two halves of the group both satisfy it.
    pub fn min_replicas(self, replicas: u32, max_lag: Duration) -> Self {
        self.try_set(|s| {
            check_min_replicas(replicas, max_lag)?;
            s.rule.replicas = replicas;
            s.rule.max_lag = max_lag;
            Ok(())
        })
    }

    /// What to do while the check is absent or weaker than asked. Default
    /// [`MinReplicas::Require`].
    pub fn min_replicas_check(self, policy: MinReplicas) -> Self {
        self.set(|s| s.rule.policy = policy)
    }

    /// For how long a replaced master may go on accepting writes, where the check gives no bound:
    /// with [`MinReplicas::Warn`] or `Off`. Default 15 s: a master that was cut off is demoted
    /// about eleven seconds after the *heal*. How long the cut itself lasts nobody knows, so this
    /// is a hope and not a bound. Where `CONFIG GET` is not allowed it is the least that is counted
    /// on; by default that is the lag of [`Self::min_replicas`] and 2 s. All clients must agree; on
    /// the server the longest wins. At most one day.
    pub fn failover_window(self, window: Duration) -> Self {
        self.try_set(|s| {
            settings::check_span("failover_window", window, Duration::ZERO)?;
            s.rule.window = Some(window);
            Ok(())
        })
    }

    /// Grants from a server without a marker at once, instead of waiting as after a loss of data.
    /// Only for tests and embedded runs, where nobody can hold anything on a fresh server. Default
    /// `false`.
    pub fn trust_fresh(self, trust: bool) -> Self {
        self.set(|s| s.trust_fresh = trust)
    }

    /// Lets the group vote although its master deletes keys when its memory is full (`maxmemory`
    /// set and a policy other than `noeviction`). Default `false`; as
    /// [`RedisNodeBuilder::allow_eviction`](crate::node::RedisNodeBuilder::allow_eviction).
    pub fn allow_eviction(self, allow: bool) -> Self {
        self.set(|s| s.allow_eviction = allow)
    }

    /// How long each Sentinel may take to answer, connecting included: 1 ms to one minute, default
    /// 250 ms. All are asked at once, so a frozen one costs at most this long.
    pub fn sentinel_deadline(self, deadline: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("sentinel_deadline", deadline)?;
            s.within = deadline;
            Ok(())
        })
    }

    /// How often the Sentinels are asked whether the master is still the same: 1 ms to one minute,
    /// default 1 s, ± 10 %. Their events make it come sooner, but events may be lost.
    pub fn poll_every(self, every: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("poll_every", every)?;
            s.poll_every = every;
            Ok(())
        })
    }

    /// Where this client reaches the addresses that the Sentinels announce (NAT, container
    /// networks): from `ip:port` to `host:port`. Also applied to Sentinels that are learned.
    pub fn map_address(self, map: impl IntoIterator<Item = (String, String)>) -> Self {
        self.try_set(|s| {
            s.map = settings::address_map(map)?;
            Ok(())
        })
    }

    /// Clocks and randomness other than the machine's own, for simulators.
    #[doc(hidden)]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Makes the node. Nothing is connected yet.
    ///
    /// # Errors
    /// The first setting that is out of range, with its value and the rule.
    pub fn build(self) -> Result<SentinelNode, ConfigError> {
        let (settings, env) = (self.settings?, self.env);
        let options = LinkOptions {
            trust_fresh: settings.trust_fresh,
            allow_eviction: settings.allow_eviction,
            name: Arc::clone(&settings.name),
            connect_timeout: CONNECT + 2 * settings.within,
            env: Arc::clone(&env),
        };
        let link = Link::new(Finder::new(&settings, env), options);
        Ok(SentinelNode { name: settings.name, link })
    }
}

#[cfg(feature = "tls")]
impl SentinelNodeBuilder {
    /// TLS to the data servers, with the system's or the given root certificate (PEM) and, if
    /// given, a client certificate with its key (PEM). The address that the Sentinels announce must
    /// be in the servers' certificates: else name what is in them by [`Self::tls_server_name`],
    /// have the Sentinels announce host names, or use [`Self::map_address`]. The process must have
    /// installed a rustls crypto provider.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            s.data.tls = Some(transport("tls", root.as_deref(), client.as_ref())?);
            Ok(())
        })
    }

    /// TLS to the Sentinels, as [`Self::tls`] and independent of it.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn sentinel_tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            let tls = transport("sentinel_tls", root.as_deref(), client.as_ref())?;
            s.access.tls = Some(tls);
            Ok(())
        })
    }

    /// The name (a host name or an IP address) that every data server's certificate is for, where
    /// the Sentinels announce IP addresses: they are connected to where they are announced, and the
    /// certificate is looked at as this name's. Needs [`Self::tls`]; the Sentinels are not
    /// concerned.
    pub fn tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.try_set(|s| {
            crate::tls::server_name("tls_server_name", name.as_ref())?;
            s.data.tls_name = Some(name.as_ref().into());
            Ok(())
        })
    }

    /// The name that every Sentinel's certificate is for, as [`Self::tls_server_name`] and
    /// independent of it. Needs [`Self::sentinel_tls`].
    pub fn sentinel_tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.try_set(|s| {
            crate::tls::server_name("sentinel_tls_server_name", name.as_ref())?;
            s.access.tls_name = Some(name.as_ref().into());
            Ok(())
        })
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
