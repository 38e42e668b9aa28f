//! Settings of a [`SentinelNode`]. `build` reports the first invalid setting.

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
use crate::node::min_replicas_rule::{MinReplicas, check_min_replicas};
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Longest time to connect and log in to the master. The time to find the address of the master is
/// not included.
const CONNECT: Duration = Duration::from_secs(1);

/// Settings of a [`SentinelNode`]. [`SentinelNode::builder`] returns this type.
#[must_use = "a builder does nothing until `build`"]
pub struct SentinelNodeBuilder {
    /// The settings, or the error of the first invalid setting.
    settings: Result<Settings, ConfigError>,
    env: Arc<dyn Env>,
}

/// Addresses and logins of a Sentinel group.
#[derive(Clone)]
pub struct GroupAccess {
    /// Name of the group in the configuration of the Sentinels.
    pub name: String,
    /// `host:port` of each Sentinel of the group.
    pub sentinels: Vec<String>,
    /// Login and transport (TCP or TLS) of the data servers. The address in this endpoint is a
    /// placeholder.
    pub data: Endpoint,
    /// Login and transport (TCP or TLS) of the Sentinels. The address in this endpoint is a
    /// placeholder.
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

    /// Returns the addresses and logins of the Sentinel group.
    pub(crate) fn access(&self) -> Result<GroupAccess, ConfigError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        Ok(GroupAccess {
            name: settings.name.to_string(),
            sentinels: settings.sentinels.iter().map(ToString::to_string).collect(),
            data: settings.data.endpoint(),
            sentinel: settings.sentinel.endpoint(),
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

    /// Sets the ACL user at the data servers. Default: the server's default user.
    pub fn username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.data.username = Some(name.into()))
    }

