//! Settings from the command line, the environment and a file. If several of them contain a
//! setting, the first of them decides. The settings have the names of the library's settings:
//! `--ttl` is `PALISADE_TTL` in the environment and `ttl` in the file.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, value_parser};
use palisade::internal::variable;
use palisade::{Redlock, Settings};
use palisade_ops::{Deployment, Records};

use crate::codes::Fail;

/// Text at the end of each command's help.
pub(crate) const SECRETS: &str = "\
Options that are not given are taken from the environment (PALISADE_URLS, PALISADE_TTL, ...), then
from --config, $PALISADE_CONFIG or /etc/palisade.toml (urls, ttl, ...). Passwords come from the
environment (PALISADE_PASSWORD, PALISADE_SENTINEL_PASSWORD) or a file, never from the command
line.";

/// Path of the default file. The file is read if it exists.
const FILE: &str = "/etc/palisade.toml";

/// The node of `--embedded`.
const EMBEDDED: &str = "memory://";

/// Error text for a call without a node.
const START: &str = "no server is named: start one with `redis-server` and add `--node \
                     redis://127.0.0.1` (or set PALISADE_URLS), or use `--embedded`, which \
                     protects from this one process only";
/// Error text for a call without a node, if the command reads or changes the servers' data.
const WHICH: &str = "no server is named: add `--node redis://HOST:PORT` for each, or `--node \
                     sentinel://…` (or set PALISADE_URLS), with the URLs that your programs use";
const NO_SERVERS: &str = "--embedded: there are no servers to look at";

