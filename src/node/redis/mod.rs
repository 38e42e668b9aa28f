//! A standalone Redis (or Valkey) server as a node.

pub(crate) mod barrier;
mod codes;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod facts;
pub(crate) mod faults;
mod hints;
pub(crate) mod read_max_lag;
pub(crate) mod script;
pub(crate) mod seen;
pub(crate) mod session;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use self::barrier::replicas::Known;
use self::encode::GroupTerms;
use self::facts::ServerFacts;
use super::link::{Link, LinkOptions, Resolver, node_over_link};
use super::min_replicas::{Group, Judge};
use super::min_replicas_rule::{MinReplicas, MinReplicasRule, check_min_replicas};
use super::{BoxFuture, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::env::{Env, SystemEnv};
use crate::error::{ConfigError, NodeError};
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// Longest permitted `failover_window`: one day, the same limit as for a lease.
const WINDOW_MAX: Duration = Duration::from_secs(86_400);

/// One standalone Redis server (6.2.7 or newer, or Valkey) as a node, which has one vote.
///
/// The node connects at its first call. If an answer is missing or invalid, the node opens a new
/// connection. It never repeats a request that may have run. After a restart of the server, the
/// node grants nothing for `max_ttl` plus the
/// [`failover_window`](RedisNodeBuilder::failover_window), because the server may have lost its
/// locks. For a group that Sentinels monitor use `SentinelNode`.
pub struct RedisNode {
    name: Arc<str>,
    link: Link<Fixed>,
}

impl RedisNode {
    /// Makes a node at `redis://[user:password@]host[:port][/db]`, `rediss://…` (feature `tls`) or
    /// `unix:///path[?db=…&user=…&pass=…]`, with the defaults of [`RedisNode::builder`].
    ///
    /// # Errors
    /// The address cannot be parsed. This method makes no connection, so it returns no error of a
    /// connection.
    pub fn new(url: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self::builder(url).build()
    }

    /// Returns a builder of a node at this address, with the default settings.
    pub fn builder(url: impl AsRef<str>) -> RedisNodeBuilder {
        RedisNodeBuilder {
            endpoint: Endpoint::parse(url.as_ref()),
            name: None,
            trust_fresh: false,
            allow_eviction: false,
            failover_window: Duration::ZERO,
            min_replicas: None,
            check: None,
            connect_timeout: Duration::from_secs(1),
            replicas: None,
            env: Arc::new(SystemEnv),
        }
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("name", &self.name).finish_non_exhaustive()
    }
}

node_over_link! { RedisNode; }

/// Settings of a [`RedisNode`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisNodeBuilder {
    endpoint: Result<Endpoint, ConfigError>,
    name: Option<String>,
    trust_fresh: bool,
    allow_eviction: bool,
    failover_window: Duration,
    min_replicas: Option<(u32, Duration)>,
    check: Option<MinReplicas>,
    connect_timeout: Duration,
    replicas: Option<u32>,
    env: Arc<dyn Env>,
}

impl RedisNodeBuilder {
    /// Sets the name of the node in errors and logs. Default: `host:port` or the socket's path.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the ACL user. Default: the user in the address, or the server's default user if the
    /// address contains no user.
    pub fn username(mut self, name: impl AsRef<str>) -> Self {
        self.endpoint = self.endpoint.map(|e| e.username(name.as_ref()));
        self
    }

    /// Sets the password. Default: the password in the address. Errors and logs never contain the
    /// password.
    pub fn password(mut self, password: impl AsRef<str>) -> Self {
        self.endpoint = self.endpoint.map(|e| e.password(password.as_ref()));
        self
    }

    /// Sets the database index, 0 or more. Default: the index in the address, or 0 if the address
    /// contains no index. All clients of a lock must use the same index.
    pub fn db(mut self, db: u32) -> Self {
        self.endpoint = self.endpoint.and_then(|e| e.db(db));
        self
    }

