//! Settings of a [`SentinelNode`]. `build` reports the first invalid setting.

use std::sync::Arc;
use std::time::Duration;

use super::SentinelNode;
use super::find::Finder;
use super::settings::{self, GroupSettings};
use crate::dial::credentials::CredentialsProvider;
use crate::dial::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::node::builder::{NodeBuilder, NodeSettings};
use crate::node::link::Link;
#[cfg(feature = "tls")]
use crate::tls::Tls;

const CONNECT: Duration = Duration::from_secs(1);

/// Settings of a [`SentinelNode`]. [`SentinelNode::builder`] returns this type.
pub type SentinelNodeBuilder = NodeBuilder<GroupSettings>;

/// Addresses and logins of a Sentinel group.
#[derive(Clone)]
pub struct GroupAccess {
    /// Name of the group in the configuration of the Sentinels.
    pub name: String,
    /// `host:port` of each Sentinel of the group.
    pub sentinels: Vec<String>,
    /// Login and transport (TCP or TLS) of the data servers. The address in this endpoint is a
    /// placeholder.
    pub data: Endpoint,
    /// Login and transport (TCP or TLS) of the Sentinels. The address in this endpoint is a
    /// placeholder.
    pub sentinel: Endpoint,
}

impl NodeSettings<GroupSettings> {
    fn check_logins(&self) -> Result<(), ConfigError> {
        self.data.check_login("username")?;
        self.own.sentinel.check_login("sentinel_username")
    }
}

impl NodeBuilder<GroupSettings> {
    pub(crate) fn access(&self) -> Result<GroupAccess, ConfigError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        settings.check_logins()?;
        Ok(GroupAccess {
            name: settings.own.name.to_string(),
            sentinels: settings.own.sentinels.iter().map(ToString::to_string).collect(),
            data: settings.data.clone(),
            sentinel: settings.own.sentinel.clone(),
        })
    }

    pub(crate) fn url(&self) -> Result<String, ConfigError> {
        self.settings.as_ref().map(|s| s.own.url(&s.data)).map_err(Clone::clone)
    }

    fn set_sentinel(self, change: impl FnOnce(Endpoint) -> Result<Endpoint, ConfigError>) -> Self {
        self.try_set(|s| change(s.own.sentinel.clone()).map(|sentinel| s.own.sentinel = sentinel))
    }

    /// Sets the ACL user at the Sentinels. The user at the data servers is never used for the
    /// Sentinels.
    pub fn sentinel_username(self, name: impl AsRef<str>) -> Self {
        self.set_sentinel(|sentinel| Ok(sentinel.username(name.as_ref())))
    }

    /// Sets the password at the Sentinels. The password at the data servers is never used for the
    /// Sentinels.
    pub fn sentinel_password(self, password: impl AsRef<str>) -> Self {
        self.set_sentinel(|sentinel| Ok(sentinel.password(password.as_ref())))
    }

    /// Sets the provider of the login at the Sentinels; see
    /// [`credentials`](NodeBuilder::credentials). The provider for the data servers is never used
    /// for the Sentinels.
    pub fn sentinel_credentials(self, provider: impl CredentialsProvider) -> Self {
        self.set_sentinel(|sentinel| Ok(sentinel.credentials(Arc::new(provider))))
    }

    /// Sets the longest time for one request to a Sentinel, connecting included: 1 ms to one
    /// minute, default 250 ms. The node asks all Sentinels at the same time, so a frozen Sentinel
    /// delays the result by at most this time; by at most a sixth of the failover window once the
    /// others' answers decide.
    pub fn sentinel_deadline(self, deadline: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("sentinel_deadline", deadline).map(|()| s.own.within = deadline)
        })
    }

    /// Sets the interval at which the node asks the Sentinels for the master: 1 ms to 1 s, default
    /// 1 s, ± 10 %; up to one minute with
    /// [`trust_unconfirmed_master`](Self::trust_unconfirmed_master). After an event of a Sentinel
    /// the node asks sooner, but events may be lost.
    pub fn poll_every(self, every: Duration) -> Self {
        self.try_set(|s| {
            settings::check_pause("poll_every", every).map(|()| s.own.poll_every = every)
        })
    }

    /// Sets whether the node goes on granting although no majority of the Sentinels has named its
    /// master for longer than the failover window (by default 12 s). Default `false`: it then
    /// answers [`NodeFault::NoSentinel`](crate::error::NodeFault::NoSentinel) until a majority
    /// answers again, and holders keep their leases until they end.
    ///
    /// With `true` two owners can hold one lock, and a key can run twice, in two cases, each while
    /// this program can reach a master but not the Sentinels: the master was replaced, came back
    /// and was promoted again unchanged (sentinel 10); or it was frozen, replaced and resumed, and
    /// counts its replicas' acknowledgements from before as new (sentinel 4).
    pub fn trust_unconfirmed_master(self, trust: bool) -> Self {
        self.set(|s| s.own.trust_unconfirmed = trust)
    }

    /// Sets the reachable addresses of servers that this client cannot reach at the addresses that
    /// the Sentinels announce (NAT, container networks). Each pair has the announced `ip:port` and
    /// the reachable `host:port`. The pairs also apply to Sentinels that other Sentinels report.
    pub fn map_address(self, map: impl IntoIterator<Item = (String, String)>) -> Self {
        self.try_set(|s| settings::address_map(map).map(|map| s.own.map = map))
    }

    /// Makes the node. The node connects at its first call.
    ///
    /// # Errors
    /// A setting is out of range. The error contains the first such setting, its value and its
    /// rule.
    pub fn build(self) -> Result<SentinelNode, ConfigError> {
        let (mut settings, env) = (self.settings?, self.env);
        settings.data = settings.data.of_node(&env);
        settings.own.sentinel = settings.own.sentinel.of_node(&env);
        settings.check_logins()?;
        settings.data.check_tls_name("tls_server_name", "needs `tls`")?;
        if !settings.own.trust_unconfirmed {
            settings::check_word(settings.own.poll_every, settings.rule.window)?;
        }
        let sentinel = &settings.own.sentinel;
        sentinel.check_tls_name("sentinel_tls_server_name", "needs `sentinel_tls`")?;
        let connect_timeout = CONNECT + 2 * settings.own.within;
        let url = settings.own.url(&settings.data).into();
        let options = settings.link(&settings.own.name, connect_timeout, Arc::clone(&env));
        let logins = [
            ("servers", settings.data.logins().cloned()),
            ("Sentinels", settings.own.sentinel.logins().cloned()),
        ];
        let link = Link::new(Finder::new(&settings, env), options).reporting(logins);
        Ok(SentinelNode { name: settings.own.name, url, link })
    }
}

