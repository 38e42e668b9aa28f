//! Makes the nodes from the addresses of the settings, with their options, and with the logins and
//! certificates of the settings.
//!
//! An error contains the invalid address without the login and the options, because these may be
//! secrets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Settings, given, span};
use crate::dial::address::Address;
use crate::dial::credentials::{self, PasswordFile};
use crate::dial::endpoint::Endpoint;
#[cfg(not(feature = "tls"))]
use crate::dial::url::WITHOUT_TLS;
use crate::dial::url::{SENTINEL_PORT, SERVER_PORT, Url, plain, server_tls, shown};
use crate::error::ConfigError;
use crate::node::min_replicas_rule::MinReplicasRule;
use crate::node::spi::LockNode;
use crate::node::{
    ClusterNode, ClusterNodeBuilder, MemoryNode, NodeBuilder, RedisNode, RedisNodeBuilder,
    SentinelNode, SentinelNodeBuilder,
};
use crate::safe_text::Quoted;

/// The builder of a node, made from the address of the node.
#[derive(Debug)]
pub enum NodeUrl {
    /// A single server, without Sentinels.
    Lone(RedisNodeBuilder),
    /// A group of a master and its replicas that Sentinels watch.
    Group(SentinelNodeBuilder),
    /// A whole cluster.
    Cluster(ClusterNodeBuilder),
    /// A node in this process's memory.
    Memory(MemoryNode),
}

impl NodeUrl {
    /// Returns true if the settings accept servers that delete keys when their memory is full
    /// (`allow_eviction`).
    pub fn allows_eviction(&self) -> bool {
        match self {
            Self::Lone(node) => node.allows_eviction(),
            Self::Group(node) => node.allows_eviction(),
            Self::Cluster(node) => node.allows_eviction(),
            Self::Memory(_) => false,
        }
    }

    /// Returns true if the settings declare that the server loses no write that it has confirmed
    /// (`durable`).
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::Lone(node) if node.is_durable())
    }

    /// Returns what the node requires of its servers' min-replicas check, from which follows its
    /// failover window.
    pub fn min_replicas_rule(&self) -> MinReplicasRule {
        match self {
            Self::Lone(node) => node.min_replicas_rule(),
            Self::Group(node) => node.min_replicas_rule(),
            Self::Cluster(node) => node.min_replicas_rule(),
            Self::Memory(_) => MinReplicasRule::default(),
        }
    }

    /// Returns the address that names the node in a command: without the login, with the options
    /// that decide whether there is a quarantine, and for how long.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid setting.
    pub fn url(&self) -> Result<String, ConfigError> {
        let usual = MinReplicasRule::default();
        let MinReplicasRule { replicas, max_lag, window, .. } = self.min_replicas_rule();
        let (url, replicas, lag) = match self {
            Self::Lone(node) => (node.data()?.url(), usual.replicas, usual.max_lag),
            Self::Group(node) => (node.url()?, replicas, max_lag),
            Self::Cluster(node) => (node.url()?, usual.replicas, usual.max_lag),
            Self::Memory(_) => return Ok("memory://".to_owned()),
        };
        let replicas = (replicas != usual.replicas).then(|| format!("min_replicas={replicas}"));
        let lag = (lag != usual.max_lag).then(|| format!("max_lag={}s", lag.as_secs()));
        let window = window.map(|window| format!("failover_window={}s", window.as_secs_f64()));
        let durable = self.is_durable().then(|| "durable=true".to_owned());
        let options = replicas.into_iter().chain(lag).chain(window).chain(durable);
        Ok(options.fold(url, |url, option| {
            let mark = if url.contains('?') { '&' } else { '?' };
            format!("{url}{mark}{option}")
        }))
    }

    /// Returns the node of a trial, which writes only to keys of its own.
    #[must_use]
    pub fn on_trial(self, trial: u64) -> Self {
        match self {
            Self::Lone(node) => Self::Lone(node.on_trial(trial)),
            Self::Group(node) => Self::Group(node.on_trial(trial).trust_unconfirmed_master(true)),
            Self::Cluster(node) => Self::Cluster(node.on_trial(trial)),
            Self::Memory(node) => Self::Memory(node),
        }
    }

    /// Builds the node.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid setting.
    pub fn build(self) -> Result<Arc<dyn LockNode>, ConfigError> {
        Ok(match self {
            Self::Lone(node) => Arc::new(node.build()?),
            Self::Group(node) => Arc::new(node.build()?),
            Self::Cluster(node) => Arc::new(node.build()?),
            Self::Memory(node) => Arc::new(node),
        })
    }
}

