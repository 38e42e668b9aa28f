//! The description of a deployment: the nodes that hold an application's locks, and the logins at
//! the servers of the nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::facts::is_plain;
use super::login::{Hand, Login, Lone};
use palisade::internal::{self, GroupAccess, MinReplicasRule, NodeUrl, Secrets};
use palisade::{ConfigError, RedlockBuilder, Settings};

/// The nodes that hold an application's locks, the logins at the servers of the nodes, and the
/// time-out for each server.
///
/// The address of a node has the same form as in
/// [`Redlock::from_urls`](palisade::Redlock::from_urls).
///
/// ```
/// use palisade_ops::Deployment;
/// let group = Deployment::new().node("sentinel://10.0.0.1,10.0.0.2,10.0.0.3/orders-a");
/// let mut settings = palisade::Settings::new(["redis://10.0.2.1"]);
/// settings.username = Some("operator".into());
/// settings.password = Some("secret".into());
/// let lone = Deployment::of(settings);
/// # drop((group, lone));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a deployment only describes nodes"]
pub struct Deployment {
    settings: Settings,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing to give them to"))]
    certificates: Option<Certificates>,
    pub(super) within: Duration,
    map: BTreeMap<String, String>,
    redis_cli: String,
}

/// Certificates as PEM: a root certificate that replaces the root certificates of the system, and a
/// client certificate with its key.
#[derive(Clone)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing to give them to"))]
struct Certificates {
    root: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Default for Deployment {
    fn default() -> Self {
        Self::new()
    }
}

/// Addresses and logins of all nodes.
pub(super) struct Access {
    pub(super) groups: Vec<GroupLogin>,
    pub(super) lone: Vec<Lone>,
}

/// A Sentinel-watched group and the logins of its servers.
pub(super) struct GroupLogin {
    pub(super) name: String,
    /// `host:port` of the Sentinels that the user named.
    pub(super) sentinels: Vec<String>,
    /// Login at the data servers.
    pub(super) data: Login,
    /// Login at the Sentinels.
    pub(super) sentinel: Login,
    /// True if the settings accept data servers that delete keys when their memory is full.
    pub(super) allows_eviction: bool,
    /// What the settings require of the servers' min-replicas check, with their failover window.
    pub(super) rule: MinReplicasRule,
}

impl Access {
    /// Returns the passwords of all logins. User names are not secret, and findings contain them.
    pub(super) fn secrets(&self) -> Secrets {
        let logins = self.groups.iter().flat_map(|g| [&g.data.like, &g.sentinel.like]);
        let all = logins.chain(self.lone.iter().map(|lone| &lone.target));
        all.fold(Secrets::default(), |all, at| all.and(&at.secrets())).passwords()
    }
}

impl Deployment {
    /// Creates a deployment without nodes.
    pub fn new() -> Self {
        Self::of(Settings::default())
    }

    /// Creates a deployment from an application's settings: the nodes that `settings` names, and
    /// their logins.
    pub fn of(settings: Settings) -> Self {
        Self {
            settings,
            certificates: None,
            within: Duration::from_secs(2),
            map: BTreeMap::new(),
            redis_cli: String::new(),
        }
    }

    /// Adds a node by its address: `redis://…` for a lone server, or
    /// `sentinel://host,host,host/master` for a group, the same form as in `PALISADE_URLS`.
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.settings.urls.push(url.into());
        self
    }

