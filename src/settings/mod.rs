//! Builds a handle from the settings of a deployment: addresses, environment variables or a file.

pub(crate) mod span;
pub(crate) mod url;

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use self::url::NodeUrl;
use crate::error::ConfigError;
use crate::redlock::{Redlock, RedlockBuilder};
use crate::time::Drift;

/// Settings of a handle. A program can read them as a part of its own configuration.
///
/// Serde can deserialize this type from any format. A duration is a text (`250ms`, `2.5s`,
/// `1m 30s`, `1h`) or a number of seconds. `urls` is a list, or one text with white space between
/// the addresses. A missing setting has its default value.
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
#[serde(try_from = "Written")]
#[non_exhaustive]
pub struct Settings {
    /// Addresses of the nodes. [`Redlock::from_urls`] describes the form of an address.
    pub urls: Vec<String>,
    /// ACL user for data servers, if the address of the node has no login.
    pub username: Option<String>,
    /// Password for data servers, if the address of the node has no login.
    pub password: Option<String>,
    /// ACL user for the Sentinels.
    pub sentinel_username: Option<String>,
    /// Password for the Sentinels.
    pub sentinel_password: Option<String>,
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

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    urls: Urls,
    username: Option<String>,
    password: Option<String>,
    sentinel_username: Option<String>,
    sentinel_password: Option<String>,
    ttl: Option<span::Written>,
    max_ttl: Option<span::Written>,
    node_deadline: Option<span::Written>,
    clock_error: Option<span::Written>,
    drift_ppm: Option<u32>,
    prefix: Option<String>,
    deployment: Option<String>,
    allow_even_nodes: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`urls` is one text or a list of texts")]
enum Urls {
    Text(String),
    List(Vec<String>),
}

impl Default for Urls {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl TryFrom<Written> for Settings {
    type Error = ConfigError;

    fn try_from(of: Written) -> Result<Self, ConfigError> {
        let span = |field: &'static str, written: Option<span::Written>| {
            written.map(|written| duration(field, &written.text())).transpose()
        };
        Ok(Self {
            urls: match of.urls {
                Urls::Text(text) => text.split_whitespace().map(str::to_owned).collect(),
                Urls::List(list) => list,
            },
            username: of.username,
            password: of.password,
            sentinel_username: of.sentinel_username,
            sentinel_password: of.sentinel_password,
            ttl: span("ttl", of.ttl)?,
            max_ttl: span("max_ttl", of.max_ttl)?,
            node_deadline: span("node_deadline", of.node_deadline)?,
            clock_error: span("clock_error", of.clock_error)?,
            drift_ppm: of.drift_ppm,
            prefix: of.prefix,
            deployment: of.deployment,
            allow_even_nodes: of.allow_even_nodes,
        })
    }
}

/// Sets an option of a builder to the value, if there is one.
pub fn given<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn duration(field: &str, text: &str) -> Result<Duration, ConfigError> {
    let refuse = || ConfigError::new(field.to_owned(), format!("{text:?}"), span::FORM);
    span::parse(text).ok_or_else(refuse)
}

const VARIABLES: &str = "PALISADE_";

/// The settings that [`Settings::from_env`] reads.
pub const SETTINGS: [&str; 13] = [
    "urls",
    "username",
    "password",
    "sentinel_username",
    "sentinel_password",
    "ttl",
    "max_ttl",
    "node_deadline",
    "clock_error",
    "drift_ppm",
    "prefix",
    "deployment",
    "allow_even_nodes",
];

const PROGRAM: [&str; 18] = [
    "attempt",
    "backfilled",
    "cacert",
    "cert",
    "config",
    "console_act_token",
    "console_read_token",
    "deadline_ms",
    "fencing_token",
    "key",
    "name",
    "password_file",
    "requested",
    "sentinel_password_file",
    "slot",
    "stream_url",
    "tick",
    "timeout",
];

/// Returns a sentence for each variable that looks like a setting and is none, so that nothing
/// reads it.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &str| {
        let name = name.to_lowercase();
        SETTINGS.iter().chain(&PROGRAM).any(|known| *known == name)
    };
    let ours = names.filter(|name| name.starts_with(VARIABLES));
    let unknown = ours.filter(|name| !known(&name[VARIABLES.len()..]));
    let all = SETTINGS.map(variable).join(", ");
    unknown.map(|name| format!("{name} is no setting, so it is ignored; there are {all}")).collect()
}

fn variable(name: &str) -> String {
    format!("{VARIABLES}{}", name.to_uppercase())
}

