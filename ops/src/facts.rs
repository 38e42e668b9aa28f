//! The facts: the values that the doctor read from the servers of a deployment. All facts are read
//! before the checks run. Checks use nothing else, so a test can make up any deployment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::backlog::TTL;
use super::login::Hand;
pub(crate) use super::marker::KeptData;
use palisade::internal::MinReplicasRule;

/// Names and their values, as in the answers to `INFO`, `CONFIG GET` and Sentinel commands.
pub(crate) type Fields = BTreeMap<String, String>;

/// The answer to a request, or the reason for which there is no answer.
pub(crate) type Read<T> = Result<T, Unread>;

/// Reason for which there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The server does not allow the command, or does not have it. The text is such as "CONFIG not
    /// allowed".
    Closed(String),
    /// The answer did not arrive before the deadline, the connection broke, or the answer could not
    /// be parsed.
    Failed(String),
}

/// Returns the error that takes the place of every answer if the server was not reached.
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

/// All facts of a deployment: the values that were read from its servers.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The Sentinel-watched groups. Each group is one node.
    pub(crate) groups: Vec<Group>,
    /// The lone servers. Each server is one node.
    pub(crate) nodes: Vec<Server>,
    /// The id that the settings give the deployment.
    pub(crate) deployment: Option<u64>,
    /// The application's `max_ttl`: the longest lease.
    pub(crate) max_ttl: Duration,
    /// The application's `clock_error` (E): the largest error of any clock.
    pub(crate) clock_error: Duration,
    /// Results of the trial lock on each node. If there are several nodes, also the result of the
    /// trial lock on all nodes together.
    pub(crate) trials: Vec<Trial>,
}

/// A group, as the Sentinels of the group report it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Address that names the group in a command.
    pub(crate) url: String,
    /// What the settings require of the servers' min-replicas check, with their failover window.
    pub(crate) rule: MinReplicasRule,
    /// How a person reaches the servers of the group.
    pub(crate) hand: Hand,
    /// The Sentinels that the user named, and the Sentinels that a majority of the named Sentinels
    /// report.
    pub(crate) sentinels: Vec<Sentinel>,
    /// The servers that a majority of the Sentinels report as master or replica.
    pub(crate) servers: Vec<Server>,
    /// Addresses that the doctor did not examine. If too few Sentinels report an address, no login
    /// is sent there. If Sentinels report too many addresses, some are skipped.
    pub(crate) skipped: BTreeSet<String>,
}

/// One Sentinel and its answers about one group.
#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    /// Address at which the doctor queried the Sentinel, `host:port`.
    pub(crate) at: String,
    /// True if the user named this Sentinel, false if another Sentinel reported it.
    pub(crate) given: bool,
    /// Beginning of a `redis-cli` command line to the Sentinel: `redis-cli -h 10.0.0.1 -p 26379`.
    pub(crate) hand: String,
    /// True if the Sentinel was asked by TLS.
    pub(crate) tls: bool,
    /// `Ok` if the connection and the login succeeded; else the reason.
    pub(crate) reached: Result<(), String>,
    /// Answer to `SENTINEL MYID`.
    pub(crate) id: Read<String>,
    /// Answer to `SENTINEL MASTER`.
    pub(crate) master: Read<Fields>,
    /// Answer to `SENTINEL REPLICAS`.
    pub(crate) replicas: Read<Vec<Fields>>,
    /// Answer to `SENTINEL SENTINELS`: the other Sentinels.
    pub(crate) others: Read<Vec<Fields>>,
    /// Answer to `SENTINEL CKQUORUM`. The errors `NOQUORUM …` and `NOGOODSLAVE …` count as answers.
    pub(crate) quorum: Read<String>,
    /// `sentinel_tilt` of `INFO sentinel`: a Sentinel in tilt accepts requests and acts on none.
    pub(crate) tilt: Read<bool>,
}

