//! Where the nodes are and how to log in: the options of every command.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args};
use palisade::Redlock;
use palisade_ops::{Deployment, Records};

use crate::codes::Fail;
use crate::settings::{Group, List, Settings, Span, Switch};

/// Help text of every command that takes groups.
pub(crate) const SETS: &str = "\
The order of --sentinel and --master matters: a master belongs to the Sentinels named before it, and
--sentinel after a --master begins another set.";

/// Help text of every command.
pub(crate) const SECRETS: &str = "\
Options that are not given are taken from the environment (PALISADE_NODE, PALISADE_SENTINEL,
PALISADE_MASTER, PALISADE_TTL, ..., the library's PALISADE_URLS), then from --config,
$PALISADE_CONFIG or /etc/palisade.toml.
Passwords come from the environment or a file, never from the command line.";

#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// Sentinels that monitor the masters named after them; they report the other Sentinels
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', help_heading = "Nodes")]
    sentinel: Vec<String>,
    /// Name of a master in the Sentinels; each group is one node
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Nodes")]
    master: Vec<String>,
    /// A lone server: `redis://host[:port]`, `rediss://…`, `unix://…` (visible in process lists);
    /// several are separated by commas
    #[arg(long, value_name = "URL", help_heading = "Nodes")]
    node: Vec<String>,
    /// Reach an address that Sentinels report at another one (NAT, names in certificates)
    #[arg(long, value_name = "REPORTED=REACHED", value_parser = mapping, help_heading = "Nodes")]
    map: Vec<(String, String)>,
    /// File with settings (TOML)
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    config: Option<PathBuf>,

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

    #[command(flatten)]
    tls: TlsArgs,

    /// Time-out for each server and Sentinel that is examined or changed [default: 2s]
    #[arg(long, value_name = "SPAN", help_heading = "Nodes")]
    timeout: Option<Span>,
}

#[derive(Debug, Args)]
struct TlsArgs {
    /// TLS to the groups' data servers (for a --node, write rediss://)
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

/// How locks are held over the nodes.
#[derive(Debug, Args)]
pub(crate) struct HandleArgs {
    #[command(flatten)]
    access: AccessArgs,

    /// Keep everything in this process's memory: protects from this one process only
    #[arg(long, help_heading = "Nodes", conflicts_with_all = ["node", "sentinel", "master"])]
    embedded: bool,
    /// Prefix of every name; the same in every program that shares the names
    #[arg(long, value_name = "TEXT", help_heading = "Nodes")]
    prefix: Option<String>,
    /// Length of the lease; it is renewed while the command runs [default: 15s]
    #[arg(long, value_name = "SPAN", help_heading = "Nodes")]
    ttl: Option<Span>,
    /// The longest lease of any client of these nodes [default: 15s, or --ttl if
    /// that is longer]
    #[arg(long, value_name = "SPAN", help_heading = "Nodes")]
    max_ttl: Option<Span>,
    /// How wrong any clock may be [default: 2s, at most a quarter of --max-ttl]
    #[arg(long, value_name = "SPAN", help_heading = "Nodes")]
    clock_error: Option<Span>,
    /// How long one node may take to answer [default: 250ms]
    #[arg(long, value_name = "SPAN", help_heading = "Nodes")]
    node_deadline: Option<Span>,
}

/// A handle over the nodes that the settings name.
pub(crate) struct Opened {
    pub(crate) redlock: Redlock,
    /// The servers; none if the nodes are in this process's memory.
    pub(crate) servers: Option<Deployment>,
    /// The environment variables that hold passwords.
    pub(crate) secrets: Vec<String>,
}

/// Sentinels, and the masters that they monitor.
pub(crate) type Sets = Vec<(Vec<String>, Vec<String>)>;

/// Sentinels with their masters, by their positions on the command line.
pub(crate) fn sets(matches: &ArgMatches) -> Sets {
    let placed = |name: &'static str| {
        let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
        let places = matches.indices_of(name).into_iter().flatten();
        places.zip(values).map(move |(at, value)| (at, (name, value)))
    };
    if matches.try_contains_id("sentinel").is_err() {
        return Sets::new();
    }
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
    /// The settings of the command line; those of the environment and the file fill the gaps.
    fn settings(self, sets: Sets, more: Settings) -> Result<Settings, String> {
        let group = |(sentinel, master)| Group { sentinel: List(sentinel), master: List(master) };
        let flags = Settings {
            node: List(self.node),
            group: sets.into_iter().map(group).collect(),
            map: self.map,
            timeout: self.timeout,
            user: self.user,
            password_env: self.password_env,
            password_file: self.password_file,
            sentinel_user: self.sentinel_user,
            sentinel_password_env: self.sentinel_password_env,
            sentinel_password_file: self.sentinel_password_file,
            tls: Switch(self.tls.tls),
            sentinel_tls: Switch(self.tls.sentinel_tls),
            cacert: self.tls.cacert,
            cert: self.tls.cert,
            key: self.tls.key,
            ..more
        };
        Settings::read(flags, self.config.as_deref())
    }

    /// The nodes, for people who operate them.
    pub(crate) fn deployment(self, sets: Sets) -> Result<Deployment, String> {
        self.settings(sets, Settings::default())?.deployment()
    }
}

impl AccessArgs {
    /// The one node that is handed over, and whether it is a group.
    pub(crate) fn group_or_lone(self, sets: Sets) -> Result<(Deployment, bool), String> {
        let settings = self.settings(sets, Settings::default())?;
        Ok((settings.deployment()?, settings.has_groups()))
    }

    /// The servers, and the prefix of the names that are looked for.
    pub(crate) fn servers(
        self,
        sets: Sets,
        prefix: Option<String>,
    ) -> Result<(Deployment, String), Fail> {
        let settings = self.settings(sets, Settings { prefix, ..Settings::default() })?;
        Ok((settings.servers()?, settings.prefix.unwrap_or_default()))
    }
}

impl HandleArgs {
    /// A handle over the nodes, the servers themselves if there are any, and the prefix.
    pub(crate) fn open(self, sets: Sets) -> Result<Opened, Fail> {
        let settings = self.settings(sets)?;
        let redlock = settings.redlock()?;
        let servers = if settings.embedded.0 { None } else { Some(settings.deployment()?) };
        Ok(Opened { redlock, servers, secrets: settings.secret_variables() })
    }

    /// The idempotency keys of a namespace, on the servers themselves.
    pub(crate) fn records(self, sets: Sets, namespace: &str) -> Result<Records, Fail> {
        let settings = self.settings(sets)?;
        if settings.embedded.0 {
            return Err(Fail::from("--embedded: there are no servers to look at".to_owned()));
        }
        let prefix = settings.prefix.as_deref().unwrap_or_default();
        Records::new(&settings.deployment()?, prefix, namespace)
            .map_err(|e| Fail::from(e.to_string()))
    }

    fn settings(self, sets: Sets) -> Result<Settings, Fail> {
        let more = Settings {
            embedded: Switch(self.embedded),
            prefix: self.prefix,
            ttl: self.ttl,
            max_ttl: self.max_ttl,
            clock_error: self.clock_error,
            node_deadline: self.node_deadline,
            ..Settings::default()
        };
        Ok(self.access.settings(sets, more)?)
    }
}

fn mapping(text: &str) -> Result<(String, String), String> {
    let (reported, reached) = text.split_once('=').ok_or("write host:port=host:port")?;
    Ok((reported.to_owned(), reached.to_owned()))
}

/// A span of time for the commands that have it in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(span)| span)
}
