//! Settings from the command line, the environment and a file, in this order.

mod read;
mod span;
mod urls;

use std::path::{Path, PathBuf};

use palisade::{MemoryNode, Redlock, RedlockBuilder};
use palisade_ops::Deployment;
use serde::Deserialize;

pub(crate) use self::read::{List, Switch};
use self::read::{from_environment, from_file};
pub(crate) use self::span::Span;
use crate::codes::Fail;

/// The default file, if it exists.
const FILE: &str = "/etc/palisade.toml";

/// The usual variables of passwords.
const PASSWORD: &str = "PALISADE_PASSWORD";
const SENTINEL_PASSWORD: &str = "PALISADE_SENTINEL_PASSWORD";

/// What to do if no node is named.
const START: &str = "no server is named: start one with `redis-server` and add `--node \
                     redis://127.0.0.1` (or set PALISADE_NODE), or use `--embedded`, which \
                     protects from this one process only";

/// The same, for a command that reads or changes what servers have.
const WHICH: &str = "no server is named: add `--node redis://HOST:PORT` for each, or `--sentinel` \
                     and `--master` (or set PALISADE_NODE), as the programs that use them have it";

/// All settings that verbs share. A setting that is not given here is taken from the next layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Lone servers, by URL.
    pub(crate) node: List,
    /// Nodes of every kind, by URL, as the library reads them.
    pub(crate) urls: List,
    /// One set of Sentinels and the masters that they monitor.
    pub(crate) sentinel: List,
    pub(crate) master: List,
    /// More such sets.
    pub(crate) group: Vec<Group>,
    /// Nodes in this process's memory.
    pub(crate) embedded: Switch,
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
    pub(crate) tls: Switch,
    pub(crate) sentinel_tls: Switch,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

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
        let all = flags.over(from_environment(|name| std::env::var_os(name))?);
        let all = match named {
            Some(path) if !path.is_file() => {
                let path = path.display();
                return Err(format!("{path}: no such file; correct --config or $PALISADE_CONFIG"));
            }
            Some(path) => all.over(from_file(&path)?),
            None if Path::new(FILE).is_file() => all.over(from_file(Path::new(FILE))?),
            None => all,
        };
        let (node, urls) = (urls::apart(&all.node), urls::words(&all.urls));
        Ok(Self { node, urls, ..all })
    }

    fn names_nodes(&self) -> bool {
        !self.node.0.is_empty()
            || !self.urls.0.is_empty()
            || !self.sentinel.0.is_empty()
            || !self.master.0.is_empty()
            || !self.group.is_empty()
            || self.embedded.0
    }

    /// Whether Sentinels and their masters are among the nodes.
    pub(crate) fn has_groups(&self) -> bool {
        let urls = || self.urls.0.iter().any(|url| url.starts_with("sentinel://"));
        !self.group.is_empty() || !self.sentinel.0.is_empty() || urls()
    }

    /// This layer, with `below` for the settings that it lacks. Nodes are one setting: a layer that
    /// names one must name all. So is the place of a password.
    fn over(self, below: Self) -> Self {
        let nodes = if self.names_nodes() { self.clone() } else { below.clone() };
        let secret = place(
            (self.password_env, self.password_file),
            (below.password_env, below.password_file),
        );
        let sentinel_secret = place(
            (self.sentinel_password_env, self.sentinel_password_file),
            (below.sentinel_password_env, below.sentinel_password_file),
        );
        Self {
            node: nodes.node,
            urls: nodes.urls,
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
            password_env: secret.0,
            password_file: secret.1,
            sentinel_user: self.sentinel_user.or(below.sentinel_user),
            sentinel_password_env: sentinel_secret.0,
            sentinel_password_file: sentinel_secret.1,
            tls: Switch(self.tls.0 || below.tls.0),
            sentinel_tls: Switch(self.sentinel_tls.0 || below.sentinel_tls.0),
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
        deployment = urls::named(&self.urls, deployment)?;
        for (reported, reached) in &self.map {
            deployment = deployment.map_address(reported, reached);
        }
        if let Some(name) = &self.user {
            deployment = deployment.username(name);
        }
        if let Some(secret) = self.password()? {
            deployment = deployment.password(secret);
        }
        if let Some(name) = &self.sentinel_user {
            deployment = deployment.sentinel_username(name);
        }
        if let Some(secret) = self.sentinel_password()? {
            deployment = deployment.sentinel_password(secret);
        }
        self.secured(deployment)
    }

    #[cfg(feature = "tls")]
    fn secured(&self, mut deployment: Deployment) -> Result<Deployment, String> {
        provide();
        let pem =
            |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let root = self.cacert.as_ref().map(pem).transpose()?;
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
            (None, None) => None,
            _ => return Err("--cert and --key belong together: give both".to_owned()),
        };
        deployment = deployment.redis_cli(&self.by_hand());
        if self.tls.0 {
            deployment = deployment.tls(root.clone(), client.clone());
        }
        if root.is_some() || client.is_some() {
            deployment = deployment.node_tls(root.clone(), client.clone());
        }
        if self.sentinel_tls.0 {
            deployment = deployment.sentinel_tls(root, client);
        }
        Ok(deployment)
    }

    #[cfg(not(feature = "tls"))]
    fn secured(&self, deployment: Deployment) -> Result<Deployment, String> {
        let any = self.tls.0 || self.sentinel_tls.0 || self.cacert.is_some() || self.cert.is_some();
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
        if self.embedded.0 {
            return Err(Fail::from("--embedded: there are no servers to look at".to_owned()));
        }
        if !self.names_nodes() {
            return Err(Fail::from(WHICH.to_owned()));
        }
        Ok(self.deployment()?)
    }

    /// A handle over the nodes.
    pub(crate) fn redlock(&self) -> Result<Redlock, Fail> {
        if !self.names_nodes() {
            return Err(Fail::from(START.to_owned()));
        }
        let mut builder = if self.embedded.0 {
            Redlock::builder().node(MemoryNode::new())
        } else if self.urls.0.is_empty() {
            self.deployment()?.handle().map_err(|e| e.to_string())?
        } else {
            self.by_urls()?
        };
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(Span(ttl)) = self.ttl {
            // A shorter ttl here is no reason to expect shorter leases of all other clients.
            builder = builder.ttl(ttl).max_ttl(ttl.max(palisade::Config::default().max_ttl));
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

impl Settings {
    /// A builder over nodes that are named as for the library.
    fn by_urls(&self) -> Result<RedlockBuilder, Fail> {
        let own = [&self.cacert, &self.cert, &self.key].iter().any(|file| file.is_some());
        if own || self.tls.0 || self.sentinel_tls.0 || !self.map.is_empty() {
            let why = "PALISADE_URLS says itself which connections use TLS, with the system's \
                       certificates; name the nodes by --node, or by --sentinel and --master, to \
                       use options for TLS and addresses";
            return Err(Fail::from(why.to_owned()));
        }
        provide();
        let mut settings = palisade::Settings::new(self.urls.0.clone());
        settings.username.clone_from(&self.user);
        settings.password = self.password()?;
        settings.sentinel_username.clone_from(&self.sentinel_user);
        settings.sentinel_password = self.sentinel_password()?;
        settings.builder().map_err(|e| Fail::from(e.to_string()))
    }

    /// The data servers' password.
    fn password(&self) -> Result<Option<String>, String> {
        secret(self.password_env.as_ref(), self.password_file.as_ref(), PASSWORD)
    }

    /// The Sentinels' password.
    fn sentinel_password(&self) -> Result<Option<String>, String> {
        let (env, file) = (&self.sentinel_password_env, &self.sentinel_password_file);
        secret(env.as_ref(), file.as_ref(), SENTINEL_PASSWORD)
    }

    /// The environment variables that hold a password, by themselves or in an address.
    pub(crate) fn secret_variables(&self) -> Vec<String> {
        let named = [&self.password_env, &self.sentinel_password_env];
        let named = named.into_iter().flatten().cloned();
        let usual = [PASSWORD, SENTINEL_PASSWORD].map(str::to_owned);
        let has_login = |name: &&str| {
            std::env::var_os(name).is_some_and(|text| text.to_string_lossy().contains('@'))
        };
        let addresses = ["PALISADE_NODE", "PALISADE_URLS"].into_iter().filter(has_login);
        named.chain(usual).chain(addresses.map(str::to_owned)).collect()
    }
}

/// A program chooses the TLS provider; a library leaves the choice to its program.
fn provide() {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Where a password is: the variable, and the file.
type Place = (Option<String>, Option<PathBuf>);

/// The place that a layer names, else that of the layers below.
fn place(here: Place, below: Place) -> Place {
    if here.0.is_some() || here.1.is_some() { here } else { below }
}

/// A password from a variable or a file; from the usual variable if neither is named.
fn secret(
    env: Option<&String>,
    file: Option<&PathBuf>,
    usual: &str,
) -> Result<Option<String>, String> {
    // Both are of one layer: another layer's place does not count.
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

#[cfg(test)]
mod tests;