    /// Sets the time-out for each server and Sentinel: 50 ms to one minute, default 2 s. The
    /// time-out covers the connection and all answers. All servers and Sentinels are queried
    /// concurrently.
    pub fn timeout(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Maps an address that Sentinels report to the address at which this process reaches the same
    /// server. This is needed behind NAT and in container networks. Both addresses are `host:port`,
    /// as in `SentinelNodeBuilder::map_address`.
    pub fn map_address(mut self, reported: impl Into<String>, reached: impl Into<String>) -> Self {
        self.map.insert(reported.into(), reached.into());
        self
    }

    /// Sets the certificates (PEM) for all TLS connections: a root certificate that replaces the
    /// root certificates of the system and, if given, a client certificate with its key. A
    /// connection uses TLS if its address requests it: `rediss://…` for a lone server,
    /// `?tls=true&sentinel_tls=true` for a group.
    #[cfg(feature = "tls")]
    pub fn certificates(
        mut self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.certificates = Some(Certificates { root, client });
        self
    }

    /// Sets the options that `redis-cli` needs for TLS, such as `--cacert ca.pem`. The doctor
    /// prints commands with these options, so the options must not contain secrets.
    pub fn redis_cli(mut self, options: &str) -> Self {
        options.clone_into(&mut self.redis_cli);
        self
    }

    /// Returns a builder of a handle over these nodes, with the settings of the deployment. Each
    /// node has one vote. The caller can add settings to the builder.
    ///
    /// # Errors
    /// [`ConfigError`] if the deployment has no node, or an address or a login is invalid.
    pub fn handle(&self) -> Result<RedlockBuilder, ConfigError> {
        self.check()?;
        let mut builder = palisade::Redlock::builder();
        for node in self.nodes()? {
            builder = builder.node_arc(node.build()?);
        }
        Ok(internal::configure(&self.settings, builder))
    }

    /// Checks that the deployment has a node, that each user name has a password, and that the
    /// time-out is in its range.
    fn check(&self) -> Result<(), ConfigError> {
        let of = &self.settings;
        if of.urls.is_empty() {
            let rule = "name a node, as redis://host or sentinel://host,host,host/master";
            return Err(ConfigError::new("node", "missing", rule));
        }
        for (field, name, password) in [
            ("username", &of.username, &of.password),
            ("sentinel_username", &of.sentinel_username, &of.sentinel_password),
        ] {
            if let (Some(name), None) = (name, password) {
                // Without a password a client does not log in, so the doctor would examine the user
                // `default` and not the named user.
                let rule = "needs its password; give an empty one if it has none";
                return Err(ConfigError::new(field, format!("{name:?}"), rule));
            }
        }
        let range = Duration::from_millis(50)..=Duration::from_secs(60);
        if !range.contains(&self.within) {
            let value = format!("{:?}", self.within);
            return Err(ConfigError::new("timeout", value, "between 50 ms and one minute"));
        }
        Ok(())
    }

    /// Returns the addresses and logins of all nodes.
    pub(super) fn access(&self) -> Result<Access, ConfigError> {
        self.check()?;
        let mut access = Access { groups: Vec::new(), lone: Vec::new() };
        let login = |like| Login { like, more: self.redis_cli.clone() };
        for node in self.nodes()? {
            let (allows_eviction, rule) = (node.allows_eviction(), node.min_replicas_rule());
            match node {
                NodeUrl::Group(node) => {
                    let GroupAccess { name, sentinels, data, sentinel } =
                        internal::group_access(&node)?;
                    if !is_plain(&name) {
                        // The commands that the doctor prints contain the master's name, so other
                        // characters are rejected. Sentinels do not accept other characters either.
                        let rule = "a master's name has letters, digits and . _ - only";
                        return Err(ConfigError::new("master", format!("{name:?}"), rule));
                    }
                    let (data, sentinel) = (login(data), login(sentinel));
                    access.groups.push(GroupLogin {
                        name,
                        sentinels,
                        data,
                        sentinel,
                        allows_eviction,
                        rule,
                    });
                }
                NodeUrl::Lone(node) => {
                    let target = internal::endpoint(&node)?;
                    let at = target.to_string();
                    let hand = Hand::of(&target, &self.redis_cli).to(&at);
                    let window = rule.lone_window();
                    access.lone.push(Lone { at, hand, target, allows_eviction, window });
                }
                NodeUrl::Memory(_) => {
                    let rule = "it is in a process's memory: there is no server to look at";
                    return Err(ConfigError::new("node", "memory://", rule));
                }
            }
        }
        Ok(access)
    }

    /// Returns the id that the settings give the deployment.
    pub(super) fn id(&self) -> Result<Option<u64>, ConfigError> {
        self.settings.deployment.as_deref().map(internal::deployment_id).transpose()
    }

    /// Returns the address at which this process reaches a server that Sentinels report as `at`.
    pub(super) fn reach<'a>(&'a self, at: &'a str) -> &'a str {
        self.map.get(at).map_or(at, String::as_str)
    }

    /// Returns the builders of all nodes, with the address map and the certificates.
    pub(super) fn nodes(&self) -> Result<Vec<NodeUrl>, ConfigError> {
        let mapped = |node| match node {
            NodeUrl::Group(node) => NodeUrl::Group(node.map_address(self.map.clone())),
            other => other,
        };
        let nodes = internal::nodes(&self.settings)?.into_iter().map(mapped);
        #[cfg(feature = "tls")]
        return nodes.map(|node| self.with_certificates(node)).collect();
        #[cfg(not(feature = "tls"))]
        Ok(nodes.collect())
    }

    #[cfg(feature = "tls")]
    fn with_certificates(&self, node: NodeUrl) -> Result<NodeUrl, ConfigError> {
        let certificates = || self.certificates.clone().map(|all| (all.root, all.client));
        Ok(match node {
            NodeUrl::Group(mut node) => {
                let access = internal::group_access(&node)?;
                if let (true, Some((root, client))) = (access.data.is_tls(), certificates()) {
                    node = node.tls(root, client);
                }
                if let (true, Some((root, client))) = (access.sentinel.is_tls(), certificates()) {
                    node = node.sentinel_tls(root, client);
                }
                NodeUrl::Group(node)
            }
            NodeUrl::Lone(node) => {
                let is_tls = internal::endpoint(&node)?.is_tls();
                NodeUrl::Lone(match certificates().filter(|_| is_tls) {
                    Some((root, client)) => node.tls(root, client),
                    None => node,
                })
            }
            memory @ NodeUrl::Memory(_) => memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failover_window_is_that_of_the_address() {
        let secs = Duration::from_secs;
        let group = |query: &str| {
            let url = format!("sentinel://10.0.0.1,10.0.0.2,10.0.0.3/orders-a{query}");
            Deployment::new().node(url).access().unwrap().groups.remove(0).rule
        };
        assert_eq!(group(""), MinReplicasRule::default());
        let rule = group("?min_replicas=2&max_lag=20s&failover_window=30s");
        assert_eq!((rule.replicas, rule.unread()), (2, secs(30)));
        assert_eq!(rule.group_window(Duration::ZERO, [secs(2), secs(60)]), secs(22));
        let nodes = ["redis://10.0.0.1", "redis://10.0.0.2?failover_window=5s&max_lag=20s"];
        let nodes = nodes.into_iter().fold(Deployment::new(), Deployment::node);
        let lone = nodes.access().unwrap().lone;
        assert_eq!((lone[0].window, lone[1].window), (Duration::ZERO, secs(5)));
    }
}
