//! The description of a deployment: the nodes that hold an application's locks, and the logins at
//! the servers of the nodes.

use std::time::Duration;

use super::facts::is_plain;
use super::login::{Hand, Login, Lone};
use palisade::internal::{self, Endpoint, GroupAccess, MinReplicasRule, NodeUrl, Secrets};
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
#[derive(Clone, Debug, Default)]
#[must_use = "a deployment only describes nodes"]
pub struct Deployment {
    pub(super) settings: Settings,
}

/// Addresses and logins of all nodes.
pub(super) struct Access {
    pub(super) groups: Vec<GroupLogin>,
    pub(super) lone: Vec<Lone>,
}

/// A Sentinel-watched group and the logins of its servers.
pub(super) struct GroupLogin {
    pub(super) name: String,
    /// Address that names the group in a command.
    pub(super) url: String,
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

/// A cluster and the login of its servers.
pub(super) struct ClusterLogin {
    /// Address that names the cluster in a command.
    pub(super) url: String,
    /// The servers that the user named.
    pub(super) servers: Vec<Endpoint>,
    /// Login and transport of all servers. The address is a placeholder.
    pub(super) like: Endpoint,
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
        Self::default()
    }

    /// Creates a deployment from an application's settings: the nodes that `settings` names, and
    /// their logins.
    pub fn of(settings: Settings) -> Self {
        Self { settings }
    }

