//! What is written on the command line, and the doctor that follows from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use palisade::ops::doctor::{Doctor, checks};

/// Operates the nodes of palisade.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, arg_required_else_help = true)]
struct Palisade {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(Box<DoctorArgs>),
}

const EXAMPLES: &str = "\
Sentinels and masters go together in the order in which they are written: a master belongs to the
Sentinels named before it, and --sentinel after a --master begins another set.

  palisade doctor --sentinel s1:26379,s2:26379,s3:26379 --master orders-a
  palisade doctor --sentinel s1:26379,s2:26379 --master orders-a --master orders-b \\
                  --sentinel t1:26379,t2:26379 --master orders-c \\
                  --node redis://10.0.2.1 --json

Passwords come from the environment or a file, never from the command line. Exit code: 0 no
errors, 1 warnings (with --strict), 2 errors, 64 wrong use, 69 nothing could be reached.";

/// Examines a deployment: what would lose locks, why, and the command that mends it.
///
/// Reads only, but for a lock of a random name that is taken and released on each node.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "switches are independent of each other")]
struct DoctorArgs {
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

    /// ACL user whose rights are looked at, where --user is an operator [default: --user]
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    rights_of: Option<String>,

    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: TlsArgs,

    /// The application's lease in seconds (0.5 is possible): is a failover over before it ends?
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ttl: Option<Duration>,
    /// The application's longest lease in seconds, if it is not the library's default of 30
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_ttl: Option<Duration>,
    /// What the application says by `min_replicas(_, SECONDS)`, if it does
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_lag: Option<Duration>,
    /// For each server and Sentinel, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    timeout: Duration,
    /// Take no lock: write nothing anywhere
    #[arg(long)]
    no_probe: bool,
    /// Everything that was read and found, as JSON
    #[arg(long)]
    json: bool,
    /// Warnings fail, too (exit code 1)
    #[arg(long)]
    strict: bool,
    /// Only say which checks there are
    #[arg(long)]
    list: bool,
}

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

/// What to do, and in which order it was written.
pub(crate) struct Told {
    args: DoctorArgs,
    sets: Vec<(Vec<String>, Vec<String>)>,
}

/// Reads the command line.
pub(crate) fn read() -> Result<Told, clap::Error> {
    let matches = Palisade::command().try_get_matches()?;
    let Command::Doctor(args) = Palisade::from_arg_matches(&matches)?.command;
    let sets = matches.subcommand().map(|(_, m)| sets(m)).unwrap_or_default();
    Ok(Told { args: *args, sets })
}

/// Sentinels with their masters, by the places at which they stand.
fn sets(matches: &ArgMatches) -> Vec<(Vec<String>, Vec<String>)> {
    let placed = |name: &'static str| {
        let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
        let places = matches.indices_of(name).into_iter().flatten();
        places.zip(values).map(move |(at, value)| (at, (name, value)))
    };
    let all: BTreeMap<usize, (&str, String)> = placed("sentinel").chain(placed("master")).collect();
    let mut sets: Vec<(Vec<String>, Vec<String>)> = Vec::new();
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

impl Told {
    /// What to print and the exit code; an error is wrong use.
    pub(crate) fn run(self) -> Result<(String, u8), String> {
        if self.args.list {
            let line = |c: palisade::ops::doctor::About| {
                format!("{:<8} {:<26} {}\n", c.severity, c.id, c.title)
            };
            return Ok((checks().into_iter().map(line).collect(), 0));
        }
        let (json, strict) = (self.args.json, self.args.strict);
        let doctor = self.doctor()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| format!("no runtime: {e}"))?;
        let report = runtime.block_on(doctor.examine()).map_err(|e| e.to_string())?;
        let text = if json { report.to_json() + "\n" } else { report.to_string() };
        Ok((text, report.exit_code(strict)))
    }

    fn doctor(self) -> Result<Doctor, String> {
        let args = self.args;
        let mut doctor = Doctor::new().timeout(args.timeout).probe(!args.no_probe);
        for (sentinels, masters) in self.sets {
            doctor = doctor.groups(sentinels, masters);
        }
        for url in args.node {
            doctor = doctor.node(url);
        }
        if let Some(name) = args.rights_of {
            doctor = doctor.rights_of(name);
        }
        for (told, reached) in args.map {
            doctor = doctor.map_address(told, reached);
        }
        if let Some(name) = args.user {
            doctor = doctor.username(name);
        }
        if let Some(word) = secret(args.password_env, args.password_file, "PALISADE_PASSWORD")? {
            doctor = doctor.password(word);
        }
        if let Some(name) = args.sentinel_user {
            doctor = doctor.sentinel_username(name);
        }
        let (env, file) = (args.sentinel_password_env, args.sentinel_password_file);
        if let Some(word) = secret(env, file, "PALISADE_SENTINEL_PASSWORD")? {
            doctor = doctor.sentinel_password(word);
        }
        if let Some(ttl) = args.ttl {
            doctor = doctor.ttl(ttl);
        }
        if let Some(max_ttl) = args.max_ttl {
            doctor = doctor.max_ttl(max_ttl);
        }
        if let Some(max_lag) = args.max_lag {
            doctor = doctor.max_lag(max_lag);
        }
        #[cfg(feature = "tls")]
        let doctor = args.tls.of(doctor)?;
        Ok(doctor)
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

    fn of(self, mut doctor: Doctor) -> Result<Doctor, String> {
        // Of a program there is one provider; a library leaves the choice to its program.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = |path: &PathBuf| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let root = self.cacert.as_ref().map(pem).transpose()?;
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
            _ => None,
        };
        doctor = doctor.redis_cli(&self.by_hand());
        if self.tls {
            doctor = doctor.tls(root.clone(), client.clone());
        }
        if root.is_some() || client.is_some() {
            doctor = doctor.node_tls(root.clone(), client.clone());
        }
        if self.sentinel_tls {
            doctor = doctor.sentinel_tls(root, client);
        }
        Ok(doctor)
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

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds, as 2 or 0.5".to_owned())?;
    let span = Duration::try_from_secs_f64(number).map_err(|_| "out of range".to_owned())?;
    if span.is_zero() { Err("more than zero".to_owned()) } else { Ok(span) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Vec<(Vec<String>, Vec<String>)> {
        let words = line.split(' ');
        let matches = Palisade::command().try_get_matches_from(words).expect("a good line");
        sets(matches.subcommand().expect("doctor").1)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Palisade::command().debug_assert();
    }

    #[test]
    fn masters_belong_to_the_sentinels_before_them() {
        let sets = told(
            "palisade doctor --sentinel a:1,b:1 --sentinel c:1 --master x --master y,z \
             --node redis://h --sentinel d:1 --master x",
        );
        let want = [(vec!["a:1", "b:1", "c:1"], vec!["x", "y", "z"]), (vec!["d:1"], vec!["x"])];
        assert_eq!(sets.len(), want.len());
        for ((s, m), (ws, wm)) in sets.iter().zip(want) {
            assert_eq!(
                (s, m),
                (
                    &ws.iter().map(|t| (*t).to_owned()).collect(),
                    &wm.iter().map(|t| (*t).to_owned()).collect()
                )
            );
        }
        assert!(told("palisade doctor --node redis://h").is_empty());
    }
}