    /// Sets the password at the data servers.
    pub fn password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.data.password = Some(password.into()))
    }

    /// Sets the ACL user at the Sentinels. The user at the data servers is never used for the
    /// Sentinels.
    pub fn sentinel_username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.sentinel.username = Some(name.into()))
    }

    /// Sets the password at the Sentinels. The password at the data servers is never used for the
    /// Sentinels.
    pub fn sentinel_password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.sentinel.password = Some(password.into()))
    }

    /// Sets the database index, at most 2 147 483 647. Default 0. All clients of a lock must use
    /// the same index.
    pub fn db(self, db: u32) -> Self {
        self.try_set(|s| {
            s.data.endpoint().db(db)?;
            s.data.db = db;
            Ok(())
        })
    }

    /// Sets the required strength of the master's min-replicas check. `min-replicas-to-write` has
    /// to be at least `replicas` (default 1, at least 1). `min-replicas-max-lag` has to be at most
    /// `max_lag` (default 10 s; whole seconds, one second to one hour). To use no check, set
    /// [`MinReplicas::Off`]. In a group of n servers, set `n / 2` replicas (rounded down). Then a
    /// network cut cannot leave two halves of the group that both pass the check.
    pub fn min_replicas(self, replicas: u32, max_lag: Duration) -> Self {
        self.try_set(|s| {
            check_min_replicas(replicas, max_lag)?;
            s.rule.replicas = replicas;
            s.rule.max_lag = max_lag;
            Ok(())
        })
    }

    /// Sets the behaviour of the node while the master's min-replicas check is off or weaker than
    /// required. Default [`MinReplicas::Require`].
    pub fn min_replicas_check(self, policy: MinReplicas) -> Self {
        self.set(|s| s.rule.policy = policy)
    }

    /// Sets the failover window: the assumed time for which a replaced master accepts writes. At
    /// most one day. This value is used if no min-replicas check bounds that time, so with
    /// [`MinReplicas::Warn`] or `Off`. The default is 15 s, because a Sentinel demotes an isolated
    /// master about eleven seconds after the *heal*. The length of the partition is unknown, so
    /// this value is an assumption and not a bound.
    ///
    /// With [`MinReplicas::Require`] this value is used only if `CONFIG GET` is not allowed. The
    /// window is then the larger of two times: the lag of [`Self::min_replicas`] plus 2 s, and this
    /// value. All clients must use the same value. If the values differ, the server uses the
    /// longest one.
    pub fn failover_window(self, window: Duration) -> Self {
        self.try_set(|s| {
            settings::check_span("failover_window", window, Duration::ZERO)?;
            s.rule.window = Some(window);
            Ok(())
        })
    }

    /// Sets whether a server without the key `palisade:generation` grants at once. With `false`,
    /// the default, such a server begins a quarantine, as after a loss of data. Use `true` only for
    /// tests and embedded use, where no client can hold a lock on a fresh server.
    pub fn trust_fresh(self, trust: bool) -> Self {
        self.set(|s| s.trust_fresh = trust)
    }

    /// Sets whether the node votes although its master deletes keys when its memory is full
    /// (`maxmemory` set and a policy other than `noeviction`). Default `false`; see
    /// [`RedisNodeBuilder::allow_eviction`](crate::node::RedisNodeBuilder::allow_eviction).
    pub fn allow_eviction(self, allow: bool) -> Self {
        self.set(|s| s.allow_eviction = allow)
    }

    /// Sets the longest time for one request to a Sentinel, connecting included: 1 ms to one
    /// minute, default 250 ms. The node asks all Sentinels at the same time, so a frozen Sentinel
    /// delays the result by at most this time.
    pub fn sentinel_deadline(self, deadline: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("sentinel_deadline", deadline)?;
            s.within = deadline;
            Ok(())
        })
    }

    /// Sets the interval at which the node asks the Sentinels for the master: 1 ms to one minute,
    /// default 1 s, ± 10 %. After an event of a Sentinel the node asks sooner, but events may be
    /// lost.
    pub fn poll_every(self, every: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("poll_every", every)?;
            s.poll_every = every;
            Ok(())
        })
    }

    /// Sets the reachable addresses of servers that this client cannot reach at the addresses that
    /// the Sentinels announce (NAT, container networks). Each pair has the announced `ip:port` and
    /// the reachable `host:port`. The pairs also apply to Sentinels that other Sentinels report.
    pub fn map_address(self, map: impl IntoIterator<Item = (String, String)>) -> Self {
        self.try_set(|s| {
            s.map = settings::address_map(map)?;
            Ok(())
        })
    }

    /// Sets the clocks and the randomness of the node, for simulators. The default is those of the
    /// machine.
    #[doc(hidden)]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Makes the node. The node connects at its first call.
    ///
    /// # Errors
    /// A setting is out of range. The error contains the first such setting, its value and its
    /// rule.
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
    /// Uses TLS to the data servers. The servers' certificates are verified with the root
    /// certificate `root` (PEM), or with the system's root certificates if `root` is `None`.
    /// `client` is a client certificate with its key (PEM). The process must have installed a
    /// rustls crypto provider.
    ///
    /// The servers' certificates must contain the addresses that the Sentinels announce. If they do
    /// not, set the name in the certificates with [`Self::tls_server_name`], configure the
    /// Sentinels to announce host names, or use [`Self::map_address`].
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            s.data.tls = Some(transport("tls", root.as_deref(), client.as_ref())?);
            Ok(())
        })
    }

    /// Uses TLS to the Sentinels. The arguments have the same meaning as those of [`Self::tls`].
    /// The two settings are independent.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn sentinel_tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            let tls = transport("sentinel_tls", root.as_deref(), client.as_ref())?;
            s.sentinel.tls = Some(tls);
            Ok(())
        })
    }

    /// Sets the TLS server name (a host name or an IP address) of all data servers, if this name
    /// differs from the addresses that the Sentinels announce. The node connects to the announced
    /// addresses, and checks the servers' certificates against this name. This setting needs
    /// [`Self::tls`]. It does not apply to the Sentinels.
    pub fn tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.try_set(|s| {
            crate::tls::server_name("tls_server_name", name.as_ref())?;
            s.data.tls_name = Some(name.as_ref().into());
            Ok(())
        })
    }

    /// Sets the TLS server name of all Sentinels. The meaning is that of [`Self::tls_server_name`],
    /// but for the Sentinels. This setting needs [`Self::sentinel_tls`].
    pub fn sentinel_tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.try_set(|s| {
            crate::tls::server_name("sentinel_tls_server_name", name.as_ref())?;
            s.sentinel.tls_name = Some(name.as_ref().into());
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
