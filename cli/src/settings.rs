//! Settings from the command line, the environment and a file, in this order.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use palisade::ops::Deployment;
use palisade::{MemoryNode, Redlock};
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, de};

use crate::codes::Fail;

/// The default file, if it exists.
const FILE: &str = "/etc/palisade.toml";

/// What to do if no node is named.
const START: &str = "no server is named: start one with `redis-server` and add `--node \
                     redis://127.0.0.1` (or set PALISADE_NODE), or use `--embedded`, which \
                     protects from this one process only";

/// All settings that verbs share. A setting that is not given here is taken from the next layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Lone servers, by URL.
    pub(crate) node: List,
    /// One set of Sentinels and the masters that they monitor.
    pub(crate) sentinel: List,
    pub(crate) master: List,
    /// More such sets.
    pub(crate) group: Vec<Group>,
    /// Nodes in this process's memory.
    pub(crate) embedded: bool,
    pub(crate) map: Vec<(String, String)>,
    pub(crate) prefix: Option<String>,
    pub(crate) ttl: Option<Span>,
    pub(crate) max_ttl: Option<Span>,
    pub(crate) clock_error: Option<Span>,
    pub(crate) node_deadline: Option<Span>,
    pub(crate) timeout: Option<Span>,
    pub(crate) user: Option<String>,
    pub(crate) password_env: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password_env: Option<String>,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    pub(crate) tls: bool,
    pub(crate) sentinel_tls: bool,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Settings that the environment may have: `PALISADE_` and one of these in capitals.
const VARIABLES: &[&str] = &[
    "node",
    "sentinel",
    "master",
    "prefix",
    "ttl",
    "max_ttl",
    "clock_error",
    "node_deadline",
    "timeout",
    "user",
    "password_file",
    "sentinel_user",
    "sentinel_password_file",
    "tls",
    "sentinel_tls",
    "cacert",
    "cert",
    "key",
];

/// Sentinels, and the masters that they monitor.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) sentinel: List,
    pub(crate) master: List,
}

impl Settings {
    /// The settings of the command line; those of the environment and the file fill the gaps.
    pub(crate) fn read(flags: Self, file: Option<&Path>) -> Result<Self, String> {
        let named = file.map(Path::to_owned);
        let named = named.or_else(|| std::env::var_os("PALISADE_CONFIG").map(PathBuf::from));
        let of =
            |layer: Figment| layer.extract::<Self>().map_err(|e| e.to_string().replace('\n', ""));
        let env = of(Figment::from(Env::prefixed("PALISADE_").only(VARIABLES)))?;
        let all = flags.over(env);
        match named {
            Some(path) if !path.is_file() => Err(format!(
                "{}: no such file; correct --config or \
                             $PALISADE_CONFIG",
                path.display()
            )),
            Some(path) => Ok(all.over(of(Figment::from(Toml::file_exact(path)))?)),
            None if Path::new(FILE).is_file() => {
                Ok(all.over(of(Figment::from(Toml::file_exact(FILE)))?))
            }
            None => Ok(all),
        }
    }

    fn names_nodes(&self) -> bool {
        !self.node.0.is_empty()
            || !self.sentinel.0.is_empty()
            || !self.master.0.is_empty()
            || !self.group.is_empty()
            || self.embedded
    }

