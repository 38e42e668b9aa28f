//! Builds a handle from the settings of a deployment: addresses, environment variables or a file.

pub(crate) mod nodes;
pub(crate) mod read;
pub(crate) mod span;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use self::nodes::{Access, NodeUrl};
use self::read::{Written, of_environment};
use crate::error::ConfigError;
use crate::redlock::{Redlock, RedlockBuilder};
use crate::time::Drift;

/// Settings of a handle: where its nodes are, with the logins, and its leases. A program can read
/// them as a part of its own configuration. The doctor, the console and the program `palisade` take
/// the same settings.
///
/// Serde can deserialize this type from any format. A duration is a text (`250ms`, `2.5s`,
/// `1m 30s`, `1h`) or a number of seconds. `urls` and `map` are a list, or one text with white
/// space between the addresses. A missing setting has its default value.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = r#"{ "urls": "memory://", "ttl": "10s", "prefix": "billing:" }"#;
/// let settings: palisade::Settings = serde_json::from_str(text)?;
/// let redlock = settings.build()?;
/// assert_eq!(redlock.config().ttl.as_secs(), 10);
/// # Ok(()) }
/// ```
#[derive(Clone, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, Option<Written>>")]
#[non_exhaustive]
pub struct Settings {
    /// Addresses of the nodes. [`Redlock::from_urls`] describes the form of an address.
    pub urls: Vec<String>,
    /// Addresses that Sentinels or a cluster report, each with the address at which this process
    /// reaches the same server: `host:port=host:port`, as in
    /// [`SentinelNodeBuilder::map_address`](crate::node::SentinelNodeBuilder::map_address).
    pub map: Vec<(String, String)>,
    /// ACL user for data servers, if the address of the node has no login. It needs a password.
    pub username: Option<String>,
    /// Password for data servers, if the address of the node has no login.
    pub password: Option<String>,
    /// File with the password for data servers, as its first line, which must not be empty; used
    /// without `password`. A changed file is used without a restart
    /// ([`PasswordFile`](crate::node::PasswordFile)).
    pub password_file: Option<PathBuf>,
    /// ACL user for the Sentinels. It needs a password.
    pub sentinel_username: Option<String>,
    /// Password for the Sentinels.
    pub sentinel_password: Option<String>,
    /// File with the password for the Sentinels, as its first line, like `password_file`; used
    /// without `sentinel_password`.
    pub sentinel_password_file: Option<PathBuf>,
    /// File with the root certificate (PEM) that verifies the servers and the Sentinels, instead of
    /// the root certificates of the system. The addresses select TLS.
    pub cacert: Option<PathBuf>,
    /// File with the client certificate (PEM) for servers and Sentinels with TLS. It needs `key`.
    pub cert: Option<PathBuf>,
    /// File with the key of the client certificate (PEM).
    pub key: Option<PathBuf>,
    /// Lease length of a lock without a ttl of its own ([`RedlockBuilder::ttl`]).
    pub ttl: Option<Duration>,
    /// Longest lease that any client of the nodes may use ([`RedlockBuilder::max_ttl`]).
    pub max_ttl: Option<Duration>,
    /// Longest time that one node may take to answer ([`RedlockBuilder::node_deadline`]).
    pub node_deadline: Option<Duration>,
    /// E, the largest error of any clock against true time ([`RedlockBuilder::clock_error`]).
    pub clock_error: Option<Duration>,
    /// Largest error of the rate of a node's clock, in parts per million
    /// ([`RedlockBuilder::drift`]).
    pub drift_ppm: Option<u32>,
    /// Text before the name of each lock, election and key ([`RedlockBuilder::prefix`]).
    pub prefix: Option<String>,
    /// Id of the deployment whose data the nodes must have ([`RedlockBuilder::deployment`]).
    pub deployment: Option<String>,
    /// True if the number of nodes may be even ([`RedlockBuilder::allow_even_nodes`]).
    pub allow_even_nodes: bool,
    /// Time-out for each server and Sentinel that the package `palisade-ops` examines or changes,
    /// default 2 s. A handle does not use it.
    pub timeout: Option<Duration>,
}

/// Without the passwords and the addresses, which may contain a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("urls", &self.urls.len())
            .field("ttl", &self.ttl)
            .field("max_ttl", &self.max_ttl)
            .field("node_deadline", &self.node_deadline)
            .field("clock_error", &self.clock_error)
            .field("drift_ppm", &self.drift_ppm)
            .field("prefix", &self.prefix)
            .field("deployment", &self.deployment)
            .field("allow_even_nodes", &self.allow_even_nodes)
            .finish_non_exhaustive()
    }
}

