//! The nodes that an operation is about, and how to log in at them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::is_plain;
use super::gather::{Lone, Watch, Ways};
use super::login::{self, Certificates, Login};
use palisade::ConfigError;
use palisade::internal::Secrets;
use palisade::node::SentinelNodeBuilder;
use palisade::node::spi::LockNode as _;
use palisade::{RedisNode, Redlock, RedlockBuilder, SentinelNode};

/// The nodes that an operation is about, how to log in there, and how long to wait.
///
/// ```
/// use palisade_ops::Deployment;
/// let group = Deployment::new()
///     .groups(["10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"], ["orders-a"])
///     .username("operator")
///     .password("secret");
/// # drop(group);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a deployment only describes nodes"]
pub struct Deployment {
    pub(super) watches: Vec<Watch>,
    pub(super) nodes: Vec<String>,
    pub(super) data: Login,
    pub(super) sentinels: Login,
    pub(super) tls: Option<Certificates>,
    pub(super) node_tls: Option<Certificates>,
    pub(super) sentinel_tls: Option<Certificates>,
    pub(super) within: Duration,
    pub(super) map: BTreeMap<String, String>,
}

impl Default for Deployment {
    fn default() -> Self {
        Self::new()
    }
}

/// Logins, and lone servers from their addresses.
pub(super) struct Access {
    pub(super) data: Login,
    pub(super) sentinels: Login,
    pub(super) lone: Vec<Lone>,
}

impl Access {
    /// The passwords that are sent. User names are not secret: findings contain them.
    pub(super) fn secrets(&self) -> Secrets {
        let both = self.data.secrets().and(&self.sentinels.secrets());
        self.lone.iter().fold(both, |all, lone| all.and(&lone.target.secrets())).passwords()
    }
}

impl Deployment {
    /// No nodes yet.
    pub fn new() -> Self {
        Self {
            watches: Vec::new(),
            nodes: Vec::new(),
            data: Login::default(),
            sentinels: Login::default(),
            tls: None,
            node_tls: None,
            sentinel_tls: None,
            within: Duration::from_secs(2),
            map: BTreeMap::new(),
        }
    }

    /// Sentinels (`host:port`) and the names of the masters that they monitor: each master is one
    /// node.
    pub fn groups<S, M>(mut self, sentinels: S, masters: M) -> Self
    where
        S: IntoIterator,
        S::Item: Into<String>,
        M: IntoIterator,
        M::Item: Into<String>,
    {
        self.watches.push(Watch {
            sentinels: sentinels.into_iter().map(Into::into).collect(),
            masters: masters.into_iter().map(Into::into).collect(),
        });
        self
    }

