//! Settings that a standalone server and a group of servers have in common.

use std::sync::Arc;
use std::time::Duration;

use super::link::LinkOptions;
use super::min_replicas_rule::{MinReplicas, MinReplicasRule, check_min_replicas};
use crate::dial::credentials::CredentialsProvider;
use crate::dial::endpoint::Endpoint;
use crate::env::{Env, SystemEnv};
use crate::error::ConfigError;

const WINDOW_MAX: Duration = Duration::from_secs(86_400);

pub(super) fn check_window(window: Duration) -> Result<(), ConfigError> {
    if window > WINDOW_MAX {
        return Err(ConfigError::new("failover_window", format!("{window:?}"), "at most one day"));
    }
    Ok(())
}

/// Settings of a [`RedisNode`](super::RedisNode) or of a [`SentinelNode`](super::SentinelNode).
/// Each method that sets a value also checks it, and `build` reports the first invalid value.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct NodeBuilder<S> {
    pub(super) settings: Result<NodeSettings<S>, ConfigError>,
    pub(super) env: Arc<dyn Env>,
}

#[derive(Clone, Debug)]
pub(super) struct NodeSettings<S> {
    pub(super) data: Endpoint,
    pub(super) rule: MinReplicasRule,
    check: Option<MinReplicas>,
    trust_fresh: bool,
    allow_eviction: bool,
    trial: Option<u64>,
    pub(super) own: S,
}

impl<S> NodeSettings<S> {
    pub(super) fn new(data: Endpoint, policy: MinReplicas, own: S) -> Self {
        let rule = MinReplicasRule { policy, ..MinReplicasRule::default() };
        let (trust_fresh, allow_eviction) = (false, false);
        Self { data, rule, check: None, trust_fresh, allow_eviction, trial: None, own }
    }

    pub(super) fn link(
        &self,
        name: &Arc<str>,
        connect_timeout: Duration,
        env: Arc<dyn Env>,
    ) -> LinkOptions {
        LinkOptions {
            trust_fresh: self.trust_fresh,
            allow_eviction: self.allow_eviction,
            trial: self.trial,
            name: Arc::clone(name),
            connect_timeout,
            env,
        }
    }
}

impl<S> NodeBuilder<S> {
    pub(super) fn new(settings: Result<NodeSettings<S>, ConfigError>) -> Self {
        Self { settings, env: Arc::new(SystemEnv) }
    }

    pub(crate) fn allows_eviction(&self) -> bool {
        self.settings.as_ref().is_ok_and(|settings| settings.allow_eviction)
    }

    pub(crate) fn min_replicas_rule(&self) -> MinReplicasRule {
        self.settings.as_ref().map(|settings| settings.rule).unwrap_or_default()
    }

    pub(crate) fn data(&self) -> Result<Endpoint, ConfigError> {
        let data = self.settings.as_ref().map(|s| s.data.clone()).map_err(Clone::clone)?;
        data.check_login("username").map(|()| data)
    }

    pub(super) fn set(self, change: impl FnOnce(&mut NodeSettings<S>)) -> Self {
        self.try_set(|s| {
            change(s);
            Ok(())
        })
    }

    pub(super) fn try_set(
        mut self,
        change: impl FnOnce(&mut NodeSettings<S>) -> Result<(), ConfigError>,
    ) -> Self {
        self.settings = self.settings.and_then(|mut s| change(&mut s).map(|()| s));
        self
    }

    pub(super) fn set_data(
        self,
        change: impl FnOnce(Endpoint) -> Result<Endpoint, ConfigError>,
    ) -> Self {
        self.try_set(|s| change(s.data.clone()).map(|data| s.data = data))
    }

    /// Sets the ACL user at the data servers. Default: the user in the address of a standalone
    /// server, or the server's default user if there is none.
    pub fn username(self, name: impl AsRef<str>) -> Self {
        self.set_data(|data| Ok(data.username(name.as_ref())))
    }

    /// Sets the password at the data servers. Default: the password in the address of a standalone
    /// server. Errors and logs never contain the password.
    pub fn password(self, password: impl AsRef<str>) -> Self {
        self.set_data(|data| Ok(data.password(password.as_ref())))
    }

    /// Sets the provider of the login at the data servers, which the node asks for each new
    /// connection. It replaces [`password`](Self::password), and [`username`](Self::username) where
    /// its answer has a user name. The last call of `password` and `credentials` counts.
    pub fn credentials(self, provider: impl CredentialsProvider) -> Self {
        self.set_data(|data| Ok(data.credentials(Arc::new(provider))))
    }

    /// Sets the database index, at most 2 147 483 647. Default: the index in the address of a
    /// standalone server, or 0 if there is none. All clients of a lock must use the same index.
    pub fn db(self, db: u32) -> Self {
        self.set_data(|data| data.db(i64::from(db)))
    }

    /// Sets the TLS server name (a host name or an IP address), if it differs from the host in the
    /// address or, for a group, from the addresses that the Sentinels announce. The connection goes
    /// to the address, but the server's certificate is checked against this name. This setting
    /// needs a `rediss://` address or, for a group, `tls`. The name of a group does not apply to
    /// the Sentinels.
    #[cfg(feature = "tls")]
    pub fn tls_server_name(self, name: impl AsRef<str>) -> Self {
        self.set_data(|data| data.tls_name("tls_server_name", name.as_ref()))
    }