    /// Sets the certificates for a `rediss://` address, all in PEM. `root_ca_pem` is a root
    /// certificate; it replaces the root certificates of the system. `client_cert_and_key` is a
    /// client certificate with its key, for a server that requires a client certificate. The
    /// server's certificate must contain the host of the address (a name or an IP address), or the
    /// name given with [`tls_server_name`](Self::tls_server_name).
    #[cfg(feature = "tls")]
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(
        mut self,
        root_ca_pem: Option<Vec<u8>>,
        client_cert_and_key: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.endpoint = self.endpoint.and_then(|e| {
            let client = client_cert_and_key.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
            e.tls(root_ca_pem.as_deref(), client)
        });
        self
    }

    /// Sets the TLS server name, if it differs from the host in the address. The connection goes to
    /// the address, but the server's certificate is checked against this name. If
    /// [`tls`](Self::tls) is used as well, call `tls` first.
    #[cfg(feature = "tls")]
    pub fn tls_server_name(mut self, name: impl AsRef<str>) -> Self {
        self.endpoint = self.endpoint.and_then(|e| e.tls_name(name.as_ref()));
        self
    }

    /// Sets whether a server without the key `palisade:generation` counts as a new server. A new
    /// server has never granted a lock, so it needs no quarantine. Default `false`.
    ///
    /// Use `true` only in tests, and for servers that run no longer than this program. A server
    /// that lost its data by a restart or `FLUSHALL` cannot be distinguished from a new server, so
    /// two owners could then get the same lock.
    pub fn trust_fresh(mut self, trust: bool) -> Self {
        self.trust_fresh = trust;
        self
    }

    /// Sets whether the node votes although its server deletes keys when its memory is full
    /// (`maxmemory` is set, with another policy than `noeviction`). Default `false`: the node then
    /// answers [`NodeFault::Eviction`](crate::error::NodeFault::Eviction). If a server deletes the
    /// key of a held lock, another owner can get the lock. If a server deletes an idempotency key,
    /// the handler runs again.
    ///
    /// Use `true` only if both effects are harmless, for example for locks that only avoid double
    /// work. The node reads the server's settings on each new connection, and every ten seconds
    /// while the node is used.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Sets the failover window: the time for which a replaced server may still accept writes. Set
    /// it if the address can move from one server to another (a DNS name, or a proxy in front of
    /// several servers). The failover window lengthens the quarantine. At most one day. The default
    /// is zero, for an address that always belongs to the same server.
    pub fn failover_window(mut self, window: Duration) -> Self {
        self.failover_window = window;
        self
    }

    /// Sets the required strength of the server's min-replicas check. The server must refuse writes
    /// unless at least `replicas` replicas (1 or more) have acknowledged within `max_lag` (whole
    /// seconds, from one second to one hour). Call this method for a server that a replica may
    /// replace. Then also set a [`failover_window`](Self::failover_window) of at least `max_lag + 2
    /// s`.
    ///
    /// By default the node does not read the check of a standalone server. This method changes the
    /// policy to [`MinReplicas::Require`], unless [`min_replicas_check`](Self::min_replicas_check)
    /// sets another policy. The node reads the check on each new connection, and every ten seconds
    /// while the node is used.
    pub fn min_replicas(mut self, replicas: u32, max_lag: Duration) -> Self {
        self.min_replicas = Some((replicas, max_lag));
        self
    }

    /// Sets the behaviour of the node while the server's min-replicas check is off or weaker than
    /// required. The default is `Require` if [`min_replicas`](Self::min_replicas) is called, and
    /// [`MinReplicas::Off`] otherwise. Without a call of `min_replicas`, the required strength is
    /// one replica within 10 s.
    pub fn min_replicas_check(mut self, policy: MinReplicas) -> Self {
        self.check = Some(policy);
        self
    }