    /// A lone server that is a node by itself: `redis://…`, as `RedisNode` takes it.
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(url.into());
        self
    }

    /// The ACL user at the groups' data servers, and at lone nodes whose address has no user.
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.data.username = Some(name.into());
        self
    }

    /// The password at the groups' data servers, and at lone nodes whose address has none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.data.password = Some(password.into());
        self
    }

    /// The ACL user at the Sentinels.
    pub fn sentinel_username(mut self, name: impl Into<String>) -> Self {
        self.sentinels.username = Some(name.into());
        self
    }

    /// The password at the Sentinels.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinels.password = Some(password.into());
        self
    }

    /// How long each server and Sentinel may take for all its answers, connecting included; 50 ms
    /// to one minute, default 2 s. All are queried concurrently.
    pub fn timeout(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The address under which a server that Sentinels report is reached from here (NAT, container
    /// networks), both as `host:port`; as in `SentinelNodeBuilder::map_address`.
    pub fn map_address(mut self, reported: impl Into<String>, reached: impl Into<String>) -> Self {
        self.map.insert(reported.into(), reached.into());
        self
    }

    /// A builder of a handle over these nodes, one vote each, to which more settings can be added.
    ///
    /// # Errors
    /// [`ConfigError`] if no node is named, or an address or a login is invalid.
    pub fn handle(&self) -> Result<RedlockBuilder, ConfigError> {
        self.check()?;
        let mut builder = Redlock::builder();
        for watch in &self.watches {
            for master in &watch.masters {
                builder = builder.node(self.group_node(watch, master).build()?);
            }
        }
        for url in &self.nodes {
            builder = builder.node(self.lone_node(url)?);
        }
        Ok(builder)
    }

    /// Options that `redis-cli` needs for TLS, such as `--cacert ca.pem`. Findings put them into
    /// their commands, so they must not contain secrets.
    pub fn redis_cli(mut self, options: &str) -> Self {
        options.clone_into(&mut self.data.more);
        options.clone_into(&mut self.sentinels.more);
        self
    }

    /// Whether the settings are valid.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let nothing = |field, rule: &str| Err(ConfigError::new(field, "missing", rule));
        if self.watches.is_empty() && self.nodes.is_empty() {
            return nothing("node", "name Sentinels with a master, or a node");
        }
        for watch in &self.watches {
            if watch.masters.is_empty() {
                return nothing("master", "Sentinels need the name of a master");
            }
            if let Some(odd) = watch.masters.iter().find(|name| !is_plain(name)) {
                // The name goes into commands to paste; Sentinels accept no others either.
                let rule = "a master's name has letters, digits and . _ - only";
                return Err(ConfigError::new("master", format!("{odd:?}"), rule));
            }
            if watch.sentinels.is_empty() {
                return nothing("sentinel", "a master needs the Sentinels that know it");
            }
        }
        for (field, login) in [("username", &self.data), ("sentinel_username", &self.sentinels)] {
            if let (Some(name), None) = (&login.username, &login.password) {
                // Without a password a client would stay the default user: the wrong user would be
                // examined.
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

    /// How to reach everybody.
    pub(super) fn access(&self) -> Result<Access, ConfigError> {
        // Building the nodes as an application does reports invalid settings.
        for watch in &self.watches {
            for master in &watch.masters {
                self.group_node(watch, master).build()?;
            }
        }
        let (data, sentinels) = (self.data.clone(), self.sentinels.clone());
        let data = data.over("tls", self.tls.as_ref())?;
        let sentinels = sentinels.over("sentinel_tls", self.sentinel_tls.as_ref())?;
        let lone = |url: &String| {
            let name = self.lone_node(url)?.name();
            login::lone(url, &name, &data, self.node_tls.as_ref())
        };
        let lone = self.nodes.iter().map(lone).collect::<Result<_, _>>()?;
        Ok(Access { data, sentinels, lone })
    }

    /// The same for `gather`; `whose`: the user whose rights are checked.
    pub(super) fn ways<'a>(&'a self, access: &'a Access, whose: Option<&'a str>) -> Ways<'a> {
        Ways {
            data: &access.data,
            sentinels: &access.sentinels,
            whose,
            map: &self.map,
            within: self.within,
        }
    }

    /// A group as an application makes it.
    pub(super) fn group_node(&self, watch: &Watch, master: &str) -> SentinelNodeBuilder {
        let node = SentinelNode::builder(master, watch.sentinels.iter().cloned());
        let mut node = node.map_address(self.map.clone());
        if let Some(name) = &self.data.username {
            node = node.username(name);
        }
        if let Some(password) = &self.data.password {
            node = node.password(password);
        }
        if let Some(name) = &self.sentinels.username {
            node = node.sentinel_username(name);
        }
        if let Some(password) = &self.sentinels.password {
            node = node.sentinel_password(password);
        }
        #[cfg(feature = "tls")]
        {
            if let Some(Certificates { root, client }) = self.tls.clone() {
                node = node.tls(root, client);
            }
            if let Some(Certificates { root, client }) = self.sentinel_tls.clone() {
                node = node.sentinel_tls(root, client);
            }
        }
        node
    }

    /// A lone server as an application makes it.
    pub(super) fn lone_node(&self, url: &str) -> Result<RedisNode, ConfigError> {
        let mut node = RedisNode::builder(url);
        let (user, password) = login_in(url);
        if let (false, Some(name)) = (user, &self.data.username) {
            node = node.username(name);
        }
        if let (false, Some(secret)) = (password, &self.data.password) {
            node = node.password(secret);
        }
        #[cfg(feature = "tls")]
        if let (true, Some(Certificates { root, client })) =
            (url.starts_with("rediss://"), self.node_tls.clone())
        {
            node = node.tls(root, client);
        }
        node.build()
    }
}

/// Whether the address itself names a user, and a password.
fn login_in(url: &str) -> (bool, bool) {
    use redis::IntoConnectionInfo as _;
    // An invalid address is reported, without its secrets, when its node is built.
    url.into_connection_info().map_or((true, true), |info| {
        let redis = info.redis_settings();
        (redis.username().is_some(), redis.password().is_some())
    })
}

#[cfg(feature = "tls")]
impl Deployment {
    /// TLS to the groups' data servers, with the system's or the given root certificate (PEM) and,
    /// if given, a client certificate with its key (PEM).
    pub fn tls(mut self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.tls = Some(Certificates { root, client });
        self
    }

    /// Certificates for lone nodes whose address begins with `rediss://`.
    pub fn node_tls(mut self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.node_tls = Some(Certificates { root, client });
        self
    }

    /// TLS to the Sentinels, as [`Self::tls`] and independent of it.
    pub fn sentinel_tls(
        mut self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.sentinel_tls = Some(Certificates { root, client });
        self
    }
}