    /// This layer, with `below` for the settings that it lacks. Nodes are one setting: a layer that
    /// names one must name all.
    fn over(self, below: Self) -> Self {
        let nodes = if self.names_nodes() { self.clone() } else { below.clone() };
        Self {
            node: nodes.node,
            sentinel: nodes.sentinel,
            master: nodes.master,
            group: nodes.group,
            embedded: nodes.embedded,
            map: if self.map.is_empty() { below.map } else { self.map },
            prefix: self.prefix.or(below.prefix),
            ttl: self.ttl.or(below.ttl),
            max_ttl: self.max_ttl.or(below.max_ttl),
            clock_error: self.clock_error.or(below.clock_error),
            node_deadline: self.node_deadline.or(below.node_deadline),
            timeout: self.timeout.or(below.timeout),
            user: self.user.or(below.user),
            password_env: self.password_env.or(below.password_env),
            password_file: self.password_file.or(below.password_file),
            sentinel_user: self.sentinel_user.or(below.sentinel_user),
            sentinel_password_env: self.sentinel_password_env.or(below.sentinel_password_env),
            sentinel_password_file: self.sentinel_password_file.or(below.sentinel_password_file),
            tls: self.tls || below.tls,
            sentinel_tls: self.sentinel_tls || below.sentinel_tls,
            cacert: self.cacert.or(below.cacert),
            cert: self.cert.or(below.cert),
            key: self.key.or(below.key),
        }
    }

    /// The nodes, for people who operate them.
    pub(crate) fn deployment(&self) -> Result<Deployment, String> {
        let mut deployment = Deployment::new();
        if let Some(Span(timeout)) = self.timeout {
            deployment = deployment.timeout(timeout);
        }
        let one = Group { sentinel: self.sentinel.clone(), master: self.master.clone() };
        let one = (!one.sentinel.0.is_empty() || !one.master.0.is_empty()).then_some(one);
        for group in self.group.iter().chain(&one) {
            deployment = deployment.groups(group.sentinel.0.clone(), group.master.0.clone());
        }
        for url in &self.node.0 {
            deployment = deployment.node(url);
        }
        for (reported, reached) in &self.map {
            deployment = deployment.map_address(reported, reached);
        }
        if let Some(name) = &self.user {
            deployment = deployment.username(name);
        }
        let (env, file) = (&self.password_env, &self.password_file);
        if let Some(secret) = secret(env.as_ref(), file.as_ref(), "PALISADE_PASSWORD")? {
            deployment = deployment.password(secret);
        }
        if let Some(name) = &self.sentinel_user {
            deployment = deployment.sentinel_username(name);
        }
        let (env, file) = (&self.sentinel_password_env, &self.sentinel_password_file);
        if let Some(secret) = secret(env.as_ref(), file.as_ref(), "PALISADE_SENTINEL_PASSWORD")? {
            deployment = deployment.sentinel_password(secret);
        }
        self.secured(deployment)
    }

    #[cfg(feature = "tls")]
    fn secured(&self, mut deployment: Deployment) -> Result<Deployment, String> {
        // A program chooses the TLS provider; a library leaves the choice to its program.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem =
            |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let root = self.cacert.as_ref().map(pem).transpose()?;
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
            (None, None) => None,
            _ => return Err("--cert and --key belong together: give both".to_owned()),
        };
        deployment = deployment.redis_cli(&self.by_hand());
        if self.tls {
            deployment = deployment.tls(root.clone(), client.clone());
        }
        if root.is_some() || client.is_some() {
            deployment = deployment.node_tls(root.clone(), client.clone());
        }
        if self.sentinel_tls {
            deployment = deployment.sentinel_tls(root, client);
        }
        Ok(deployment)
    }

    #[cfg(not(feature = "tls"))]
    fn secured(&self, deployment: Deployment) -> Result<Deployment, String> {
        let any = self.tls || self.sentinel_tls || self.cacert.is_some() || self.cert.is_some();
        if any {
            Err("this program was built without TLS; install it with the feature `tls`".to_owned())
        } else {
            Ok(deployment)
        }
    }

    /// The certificates as `redis-cli` takes them.
    #[cfg(feature = "tls")]
    fn by_hand(&self) -> String {
        let given = [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)];
        let flags = given.iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let flags: Vec<_> =
            flags.map(|(name, path)| format!("{name} {}", path.display())).collect();
        flags.join(" ")
    }

    /// The servers themselves, for what is not asked of a handle.
    pub(crate) fn servers(&self) -> Result<Deployment, Fail> {
        if self.embedded {
            return Err(Fail::from("--embedded: there are no servers to look at".to_owned()));
        }
        if !self.names_nodes() {
            return Err(Fail::from(START.to_owned()));
        }
        Ok(self.deployment()?)
    }

    /// A handle over the nodes.
    pub(crate) fn redlock(&self) -> Result<Redlock, Fail> {
        if !self.names_nodes() {
            return Err(Fail::from(START.to_owned()));
        }
        let mut builder = if self.embedded {
            Redlock::builder().node(MemoryNode::new())
        } else {
            self.deployment()?.handle().map_err(|e| e.to_string())?
        };
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(Span(ttl)) = self.ttl {
            builder = builder.ttl(ttl);
        }
        if let Some(Span(max_ttl)) = self.max_ttl {
            builder = builder.max_ttl(max_ttl);
        }
        if let Some(Span(error)) = self.clock_error {
            builder = builder.clock_error(error);
        }
        if let Some(Span(deadline)) = self.node_deadline {
            builder = builder.node_deadline(deadline);
        }
        builder.build().map_err(|e| Fail::from(e.to_string()))
    }
}

