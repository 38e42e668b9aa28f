//! Settings from the command line, the environment and a file. If several of them contain a
//! setting, the first of them decides. The settings have the names of the library's settings:
//! `--ttl` is `PALISADE_TTL` in the environment and `ttl` in the file.

use std::path::{Path, PathBuf};

use clap::Args;
use palisade::internal::given;
use palisade::{MemoryNode, Redlock};
use palisade_ops::{Deployment, Records};
use serde::{Deserialize, Deserializer};

use crate::codes::Fail;
use crate::span::Span;

/// Text at the end of each command's help.
pub(crate) const SECRETS: &str = "\
Options that are not given are taken from the environment (PALISADE_URLS, PALISADE_TTL, ...), then
from --config, $PALISADE_CONFIG or /etc/palisade.toml (urls, ttl, ...). Passwords come from the
environment (PALISADE_PASSWORD, PALISADE_SENTINEL_PASSWORD) or a file, never from the command
line.";

/// Path of the default file. The file is read if it exists.
const FILE: &str = "/etc/palisade.toml";

/// Environment variable with the data servers' password.
const PASSWORD: &str = "PALISADE_PASSWORD";
const SENTINEL_PASSWORD: &str = "PALISADE_SENTINEL_PASSWORD";

/// Error text for a call without a node.
const START: &str = "no server is named: start one with `redis-server` and add `--node \
                     redis://127.0.0.1` (or set PALISADE_URLS), or use `--embedded`, which \
                     protects from this one process only";
/// Error text for a call without a node, if the command reads or changes the servers' data.
const WHICH: &str = "no server is named: add `--node redis://HOST:PORT` for each, or `--node \
                     sentinel://…` (or set PALISADE_URLS), with the URLs that your programs use";
const NO_SERVERS: &str = "--embedded: there are no servers to look at";

/// Settings that several commands share.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "Nodes")]
pub(crate) struct Settings {
    /// A node: `redis://host[:port]`, `rediss://…`, `unix://…`, or a group as
    /// `sentinel://host,host,host/master`; give it once for each node (visible in process lists)
    #[arg(long = "node", value_name = "URL", env = "PALISADE_URLS", hide_env_values = true)]
    #[serde(deserialize_with = "texts")]
    urls: Vec<String>,
    /// Replace an address that Sentinels report by another one (NAT, names in certificates)
    #[arg(long, value_name = "REPORTED=REACHED", value_parser = mapping)]
    map: Vec<(String, String)>,
    /// File with settings (TOML)
    #[arg(long, value_name = "FILE", env = "PALISADE_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Length of the lease, which is renewed while a command runs [default: 15s]
    #[arg(long, value_name = "SPAN", env = "PALISADE_TTL")]
    ttl: Option<Span>,
    /// Longest lease of any client of these nodes [default: 15s, or --ttl if that is longer]
    #[arg(long, value_name = "SPAN", env = "PALISADE_MAX_TTL")]
    pub(crate) max_ttl: Option<Span>,
    /// Largest error of any clock [default: 2s, at most a quarter of --max-ttl]
    #[arg(long, value_name = "SPAN", env = "PALISADE_CLOCK_ERROR")]
    pub(crate) clock_error: Option<Span>,
    /// Maximum time for one node's reply [default: 250ms]
    #[arg(long, value_name = "SPAN", env = "PALISADE_NODE_DEADLINE")]
    node_deadline: Option<Span>,
    /// Largest error of the rate of a node's clock, in parts per million [default: 10000, 1 %]
    #[arg(long, value_name = "PPM", env = "PALISADE_DRIFT_PPM")]
    drift_ppm: Option<u32>,
    /// Accept an even number of nodes, as programs with `allow_even_nodes` do
    #[arg(
        long,
        value_name = "BOOL",
        env = "PALISADE_ALLOW_EVEN_NODES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    allow_even_nodes: Option<bool>,
    /// Id of the deployment, 16 hexadecimal digits: nodes with other data are refused, and `init`
    /// gives it to new nodes
    #[arg(long, value_name = "ID", env = "PALISADE_DEPLOYMENT")]
    deployment: Option<String>,
    /// Time-out for each server and Sentinel that is examined or changed [default: 2s]
    #[arg(long, value_name = "SPAN", env = "PALISADE_TIMEOUT")]
    timeout: Option<Span>,
    /// ACL user at the data servers
    #[arg(long, value_name = "NAME", env = "PALISADE_USERNAME", help_heading = "Login")]
    username: Option<String>,
    /// File with the data servers' password, as its first line
    #[arg(long, value_name = "FILE", env = "PALISADE_PASSWORD_FILE", help_heading = "Login")]
    password_file: Option<PathBuf>,
    /// ACL user at the Sentinels
    #[arg(long, value_name = "NAME", env = "PALISADE_SENTINEL_USERNAME", help_heading = "Login")]
    sentinel_username: Option<String>,
    /// File with the Sentinels' password, as its first line
    #[arg(
        long,
        value_name = "FILE",
        env = "PALISADE_SENTINEL_PASSWORD_FILE",
        help_heading = "Login"
    )]
    sentinel_password_file: Option<PathBuf>,
    /// Root certificate (PEM) in place of the system's. Addresses select TLS: `rediss://…`,
    /// `sentinel://…/master?tls=true&sentinel_tls=true`
    #[arg(long, value_name = "FILE", env = "PALISADE_CACERT", help_heading = "TLS")]
    cacert: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "PALISADE_CERT", help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "PALISADE_KEY", help_heading = "TLS")]
    key: Option<PathBuf>,
    /// Prefix of names. It comes from `HandleArgs` or from the file.
    #[arg(skip)]
    prefix: Option<String>,
    #[arg(skip)]
    pub(crate) embedded: bool,
}

