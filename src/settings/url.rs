//! Parses the addresses of nodes: `redis://…`, `sentinel://…`, `memory://…`.
//!
//! An error contains the invalid address without the login and the options, because these may be
//! secrets.

use std::sync::Arc;
use std::time::Duration;

use super::{Settings, given, span};
use crate::error::ConfigError;
use crate::node::min_replicas_rule::MinReplicasRule;
use crate::node::spi::LockNode;
use crate::node::{MemoryNode, RedisNode, RedisNodeBuilder, SentinelNode, SentinelNodeBuilder};
use crate::safe_text::Quoted;

const SENTINEL_PORT: u16 = 26_379;

/// The builder of a node, made from the address of the node.
#[derive(Debug)]
pub enum NodeUrl {
    /// A single server, without Sentinels.
    Lone(RedisNodeBuilder),
    /// A group of a master and its replicas that Sentinels watch.
    Group(SentinelNodeBuilder),
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
            Self::Memory(_) => false,
        }
    }

    /// Returns what the node requires of its servers' min-replicas check, from which follows its
    /// failover window.
    pub fn min_replicas_rule(&self) -> MinReplicasRule {
        match self {
            Self::Lone(node) => node.min_replicas_rule(),
            Self::Group(node) => node.min_replicas_rule(),
            Self::Memory(_) => MinReplicasRule::default(),
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
            Self::Memory(node) => Arc::new(node),
        })
    }
}

pub(super) fn node(
    n: usize,
    url: &str,
    settings: &Settings,
) -> Result<Arc<dyn LockNode>, ConfigError> {
    parse(n, url, settings)?.build().map_err(|e| refused(n, url, e.to_string()))
}

fn refused(n: usize, url: &str, rule: impl Into<String>) -> ConfigError {
    ConfigError::new(format!("urls, address {n}"), shown(url), rule)
}

pub(super) fn parse(n: usize, url: &str, settings: &Settings) -> Result<NodeUrl, ConfigError> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let made = match scheme {
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix" => {
            lone(url, settings).map(NodeUrl::Lone)
        }
        "sentinel" => group(rest, settings).map(NodeUrl::Group),
        "memory" => memory(rest).map(NodeUrl::Memory),
        _ => {
            let rule = "must begin with redis://, rediss://, unix://, sentinel:// or memory://";
            return Err(refused(n, url, rule));
        }
    };
    made.map_err(|e| refused(n, url, e.to_string()))
}

fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "\"…\"".to_owned() };
    let of_scheme = |c: &char| c.is_ascii_alphanumeric() || "+-.".contains(*c);
    let scheme: String = scheme.chars().filter(of_scheme).take(16).collect();
    let is_sure = rest.matches('@').count() <= 1 && !rest.contains('#');
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    let rest = rest.split('?').next().unwrap_or_default();
    // Without a host, the text in the place of the port may be a password.
    let has_ports = rest.split('/').next().unwrap_or_default().split(',').all(|at| {
        let port = at.rsplit_once(':').map_or("0", |(_, port)| port);
        port.trim_end_matches(']').bytes().all(|b| b.is_ascii_hexdigit())
    });
    let rest = if is_sure && has_ports { rest } else { "…" };
    Quoted(&format!("{scheme}://{login}{rest}")).to_string()
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

    fn yes(&self) -> Result<bool, ConfigError> {
        match &*self.value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.refused("true or false")),
        }
    }

    fn number(&self) -> Result<u32, ConfigError> {
        self.value.parse().map_err(|_| self.refused("a whole number"))
    }

    fn span(&self) -> Result<Duration, ConfigError> {
        span::parse(&self.value).ok_or_else(|| self.refused(span::FORM))
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32).collect()
}

fn options(query: &str) -> Result<Vec<Given<'_>>, ConfigError> {
    let given = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok(Given { name, value: decoded(name, value)? })
    });
    given.collect()
}

fn unknown(name: &str, known: &str) -> ConfigError {
    let rule = format!("no such option; the options are {known}");
    ConfigError::new(format!("?{}", plain(name)), "not known", rule)
}

fn decoded(what: &str, text: &str) -> Result<String, ConfigError> {
    let refuse = || {
        let rule = "write two hexadecimal digits after a %, as in %25 for % itself, and UTF-8 only";
        ConfigError::new(plain(what), "not shown", rule)
    };
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [a, b, tail @ ..] = rest else { return Err(refuse()) };
        let digit = |c: u8| char::from(c).to_digit(16);
        let (Some(a), Some(b)) = (digit(*a), digit(*b)) else { return Err(refuse()) };
        bytes.push((a * 16 + b) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| refuse())
}

const LONE: &str = "name, trust_fresh, allow_eviction, failover_window, connect_timeout, replicas, \
                    min_replicas and max_lag";

