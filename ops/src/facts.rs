//! What was read from the deployment. Checks use nothing else: all facts are gathered first, and a
//! test can make up any deployment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) use super::marker::{Kept, Marker};
use palisade::internal::LAG_SLACK;

/// Names with their values, as `INFO`, `CONFIG GET` and Sentinels report them.
pub(crate) type Fields = BTreeMap<String, String>;

/// An answer, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read<T> {
    Got(T),
    /// Not allowed, or not known there: "CONFIG not allowed".
    Closed(String),
    /// No answer before the deadline, a broken connection, garbage.
    Failed(String),
}

impl<T> Read<T> {
    /// The answer, or the reason as a finding shows it.
    pub(crate) fn known(&self) -> Result<&T, String> {
        match self {
            Self::Got(value) => Ok(value),
            Self::Closed(why) | Self::Failed(why) => Err(why.clone()),
        }
    }

    pub(crate) fn ok(&self) -> Option<&T> {
        self.known().ok()
    }
}

/// Everything that was read.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Sentinel-watched groups: one node each.
    pub(crate) groups: Vec<Group>,
    /// Lone servers: one node each.
    pub(crate) nodes: Vec<Server>,
    /// The application's longest lease.
    pub(crate) max_ttl: Duration,
    /// E, as the application has it.
    pub(crate) clock_error: Duration,
    /// A trial lock on each node and, if there are several, on all together.
    pub(crate) trials: Vec<Trial>,
}

/// A group as its Sentinels report it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Those given and those that they name.
    pub(crate) sentinels: Vec<Sentinel>,
    /// Those that a majority of the Sentinels names as master or replica.
    pub(crate) servers: Vec<Server>,
    /// Addresses that were named, but not by enough Sentinels to log in there, or too many.
    pub(crate) skipped: BTreeSet<String>,
}

/// One Sentinel, asked about one group.
#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    /// `host:port`, as it was asked.
    pub(crate) at: String,
    /// Named by the user, not by another Sentinel.
    pub(crate) given: bool,
    /// How to reach it by hand: `redis-cli -h 10.0.0.1 -p 26379`.
    pub(crate) hand: String,
    /// Connected and logged in.
    pub(crate) reached: Result<(), String>,
    /// `SENTINEL MYID`.
    pub(crate) id: Read<String>,
    /// `SENTINEL MASTER`.
    pub(crate) master: Read<Fields>,
    /// `SENTINEL REPLICAS`.
    pub(crate) replicas: Read<Vec<Fields>>,
    /// `SENTINEL SENTINELS`: the others.
    pub(crate) others: Read<Vec<Fields>>,
    /// `SENTINEL CKQUORUM`, also its refusals (`NOQUORUM …`).
    pub(crate) quorum: Read<String>,
}

/// A data server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// `host:port` or a socket's path, as it was asked.
    pub(crate) at: String,
    /// Named by the user, not by a Sentinel.
    pub(crate) given: bool,
    /// How to reach it by hand: `redis-cli -h 10.0.0.1 -p 6379`.
    pub(crate) hand: String,
    /// Connected and logged in.
    pub(crate) reached: Result<(), String>,
    /// `ROLE`.
    pub(crate) role: Read<Role>,
    /// `INFO`, the default sections.
    pub(crate) info: Read<Fields>,
    /// `CONFIG GET` of [`SETTINGS`].
    pub(crate) config: Read<Fields>,
    /// `TIME` against this machine's wall clock.
    pub(crate) clock: Read<Clock>,
    /// What palisade keeps on it for itself.
    pub(crate) marker: Read<Marker>,
    /// `ACL WHOAMI`.
    pub(crate) user: Read<String>,
    /// `ACL DRYRUN` of what the library sends: the command and, if it may not be sent, why.
    pub(crate) may: Read<Vec<(String, Option<String>)>>,
    /// `ACL DRYRUN` of [`REPLAYED`] for the user `default`: why it may not, if so.
    pub(crate) replays: Read<Option<String>>,
}

/// What an append-only file holds, as the user `default` replays it.
pub(crate) const REPLAYED: &str = "SET palisade:doctor x";

/// The settings that are read. `CONFIG GET *` would also bring the passwords.
pub(crate) const SETTINGS: &[&str] =
    &["min-replicas-to-write", "min-replicas-max-lag", "appendfsync", "save", "replica-priority"];