/// Settings of the handle: the nodes, and the leases on them.
#[derive(Debug, Args)]
pub(crate) struct HandleArgs {
    #[command(flatten)]
    settings: Settings,
    /// Keep all data in this process's memory: the locks work only within this one process
    #[arg(long, help_heading = "Nodes", conflicts_with = "urls")]
    embedded: bool,
    /// Prefix of every name; the same in every program that shares the names
    #[arg(long, value_name = "TEXT", env = "PALISADE_PREFIX", help_heading = "Nodes")]
    prefix: Option<String>,
}

impl Settings {
    /// Returns these settings. Missing settings are taken from the file.
    pub(crate) fn with_file(self) -> Result<Self, String> {
        let below = match &self.config {
            Some(path) if !path.is_file() => {
                let path = path.display();
                return Err(format!("{path}: no such file; correct --config or $PALISADE_CONFIG"));
            }
            Some(path) => from_file(path)?,
            None if Path::new(FILE).is_file() => from_file(Path::new(FILE))?,
            None => Self::default(),
        };
        Ok(self.over(below))
    }

    /// Returns these settings. Missing settings are taken from `below`, the settings of the file.
    /// All nodes together are one setting. So if these settings name a node, the nodes of `below`
    /// are ignored.
    fn over(self, below: Self) -> Self {
        let names_nodes = self.embedded || !self.urls.is_empty();
        // If `below` names a password file, a password in the environment has priority.
        let file = |own: Option<PathBuf>, variable, below: Option<PathBuf>| {
            own.or_else(|| below.filter(|_| std::env::var_os(variable).is_none()))
        };
        Self {
            urls: if names_nodes { self.urls } else { below.urls },
            embedded: self.embedded || (!names_nodes && below.embedded),
            map: if self.map.is_empty() { below.map } else { self.map },
            config: self.config,
            prefix: self.prefix.or(below.prefix),
            ttl: self.ttl.or(below.ttl),
            max_ttl: self.max_ttl.or(below.max_ttl),
            clock_error: self.clock_error.or(below.clock_error),
            node_deadline: self.node_deadline.or(below.node_deadline),
            drift_ppm: self.drift_ppm.or(below.drift_ppm),
            allow_even_nodes: self.allow_even_nodes.or(below.allow_even_nodes),
            deployment: self.deployment.or(below.deployment),
            timeout: self.timeout.or(below.timeout),
            username: self.username.or(below.username),
            password_file: file(self.password_file, PASSWORD, below.password_file),
            sentinel_username: self.sentinel_username.or(below.sentinel_username),
            sentinel_password_file: file(
                self.sentinel_password_file,
                SENTINEL_PASSWORD,
                below.sentinel_password_file,
            ),
            cacert: self.cacert.or(below.cacert),
            cert: self.cert.or(below.cert),
            key: self.key.or(below.key),
        }
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        self.urls.iter().flat_map(|text| text.split_whitespace())
    }

    /// Returns true if a Sentinel group is among the nodes.
    pub(crate) fn has_groups(&self) -> bool {
        self.urls().any(|url| url.starts_with("sentinel://"))
    }

    /// Converts these settings to the settings of the library.
    fn library(&self) -> Result<palisade::Settings, String> {
        let span = |span: Option<Span>| span.map(|Span(span)| span);
        let mut all = palisade::Settings::new(self.urls());
        all.username.clone_from(&self.username);
        all.password = secret(self.password_file.as_ref(), PASSWORD)?;
        all.sentinel_username.clone_from(&self.sentinel_username);
        all.sentinel_password = secret(self.sentinel_password_file.as_ref(), SENTINEL_PASSWORD)?;
        all.ttl = span(self.ttl);
        // Other clients of the nodes may have longer leases than this client. So a short `ttl` does
        // not reduce `max_ttl`.
        let longest = all.ttl.map(|ttl| ttl.max(palisade::Config::default().max_ttl));
        all.max_ttl = span(self.max_ttl).or(longest);
        all.clock_error = span(self.clock_error);
        all.node_deadline = span(self.node_deadline);
        all.drift_ppm = self.drift_ppm;
        all.allow_even_nodes = self.allow_even_nodes.unwrap_or_default();
        all.prefix.clone_from(&self.prefix);
        all.deployment.clone_from(&self.deployment);
        Ok(all)
    }