pub(super) fn refused(n: usize, url: &str, rule: impl Into<String>) -> ConfigError {
    ConfigError::new(format!("urls, address {n}"), shown(url), rule)
}

/// The logins and certificates of the settings, with the contents of their files.
pub(super) struct Access<'a> {
    of: &'a Settings,
    password: Option<String>,
    sentinel_password: Option<String>,
    #[cfg(feature = "tls")]
    root: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    client: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
fn contents(field: &'static str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|e| ConfigError::new(field, quoted(path), e.to_string()))
}

fn quoted(path: &Path) -> String {
    Quoted(&path.to_string_lossy()).to_string()
}

fn first_line(
    field: &'static str,
    own: Option<&String>,
    file: Option<&PathBuf>,
) -> Result<Option<String>, ConfigError> {
    let Some(path) = file.filter(|_| own.is_none()) else { return Ok(own.cloned()) };
    let first = credentials::first_line(path);
    first.map(Some).map_err(|e| ConfigError::new(field, quoted(path), e.to_string()))
}

fn changing(
    own: Option<&String>,
    file: Option<&PathBuf>,
    now: Option<&String>,
) -> Option<PasswordFile> {
    Some(PasswordFile::new(file.filter(|_| own.is_none())?).last(now?))
}

impl<'a> Access<'a> {
    pub(super) fn of(of: &'a Settings) -> Result<Self, ConfigError> {
        let files = [("cacert", &of.cacert), ("cert", &of.cert), ("key", &of.key)];
        #[cfg(not(feature = "tls"))]
        for (field, path) in files {
            if let Some(path) = path {
                return Err(ConfigError::new(field, quoted(path), WITHOUT_TLS));
            }
        }
        #[cfg(feature = "tls")]
        let [root, cert, key] =
            files.map(|(field, path)| path.as_ref().map(|path| contents(field, path)).transpose());
        Ok(Self {
            of,
            password: first_line("password_file", of.password.as_ref(), of.password_file.as_ref())?,
            sentinel_password: first_line(
                "sentinel_password_file",
                of.sentinel_password.as_ref(),
                of.sentinel_password_file.as_ref(),
            )?,
            #[cfg(feature = "tls")]
            root: root?,
            #[cfg(feature = "tls")]
            client: match (cert?, key?) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                (cert, _) => {
                    let field = if cert.is_some() { "cert" } else { "key" };
                    let rule = "`cert` and `key` belong together: give both";
                    return Err(ConfigError::new(field, "given alone", rule));
                }
            },
        })
    }

    pub(super) fn node(&self, n: usize, url: &str) -> Result<NodeUrl, ConfigError> {
        let url = url.trim();
        let made = match url.split_once("://").map_or("", |(scheme, _)| scheme) {
            "sentinel" => Url::parse(url).and_then(|url| self.group(url)).map(NodeUrl::Group),
            "cluster" => Url::parse(url).and_then(|url| self.cluster(url)).map(NodeUrl::Cluster),
            "memory" => Url::parse(url).and_then(|url| memory(&url)).map(NodeUrl::Memory),
            scheme if server_tls(scheme).is_some() => {
                Url::parse(url).and_then(|url| self.lone(url)).map(NodeUrl::Lone)
            }
            _ => {
                let rule = "must begin with redis://, rediss://, unix://, sentinel://, cluster:// \
                            or memory://";
                return Err(refused(n, url, rule));
            }
        };
        let checked = made.and_then(|node| {
            match &node {
                NodeUrl::Lone(lone) => lone.data().map(drop),
                NodeUrl::Group(group) => group.access().map(drop),
                NodeUrl::Cluster(cluster) => cluster.servers().map(drop),
                NodeUrl::Memory(_) => Ok(()),
            }?;
            Ok(node)
        });
        checked.map_err(|e| refused(n, url, e.to_string()))
    }

    /// For an address that has no login.
    fn login<S>(&self, node: NodeBuilder<S>) -> NodeBuilder<S> {
        let node = given(node, self.of.username.as_ref(), NodeBuilder::username);
        let now = self.password.as_ref();
        let file = changing(self.of.password.as_ref(), self.of.password_file.as_ref(), now);
        let node = given(node, now, NodeBuilder::password);
        given(node, file, NodeBuilder::credentials)
    }

    fn lone(&self, mut url: Url<'_>) -> Result<RedisNodeBuilder, ConfigError> {
        let endpoint = Endpoint::of(&mut url)?;
        let has_login = url.login.is_some() || endpoint.login().1;
        #[cfg(feature = "tls")]
        let has_own = endpoint.is_tls() && (self.root.is_some() || self.client.is_some());
        let node = RedisNode::at(endpoint);
        let node = if has_login { node } else { self.login(node) };
        #[cfg(feature = "tls")]
        let node = if has_own { node.tls(self.root.clone(), self.client.clone()) } else { node };
        with_options(node, url.options, |node, given| {
            Ok(match given.name {
                "name" => node.name(&given.value),
                "connect_timeout" => node.connect_timeout(given.span()?),
                "replicas" => node.replicas(given.number()?),
                "durable" => node.durable(given.yes()?),
                _ => return Err(given.unknown("name, connect_timeout, replicas, durable")),
            })
        })
    }

    fn cluster(&self, url: Url<'_>) -> Result<ClusterNodeBuilder, ConfigError> {
        let form = "write cluster://[user:password@]host:port,host:port, without a database";
        let broken = |what: &str| ConfigError::new("cluster address", what, form);
        let servers =
            url.addresses(SERVER_PORT).map_err(|_| broken("with hosts of another form"))?;
        servers.iter().try_for_each(|at| url.check_host(at))?;
        if url.path.is_some_and(|path| !["", "0"].contains(&path.trim_matches('/'))) {
            return Err(broken("with a path"));
        }
        let node = ClusterNode::builder(servers.iter().map(Address::to_string));
        let node = match url.login {
            None => self.login(node),
            Some((user, password)) => {
                let node = given(node, user, NodeBuilder::username);
                given(node, password, NodeBuilder::password)
            }
        };
        let node = node.map_address(self.of.map.clone());
        with_options(node, url.options, |node, given| {
            Ok(match given.name {
                "name" => node.name(&given.value),
                #[cfg(feature = "tls")]
                "tls" if given.yes()? => node.tls(self.root.clone(), self.client.clone()),
                #[cfg(not(feature = "tls"))]
                "tls" if given.yes()? => return Err(given.refused(WITHOUT_TLS)),
                "tls" => node,
                _ => return Err(given.unknown("name, tls")),
            })
        })
    }

    fn group(&self, url: Url<'_>) -> Result<SentinelNodeBuilder, ConfigError> {
        let form = "write sentinel://[user:password@]host:port,host:port/name-of-the-master";
        let broken = |what: &str| ConfigError::new("sentinel address", what, form);
        let (name, db) = url.path.map_or(("", None), |path| {
            path.split_once('/').map_or((path, None), |(name, db)| (name, Some(db)))
        });
        if name.is_empty() || url.hosts.is_empty() {
            return Err(broken("without a name or without hosts"));
        }
        let with_port = |host: &str| {
            let at = Address::split(host, Some(SENTINEL_PORT));
            at.map_or_else(|| host.to_owned(), |at| at.to_string())
        };
        for at in url.hosts.split(',').filter_map(|host| Address::split(host, Some(1))) {
            url.check_host(&at)?;
        }
        let sentinels = url.hosts.split(',').map(with_port);
        let node = SentinelNode::builder(url.decoded("name", name)?, sentinels);
        let node = match url.login {
            None => self.login(node),
            Some((user, password)) => {
                let node = given(node, user, NodeBuilder::username);
                given(node, password, NodeBuilder::password)
            }
        };
        let (user, password) = (self.of.sentinel_username.as_ref(), &self.sentinel_password);
        let node = given(node, user, SentinelNodeBuilder::sentinel_username);
        let node = given(node, password.as_ref(), SentinelNodeBuilder::sentinel_password);
        let (own, file) = (&self.of.sentinel_password, &self.of.sentinel_password_file);
        let file = changing(own.as_ref(), file.as_ref(), password.as_ref());
        let node = given(node, file, SentinelNodeBuilder::sentinel_credentials);
        let db = db.map(str::parse::<u32>).transpose();
        let db = db.map_err(|_| broken("with a database that is not a number"))?;
        let node = given(node, db, SentinelNodeBuilder::db);
        let node = node.map_address(self.of.map.clone());
        with_options(node, url.options, |node, given| {
            Ok(match given.name {
                "sentinel_username" => node.sentinel_username(&given.value),
                "sentinel_password" => node.sentinel_password(&given.value),
                #[cfg(feature = "tls")]
                "tls" if given.yes()? => node.tls(self.root.clone(), self.client.clone()),
                #[cfg(feature = "tls")]
                "sentinel_tls" if given.yes()? => {
                    node.sentinel_tls(self.root.clone(), self.client.clone())
                }
                #[cfg(not(feature = "tls"))]
                "tls" | "sentinel_tls" if given.yes()? => return Err(given.refused(WITHOUT_TLS)),
                "tls" | "sentinel_tls" => node,
                "sentinel_deadline" => node.sentinel_deadline(given.span()?),
                "poll_every" => node.poll_every(given.span()?),
                "trust_unconfirmed_master" => node.trust_unconfirmed_master(given.yes()?),
                _ => {
                    return Err(given.unknown(
                        "sentinel_username, sentinel_password, tls, sentinel_tls, \
                         sentinel_deadline, poll_every, trust_unconfirmed_master",
                    ));
                }
            })
        })
    }
}