fn lone(url: &str, settings: &Settings) -> Result<RedisNodeBuilder, ConfigError> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let is_path = address.split_once("://").is_some_and(|(scheme, _)| scheme.contains("unix"));
    // The `?` is part of a password.
    if query.contains('@') {
        return Ok(RedisNode::builder(url));
    }
    let of_address =
        |name: &str| name == "protocol" || (is_path && ["db", "user", "pass"].contains(&name));
    let (mut kept, mut ours) = (Vec::new(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default();
        if of_address(name) { kept.push(pair) } else { ours.push(pair) }
    }
    let own = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    let has_login = address.contains('@') || kept.iter().any(|pair| pair.starts_with("pass="));
    let mut node = RedisNode::builder(format!("{address}{own}"));
    if !has_login {
        node = given(node, settings.username.as_ref(), RedisNodeBuilder::username);
        node = given(node, settings.password.as_ref(), RedisNodeBuilder::password);
    }
    let (mut replicas, mut lag) = (None, None);
    let ours = ours.join("&");
    for given in options(&ours)? {
        node = match given.name {
            "name" => node.name(given.value),
            "trust_fresh" => node.trust_fresh(given.yes()?),
            "allow_eviction" => node.allow_eviction(given.yes()?),
            "failover_window" => node.failover_window(given.span()?),
            "connect_timeout" => node.connect_timeout(given.span()?),
            "replicas" => node.replicas(given.number()?),
            "min_replicas" => {
                replicas = Some(given.number()?);
                node
            }
            "max_lag" => {
                lag = Some(given.span()?);
                node
            }
            _ => return Err(unknown(given.name, LONE)),
        };
    }
    let strength = strength(replicas, lag);
    Ok(given(node, strength, |node, (replicas, lag)| node.min_replicas(replicas, lag)))
}

fn strength(replicas: Option<u32>, lag: Option<Duration>) -> Option<(u32, Duration)> {
    let usual = (1, Duration::from_secs(10));
    (replicas.is_some() || lag.is_some())
        .then(|| (replicas.unwrap_or(usual.0), lag.unwrap_or(usual.1)))
}

const GROUP: &str = "sentinel_username, sentinel_password, tls, sentinel_tls, min_replicas, \
                     max_lag, failover_window, trust_fresh, allow_eviction, sentinel_deadline, \
                     poll_every and trust_unconfirmed_master";

/// Without its scheme: `[user:password@]host[:port],…/name[/db][?…]`.
fn group(rest: &str, settings: &Settings) -> Result<SentinelNodeBuilder, ConfigError> {
    let form = "write sentinel://[user:password@]host:port,host:port/name-of-the-master";
    let broken = |what: &str| ConfigError::new("sentinel address", what, form);
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        return Err(broken("with an @ after a ?; write a ? in a password as %3F"));
    }
    let (login, place) = match place.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, place),
    };
    let (hosts, path) = place.split_once('/').ok_or_else(|| broken("without a name"))?;
    let (name, db) = path.split_once('/').map_or((path, None), |(name, db)| (name, Some(db)));
    if name.is_empty() || hosts.is_empty() {
        return Err(broken("without a name or without hosts"));
    }
    let hosts = hosts.split(',').map(with_port);
    let node = SentinelNode::builder(decoded("name", name)?, hosts);
    let (user, password) = match login.map(|l| l.split_once(':').unwrap_or((l, ""))) {
        Some((user, password)) => {
            let written = |text: String| Some(text).filter(|text| !text.is_empty());
            (written(decoded("user", user)?), written(decoded("password", password)?))
        }
        None => (settings.username.clone(), settings.password.clone()),
    };
    let (sentinel_user, sentinel_password) =
        (settings.sentinel_username.as_ref(), settings.sentinel_password.as_ref());
    let node = given(node, user, SentinelNodeBuilder::username);
    let node = given(node, password, SentinelNodeBuilder::password);
    let node = given(node, sentinel_user, SentinelNodeBuilder::sentinel_username);
    let node = given(node, sentinel_password, SentinelNodeBuilder::sentinel_password);
    let db = db.map(str::parse::<u32>).transpose();
    let db = db.map_err(|_| broken("with a database that is not a number"))?;
    watched(given(node, db, SentinelNodeBuilder::db), query)
}

fn watched(mut node: SentinelNodeBuilder, query: &str) -> Result<SentinelNodeBuilder, ConfigError> {
    let (mut replicas, mut lag) = (None, None);
    for given in options(query)? {
        match given.name {
            "min_replicas" => replicas = Some(given.number()?),
            "max_lag" => lag = Some(given.span()?),
            _ => {
                node = match given.name {
                    "sentinel_username" => node.sentinel_username(given.value),
                    "sentinel_password" => node.sentinel_password(given.value),
                    #[cfg(feature = "tls")]
                    "tls" if given.yes()? => node.tls(None, None),
                    #[cfg(feature = "tls")]
                    "sentinel_tls" if given.yes()? => node.sentinel_tls(None, None),
                    #[cfg(not(feature = "tls"))]
                    "tls" | "sentinel_tls" if given.yes()? => {
                        return Err(given.refused("TLS needs the cargo feature `tls` of palisade"));
                    }
                    "tls" | "sentinel_tls" => node,
                    "failover_window" => node.failover_window(given.span()?),
                    "trust_fresh" => node.trust_fresh(given.yes()?),
                    "allow_eviction" => node.allow_eviction(given.yes()?),
                    "sentinel_deadline" => node.sentinel_deadline(given.span()?),
                    "poll_every" => node.poll_every(given.span()?),
                    "trust_unconfirmed_master" => node.trust_unconfirmed_master(given.yes()?),
                    _ => return Err(unknown(given.name, GROUP)),
                }
            }
        }
    }
    let strength = strength(replicas, lag);
    Ok(given(node, strength, |node, (replicas, lag)| node.min_replicas(replicas, lag)))
}

fn with_port(host: &str) -> String {
    let behind_v6 = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    if behind_v6.contains(':') { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") }
}

fn memory(name: &str) -> Result<MemoryNode, ConfigError> {
    if name.contains(['/', '?', '#', '@']) {
        let rule = "write memory:// or memory://name";
        return Err(ConfigError::new("memory address", "not shown", rule));
    }
    let node = MemoryNode::builder();
    Ok(if name.is_empty() { node.build() } else { node.name(name).build() })
}