    /// Returns the servers of the nodes and the access to these servers. Commands that operate the
    /// nodes use them.
    pub(crate) fn deployment(&self) -> Result<Deployment, String> {
        let deployment = Deployment::of(self.library()?);
        let mut deployment = given(deployment, self.timeout, |of, Span(span)| of.timeout(span));
        for (reported, reached) in &self.map {
            deployment = deployment.map_address(reported, reached);
        }
        self.secured(deployment)
    }

    #[cfg(feature = "tls")]
    fn secured(&self, deployment: Deployment) -> Result<Deployment, String> {
        // rustls needs a TLS provider. Only a program may choose the provider, and not a library.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem =
            |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let root = self.cacert.as_ref().map(pem).transpose()?;
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
            (None, None) => None,
            _ => return Err("--cert and --key belong together: give both".to_owned()),
        };
        let given = [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)];
        let flags = given.iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let flags: Vec<_> =
            flags.map(|(name, path)| format!("{name} {}", path.display())).collect();
        let deployment = deployment.redis_cli(&flags.join(" "));
        Ok(if root.is_some() || client.is_some() {
            deployment.certificates(root, client)
        } else {
            deployment
        })
    }

    #[cfg(not(feature = "tls"))]
    fn secured(&self, deployment: Deployment) -> Result<Deployment, String> {
        if self.cacert.is_some() || self.cert.is_some() {
            return Err(
                "this program was built without TLS; install it with the feature `tls`".to_owned()
            );
        }
        Ok(deployment)
    }

    /// Builds a handle, the client of the nodes.
    pub(crate) fn redlock(&self) -> Result<Redlock, Fail> {
        let builder = if self.embedded {
            self.library()?.builder()?.node(MemoryNode::new())
        } else if self.urls.is_empty() {
            return Err(Fail::from(START.to_owned()));
        } else {
            self.deployment()?.handle()?
        };
        Ok(builder.build()?)
    }
}

impl HandleArgs {
    pub(crate) fn settings(self) -> Result<Settings, String> {
        Settings { embedded: self.embedded, prefix: self.prefix, ..self.settings }.with_file()
    }

    /// Returns the servers, and the prefix of the names that the command reads.
    pub(crate) fn servers(self) -> Result<(Deployment, String), Fail> {
        let settings = self.settings()?;
        if settings.embedded {
            return Err(Fail::from(NO_SERVERS.to_owned()));
        }
        if settings.urls.is_empty() {
            return Err(Fail::from(WHICH.to_owned()));
        }
        Ok((settings.deployment()?, settings.prefix.unwrap_or_default()))
    }

    /// Returns access to the idempotency keys of a namespace on the servers.
    pub(crate) fn records(self, namespace: &str) -> Result<Records, Fail> {
        let (deployment, prefix) = self.servers()?;
        Ok(Records::new(&deployment, &prefix, namespace)?)
    }
}

/// Returns the environment variables with a password. The password is the whole value or a part of
/// an address.
pub(crate) fn secret_variables() -> Vec<String> {
    let has_login = std::env::var_os("PALISADE_URLS").is_some_and(|urls| {
        let urls = urls.to_string_lossy();
        urls.contains('@') || urls.contains("pass")
    });
    let urls = has_login.then_some("PALISADE_URLS");
    [PASSWORD, SENTINEL_PASSWORD].into_iter().chain(urls).map(str::to_owned).collect()
}

/// Returns the password from the file. If there is no file, returns the password from the
/// environment variable.
fn secret(file: Option<&PathBuf>, variable: &str) -> Result<Option<String>, String> {
    let Some(path) = file else { return Ok(std::env::var(variable).ok()) };
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

/// Reads the settings of a TOML file.
fn from_file(path: &Path) -> Result<Settings, String> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
    of_text(&text).map_err(|why| format!("{file}: {why}"))
}

