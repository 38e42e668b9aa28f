//! The facts: the values that the doctor read from the servers before the checks run. Checks use
//! nothing else, so a test can make up any deployment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::backlog::TTL;
use super::login::Hand;
pub(crate) use super::marker::KeptData;
use palisade::internal::MinReplicasRule;

/// As in the answers to `INFO`, `CONFIG GET` and Sentinel commands.
pub(crate) type Fields = BTreeMap<String, String>;

pub(crate) type Read<T> = Result<T, Unread>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Such as "CONFIG not allowed".
    Closed(String),
    /// The answer did not arrive before the deadline, the connection broke, or the answer could not
    /// be parsed.
    Failed(String),
}

pub(crate) fn unreached<T>() -> Read<T> {
    Err(Unread::Failed("not reached".to_owned()))
}

impl From<Unread> for String {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Closed(why) | Unread::Failed(why) => why,
        }
    }
}

impl From<&Unread> for String {
    fn from(unread: &Unread) -> Self {
        unread.clone().into()
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Closed(why) | Self::Failed(why)) = self;
        f.write_str(why)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) groups: Vec<Group>,
    pub(crate) nodes: Vec<Server>,
    pub(crate) max_ttl: Duration,
    pub(crate) clock_error: Duration,
    /// On each node and, if there are several, on all together.
    pub(crate) trials: Vec<Trial>,
}

/// As its Sentinels report it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) rule: MinReplicasRule,
    pub(crate) hand: Hand,
    /// Those that the user named, and those that a majority of the named ones report.
    pub(crate) sentinels: Vec<Sentinel>,
    /// Those that a majority of the Sentinels report as master or replica.
    pub(crate) servers: Vec<Server>,
    /// Too few Sentinels report them, so no login is sent there, or there are too many.
    pub(crate) skipped: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    /// `host:port`.
    pub(crate) at: String,
    /// The user named it.
    pub(crate) given: bool,
    /// `redis-cli -h 10.0.0.1 -p 26379`.
    pub(crate) hand: String,
    pub(crate) tls: bool,
    /// `Ok` if the login succeeded, too.
    pub(crate) reached: Result<(), String>,
    /// Answer to `SENTINEL MYID`.
    pub(crate) id: Read<String>,
    /// Answer to `SENTINEL MASTER`.
    pub(crate) master: Read<Fields>,
    /// Answer to `SENTINEL REPLICAS`.
    pub(crate) replicas: Read<Vec<Fields>>,
    /// Answer to `SENTINEL SENTINELS`: the other Sentinels.
    pub(crate) others: Read<Vec<Fields>>,
    /// The errors `NOQUORUM …` and `NOGOODSLAVE …` count as answers.
    pub(crate) quorum: Read<String>,
    /// A Sentinel in tilt accepts requests and acts on none.
    pub(crate) tilt: Read<bool>,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// `host:port` or the path of a socket.
    pub(crate) at: String,
    /// The user named it.
    pub(crate) given: bool,
    /// `redis-cli -h 10.0.0.1 -p 6379`.
    pub(crate) hand: String,
    pub(crate) tls: bool,
    pub(crate) allows_eviction: bool,
    /// By the settings; zero for a server of a group.
    pub(crate) window: Duration,
    /// `Ok` if the login succeeded, too.
    pub(crate) reached: Result<(), String>,
    /// Answer to `ROLE`.
    pub(crate) role: Read<Role>,
    /// Answer to `INFO`.
    pub(crate) info: Read<Fields>,
    /// `cmdstat_config|resetstat` of `INFO commandstats`.
    pub(crate) was_reset: Read<bool>,
    /// For each of the [`SETTINGS`].
    pub(crate) config: Read<Fields>,
    /// Against this machine's wall clock.
    pub(crate) clock: Read<Clock>,
    /// `None` if the server has no marker.
    pub(crate) marker: Read<Option<KeptData>>,
    /// Whose rights are in `may`.
    pub(crate) user: Read<String>,
    /// Each command of the library with the reason for which `ACL DRYRUN` refuses it.
    pub(crate) may: Read<Vec<(String, Option<String>)>>,
    /// Answer to `ACL DRYRUN` of [`REPLAYED`] for the user `default`.
    pub(crate) replays: Read<Option<String>>,
}