    /// Sets the longest time for one try to connect and log in, at least 1 ms. Default 1 s. A call
    /// waits for the connection no longer than until the deadline of the call.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the number of replicas of the server, including replicas that may be down. At
    /// [`Durability::AllReplicas`] this number of replicas must confirm, or all connected replicas
    /// if more are connected. The default is the larger of two numbers: the replicas that are
    /// connected now, and the largest number that were online at one time since this node first
    /// connected to the server process. With the default, the node does not wait for a replica that
    /// was down all that time.
    pub fn replicas(mut self, count: u32) -> Self {
        self.replicas = Some(count);
        self
    }

    /// Sets the clocks and the randomness of the node. The default is those of the machine.
    #[doc(hidden)]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Returns the address and the login of the server.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        self.endpoint.clone()
    }

    /// Makes the node. The node connects at its first call.
    ///
    /// # Errors
    /// A setting is out of range. The error contains the first such setting, its value and its
    /// rule.
    pub fn build(self) -> Result<RedisNode, ConfigError> {
        let endpoint = self.endpoint?;
        if let Some(name) = &self.name {
            crate::name::check_name("name", name)?;
        }
        if self.failover_window > WINDOW_MAX {
            let value = format!("{:?}", self.failover_window);
            return Err(ConfigError::new("failover_window", value, "at most one day"));
        }
        if self.connect_timeout < Duration::from_millis(1) {
            let value = format!("{:?}", self.connect_timeout);
            return Err(ConfigError::new("connect_timeout", value, "at least 1 ms"));
        }
        let name: Arc<str> = self.name.unwrap_or_else(|| endpoint.to_string()).into();
        if let Some((replicas, max_lag)) = self.min_replicas {
            check_min_replicas(replicas, max_lag)?;
        }
        let options = LinkOptions {
            trust_fresh: self.trust_fresh,
            allow_eviction: self.allow_eviction,
            name: Arc::clone(&name),
            connect_timeout: self.connect_timeout,
            env: self.env,
        };
        let fixed = Fixed {
            endpoint,
            window: self.failover_window,
            judge: Judge::new(Arc::clone(&name), rule(self.min_replicas, self.check)),
            replicas: self.replicas,
            never: watch::Sender::new(0),
        };
        Ok(RedisNode { name, link: Link::new(fixed, options) })
    }
}

/// Returns the rule for the server's min-replicas check. The check is off unless the user has set a
/// strength or a policy.
fn rule(strength: Option<(u32, Duration)>, policy: Option<MinReplicas>) -> MinReplicasRule {
    let usual = MinReplicasRule::default();
    let asked_for = if strength.is_some() { MinReplicas::Require } else { MinReplicas::Off };
    let (replicas, max_lag) = strength.unwrap_or((usual.replicas, usual.max_lag));
    MinReplicasRule { policy: policy.unwrap_or(asked_for), replicas, max_lag, ..usual }
}

/// The resolver of a standalone server, which always returns the same address.
struct Fixed {
    endpoint: Endpoint,
    window: Duration,
    judge: Judge,
    replicas: Option<u32>,
    never: watch::Sender<u64>,
}

impl Resolver for Fixed {
    fn resolve(&self, _deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
        Box::pin(std::future::ready(Ok(self.endpoint.clone())))
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }

    fn wants_min_replicas_facts(&self) -> bool {
        self.judge.rule().policy != MinReplicas::Off
    }

    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError> {
        // The time is only needed to read the settings of a group again. A standalone server has no
        // group, so any time will do.
        self.judge.accept(at, facts, (Group::default(), Moment::default()), events)
    }

    fn is_tls(&self) -> bool {
        self.endpoint.is_tls()
    }

    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        Ok(self.replicas.map(|count| Known { count, ..Known::default() }))
    }

    fn group_terms(&self) -> GroupTerms {
        let judged = self.judge.group_terms();
        let window = self.window;
        GroupTerms {
            failover_window: window,
            unread_window: window,
            widest_window: window,
            ..judged
        }
    }
}