/// The name of a setting of the library, the name of its value, and its help.
type Setting = (&'static str, &'static str, &'static str);

const NODES: [Setting; 10] = [
    (
        "urls",
        "URL",
        "A node: `redis://host[:port]`, `rediss://…`, `unix://…`, a group as \
         `sentinel://host,host,host/master`, or a cluster as `cluster://host,host`; give it once \
         for each node (visible in process lists)",
    ),
    (
        "map",
        "REPORTED=REACHED",
        "Replace an address that Sentinels report by another one (NAT, names in certificates)",
    ),
    ("ttl", "SPAN", "Length of the lease, which is renewed while a command runs [default: 15s]"),
    (
        "max_ttl",
        "SPAN",
        "Longest lease of any client of these nodes [default: 15s, or --ttl if that is longer]",
    ),
    (
        "clock_error",
        "SPAN",
        "Largest error of any clock [default: 2s, at most a quarter of --max-ttl]",
    ),
    ("node_deadline", "SPAN", "Maximum time for one node's reply [default: 250ms]"),
    (
        "drift_ppm",
        "PPM",
        "Largest error of the rate of a node's clock, in parts per million [default: 10000, 1 %]",
    ),
    (FLAG, "BOOL", "Accept an even number of nodes, as programs with `allow_even_nodes` do"),
    (
        "deployment",
        "ID",
        "Id of the deployment, 16 hexadecimal digits: nodes with other data are refused, and \
         `init` gives it to new nodes",
    ),
    (
        "timeout",
        "SPAN",
        "Time-out for each server and Sentinel that is examined or changed [default: 2s]",
    ),
];
const LOGIN: [Setting; 4] = [
    ("username", "NAME", "ACL user at the data servers"),
    ("password_file", "FILE", "File with the data servers' password, as its first line"),
    ("sentinel_username", "NAME", "ACL user at the Sentinels"),
    ("sentinel_password_file", "FILE", "File with the Sentinels' password, as its first line"),
];
const TLS: [Setting; 3] = [
    (
        "cacert",
        "FILE",
        "Root certificate (PEM) in place of the system's. Addresses select TLS: `rediss://…`, \
         `sentinel://…/master?tls=true&sentinel_tls=true`",
    ),
    ("cert", "FILE", "Client certificate (PEM)"),
    ("key", "FILE", "Key of the client certificate (PEM)"),
];
const FLAG: &str = "allow_even_nodes";

/// The settings on the command line, which several commands share.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodesArgs {
    given: Vec<(&'static str, String)>,
    config: Option<PathBuf>,
}

impl Args for NodesArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let config = Arg::new("config").long("config").value_name("FILE").env("PALISADE_CONFIG");
        let config = config.value_parser(value_parser!(PathBuf)).help("File with settings (TOML)");
        let all = [("Nodes", &NODES[..]), ("Login", &LOGIN), ("TLS", &TLS)];
        let command = all.iter().fold(command, |command, (heading, all)| {
            command.args(all.iter().map(|of| option(of).help_heading(*heading)))
        });
        command.arg(config.help_heading("Nodes"))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// The environment is shown in the help, and read by the library.
fn option((name, value, help): &Setting) -> Arg {
    let long = if *name == "urls" { "node".to_owned() } else { name.replace('_', "-") };
    let arg = Arg::new(*name).long(long).value_name(*value).help(*help);
    let arg = arg.env(variable(name)).hide_env_values(true);
    match *name {
        "urls" | "map" => arg.action(ArgAction::Append),
        FLAG => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    }
}

impl FromArgMatches for NodesArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_written = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let all = NODES.iter().chain(&LOGIN).chain(&TLS);
        let given = all.filter(|(name, ..)| is_written(name)).map(|(name, ..)| {
            let words = matches.get_many::<String>(name).into_iter().flatten();
            (*name, words.map(String::as_str).collect::<Vec<_>>().join(" "))
        });
        Ok(Self { given: given.collect(), config: matches.get_one("config").cloned() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Settings of the handle: the nodes, and the leases on them.
#[derive(Debug, Args)]
pub(crate) struct HandleArgs {
    #[command(flatten)]
    settings: NodesArgs,
    /// Keep all data in this process's memory: the locks work only within this one process
    #[arg(long, help_heading = "Nodes", conflicts_with = "urls")]
    embedded: bool,
    /// Prefix of every name; the same in every program that shares the names
    #[arg(long, value_name = "TEXT", env = "PALISADE_PREFIX", help_heading = "Nodes")]
    prefix: Option<String>,
}

impl NodesArgs {
    /// On the command line.
    pub(crate) fn names_nodes(&self) -> bool {
        self.given.iter().any(|(name, _)| *name == "urls")
    }

    /// Returns the settings of the command line. Missing ones are taken from the environment, and
    /// then from the file.
    pub(crate) fn settings(self) -> Result<Settings, Fail> {
        let file = match &self.config {
            Some(path) if !path.is_file() => {
                let path = path.display();
                let why = format!("{path}: no such file; correct --config or $PALISADE_CONFIG");
                return Err(Fail::from(why));
            }
            Some(path) => from_file(path)?,
            None if Path::new(FILE).is_file() => from_file(Path::new(FILE))?,
            None => Settings::default(),
        };
        let mut settings = file.with_env()?;
        for (name, text) in &self.given {
            settings.set(name, text)?;
        }
        Ok(settings)
    }

    pub(crate) fn deployment(self) -> Result<Deployment, Fail> {
        Ok(deployment(&self.settings()?))
    }
}

/// Returns the nodes, for the commands that operate them, and for a handle.
pub(crate) fn deployment(settings: &Settings) -> Deployment {
    let mut settings = settings.clone();
    // Other clients of the nodes may have longer leases than this client. So a short `ttl` does
    // not reduce `max_ttl`.
    let longest = settings.ttl.map(|ttl| ttl.max(palisade::Config::default().max_ttl));
    settings.max_ttl = settings.max_ttl.or(longest);
    Deployment::of(settings)
}

impl HandleArgs {
    pub(crate) fn settings(self) -> Result<Settings, Fail> {
        let mut settings = self.settings.settings()?;
        if self.embedded {
            settings.set("urls", EMBEDDED)?;
        }
        // A variable that is set to nothing takes nothing away, but an option does.
        let unset = std::env::var_os(variable("prefix")).is_some_and(|text| text.is_empty());
        let prefix = self.prefix.filter(|text| !(unset && text.is_empty()));
        settings.prefix = prefix.or(settings.prefix);
        Ok(settings)
    }

    /// Returns the servers, and the prefix of the names that the command reads.
    pub(crate) fn servers(self) -> Result<(Deployment, String), Fail> {
        let settings = self.settings()?;
        if is_embedded(&settings) {
            return Err(Fail::from(NO_SERVERS.to_owned()));
        }
        if settings.urls.is_empty() {
            return Err(Fail::from(WHICH.to_owned()));
        }
        Ok((deployment(&settings), settings.prefix.unwrap_or_default()))
    }

    /// Returns access to the idempotency keys of a namespace on the servers.
    pub(crate) fn records(self, namespace: &str) -> Result<Records, Fail> {
        let (deployment, prefix) = self.servers()?;
        Ok(Records::new(&deployment, &prefix, namespace)?)
    }
}

/// Returns true if all data are in this process's memory.
pub(crate) fn is_embedded(settings: &Settings) -> bool {
    settings.urls == [EMBEDDED]
}

/// Builds a handle, the client of the nodes.
pub(crate) fn redlock(settings: &Settings) -> Result<Redlock, Fail> {
    if settings.urls.is_empty() {
        return Err(Fail::from(START.to_owned()));
    }
    Ok(deployment(settings).handle()?.build()?)
}

fn from_file(path: &Path) -> Result<Settings, String> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
    of_text(&text).map_err(|why| format!("{file}: {why}"))
}

/// Parses the settings of a TOML text. The text and its values may be passwords. So an error
/// contains no part of them.
fn of_text(text: &str) -> Result<Settings, String> {
    let mut table: toml::Table = toml::from_str(text).map_err(|e: toml::de::Error| {
        let before = e.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column} is not TOML: {}", e.message())
    })?;
    match table.remove("embedded") {
        Some(toml::Value::Boolean(true)) => drop(table.insert("urls".to_owned(), EMBEDDED.into())),
        Some(toml::Value::Boolean(false)) | None => {}
        Some(_) => return Err("\"embedded\" is true or false".to_owned()),
    }
    let is_good = |(name, value): &(&String, &toml::Value)| {
        let alone = toml::Table::from_iter([((*name).clone(), (*value).clone())]);
        alone.try_into::<Settings>().is_ok()
    };
    if let Some((name, _)) = table.iter().find(|one| !is_good(one)) {
        return Err(format!("{name:?} is no setting, or its value has another form"));
    }
    table.try_into().map_err(|_| "the settings contradict each other".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn with(args: &[&str], file: &str) -> Settings {
        let command = NodesArgs::augment_args(clap::Command::new("palisade"));
        let matches = command.get_matches_from([&["palisade"], args].concat());
        let args = NodesArgs::from_arg_matches(&matches).expect("good options");
        let mut settings = of_text(file).expect("good settings");
        for (name, text) in &args.given {
            settings.set(name, text).expect("a form");
        }
        settings
    }

    #[test]
    fn a_layer_that_names_nodes_names_all_of_them() {
        let file = "urls = ['redis://a', 'redis://b']\nttl = '5s'\nembedded = false";
        let both = with(&["--node", "redis://c redis://d", "--node", "redis://e"], file);
        assert_eq!(both.urls, ["redis://c", "redis://d", "redis://e"]);
        assert_eq!(both.ttl, Some(Duration::from_secs(5)));
        assert_eq!(with(&[], file).urls.len(), 2);
        assert!(is_embedded(&with(&[], "embedded = true")));
        let map = with(&["--map", "a:1=b:2", "--map=c:1=d:2"], "map = [['e:1', 'f:1']]").map;
        assert_eq!(map, [("a:1", "b:2"), ("c:1", "d:2")].map(|(a, b)| (a.into(), b.into())));
    }

    /// A setting that a program has and the command line ignores makes the two reckon differently.
    #[test]
    fn every_setting_of_the_library_is_one_of_the_program_and_means_the_same() {
        let command = HandleArgs::augment_args(clap::Command::new("palisade"));
        let read: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_env).collect();
        for name in palisade::internal::SETTINGS {
            let is_secret = ["password", "sentinel_password"].contains(&name);
            assert!(
                is_secret || read.iter().any(|read| read.to_str() == Some(&*variable(name))),
                "{name}"
            );
        }
        let args = ["--allow-even-nodes", "--drift-ppm", "30000", "--ttl", "20s"];
        let given = with(&args, "urls = 'memory://a memory://b'\nmax_ttl = '40s'\nprefix = 'x:'");
        let config = deployment(&given).handle().expect("settings").build().expect("a handle");
        let config = config.config().clone();
        assert!(config.allow_even && config.drift.ppm() == 30_000, "{config:?}");
        assert_eq!((config.ttl.as_secs(), config.max_ttl.as_secs()), (20, 40));
        assert!(!with(&["--allow-even-nodes=false"], "allow_even_nodes = true").allow_even_nodes);
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
        let below = "password_file = 'old'\nsentinel_password_file = 'old'";
        let both = with(&["--password-file", "new"], below);
        assert_eq!(both.password_file, Some("new".into()));
        assert_eq!(both.sentinel_password_file, Some("old".into()));
        let mut of_environment = both;
        of_environment.set("password", "pw").expect("any text");
        assert_eq!(of_environment.password_file, None);
    }
}
