//! Settings of a [`SentinelNode`]; `build` reports the first one that is invalid.

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

/// Longest time to connect to the master and log in, once its address is known.
const CONNECT: Duration = Duration::from_secs(1);

/// Settings of a [`SentinelNode`], begun by [`SentinelNode::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct SentinelNodeBuilder {
    /// The settings, or the error of the first one that was invalid.
    settings: Result<Settings, ConfigError>,
    env: Arc<dyn Env>,
}

/// Addresses and logins of a group.
#[derive(Clone)]
pub struct GroupAccess {
    /// Name by which the Sentinels know the group.
    pub name: String,
    /// `host:port` of each of its Sentinels.
    pub sentinels: Vec<String>,
    /// Login and transport (TCP or TLS) of the data servers; the address in it is a placeholder.
    pub data: Endpoint,
    /// Login and transport (TCP or TLS) of the Sentinels; the address in it is a placeholder.
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

    /// Returns addresses and logins of the group.
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

    /// Sets the ACL user at the data servers. Default: the server's default user.
    pub fn username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.data.username = Some(name.into()))
    }

    /// Sets the password at the data servers.
    pub fn password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.data.password = Some(password.into()))
    }

    /// Sets the ACL user at the Sentinels. It never falls back to the data servers' user.
    pub fn sentinel_username(self, name: impl Into<String>) -> Self {
        self.set(|s| s.access.username = Some(name.into()))
    }

    /// Sets the password at the Sentinels. It never falls back to the data servers' password.
    pub fn sentinel_password(self, password: impl Into<String>) -> Self {
        self.set(|s| s.access.password = Some(password.into()))
    }

    /// Sets the database index, at most 2 147 483 647; 0 by default. All clients of a lock must use
    /// the same.
    pub fn db(self, db: u32) -> Self {
        self.try_set(|s| {
            s.data.endpoint().db(db)?;
            s.data.db = db;
            Ok(())
        })
    }

    /// Sets how strong the master's min-replicas check has to be: `min-replicas-to-write` of at
    /// least `replicas` (1 by default, at least 1; for none use [`MinReplicas::Off`]) and
    /// `min-replicas-max-lag` of at most `max_lag` (10 s by default; whole seconds, one second to
    /// one hour). With n servers, `n / 2` replicas (rounded down) make it impossible that a network
    /// cut leaves two halves of the group that both pass the check.
    pub fn min_replicas(self, replicas: u32, max_lag: Duration) -> Self {
        self.try_set(|s| {
            check_min_replicas(replicas, max_lag)?;
            s.rule.replicas = replicas;
            s.rule.max_lag = max_lag;
            Ok(())
        })
    }

    /// Sets what the node does while the master's min-replicas check is off or weaker than
    /// required. Default [`MinReplicas::Require`].
    pub fn min_replicas_check(self, policy: MinReplicas) -> Self {
        self.set(|s| s.rule.policy = policy)
    }

    /// Sets the failover window: the time for which a replaced master is assumed to accept writes
    /// if no min-replicas check bounds it, so with [`MinReplicas::Warn`] or `Off`. Default 15 s,
    /// because a master that was cut off is demoted about eleven seconds after the *heal*. How long
    /// the cut lasts is not known, so this is an assumption and not a bound. With
    /// [`MinReplicas::Require`] the value counts only if `CONFIG GET` is not allowed: the window is
    /// then the lag of [`Self::min_replicas`] plus 2 s, or this value if it is longer. All clients
    /// must use the same value; if they differ, the server uses the longest. At most one day.
    pub fn failover_window(self, window: Duration) -> Self {
        self.try_set(|s| {
            settings::check_span("failover_window", window, Duration::ZERO)?;
            s.rule.window = Some(window);
            Ok(())
        })
    }

    /// Sets whether a server without a marker grants at once. Otherwise it begins a quarantine, as
    /// after a loss of data. Only for tests and embedded use, where no client can hold anything on
    /// a fresh server. Default `false`.
    pub fn trust_fresh(self, trust: bool) -> Self {
        self.set(|s| s.trust_fresh = trust)
    }

    /// Sets whether the node votes although its master deletes keys when its memory is full
    /// (`maxmemory` set and a policy other than `noeviction`). Default `false`; see
    /// [`RedisNodeBuilder::allow_eviction`](crate::node::RedisNodeBuilder::allow_eviction).
    pub fn allow_eviction(self, allow: bool) -> Self {
        self.set(|s| s.allow_eviction = allow)
    }

    /// Sets the time that each Sentinel has to answer, connecting included: 1 ms to one minute,
    /// default 250 ms. All Sentinels are asked at the same time, so a frozen one costs at most this
    /// time.
    pub fn sentinel_deadline(self, deadline: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("sentinel_deadline", deadline)?;
            s.within = deadline;
            Ok(())
        })
    }

    /// Sets the interval at which the Sentinels are asked whether the master is still the same: 1
    /// ms to one minute, default 1 s, ± 10 %. After an event of a Sentinel they are asked sooner,
    /// but events may be lost.
    pub fn poll_every(self, every: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("poll_every", every)?;
            s.poll_every = every;
            Ok(())
        })
    }

    /// Sets where this client reaches the addresses that the Sentinels announce, if that is
    /// elsewhere (NAT, container networks): pairs of the announced `ip:port` and the reachable
    /// `host:port`. They also apply to Sentinels that the node learns of.
    pub fn map_address(self, map: impl IntoIterator<Item = (String, String)>) -> Self {
        self.try_set(|s| {
            s.map = settings::address_map(map)?;
            Ok(())
        })
    }

    /// Sets clocks and randomness other than the machine's own, for simulators.
    #[doc(hidden)]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Makes the node. It connects at its first call.
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
    /// Uses TLS to the data servers, and verifies them by the certificate `root` (PEM) or, without
    /// one, by the system's root certificates. `client` is a client certificate with its key (PEM).
    /// The address that the Sentinels announce must be in the servers' certificates: otherwise give
    /// the name that is in them with [`Self::tls_server_name`], configure the Sentinels to announce
    /// host names, or use [`Self::map_address`]. The process must have installed a rustls crypto
    /// provider.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            s.data.tls = Some(transport("tls", root.as_deref(), client.as_ref())?);
            Ok(())
        })
    }

    /// Uses TLS to the Sentinels. The arguments mean the same as those of [`Self::tls`], which is
    /// independent of this setting.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn sentinel_tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.try_set(|s| {
            let tls = transport("sentinel_tls", root.as_deref(), client.as_ref())?;
            s.access.tls = Some(tls);
            Ok(())
        })
    }

    /// Sets the TLS server name (a host name or an IP address) of all data servers, if it differs
    /// from the addresses that the Sentinels announce. The servers are connected to at the
    /// announced addresses, and their certificates are checked against this name. Needs
    /// [`Self::tls`]; it does not apply to the Sentinels.
    pub fn tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.try_set(|s| {
            crate::tls::server_name("tls_server_name", name.as_ref())?;
            s.data.tls_name = Some(name.as_ref().into());
            Ok(())
        })
    }

    /// Sets the TLS server name of all Sentinels, which means for them what
    /// [`Self::tls_server_name`] means for the data servers. Needs [`Self::sentinel_tls`].
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