/// A data server and its answers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Server {
    /// Address at which the doctor queried the server: `host:port` or the path of a socket.
    pub(crate) at: String,
    /// True if the user named this server, false if a Sentinel reported it.
    pub(crate) given: bool,
    /// Beginning of a `redis-cli` command line to the server: `redis-cli -h 10.0.0.1 -p 6379`.
    pub(crate) hand: String,
    /// True if the server was asked by TLS.
    pub(crate) tls: bool,
    /// Address that names a lone server in a command; empty in a group.
    pub(crate) url: String,
    /// True if the settings accept that the server deletes keys when its memory is full.
    pub(crate) allows_eviction: bool,
    /// True if the settings declare that the server loses no confirmed write (`durable`).
    pub(crate) durable: bool,
    /// Failover window of a lone server by the settings; zero for a server of a group.
    pub(crate) window: Duration,
    /// `Ok` if the connection and the login succeeded; else the reason.
    pub(crate) reached: Result<(), String>,
    /// Answer to `ROLE`.
    pub(crate) role: Read<Role>,
    /// Answer to `INFO`.
    pub(crate) info: Read<Fields>,
    /// `cmdstat_config|resetstat` of `INFO commandstats`: true if the counters were set to zero.
    pub(crate) was_reset: Read<bool>,
    /// Answers to `CONFIG GET`, for each of the [`SETTINGS`].
    pub(crate) config: Read<Fields>,
    /// Difference between the answer to `TIME` and this machine's wall clock.
    pub(crate) clock: Read<Clock>,
    /// The marker (key `palisade:generation`), in which palisade stores the history of the server's
    /// data; `None` if the server has no marker.
    pub(crate) marker: Read<Option<KeptData>>,
    /// Name of the user whose rights are in `may`.
    pub(crate) user: Read<String>,
    /// Each command that the library sends, with the answer to `ACL DRYRUN`: `None` if the user may
    /// send the command, else the reason of the refusal.
    pub(crate) may: Read<Vec<(String, Option<String>)>>,
    /// Answer to `ACL DRYRUN` of [`REPLAYED`] for the user `default`: `None` if the user may run
    /// the command, else the reason of the refusal.
    pub(crate) replays: Read<Option<String>>,
}

/// A write command such as an append-only file contains. A server that loads the file runs the
/// commands of the file with the rights of the user `default`.
pub(crate) const REPLAYED: &str = "SET palisade:doctor x";

/// Settings that the doctor reads. Each setting is read by its name, because `CONFIG GET *` would
/// also return the passwords.
pub(crate) const SETTINGS: &[&str] = &[
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "replica-priority",
    "port",
    "tls-replication",
    TTL,
];

/// The commands that the library sends to a data server, as arguments of `ACL DRYRUN`.
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
    "SETRANGE palisade:doctor 0 x",
    "STRLEN palisade:doctor",
    "GETRANGE palisade:doctor 0 1",
    "ZADD palisade:doctor 1 x",
    "ZREM palisade:doctor x",
    "ZRANGE palisade:doctor 0 0",
    "ZCARD palisade:doctor",
    "ZSCORE palisade:doctor x",
    "ZREMRANGEBYSCORE palisade:doctor 0 0",
    "PUBLISH palisade:changed:x x",
    "SUBSCRIBE palisade:changed:x",
];

/// The role that a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Replica { master: String },
    Sentinel,
}

/// Difference between a server's wall clock and this machine's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Microseconds by which the server's clock is ahead of this machine's clock; negative if the
    /// server's clock is behind.
    pub(crate) ahead: i64,
    /// Largest error of `ahead` in microseconds: half of the round trip.
    pub(crate) error: u64,
}

/// The result of a trial: acquire and release of a lock, to see if the nodes grant locks.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The node's name, or `nodes` for all nodes together.
    pub(crate) subject: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The trial lock was granted and released. `granted` and `released` are the durations of the
    /// two calls.
    Granted { granted: Duration, released: Duration },
    /// The lock was granted, but no node confirmed the release. The text has the reason.
    NotReleased(String),
    /// The node is in quarantine, as after every restart or failover, and grants nothing for this
    /// time.
    Quarantined(Duration),
    /// The lock was refused; `why` is the reason. `misconfigured` is true if a person has to change
    /// a setting.
    Refused { why: String, misconfigured: bool },
}