    /// Sets whether a server without the key `palisade:generation` counts as a new server. A new
    /// server has never granted a lock, so it needs no quarantine. Default `false`.
    ///
    /// Use `true` only in tests, and for servers that run no longer than this program. A server
    /// that lost its data by a restart or `FLUSHALL` cannot be distinguished from a new server, so
    /// two owners could then get the same lock.
    pub fn trust_fresh(self, trust: bool) -> Self {
        self.set(|s| s.trust_fresh = trust)
    }

    /// Sets whether the node votes although its server deletes keys when its memory is full
    /// (`maxmemory` is set, with another policy than `noeviction`). Default `false`: the node then
    /// answers [`NodeFault::Eviction`](crate::error::NodeFault::Eviction). If a server deletes the
    /// key of a held lock, another owner can get the lock. If a server deletes an idempotency key,
    /// the handler runs again.
    ///
    /// Use `true` only if both effects are harmless, for example for locks that only avoid double
    /// work. The node reads the server's settings on each new connection, and every ten seconds
    /// while the node is used. With `false` a server that has evicted keys counts as one that lost
    /// all its data (quarantine 21).
    pub fn allow_eviction(self, allow: bool) -> Self {
        self.set(|s| s.allow_eviction = allow)
    }

    /// Keeps the marker and the note under keys of this trial ([`trial_key`](crate::name)), and
    /// accepts what can be tried nevertheless.
    pub(crate) fn on_trial(self, trial: u64) -> Self {
        let node = self.trust_fresh(true).allow_eviction(true).failover_window(Duration::ZERO);
        node.min_replicas_check(MinReplicas::Off).set(|s| s.trial = Some(trial))
    }

    /// Sets the failover window: the assumed time for which a replaced server accepts writes. At
    /// most one day. The failover window lengthens the quarantine. All clients must use the same
    /// value. If the values differ, the server uses the longest one.
    ///
    /// For a standalone server the default is zero, which fits an address that always belongs to
    /// the same server. Set the window if the address can move from one server to another (a DNS
    /// name, or a proxy in front of several servers). Nothing measures it there, so ask whoever
    /// fails the server over: it is the time from the promotion of the new primary until the old
    /// one certainly confirms no write, whoever is still connected to it. If it is too short, two
    /// owners can hold one lock after a failover.
    ///
    /// For a group the window is used if no min-replicas check bounds that time, so with
    /// [`MinReplicas::Warn`] or `Off`. There it is at least 3 s, unless the Sentinels' word may be
    /// of any age (`trust_unconfirmed_master`). The default is 15 s, because a Sentinel demotes an
    /// isolated master about eleven seconds after the *heal*. The length of the partition is
    /// unknown, so this value is an assumption and not a bound. With [`MinReplicas::Require`] the
    /// window is used only if `CONFIG GET` is not allowed. It is then the larger of two times: the
    /// lag of [`min_replicas`](Self::min_replicas) plus 2 s, and this value.
    pub fn failover_window(self, window: Duration) -> Self {
        self.try_set(|s| {
            check_window(window)?;
            s.rule.window = Some(window);
            Ok(())
        })
    }

    /// Sets the required strength of the server's min-replicas check. The server must refuse writes
    /// unless at least `replicas` replicas (default 1, at least 1) have acknowledged within
    /// `max_lag` (default 10 s; whole seconds, one second to one hour). The node reads the check on
    /// each new connection, and every ten seconds while the node is used.
    ///
    /// In a group of n servers, set `n / 2` replicas (rounded down). Then a network cut cannot
    /// leave two halves of the group that both pass the check. By default the node does not read
    /// the check of a standalone server. Call this method for a standalone server that a replica
    /// may replace. Then also set a [`failover_window`](Self::failover_window) of at least
    /// `max_lag + 2 s`. Nothing bounds how long a server goes on that was frozen, replaced and
    /// resumed: it counts acknowledgements from before as new (sentinel 4). A group's Sentinels do.
    ///
    /// This method changes the policy to [`MinReplicas::Require`], unless
    /// [`min_replicas_check`](Self::min_replicas_check) sets another policy.
    pub fn min_replicas(self, replicas: u32, max_lag: Duration) -> Self {
        self.try_set(|s| {
            check_min_replicas(replicas, max_lag)?;
            let policy = s.check.unwrap_or(MinReplicas::Require);
            s.rule = MinReplicasRule { policy, replicas, max_lag, ..s.rule };
            Ok(())
        })
    }

    /// Sets the behaviour of the node while the server's min-replicas check is off or weaker than
    /// required. The default is [`MinReplicas::Require`] for a group, and for a standalone server
    /// if [`min_replicas`](Self::min_replicas) is called. Otherwise the default is
    /// [`MinReplicas::Off`].
    pub fn min_replicas_check(self, policy: MinReplicas) -> Self {
        self.set(|s| {
            s.check = Some(policy);
            s.rule.policy = policy;
        })
    }

    /// The clocks and the randomness of the node; those of the machine by default.
    #[doc(hidden)]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }
}
