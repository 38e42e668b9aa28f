//! Where the nodes are and how to log in: what every command is given.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args};
use palisade::ops::Deployment;

/// Said of every command that takes groups.
pub(crate) const SETS: &str = "\
Sentinels and masters go together in the order in which they are written: a master belongs to the
Sentinels named before it, and --sentinel after a --master begins another set.";

/// Said of every command.
pub(crate) const SECRETS: &str =
    "Passwords come from the environment or a file, never from the command line.";

#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// Sentinels that watch over the masters named after them; those not named are learned
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    sentinel: Vec<String>,
    /// Name of a master: a group, one node
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    master: Vec<String>,
    /// A lone server: `redis://host[:port]`, `rediss://…`, `unix://…` (seen in lists of processes)
    #[arg(long, value_name = "URL")]
    node: Vec<String>,
    /// Where an address that Sentinels tell is reached from here (NAT, names in certificates)
    #[arg(long, value_name = "TOLD=REACHED", value_parser = mapping)]
    map: Vec<(String, String)>,

    /// ACL user at the data servers
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    user: Option<String>,
    /// Environment variable with the data servers' password [default: `PALISADE_PASSWORD`]
    #[arg(long, value_name = "VAR", help_heading = "Login", conflicts_with = "password_file")]
    password_env: Option<String>,
    /// File with the data servers' password, as its first line
    #[arg(long, value_name = "FILE", help_heading = "Login")]
    password_file: Option<PathBuf>,
    /// ACL user at the Sentinels
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    sentinel_user: Option<String>,
    /// As --password-env, for the Sentinels [default: `PALISADE_SENTINEL_PASSWORD`]
    #[arg(
        long,
        value_name = "VAR",
        help_heading = "Login",
        conflicts_with = "sentinel_password_file"
    )]
    sentinel_password_env: Option<String>,
    /// As --password-file, for the Sentinels
    #[arg(long, value_name = "FILE", help_heading = "Login")]
    sentinel_password_file: Option<PathBuf>,

    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: TlsArgs,

    /// For each server and Sentinel, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    timeout: Duration,
}

/// Sentinels, and the masters that they watch over.
pub(crate) type Sets = Vec<(Vec<String>, Vec<String>)>;

#[cfg(feature = "tls")]
#[derive(Debug, Args)]
struct TlsArgs {
    /// TLS to the groups' data servers (a --node says it by rediss://)
    #[arg(help_heading = "TLS", long)]
    tls: bool,
    /// TLS to the Sentinels
    #[arg(help_heading = "TLS", long)]
    sentinel_tls: bool,
    /// Root certificate (PEM) in place of the system's
    #[arg(help_heading = "TLS", long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(help_heading = "TLS", long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(help_heading = "TLS", long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Sentinels with their masters, by the places at which they stand.
pub(crate) fn sets(matches: &ArgMatches) -> Sets {
    let placed = |name: &'static str| {
        let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
        let places = matches.indices_of(name).into_iter().flatten();
        places.zip(values).map(move |(at, value)| (at, (name, value)))
    };
    let all: BTreeMap<usize, (&str, String)> = placed("sentinel").chain(placed("master")).collect();
    let mut sets = Sets::new();
    for (what, value) in all.into_values() {
        let begins =
            sets.last().is_none_or(|(_, masters)| what == "sentinel" && !masters.is_empty());
        if begins {
            sets.push((Vec::new(), Vec::new()));
        }
        let (sentinels, masters) = sets.last_mut().expect("one was just made");
        if what == "sentinel" { sentinels.push(value) } else { masters.push(value) }
    }
    sets
}

impl AccessArgs {
    /// The nodes, as they were written.
    pub(crate) fn deployment(self, sets: Sets) -> Result<Deployment, String> {
        let mut deployment = Deployment::new().timeout(self.timeout);
        for (sentinels, masters) in sets {
            deployment = deployment.groups(sentinels, masters);
        }
        for url in self.node {
            deployment = deployment.node(url);
        }
        for (told, reached) in self.map {
            deployment = deployment.map_address(told, reached);
        }
        if let Some(name) = self.user {
            deployment = deployment.username(name);
        }
        if let Some(word) = secret(self.password_env, self.password_file, "PALISADE_PASSWORD")? {
            deployment = deployment.password(word);
        }
        if let Some(name) = self.sentinel_user {
            deployment = deployment.sentinel_username(name);
        }
        let (env, file) = (self.sentinel_password_env, self.sentinel_password_file);
        if let Some(word) = secret(env, file, "PALISADE_SENTINEL_PASSWORD")? {
            deployment = deployment.sentinel_password(word);
        }
        #[cfg(feature = "tls")]
        let deployment = self.tls.of(deployment)?;
        Ok(deployment)
    }
}

#[cfg(feature = "tls")]
impl TlsArgs {
    /// The same for `redis-cli`.
    fn by_hand(&self) -> String {
        let given = [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)];
        let words = given.iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let words: Vec<_> =
            words.map(|(name, path)| format!("{name} {}", path.display())).collect();
        words.join(" ")
    }

    fn of(self, mut deployment: Deployment) -> Result<Deployment, String> {
        // Of a program there is one provider; a library leaves the choice to its program.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = |path: &PathBuf| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let root = self.cacert.as_ref().map(pem).transpose()?;
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
            _ => None,
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
}

/// A password from a variable or a file; from the usual variable if neither is named.
fn secret(
    env: Option<String>,
    file: Option<PathBuf>,
    usual: &str,
) -> Result<Option<String>, String> {
    if let Some(path) = file {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(Some(text.lines().next().unwrap_or_default().to_owned()));
    }
    match env {
        Some(name) => {
            // The variable's content is never shown, also not where it is no text.
            let word =
                std::env::var(&name).map_err(|_| format!("${name} is not set, or no text"))?;
            Ok(Some(word))
        }
        None => Ok(std::env::var(usual).ok()),
    }
}

fn mapping(text: &str) -> Result<(String, String), String> {
    let (told, reached) = text.split_once('=').ok_or("write host:port=host:port")?;
    Ok((told.to_owned(), reached.to_owned()))
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds, as 2 or 0.5".to_owned())?;
    let span = Duration::try_from_secs_f64(number).map_err(|_| "out of range".to_owned())?;
    if span.is_zero() { Err("more than zero".to_owned()) } else { Ok(span) }
}