fn of_environment(e: ConfigError) -> ConfigError {
    let (name, place) = match e.field() {
        "node" => ("urls", ""),
        "drift" => ("drift_ppm", ""),
        name => name.split_at(name.find(',').unwrap_or(name.len())),
    };
    let named = format!("{}{place}", variable(name));
    e.named(named).with_rule(|rule| {
        rule.replace("say `allow_even_nodes()`", "set PALISADE_ALLOW_EVEN_NODES=true")
    })
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

    /// Reads settings from environment variables. The name of a variable is `PALISADE_` and the
    /// name of the field in capital letters: `PALISADE_URLS` (required; addresses separated by
    /// white space), `PALISADE_USERNAME`, `PALISADE_PASSWORD`, `PALISADE_SENTINEL_USERNAME`,
    /// `PALISADE_SENTINEL_PASSWORD`, `PALISADE_TTL`, `PALISADE_MAX_TTL`, `PALISADE_NODE_DEADLINE`,
    /// `PALISADE_CLOCK_ERROR` (durations), `PALISADE_DRIFT_PPM`, `PALISADE_PREFIX`,
    /// `PALISADE_DEPLOYMENT` and `PALISADE_ALLOW_EVEN_NODES` (`true` or `false`).
    ///
    /// Another variable of this form is ignored, with a warning in the log, unless it is one of the
    /// program `palisade`.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value (passwords are hidden) and the accepted form.
    pub fn from_env() -> Result<Self, ConfigError> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for unknown in unknown_variables(names) {
            tracing::warn!("{unknown}");
        }
        Self::from_variables(|name| match std::env::var(name) {
            Ok(text) => Ok(Some(text)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ConfigError::new(name.to_owned(), "not shown", "must be UTF-8"))
            }
        })
    }

    fn from_variables(
        read: impl Fn(&str) -> Result<Option<String>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let text = |name: &str| read(&variable(name));
        let span = |name: &str| {
            let written = text(name)?;
            written.map(|text| duration(&variable(name), &text)).transpose()
        };
        let refuse = |name: &str, value: &str, rule: &str| {
            Err(ConfigError::new(variable(name), format!("{value:?}"), rule))
        };
        let Some(urls) = text("urls")?.filter(|text| !text.trim().is_empty()) else {
            let rule = "write the nodes' addresses, as redis://host:6379 or \
                        sentinel://host:26379,host:26379/name-of-the-master";
            return Err(ConfigError::new(variable("urls"), "not set", rule));
        };
        let drift_ppm = match text("drift_ppm")?.map(|text| (text.parse(), text)) {
            Some((Ok(ppm), _)) => Some(ppm),
            Some((Err(_), text)) => return refuse("drift_ppm", &text, "a whole number"),
            None => None,
        };
        let allow_even_nodes = match text("allow_even_nodes")?.as_deref() {
            Some("true") => true,
            Some("false") | None => false,
            Some(other) => return refuse("allow_even_nodes", other, "true or false"),
        };
        Ok(Self {
            urls: urls.split_whitespace().map(str::to_owned).collect(),
            username: text("username")?,
            password: text("password")?,
            sentinel_username: text("sentinel_username")?,
            sentinel_password: text("sentinel_password")?,
            ttl: span("ttl")?,
            max_ttl: span("max_ttl")?,
            node_deadline: span("node_deadline")?,
            clock_error: span("clock_error")?,
            drift_ppm,
            prefix: text("prefix")?,
            deployment: text("deployment")?,
            allow_even_nodes,
        })
    }

    /// Returns a builder with these settings and nodes. The program can then add settings that
    /// exist only as methods of the builder.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid address. Possible secrets are hidden.
    pub fn builder(&self) -> Result<RedlockBuilder, ConfigError> {
        let mut builder = Redlock::builder();
        for (n, url) in self.urls.iter().enumerate() {
            builder = builder.node_arc(url::node(n + 1, url, self)?);
        }
        Ok(self.configure(builder))
    }

    /// Except the nodes and their logins.
    pub(crate) fn configure(&self, builder: RedlockBuilder) -> RedlockBuilder {
        let builder = given(builder, self.ttl, RedlockBuilder::ttl);
        let builder = given(builder, self.max_ttl, RedlockBuilder::max_ttl);
        let builder = given(builder, self.node_deadline, RedlockBuilder::node_deadline);
        let builder = given(builder, self.clock_error, RedlockBuilder::clock_error);
        let builder = given(builder, self.drift_ppm.map(Drift::from_ppm), RedlockBuilder::drift);
        let builder = given(builder, self.prefix.as_deref(), RedlockBuilder::prefix);
        let builder = given(builder, self.deployment.as_deref(), RedlockBuilder::deployment);
        if self.allow_even_nodes { builder.allow_even_nodes() } else { builder }
    }

    pub(crate) fn nodes(&self) -> Result<Vec<NodeUrl>, ConfigError> {
        let urls = self.urls.iter().enumerate();
        urls.map(|(n, url)| url::parse(n + 1, url, self)).collect()
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
    /// | `memory://[name]` | this process's memory |
    ///
    /// The login in the address of a group is for its data servers. Write the reserved characters
    /// in a password as `%2F`, `%3F`, `%40` and so on. The address may end with a `?` and settings
    /// of the node's builder, separated by `&`: `trust_fresh`, `allow_eviction`, `failover_window`,
    /// `min_replicas` and `max_lag` for a server or a group; `name`, `connect_timeout` and
    /// `replicas` only for a server; `sentinel_username`, `sentinel_password`, `tls`,
    /// `sentinel_tls`, `sentinel_deadline`, `poll_every` and `trust_unconfirmed_master` only for a
    /// group.
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

    /// Builds a handle from environment variables. [`Settings::from_env`] lists the variables.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value (possible secrets are hidden) and the accepted
    /// form.
    pub fn from_env() -> Result<Self, ConfigError> {
        Settings::from_env()?.build().map_err(of_environment)
    }
}

#[cfg(test)]
mod tests;