/// A server that loads its append-only file runs its commands with the rights of `default`.
pub(crate) const REPLAYED: &str = "SET palisade:doctor x";

/// Each is read by its name: `CONFIG GET *` would also return the passwords.
pub(crate) const SETTINGS: &[&str] = &[
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "appendfsync",
    "save",
    "replica-priority",
    "port",
    "tls-replication",
    TTL,
];

/// As arguments of `ACL DRYRUN`.
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
    "PEXPIREAT palisade:doctor 1",
    "PTTL palisade:doctor",
    "HSET palisade:doctor x x",
    "HMGET palisade:doctor x",
    "HSTRLEN palisade:doctor x",
    "GETRANGE palisade:doctor 0 1",
    "HDEL palisade:doctor x",
    "ZADD palisade:doctor 1 x",
    "ZREM palisade:doctor x",
    "ZRANGE palisade:doctor 0 0",
    "ZCARD palisade:doctor",
    "ZSCORE palisade:doctor x",
    "ZREMRANGEBYSCORE palisade:doctor 0 0",
    "PUBLISH palisade:changed:x x",
    "SUBSCRIBE palisade:changed:x",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Replica { master: String },
    Sentinel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// In µs, against this machine's clock; negative if the server's is behind.
    pub(crate) ahead: i64,
    /// In µs: half of the round trip.
    pub(crate) error: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// `nodes` for all nodes together.
    pub(crate) subject: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted {
        granted: Duration,
        released: Duration,
    },
    /// No node confirmed the release.
    NotReleased(String),
    /// The node is in quarantine, as after every restart or failover, and grants nothing for this
    /// time.
    Quarantined(Duration),
    /// `misconfigured`: a person has to change a setting.
    Refused {
        why: String,
        misconfigured: bool,
    },
}

impl Facts {
    pub(crate) fn servers(&self) -> impl Iterator<Item = (String, &Server)> {
        let named = |of: &str, s: &Server| format!("{of} {}", s.at);
        let of_group = move |g: &Group, s| (named(&g.name, s), s);
        let of_groups =
            self.groups.iter().flat_map(move |g| g.servers.iter().map(move |s| of_group(g, s)));
        of_groups.chain(self.nodes.iter().map(move |s| (named("node", s), s)))
    }

    pub(crate) fn reached(&self) -> impl Iterator<Item = (String, &Server)> {
        self.servers().filter(|(_, s)| s.reached.is_ok())
    }

    /// Without masters that were not reached.
    pub(crate) fn masters(&self) -> impl Iterator<Item = (String, &Server)> {
        let of_groups = self.groups.iter().filter_map(|g| Some((g.name.clone(), g.master()?)));
        let all = of_groups.chain(self.nodes.iter().map(|s| (format!("node {}", s.at), s)));
        let is_master = |s: &Server| !matches!(s.role, Ok(Role::Replica { .. }));
        all.filter(move |(_, s)| s.reached.is_ok() && is_master(s))
    }

    pub(crate) fn any_reached(&self) -> bool {
        self.reached().next().is_some() || self.groups.iter().any(|g| g.heard().next().is_some())
    }
}

impl Group {
    pub(crate) fn heard(&self) -> impl Iterator<Item = &Sentinel> {
        self.sentinels.iter().filter(|s| s.reached.is_ok())
    }

    /// Commands to paste contain no other addresses.
    pub(crate) fn is_agreed(&self, at: &str) -> bool {
        let names = |s: &&Sentinel| {
            let lists = [&s.replicas, &s.others].into_iter().flatten().flatten();
            s.master.iter().chain(lists).any(|f| place(f).as_deref() == Some(at))
        };
        let votes = self.heard().filter(names).count();
        votes >= majority(&self.sentinels)
    }

    /// If it is the address of a server of the group.
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

