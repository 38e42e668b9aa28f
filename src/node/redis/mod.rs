//! A standalone Redis (or Valkey) server as a node.

pub(crate) mod barrier;
mod codes;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod facts;
pub(crate) mod faults;
mod hints;
mod judging;
mod news;
pub(crate) mod read_max_lag;
pub(crate) mod script;
pub(crate) mod seen;
pub(crate) mod session;
#[cfg(test)]
mod twin_tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use self::barrier::replicas::Known;
use self::encode::GroupTerms;
use self::facts::{ServerFacts, Wants};
use super::builder::{NodeBuilder, NodeSettings};
use super::link::{Link, Resolver, node_over_link};
use super::min_replicas::{Group, Judge};
use super::min_replicas_rule::{MinReplicas, MinReplicasRule};
use super::{BoxFuture, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::durability::{BarrierPoint, Durability};
use crate::error::{ConfigError, NodeError};
use crate::name::check_name;
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// One standalone Redis server (6.2.7 or newer, or Valkey) as a node, which has one vote.
///
/// The node connects at its first call. If an answer is missing or invalid, the node opens a new
/// connection. It never repeats a request that may have run. After a restart of the server, the
/// node grants nothing for `max_ttl` plus the
/// [`failover_window`](NodeBuilder::failover_window), because the server may have lost its
/// locks. For a group that Sentinels monitor use `SentinelNode`.
///
/// The host of the address may be a name behind which the primary changes, as managed services give
/// it. The node has the name resolved by the system for each new connection, and keeps no answer.
/// Then set the [`failover_window`](NodeBuilder::failover_window): the longest time for which a
/// primary that was replaced may go on answering. A server of another deployment behind the name is
/// refused ([`NodeFault::ForeignData`](crate::error::NodeFault::ForeignData)), and nothing is
/// written there.
pub struct RedisNode {
    name: Arc<str>,
    url: Arc<str>,
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
        match Endpoint::parse(url.as_ref()) {
            Ok(data) => Self::at(data),
            Err(e) => NodeBuilder::new(Err(e)),
        }
    }

    pub(crate) fn at(data: Endpoint) -> RedisNodeBuilder {
        let own = ServerSettings {
            name: None,
            connect_timeout: Duration::from_secs(1),
            replicas: None,
            durable: false,
        };
        NodeBuilder::new(Ok(NodeSettings::new(data, MinReplicas::Off, own)))
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("name", &self.name).finish_non_exhaustive()
    }
}

node_over_link! { RedisNode; }

/// Settings of a [`RedisNode`]. [`RedisNode::builder`] returns this type.
pub type RedisNodeBuilder = NodeBuilder<ServerSettings>;

/// Settings that only a [`RedisNode`] has.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    name: Option<String>,
    connect_timeout: Duration,
    replicas: Option<u32>,
    durable: bool,
}

impl NodeBuilder<ServerSettings> {
    /// Sets the name of the node in errors and logs. Default: `host:port` or the socket's path.
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.try_set(|s| check_name("name", &name).map(|()| s.own.name = Some(name)))
    }

    /// Sets the certificates for a `rediss://` address, all in PEM. `root_ca_pem` is a root
    /// certificate; it replaces the root certificates of the system. `client_cert_and_key` is a
    /// client certificate with its key, for a server that requires a client certificate. The
    /// server's certificate must contain the host of the address (a name or an IP address), or the
    /// name given with [`tls_server_name`](Self::tls_server_name).
    #[cfg(feature = "tls")]
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(
        self,
        root_ca_pem: Option<Vec<u8>>,
        client_cert_and_key: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let client = client_cert_and_key.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
        self.set_data(|data| data.tls(root_ca_pem.as_deref(), client))
    }

    /// Sets the longest time for one try to connect and log in, at least 1 ms. Default 1 s. A call
    /// waits for the connection no longer than until the deadline of the call.
    pub fn connect_timeout(self, limit: Duration) -> Self {
        self.try_set(|s| {
            if limit < Duration::from_millis(1) {
                let value = format!("{limit:?}");
                return Err(ConfigError::new("connect_timeout", value, "at least 1 ms"));
            }
            s.own.connect_timeout = limit;
            Ok(())
        })
    }

    /// Sets the number of replicas of the server, including replicas that may be down. At
    /// [`Durability::AllReplicas`] this number of replicas must confirm, or all connected replicas
    /// if more are connected. The default is the larger of two numbers: the replicas that are
    /// connected now, and the largest number that were online at one time since this node first
    /// connected to the server process. With the default, the node does not wait for a replica that
    /// was down all that time.
    pub fn replicas(self, count: u32) -> Self {
        self.set(|s| s.own.replicas = Some(count))
    }

    /// Declares that the server loses no write that it has confirmed, and that a server which was
    /// replaced behind this address confirms nothing more. Then the node grants right after a
    /// restart or a failover, and remembers every idempotency key. Default `false`. All clients of
    /// the server must use the same value.
    ///
    /// Use `true` for a server without replicas that writes each command to disk before it answers
    /// (`appendonly yes`, `appendfsync always`), and for a service that promises the same of its
    /// failovers. The library cannot check the declaration, and the doctor can only in part. **If
    /// it is false, two owners can hold one lock, and a key can run twice**, for example after a
    /// restart from an older backup. A running program notices data that are older than what it
    /// remembers, unless others have written more since, and data that are gone: then a quarantine
    /// begins as without the declaration, with the event
    /// [`DurableRefuted`](crate::node::NodeEvent::DurableRefuted) (quarantine 23; the manual's page
    /// on [promises](crate::manual::promises#what-durable-means)).
    pub fn durable(self, declared: bool) -> Self {
        self.set(|s| s.own.durable = declared)
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.settings.as_ref().is_ok_and(|settings| settings.own.durable)
    }

    /// Makes the node. The node connects at its first call.
    ///
    /// # Errors
    /// A setting is out of range. The error contains the first such setting, its value and its
    /// rule.
    pub fn build(self) -> Result<RedisNode, ConfigError> {
        let mut settings = self.settings?;
        settings.data = settings.data.of_node(&self.env);
        settings.data.check_login("username")?;
        settings.data.check_tls_name("tls_server_name", "needs TLS (rediss://, `tls`)")?;
        let name = settings.own.name.clone().unwrap_or_else(|| settings.data.to_string());
        let name: Arc<str> = name.into();
        let url = settings.data.url().into();
        let options = settings.link(&name, settings.own.connect_timeout, self.env);
        let logins = [("servers", settings.data.logins().cloned())];
        let fixed = Fixed {
            window: settings.rule.lone_window(),
            judge: Judge::new(Arc::clone(&name), MinReplicasRule { window: None, ..settings.rule }),
            endpoint: settings.data,
            replicas: settings.own.replicas,
            durable: settings.own.durable,
            never: watch::Sender::new(0),
        };
        let link = Link::new(fixed, options).reporting(logins);
        Ok(RedisNode { name, url, link })
    }
}

struct Fixed {
    endpoint: Endpoint,
    window: Duration,
    judge: Judge,
    replicas: Option<u32>,
    durable: bool,
    never: watch::Sender<u64>,
}

impl Resolver for Fixed {
    fn resolve(&self, _deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
        Box::pin(std::future::ready(Ok(self.endpoint.clone())))
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }

    fn wants(&self) -> Wants {
        Wants { min_replicas: self.judge.rule().policy != MinReplicas::Off, cluster: false }
    }

    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError> {
        // Only needed to read a group's settings again, so any time will do.
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
            durable: self.durable,
            ..judged
        }
    }
}