fn memory(url: &Url<'_>) -> Result<MemoryNode, ConfigError> {
    if url.login.is_some() || url.path.is_some() || !url.options.is_empty() {
        let rule = "write memory:// or memory://name";
        return Err(ConfigError::new("memory address", "not shown", rule));
    }
    let node = MemoryNode::builder();
    Ok(if url.hosts.is_empty() { node.build() } else { node.name(url.hosts).build() })
}

struct Given<'a> {
    name: &'a str,
    value: String,
}

impl Given<'_> {
    fn refused(&self, rule: impl Into<String>) -> ConfigError {
        // An option with a secret accepts any text, so it never causes this error. For an unknown
        // option, `unknown` makes it, and hides the value.
        ConfigError::new(format!("?{}", plain(self.name)), Quoted(&self.value).to_string(), rule)
    }

    fn unknown(&self, own: &str) -> ConfigError {
        let rule = format!("no such option; the options are {own}, {COMMON}");
        ConfigError::new(format!("?{}", plain(self.name)), "not known", rule)
    }

    fn yes(&self) -> Result<bool, ConfigError> {
        self.value.parse().map_err(|_| self.refused("true or false"))
    }

    fn number(&self) -> Result<u32, ConfigError> {
        self.value.parse().map_err(|_| self.refused("a whole number"))
    }

    fn span(&self) -> Result<Duration, ConfigError> {
        span::parse(&self.value).ok_or_else(|| self.refused(span::FORM))
    }
}

const COMMON: &str = "trust_fresh, allow_eviction, failover_window, min_replicas, max_lag";

fn with_options<S>(
    mut node: NodeBuilder<S>,
    options: Vec<(&str, String)>,
    own: impl Fn(NodeBuilder<S>, &Given<'_>) -> Result<NodeBuilder<S>, ConfigError>,
) -> Result<NodeBuilder<S>, ConfigError> {
    let (mut replicas, mut lag) = (None, None);
    for (name, value) in options {
        let given = Given { name, value };
        match name {
            "min_replicas" => replicas = Some(given.number()?),
            "max_lag" => lag = Some(given.span()?),
            "trust_fresh" => node = node.trust_fresh(given.yes()?),
            "allow_eviction" => node = node.allow_eviction(given.yes()?),
            "failover_window" => node = node.failover_window(given.span()?),
            _ => node = own(node, &given)?,
        }
    }
    if replicas.is_none() && lag.is_none() {
        return Ok(node);
    }
    Ok(node.min_replicas(replicas.unwrap_or(1), lag.unwrap_or(Duration::from_secs(10))))
}