impl Facts {
    /// Returns every data server, with the server's name in findings.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (String, &Server)> {
        let named = |of: &str, s: &Server| format!("{of} {}", s.at);
        let of_group = move |g: &Group, s| (named(&g.name, s), s);
        let of_groups =
            self.groups.iter().flat_map(move |g| g.servers.iter().map(move |s| of_group(g, s)));
        of_groups.chain(self.nodes.iter().map(move |s| (named("node", s), s)))
    }

    /// Returns every data server that was reached, with the server's name in findings.
    pub(crate) fn reached(&self) -> impl Iterator<Item = (String, &Server)> {
        self.servers().filter(|(_, s)| s.reached.is_ok())
    }

    /// Returns the master of each node, with the node's name in findings. Leaves out masters that
    /// were not reached.
    pub(crate) fn masters(&self) -> impl Iterator<Item = (String, &Server)> {
        let of_groups = self.groups.iter().filter_map(|g| Some((g.name.clone(), g.master()?)));
        let all = of_groups.chain(self.nodes.iter().map(|s| (format!("node {}", s.at), s)));
        let is_master = |s: &Server| !matches!(s.role, Ok(Role::Replica { .. }));
        all.filter(move |(_, s)| s.reached.is_ok() && is_master(s))
    }

    /// Returns true if at least one server or Sentinel was reached.
    pub(crate) fn any_reached(&self) -> bool {
        self.reached().next().is_some() || self.groups.iter().any(|g| g.heard().next().is_some())
    }
}

impl Group {
    /// Returns the Sentinels that were reached.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &Sentinel> {
        self.sentinels.iter().filter(|s| s.reached.is_ok())
    }

    /// Returns true if a majority of the Sentinels report this address. Commands to paste contain
    /// no other addresses.
    pub(crate) fn is_agreed(&self, at: &str) -> bool {
        let names = |s: &&Sentinel| {
            let lists = [&s.replicas, &s.others].into_iter().flatten().flatten();
            s.master.iter().chain(lists).any(|f| place(f).as_deref() == Some(at))
        };
        let votes = self.heard().filter(names).count();
        votes >= majority(&self.sentinels)
    }

    /// Returns the address that most Sentinels report as the master's, if it is the address of a
    /// server of the group.
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

    /// Returns the servers of the group that were reached.
    pub(crate) fn reached(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|s| s.reached.is_ok())
    }

    /// Returns the failover window (L), as a client reckons it: the longest time for which a
    /// replaced master may still grant. Any server of the group may have been that master, so the
    /// largest setting of all servers counts.
    pub(crate) fn window(&self) -> Duration {
        let lag = |server: &Server| server.number("min-replicas-max-lag").map(Duration::from_secs);
        match self.reached().map(lag).collect::<Result<Vec<_>, _>>() {
            Ok(lags) if !lags.is_empty() => self.rule.group_window(Duration::ZERO, lags),
            _ => self.rule.unread(),
        }
    }

    /// Returns the longest failover window that a client with these settings asks for: it may not
    /// have read the servers' settings.
    pub(crate) fn longest_window(&self) -> Duration {
        self.window().max(self.rule.unread())
    }

    /// Returns the shortest `down-after-milliseconds` that a Sentinel reports.
    pub(crate) fn down_after(&self) -> Option<Duration> {
        let all = self.heard().filter_map(|s| s.number("down-after-milliseconds"));
        all.min().map(Duration::from_millis)
    }
}

impl Sentinel {
    /// Returns the Sentinel's name in findings.
    pub(crate) fn subject(&self, of: &Group) -> String {
        format!("{} Sentinel {}", of.name, self.at)
    }