/// A password from a variable or a file; from the usual variable if neither is named.
fn secret(
    env: Option<&String>,
    file: Option<&PathBuf>,
    usual: &str,
) -> Result<Option<String>, String> {
    // A named variable has priority over a file of another layer.
    if let Some(name) = env {
        // The variable's content is never shown, even if it is not text.
        let secret =
            std::env::var(name).map_err(|_| format!("${name} is not set, or not UTF-8"))?;
        return Ok(Some(secret));
    }
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(Some(text.lines().next().unwrap_or_default().to_owned()));
    }
    Ok(std::env::var(usual).ok())
}

/// Texts, as a list or separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        let texts = match Either::deserialize(de)? {
            Either::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            Either::Many(texts) => texts,
        };
        Ok(Self(texts.into_iter().filter(|text| !text.is_empty()).collect()))
    }
}

/// A span of time: `2.5s`, `250ms`, `2m`, `1h`, `1d`, or a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let bad = || format!("{text:?} is not a span of time; write 2.5s, 250ms, 2m, 1h or 1d");
        let factor = match unit {
            "" | "s" => 1.0,
            "ms" => 1e-3,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let span = Duration::try_from_secs_f64(number * factor).map_err(|_| bad())?;
        if span.is_zero() { Err("must be more than zero".to_owned()) } else { Ok(Self(span)) }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Reads;
        impl Visitor<'_> for Reads {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a span of time, as \"2.5s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
        }
        de.deserialize_any(Reads).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        let span = |text: &str| text.parse::<Span>().map(|s| s.0);
        assert_eq!(span("2.5s"), Ok(Duration::from_millis(2_500)));
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("3"), Ok(Duration::from_secs(3)));
        assert_eq!(span("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "0", "0ms", "-1s", "1 s", "1w", "1e400"] {
            assert!(span(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_layer_that_names_nodes_names_all_of_them() {
        let layer = |toml: &str| Figment::from(Toml::string(toml)).extract::<Settings>().unwrap();
        let file = layer("node = ['redis://a', 'redis://b']\nttl = '5s'\nprefix = 'x:'");
        let env = layer("node = 'redis://c, redis://d'\nttl = 4");
        let both = env.clone().over(file.clone());
        assert_eq!(both.node.0, ["redis://c", "redis://d"]);
        assert_eq!(both.ttl, Some(Span(Duration::from_secs(4))));
        assert_eq!(both.prefix.as_deref(), Some("x:"));
        let groups = layer("[[group]]\nsentinel = 's:1,s:2'\nmaster = 'm'").over(both);
        assert!(groups.node.0.is_empty());
        assert_eq!(groups.group[0].sentinel.0, ["s:1", "s:2"]);
        assert_eq!(Settings::default().over(file).node.0.len(), 2);
        let odd = Figment::from(Toml::string("nod = 'x'")).extract::<Settings>();
        assert!(odd.unwrap_err().to_string().contains("nod"));
    }
}