    /// Adds a node by its address: `redis://…` for a lone server, or
    /// `sentinel://host,host,host/master` for a group, `cluster://host,host` for a whole cluster
    /// (which only `init` and the doctor know), the same form as in `PALISADE_URLS`.
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.settings.urls.push(url.into());
        self
    }

    /// Sets the time-out for each server and Sentinel: 50 ms to one minute, default 2 s. The
    /// time-out covers the connection and all answers. All servers and Sentinels are queried
    /// concurrently.
    pub fn timeout(mut self, within: Duration) -> Self {
        self.settings.timeout = Some(within);
        self
    }

    pub(super) fn within(&self) -> Duration {
        self.settings.timeout.unwrap_or(Duration::from_secs(2))
    }

    /// Returns a builder of a handle over these nodes, with the settings of the deployment. Each
    /// node has one vote. The caller can add settings to the builder.
    ///
    /// # Errors
    /// [`ConfigError`] if the deployment has no node, or an address or a login is invalid.
    pub fn handle(&self) -> Result<RedlockBuilder, ConfigError> {
        self.check()?;
        self.settings.builder()
    }

    /// Returns true if a Sentinel group is among the nodes.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn has_groups(&self) -> Result<bool, ConfigError> {
        self.check()?;
        Ok(self.nodes()?.iter().any(|node| matches!(node, NodeUrl::Group(_))))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.settings.urls.is_empty() {
            let rule = "name a node, as redis://host or sentinel://host,host,host/master";
            return Err(ConfigError::new("node", "missing", rule));
        }
        let range = Duration::from_millis(50)..=Duration::from_secs(60);
        let within = self.within();
        if !range.contains(&within) {
            let value = format!("{within:?}");
            return Err(ConfigError::new("timeout", value, "between 50 ms and one minute"));
        }
        Ok(())
    }

    /// Returns the options that `redis-cli` needs for TLS.
    fn redis_cli(&self) -> String {
        let Settings { cacert, cert, key, .. } = &self.settings;
        let options = [("--cacert", cacert), ("--cert", cert), ("--key", key)];
        let given = options.iter().filter_map(|(option, path)| Some((option, path.as_ref()?)));
        let given = given.map(|(option, path)| format!("{option} {}", path.display()));
        given.collect::<Vec<_>>().join(" ")
    }

    /// Returns the addresses and logins of all nodes.
    pub(super) fn access(&self) -> Result<Access, ConfigError> {
        self.check()?;
        let mut access = Access { groups: Vec::new(), lone: Vec::new() };
        let more = self.redis_cli();
        let login = |like| Login { like, more: more.clone() };
        for node in self.nodes()? {
            let (allows_eviction, rule) = (node.allows_eviction(), node.min_replicas_rule());
            let durable = node.is_durable();
            let url = node.url()?;
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
                        url,
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
                    let hand = Hand::of(&target, &more).to(&at);
                    let window = rule.lone_window();
                    let lone = Lone { at, url, hand, target, allows_eviction, durable, window };
                    access.lone.push(lone);
                }
                NodeUrl::Cluster(_) => {
                    let rule = "a cluster, and this command does not know clusters yet: look at it \
                                by `redis-cli --cluster check <host:port>`; a master is replaced \
                                by `CLUSTER FAILOVER` at its replica, which costs its slots one \
                                quarantine";
                    return Err(ConfigError::new("node", url, rule));
                }
                NodeUrl::Memory(_) => {
                    let rule = "it is in a process's memory: there is no server to look at";
                    return Err(ConfigError::new("node", "memory://", rule));
                }
            }
        }
        Ok(access)
    }

    /// Returns the clusters among the nodes, and a deployment of the other nodes.
    pub(super) fn clusters(&self) -> Result<(Vec<ClusterLogin>, Self), ConfigError> {
        self.check()?;
        let (mut clusters, mut others) = (Vec::new(), self.clone());
        others.settings.urls.clear();
        for (written, node) in self.settings.urls.iter().zip(self.nodes()?) {
            let url = node.url()?;
            let NodeUrl::Cluster(node) = node else {
                others.settings.urls.push(written.clone());
                continue;
            };
            let servers = internal::cluster_servers(&node)?;
            let like = servers[0].clone();
            clusters.push(ClusterLogin { url, servers, like });
        }
        Ok((clusters, others))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.settings.urls.is_empty()
    }

    /// Returns the id that the settings give the deployment.
    pub(super) fn id(&self) -> Result<Option<u64>, ConfigError> {
        self.settings.deployment.as_deref().map(internal::deployment_id).transpose()
    }

    /// Returns the address at which this process reaches a server that Sentinels report as `at`.
    pub(super) fn reach<'a>(&'a self, at: &'a str) -> &'a str {
        let map = &self.settings.map;
        map.iter().find(|(from, _)| from == at).map_or(at, |(_, to)| to)
    }

    pub(super) fn nodes(&self) -> Result<Vec<NodeUrl>, ConfigError> {
        internal::nodes(&self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_address_says_how_the_server_is_reached_and_shows_no_login() {
        for (url, printed) in [
            ("redis://joe:s3cret@10.0.0.1/2?trust_fresh=true", "redis://10.0.0.1:6379/2"),
            ("unix:///run/r.sock?db=1&pass=s3cret", "unix:///run/r.sock?db=1"),
            ("redis://h?failover_window=2500ms", "redis://h:6379?failover_window=2.5s"),
            ("redis://h?durable=true", "redis://h:6379?durable=true"),
            ("redis://h?durable=false", "redis://h:6379"),
            ("sentinel://joe:s3cret@a,b:7/m?poll_every=1s", "sentinel://a:26379,b:7/m"),
            (
                "sentinel://a:1/m/3?min_replicas=2&max_lag=20s&failover_window=30s",
                "sentinel://a:1/m/3?min_replicas=2&max_lag=20s&failover_window=30s",
            ),
        ] {
            let access = Deployment::new().node(url).access().unwrap();
            let urls = access.groups.iter().map(|group| &group.url);
            let urls: Vec<_> = urls.chain(access.lone.iter().map(|lone| &lone.url)).collect();
            assert_eq!(urls, [printed]);
        }
    }

    #[test]
    fn a_user_name_needs_a_password_where_an_address_has_no_login() {
        let with = |name: &str, urls: &[&str]| {
            let mut settings = Settings::new(urls.iter().copied());
            settings.set(name, "joe").unwrap();
            let built = settings.build().map(drop);
            let access = Deployment::of(settings).access().map(drop);
            assert_eq!(built.clone().err(), access.err());
            built.map_err(|e| e.to_string())
        };
        let why = with("username", &["redis://a:b@h", "redis://h", "redis://i"]).unwrap_err();
        assert!(why.contains("address 2") && why.contains("`username` is \"joe\": needs"), "{why}");
        assert!(with("username", &["sentinel://h/m"]).is_err());
        assert!(with("sentinel_username", &["sentinel://a:b@h/m"]).is_err());
        let own = ["redis://a:b@h", "sentinel://a:b@h/m", "unix:///r.sock?user=a&pass=b"];
        assert_eq!(with("username", &own), Ok(()));
        let own = ["redis://h", "sentinel://h/m?sentinel_password=b", "redis://i"];
        assert_eq!(with("sentinel_username", &own), Ok(()));
    }

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