/// Parses the settings of a TOML text. The text and its values may be passwords. So an error
/// contains no part of them.
fn of_text(text: &str) -> Result<Settings, String> {
    let table: toml::Table = toml::from_str(text).map_err(|e: toml::de::Error| {
        let before = e.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column} is not TOML: {}", e.message())
    })?;
    let is_good = |(name, value): &(&String, &toml::Value)| {
        let alone = toml::Table::from_iter([((*name).clone(), (*value).clone())]);
        alone.try_into::<Settings>().is_ok()
    };
    if let Some((name, _)) = table.iter().find(|one| !is_good(one)) {
        return Err(format!("{name:?} is no setting, or its value has another form"));
    }
    table.try_into().map_err(|_| "the settings contradict each other".to_owned())
}

/// Deserializes one text or a list of texts.
fn texts<'de, D: Deserializer<'de>>(de: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(de)? {
        Either::One(text) => vec![text],
        Either::Many(texts) => texts,
    })
}

fn mapping(text: &str) -> Result<(String, String), String> {
    let (reported, reached) = text.split_once('=').ok_or("write host:port=host:port")?;
    Ok((reported.to_owned(), reached.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn layer(toml: &str) -> Settings {
        of_text(toml).expect("good settings")
    }

    #[test]
    fn a_layer_that_names_nodes_names_all_of_them() {
        let file = layer("urls = ['redis://a', 'redis://b']\nttl = '5s'\nembedded = false");
        let flags = Settings { urls: vec!["redis://c redis://d".into()], ..Settings::default() };
        let both = flags.over(file.clone());
        assert_eq!(both.urls().collect::<Vec<_>>(), ["redis://c", "redis://d"]);
        assert_eq!(both.ttl, Some(Span(Duration::from_secs(5))));
        assert!(!both.has_groups());
        assert_eq!(Settings::default().over(file).urls.len(), 2);
        let memory = Settings { embedded: true, ..Settings::default() };
        assert!(memory.over(layer("urls = 'sentinel://a,b/m'")).urls.is_empty());
    }

    /// A setting that a program has and the command line ignores makes the two reckon differently.
    #[test]
    fn every_setting_of_the_library_is_one_of_the_program_and_means_the_same() {
        let command = HandleArgs::augment_args(clap::Command::new("palisade"));
        let read: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_env).collect();
        for name in palisade::internal::SETTINGS {
            let variable = format!("PALISADE_{}", name.to_uppercase());
            let is_secret = [PASSWORD, SENTINEL_PASSWORD].contains(&&*variable);
            assert!(
                is_secret || read.iter().any(|name| name.to_str() == Some(&*variable)),
                "{variable}"
            );
        }
        let text = "urls = 'memory://a memory://b'\nttl = '20s'\nmax_ttl = '40s'\n\
                    node_deadline = '100ms'\nclock_error = '3s'\ndrift_ppm = 30000\n\
                    prefix = 'x:'\nallow_even_nodes = true";
        let program = toml::from_str::<palisade::Settings>(text).expect("good settings");
        let config = |of: palisade::Settings| of.build().expect("a handle").config().clone();
        let program = config(program);
        assert!(program.allow_even && program.drift.ppm() == 30_000, "{program:?}");
        assert_eq!(config(layer(text).library().expect("settings")), program);
        let no = Settings { allow_even_nodes: Some(false), ..Settings::default() };
        assert!(!no.over(layer(text)).library().expect("settings").allow_even_nodes);
    }

    #[test]
    fn no_error_about_a_file_shows_a_part_of_it() {
        for (text, words) in [
            ("urls = \"redis://:S3cret@h", "line 1, column"),
            ("ttl = 5\nurls = redis://:S3cret@h\n", "line 2, column"),
            ("urls = \"redis://:S3\\cret@h\"", "line 1, column"),
            ("urls = [\"redis://:S3cret@h\"\nttl = 5\n", "is not TOML"),
            ("urls = \"a\"\nurls = \"S3cret\"", "is not TOML"),
            ("urls = { url = \"redis://:S3cret@h\" }", "\"urls\" is no setting, or"),
            ("urls = [\"redis://:S3cret@h\", 5]", "\"urls\" is no setting, or"),
            ("ttl = \"S3cret\"", "\"ttl\" is no setting, or"),
            ("node = \"S3cret\"", "\"node\" is no setting, or"),
            ("map = [[\"S3cret\"]]", "\"map\" is no setting, or"),
            ("username = [\"S3cret\"]", "\"username\" is no setting, or"),
        ] {
            let why = of_text(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
            assert!(!why.contains("S3") && !why.contains("cret"), "{text}: {why}");
        }
    }

    #[test]
    fn a_layer_that_says_where_the_password_is_says_it_for_all_below() {
        let below = || layer("password_file = 'old'\nsentinel_password_file = 'old'");
        let flags = Settings { password_file: Some("new".into()), ..Settings::default() };
        let both = flags.over(below());
        assert_eq!(both.password_file, Some("new".into()));
        assert_eq!(both.sentinel_password_file, Some("old".into()));
    }
}