    pub(crate) fn reached(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|s| s.reached.is_ok())
    }

    /// As a client reckons it: any server of the group may have been the replaced master.
    pub(crate) fn window(&self) -> Duration {
        let lag = |server: &Server| server.number("min-replicas-max-lag").map(Duration::from_secs);
        match self.reached().map(lag).collect::<Result<Vec<_>, _>>() {
            Ok(lags) if !lags.is_empty() => self.rule.group_window(Duration::ZERO, lags),
            _ => self.rule.unread(),
        }
    }

    /// For a client that may not have read the servers' settings.
    pub(crate) fn longest_window(&self) -> Duration {
        self.window().max(self.rule.unread())
    }

    pub(crate) fn down_after(&self) -> Option<Duration> {
        let all = self.heard().filter_map(|s| s.number("down-after-milliseconds"));
        all.min().map(Duration::from_millis)
    }
}

impl Sentinel {
    pub(crate) fn subject(&self, of: &Group) -> String {
        format!("{} Sentinel {}", of.name, self.at)
    }

    /// A field of `SENTINEL MASTER`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.master.as_ref().ok()?.get(name)?.parse().ok()
    }

    pub(crate) fn counts(&self) -> Result<(u64, u64), String> {
        self.master.as_ref()?;
        let number = |name| self.number(name).ok_or_else(|| format!("the Sentinel sent no {name}"));
        Ok((number("quorum")?, number("num-other-sentinels")?))
    }

    pub(crate) fn master_at(&self) -> Option<String> {
        place(self.master.as_ref().ok()?)
    }

    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }
}

impl Server {
    pub(crate) fn setting(&self, name: &str) -> Result<&str, String> {
        let all = self.config.as_ref()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("this server has no {name}"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.setting(name)?;
        text.parse().map_err(|_| format!("{name} is {text:?}, not a number"))
    }

    pub(crate) fn info(&self, name: &str) -> Result<&str, String> {
        let all = self.info.as_ref()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("INFO has no {name}"))
    }

    /// The lines are in another order than in the server's answer.
    pub(crate) fn info_text(&self) -> Result<String, String> {
        let all = self.info.as_ref()?;
        let lines = all.iter().flat_map(|(name, value)| [name, ":", value, "\r\n"]);
        Ok(lines.collect())
    }

    /// A line such as `ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0`.
    pub(crate) fn replica_lines(&self) -> impl Iterator<Item = BTreeMap<&str, &str>> {
        let lines = (0..).map_while(|n| self.info(&format!("slave{n}")).ok());
        lines.map(|line| line.split(',').filter_map(|pair| pair.split_once('=')).collect())
    }

    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }

    /// At once, and after a restart.
    pub(crate) fn set(&self, name: &str, value: &str) -> Vec<String> {
        vec![self.by_hand(&format!("CONFIG SET {name} {value}")), self.by_hand("CONFIG REWRITE")]
    }
}

/// A Sentinel that does not answer counts only if the user named it: another one may have been
/// removed long ago.
pub(crate) fn majority(sentinels: &[Sentinel]) -> usize {
    sentinels.iter().filter(|s| s.given || s.reached.is_ok()).count() / 2 + 1
}

pub(crate) fn place(fields: &Fields) -> Option<String> {
    let (host, port) = (fields.get("ip")?, fields.get("port")?);
    let number = port.bytes().all(|b| b.is_ascii_digit());
    (is_plain(host) && is_plain(port) && number && has_port(fields)).then(|| join(host, port))
}

/// An instance at port 0 listens by TLS only, and announces its plain port.
pub(crate) fn has_port(fields: &Fields) -> bool {
    fields.get("port").is_none_or(|port| port.bytes().any(|digit| digit != b'0'))
}

/// Commands that people paste contain host and user names from servers.
pub(crate) fn is_plain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:%@+=,/-".contains(&b);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

/// An IPv6 address gets brackets.
pub(crate) fn join(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(crate) fn host_of(at: &str) -> &str {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Such as `slave,s_down`.
pub(crate) fn flagged(fields: &Fields, flag: &str) -> bool {
    fields.get("flags").is_some_and(|all| all.split(',').any(|f| f == flag))
}