    /// Returns a field of `SENTINEL MASTER` as a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.master.as_ref().ok()?.get(name)?.parse().ok()
    }

    /// Returns the quorum and the number of other Sentinels, as this Sentinel reports them. If one
    /// of the two is unknown, returns the reason.
    pub(crate) fn counts(&self) -> Result<(u64, u64), String> {
        self.master.as_ref()?;
        let number = |name| self.number(name).ok_or_else(|| format!("the Sentinel sent no {name}"));
        Ok((number("quorum")?, number("num-other-sentinels")?))
    }

    /// Returns the address that the Sentinel reports as the master's.
    pub(crate) fn master_at(&self) -> Option<String> {
        place(self.master.as_ref().ok()?)
    }

    /// Returns the command line by which a person sends `command` to the Sentinel.
    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }
}

impl Server {
    /// Returns the value of a setting, or the reason for which the value is unknown.
    pub(crate) fn setting(&self, name: &str) -> Result<&str, String> {
        let all = self.config.as_ref()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("this server has no {name}"))
    }

    /// Returns the value of a setting as a number, or the reason for which the number is unknown.
    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.setting(name)?;
        text.parse().map_err(|_| format!("{name} is {text:?}, not a number"))
    }

    /// Returns the value of a line of `INFO`, or the reason for which the value is unknown.
    pub(crate) fn info(&self, name: &str) -> Result<&str, String> {
        let all = self.info.as_ref()?;
        all.get(name).map(String::as_str).ok_or_else(|| format!("INFO has no {name}"))
    }

    /// Returns the answer to `INFO` as text. The lines are in another order than in the server's
    /// answer.
    pub(crate) fn info_text(&self) -> Result<String, String> {
        let all = self.info.as_ref()?;
        let lines = all.iter().flat_map(|(name, value)| [name, ":", value, "\r\n"]);
        Ok(lines.collect())
    }

    /// Returns the fields of each replica in the server's `INFO`. There a replica is a line such as
    /// `ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0`.
    pub(crate) fn replica_lines(&self) -> impl Iterator<Item = BTreeMap<&str, &str>> {
        let lines = (0..).map_while(|n| self.info(&format!("slave{n}")).ok());
        lines.map(|line| line.split(',').filter_map(|pair| pair.split_once('=')).collect())
    }

    /// Returns the command line by which a person sends `command` to the server.
    pub(crate) fn by_hand(&self, command: &str) -> String {
        format!("{} {command}", self.hand)
    }

    /// Returns the commands that change a setting at once and keep the change after a restart.
    pub(crate) fn set(&self, name: &str, value: &str) -> Vec<String> {
        vec![self.by_hand(&format!("CONFIG SET {name} {value}")), self.by_hand("CONFIG REWRITE")]
    }
}

/// Returns the number of Sentinels that form a majority. A Sentinel that does not answer counts
/// only if the user named it. If only other Sentinels report it, it may have been removed long ago.
pub(crate) fn majority(sentinels: &[Sentinel]) -> usize {
    sentinels.iter().filter(|s| s.given || s.reached.is_ok()).count() / 2 + 1
}

/// Returns the address `host:port` in the fields that a Sentinel reports about an instance.
pub(crate) fn place(fields: &Fields) -> Option<String> {
    let (host, port) = (fields.get("ip")?, fields.get("port")?);
    let number = port.bytes().all(|b| b.is_ascii_digit());
    (is_plain(host) && is_plain(port) && number && has_port(fields)).then(|| join(host, port))
}

/// Returns false for an instance at port 0: it listens by TLS only, and announces its plain port.
/// No address leads to it.
pub(crate) fn has_port(fields: &Fields) -> bool {
    fields.get("port").is_none_or(|port| port.bytes().any(|digit| digit != b'0'))
}

/// Returns true if a text is safe in a command line without quotes. Commands that people paste
/// contain host and user names from servers, so names with other characters are rejected.
pub(crate) fn is_plain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:%@+=,/-".contains(&b);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

/// Returns `host:port`. An IPv6 address gets brackets.
pub(crate) fn join(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the host of `host:port`.
pub(crate) fn host_of(at: &str) -> &str {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Returns true if the flags in `fields` (such as `slave,s_down`) contain `flag`.
pub(crate) fn flagged(fields: &Fields, flag: &str) -> bool {
    fields.get("flags").is_some_and(|all| all.split(',').any(|f| f == flag))
}
