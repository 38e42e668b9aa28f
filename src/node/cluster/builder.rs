//! Settings of a [`ClusterNode`]. `build` reports the first invalid setting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use super::watch::Topology;
use super::{Cluster, ClusterNode};
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::name::check_name;
use crate::node::builder::NodeBuilder;
use crate::node::link::EVENTS;
use crate::node::min_replicas_rule::MinReplicasRule;
use crate::node::sentinel::address_map;
use crate::sync::SyncMutex;
#[cfg(feature = "tls")]
use crate::tls::Tls;

const CONNECT: Duration = Duration::from_secs(1);
const SERVERS_MAX: usize = 16;

/// Settings of a [`ClusterNode`]. [`ClusterNode::builder`] returns this type.
pub type ClusterNodeBuilder = NodeBuilder<ClusterSettings>;

/// Settings that only a [`ClusterNode`] has.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    servers: Vec<Address>,
    name: Option<String>,
    map: BTreeMap<Address, Address>,
}

impl ClusterSettings {
    pub(super) fn new(servers: impl Iterator<Item = String>) -> Result<Self, ConfigError> {
        let servers = servers.map(|text| Address::parse("servers", &text));
        let servers: Vec<Address> = servers.collect::<Result<_, _>>()?;
        if servers.is_empty() || servers.len() > SERVERS_MAX {
            let rule = format!("between 1 and {SERVERS_MAX} addresses, which name the others");
            return Err(ConfigError::new("servers", format!("{} of them", servers.len()), rule));
        }
        Ok(Self { servers, name: None, map: BTreeMap::new() })
    }

    fn hosts(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        hosts.join(",")
    }
}

impl NodeBuilder<ClusterSettings> {
    /// Without the login.
    pub(crate) fn url(&self) -> Result<String, ConfigError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let tls = if settings.data.is_tls() { "?tls=true" } else { "" };
        Ok(format!("cluster://{}{tls}", settings.own.hosts()))
    }

    pub(crate) fn servers(&self) -> Result<Vec<Endpoint>, ConfigError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        settings.data.check_login("username")?;
        let at = |at: &Address| {
            let at = settings.own.map.get(at).unwrap_or(at);
            Endpoint::at(at.host(), at.port(), &settings.data)
        };
        Ok(settings.own.servers.iter().map(at).collect())
    }

    /// Sets the name of the node in errors and logs. Default: the addresses of the builder.
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.try_set(|s| check_name("name", &name).map(|()| s.own.name = Some(name)))
    }

    /// Sets the reachable addresses of servers that this client cannot reach at the addresses that
    /// the cluster announces (NAT, container networks). Each pair has the announced `ip:port` and
    /// the reachable `host:port`.
    pub fn map_address(self, map: impl IntoIterator<Item = (String, String)>) -> Self {
        self.try_set(|s| address_map(map).map(|map| s.own.map = map))
    }

    /// Uses TLS. The servers' certificates are verified with the root certificate `root` (PEM), or
    /// with the system's root certificates if `root` is `None`. `client` is a client certificate
    /// with its key (PEM). The certificates must contain the host names that the servers announce
    /// (`cluster-announce-hostname`), or their addresses.
    #[cfg(feature = "tls")]
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        let client = client.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
        let tls = Tls::new("tls", root.as_deref(), client);
        self.set_data(|data| Ok(data.over(tls?)))
    }

    /// Makes the node. The node connects at its first call.
    ///
    /// # Errors
    /// A setting is out of range. The error contains the first such setting, its value and its
    /// rule.
    pub fn build(self) -> Result<ClusterNode, ConfigError> {
        let url = self.url()?.into();
        let (mut settings, env) = (self.settings?, self.env);
        settings.data = settings.data.of_node(&env);
        settings.data.check_login("username")?;
        settings.data.check_tls_name("tls_server_name", "needs `tls`")?;
        if settings.data.database() != 0 {
            let value = settings.data.database().to_string();
            return Err(ConfigError::new("db", value, "0: a cluster has no other"));
        }
        let name: Arc<str> =
            settings.own.name.clone().unwrap_or_else(|| settings.own.hosts()).into();
        let options = settings.link(&name, CONNECT, Arc::clone(&env));
        let window = settings.rule.window.unwrap_or_default();
        let own = settings.own;
        let topology = Topology::new(settings.data, own.servers, own.map, window, env);
        let cluster = Cluster {
            name,
            topology: Arc::new(topology),
            options,
            rule: MinReplicasRule { window: None, ..settings.rule },
            events: broadcast::Sender::new(EVENTS),
            links: SyncMutex::default(),
            asking: SyncMutex::default(),
        };
        Ok(ClusterNode { url, cluster: Arc::new(cluster) })
    }
}