/// What the library sends to a data server, as `ACL DRYRUN` is asked about it.
pub(crate) const COMMANDS: &[&str] = &[
    "EVALSHA 0000000000000000000000000000000000000000 1 palisade:generation",
    "SCRIPT LOAD x",
    "HELLO 3",
    "SELECT 0",
    "INFO replication",
    "TIME",
    "WAIT 0 0",
    "GET palisade:doctor",
    "MGET palisade:doctor",
    "EXISTS palisade:doctor",
    "SET palisade:doctor x",
    "DEL palisade:doctor",
    "PEXPIRE palisade:doctor 1",
    "PTTL palisade:doctor",
    "HSET palisade:doctor x x",
    "HMGET palisade:doctor x",
    "HSTRLEN palisade:doctor x",
    "GETRANGE palisade:doctor 0 1",
    "HDEL palisade:doctor x",
    "PUBLISH palisade:changed:x x",
    "SUBSCRIBE palisade:changed:x",
];

/// What a server says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Replica { master: String },
    Sentinel,
}

/// A server's wall clock against this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Microseconds it is ahead; negative: behind.
    pub(crate) ahead: i64,
    /// It may be more or less by so many microseconds: half of the round trip.
    pub(crate) error: u64,
}

/// The result of a trial lock.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The node's name, or `all nodes`.
    pub(crate) subject: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Granted and released; how long each took.
    Granted { granted: Duration, released: Duration },
    /// Granted, but the release was not confirmed.
    NotReleased(String),
    /// It grants nothing for so long, as after every restart or failover.
    Quarantined(Duration),
    /// Refused, with the cause; whether a person has to change a setting.
    Refused { why: String, misconfigured: bool },
}

impl Facts {
    /// Every data server with its name in findings.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (String, &Server)> {
        let named = |of: &str, s: &Server| format!("{of} {}", s.at);
        let of_group = move |g: &Group, s| (named(&g.name, s), s);
        let of_groups =
            self.groups.iter().flat_map(move |g| g.servers.iter().map(move |s| of_group(g, s)));
        of_groups.chain(self.nodes.iter().map(move |s| (named("node", s), s)))
    }

    /// The same of those that were reached.
    pub(crate) fn reached(&self) -> impl Iterator<Item = (String, &Server)> {
        self.servers().filter(|(_, s)| s.reached.is_ok())
    }

    /// Every node with the server that speaks for it now, if it was reached.
    pub(crate) fn masters(&self) -> impl Iterator<Item = (String, &Server)> {
        let of_groups = self.groups.iter().filter_map(|g| Some((g.name.clone(), g.master()?)));
        let all = of_groups.chain(self.nodes.iter().map(|s| (format!("node {}", s.at), s)));
        let is_master = |s: &Server| !matches!(s.role.ok(), Some(Role::Replica { .. }));
        all.filter(move |(_, s)| s.reached.is_ok() && is_master(s))
    }

    /// Whether anything at all could be reached.
    pub(crate) fn any_reached(&self) -> bool {
        self.reached().next().is_some() || self.groups.iter().any(|g| g.heard().next().is_some())
    }
}

impl Group {
    /// The Sentinels that could be reached.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &Sentinel> {
        self.sentinels.iter().filter(|s| s.reached.is_ok())
    }

    /// Whether a majority of the Sentinels names this address. Commands to paste contain no others.
    pub(crate) fn is_agreed(&self, at: &str) -> bool {
        let names = |s: &&Sentinel| {
            let lists = [s.replicas.ok(), s.others.ok()].into_iter().flatten().flatten();
            s.master.ok().into_iter().chain(lists).any(|f| place(f).as_deref() == Some(at))
        };
        let votes = self.heard().filter(names).count();
        votes >= majority(&self.sentinels)
    }

    /// The master that most Sentinels name, of the servers that a majority names at all.
    pub(crate) fn master_at(&self) -> Option<String> {
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        for at in self.heard().filter_map(Sentinel::master_at) {
            if self.servers.iter().any(|s| s.at == at) {
                *votes.entry(at).or_default() += 1;
            }
        }
        votes.into_iter().max_by_key(|(_, n)| *n).map(|(at, _)| at)
    }

    pub(crate) fn master(&self) -> Option<&Server> {
        let at = self.master_at()?;
        self.servers.iter().find(|s| s.at == at)
    }

    /// All servers but the master.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Server> {
        let master = self.master_at();
        self.servers.iter().filter(move |s| Some(&s.at) != master.as_ref())
    }

    /// The servers that could be reached.
    pub(crate) fn reached(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|s| s.reached.is_ok())
    }

    /// L: for how long a replaced master may go on granting, whichever of the servers it was.
    pub(crate) fn window(&self) -> Result<Duration, String> {
        let lags: Vec<u64> =
            self.reached().map(|s| s.number("min-replicas-max-lag")).collect::<Result<_, _>>()?;
        let longest = lags.into_iter().max().ok_or("no server was reached")?;
        Ok(Duration::from_secs(longest).saturating_add(LAG_SLACK))
    }

    /// The shortest `down-after-milliseconds` of any Sentinel.
    pub(crate) fn down_after(&self) -> Option<Duration> {
        let all = self.heard().filter_map(|s| s.number("down-after-milliseconds"));
        all.min().map(Duration::from_millis)
    }
}