/// Sets an option of a builder to the value, if there is one.
pub fn given<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

impl Settings {
    /// Creates settings with nodes at these addresses. All other settings have their default
    /// values.
    pub fn new<I>(urls: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self { urls: urls.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns a builder with these settings and nodes. The program can then add settings that
    /// exist only as methods of the builder.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid address, and for a user name without a password where
    /// an address has no login of its own. Possible secrets are hidden.
    pub fn builder(&self) -> Result<RedlockBuilder, ConfigError> {
        let mut builder = Redlock::builder();
        for ((n, url), node) in self.urls.iter().enumerate().zip(self.nodes()?) {
            let node = node.build().map_err(|e| nodes::refused(n + 1, url, e.to_string()))?;
            builder = builder.node_arc(node);
        }
        let builder = given(builder, self.ttl, RedlockBuilder::ttl);
        let builder = given(builder, self.max_ttl, RedlockBuilder::max_ttl);
        let builder = given(builder, self.node_deadline, RedlockBuilder::node_deadline);
        let builder = given(builder, self.clock_error, RedlockBuilder::clock_error);
        let builder = given(builder, self.drift_ppm.map(Drift::from_ppm), RedlockBuilder::drift);
        let builder = given(builder, self.prefix.as_deref(), RedlockBuilder::prefix);
        let builder = given(builder, self.deployment.as_deref(), RedlockBuilder::deployment);
        Ok(if self.allow_even_nodes { builder.allow_even_nodes() } else { builder })
    }

    pub(crate) fn nodes(&self) -> Result<Vec<NodeUrl>, ConfigError> {
        let access = Access::of(self)?;
        let urls = self.urls.iter().enumerate();
        urls.map(|(n, url)| access.node(n + 1, url)).collect()
    }

    /// Builds the handle. This method makes no connection.
    ///
    /// # Errors
    /// The errors of [`builder`](Self::builder) and of [`RedlockBuilder::build`].
    pub fn build(&self) -> Result<Redlock, ConfigError> {
        self.builder()?.build()
    }
}

impl Redlock {
    /// Builds a handle over the nodes at these addresses, separated by white space, with default
    /// settings.
    ///
    /// | address | node |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]`, `rediss://…`, `unix:///path` | a server |
    /// | `sentinel://[user:password@]host[:port],host[:port],…/master[/db]` | a group |
    /// | `cluster://[user:password@]host[:port],host[:port],…` | a whole cluster |
    /// | `memory://[name]` | this process's memory |
    ///
    /// The login in the address of a group or a cluster is for its data servers. Write the reserved
    /// characters in a login as `%2F`, `%3F`, `%40` and so on, and a `%` as `%25`. The address may
    /// end with a `?` and settings of the node's builder, separated by `&`: `trust_fresh`,
    /// `allow_eviction`, `failover_window`, `min_replicas` and `max_lag` for a server, a group or a
    /// cluster; `name` for a server or a cluster; `tls` for a group or a cluster;
    /// `connect_timeout`, `replicas` and `durable` only for a server; `sentinel_username`,
    /// `sentinel_password`, `sentinel_tls`, `sentinel_deadline`, `poll_every` and
    /// `trust_unconfirmed_master` only for a group. The login of a socket is `user` and `pass`, its
    /// database `db`, as options.
    ///
    /// ```
    /// # fn main() -> Result<(), palisade::ConfigError> {
    /// let redlock = palisade::Redlock::from_urls(
    ///     "sentinel://app:secret@10.0.0.1,10.0.0.2,10.0.0.3/orders-a?max_lag=2s \
    ///      sentinel://app:secret@10.0.1.1,10.0.1.2,10.0.1.3/orders-b?max_lag=2s \
    ///      redis://app:secret@10.0.2.1:6379",
    /// )?;
    /// # drop(redlock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] with the invalid address (possible secrets are hidden) and the accepted
    /// form.
    pub fn from_urls(urls: impl AsRef<str>) -> Result<Self, ConfigError> {
        Settings::new(urls.as_ref().split_whitespace()).build()
    }

    /// Builds a handle from environment variables. [`Settings::from_env`] names the variables.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value (possible secrets are hidden) and the accepted
    /// form.
    pub fn from_env() -> Result<Self, ConfigError> {
        Settings::from_env()?.build().map_err(of_environment)
    }
}

#[cfg(test)]
use self::read::{SETTINGS, unknown_variables, variable};

#[cfg(test)]
mod tests;