#[cfg(feature = "tls")]
impl NodeBuilder<GroupSettings> {
    /// Uses TLS to the data servers. The servers' certificates are verified with the root
    /// certificate `root` (PEM), or with the system's root certificates if `root` is `None`.
    /// `client` is a client certificate with its key (PEM). The process must have installed a
    /// rustls crypto provider.
    ///
    /// The servers' certificates must contain the addresses that the Sentinels announce. If they do
    /// not, set the name in the certificates with [`Self::tls_server_name`], configure the
    /// Sentinels to announce host names, or use [`Self::map_address`].
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        let tls = transport("tls", root.as_deref(), client.as_ref());
        self.set_data(|data| Ok(data.over(tls?)))
    }

    /// Uses TLS to the Sentinels. The arguments have the same meaning as those of [`Self::tls`].
    /// The two settings are independent.
    #[expect(clippy::needless_pass_by_value, reason = "secrets are handed over, not lent")]
    pub fn sentinel_tls(self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        let tls = transport("sentinel_tls", root.as_deref(), client.as_ref());
        self.set_sentinel(|sentinel| Ok(sentinel.over(tls?)))
    }

    /// Sets the TLS server name of all Sentinels. The meaning is that of [`Self::tls_server_name`],
    /// but for the Sentinels. This setting needs [`Self::sentinel_tls`].
    pub fn sentinel_tls_server_name(self, name: impl AsRef<str>) -> Self {
        let field = "sentinel_tls_server_name";
        self.set_sentinel(|sentinel| sentinel.tls_name(field, name.as_ref()))
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