impl Sentinel {
    /// Its name in findings.
    pub(crate) fn subject(&self, of: &Group) -> String {
        format!("{} Sentinel {}", of.name, self.at)
    }

    /// A number in `SENTINEL MASTER`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.master.ok()?.get(name)?.parse().ok()
    }

    /// The quorum, and how many other Sentinels it knows; or why that is unknown.
    pub(crate) fn counts(&self) -> Result<(u64, u64), String> {
        self.master.known()?;
        let number = |name| self.number(name).ok_or_else(|| format!("the Sentinel sent no {name}"));
        Ok((number("quorum")?, number("num-other-sentinels")?))
    }

    /// The master that it names.
    pub(crate) fn master_at(&self) -> Option<String> {
        place(self.master.ok()?)
    }

    /// A command to it as a person would type it.
    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }
}

impl Server {
    /// A setting, or why it is unknown.
    pub(crate) fn setting(&self, name: &str) -> Result<&str, String> {
        let all = self.config.known()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("this server has no {name}"))
    }

    /// A setting that is a number, or why it is unknown.
    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.setting(name)?;
        text.parse().map_err(|_| format!("{name} is {text:?}, not a number"))
    }

    /// A line of `INFO`, or why it is unknown.
    pub(crate) fn info(&self, name: &str) -> Result<&str, String> {
        let all = self.info.known()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("INFO has no {name}"))
    }

    /// `INFO` as it was sent, in another order.
    pub(crate) fn info_text(&self) -> Result<String, String> {
        let all = self.info.known()?;
        let lines = all.iter().flat_map(|(name, value)| [name, ":", value, "\r\n"]);
        Ok(lines.collect())
    }

    /// The replicas in its `INFO`: `ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0`.
    pub(crate) fn replica_lines(&self) -> impl Iterator<Item = BTreeMap<&str, &str>> {
        let lines = (0..).map_while(|n| self.info(&format!("slave{n}")).ok());
        lines.map(|line| line.split(',').filter_map(|pair| pair.split_once('=')).collect())
    }

    /// A command to it as a person would type it.
    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }

    /// The commands that change a setting now and for the next start.
    pub(crate) fn set(&self, name: &str, value: &str) -> Vec<String> {
        vec![self.by_hand(&format!("CONFIG SET {name} {value}")), self.by_hand("CONFIG REWRITE")]
    }
}

/// How many Sentinels are a majority. Sentinels that do not answer count, unless only other
/// Sentinels name them: those may be long gone.
pub(crate) fn majority(sentinels: &[Sentinel]) -> usize {
    sentinels.iter().filter(|s| s.given || s.reached.is_ok()).count() / 2 + 1
}

/// `host:port` of what a Sentinel describes.
pub(crate) fn place(fields: &Fields) -> Option<String> {
    let (host, port) = (fields.get("ip")?, fields.get("port")?);
    let number = port.bytes().all(|b| b.is_ascii_digit());
    (is_plain(host) && is_plain(port) && number).then(|| join(host, port))
}

/// Whether a text is safe in a command line without quotes. Text from servers goes into commands
/// that people paste, so other host and user names are rejected.
pub(crate) fn is_plain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:%@+=,/-".contains(&b);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

/// Host and port as one, an IPv6 address in brackets.
pub(crate) fn join(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host of `host:port`.
pub(crate) fn host_of(at: &str) -> &str {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether a Sentinel's flags (`slave,s_down`) hold this one.
pub(crate) fn flagged(fields: &Fields, flag: &str) -> bool {
    fields.get("flags").is_some_and(|all| all.split(',').any(|f| f == flag))
}
