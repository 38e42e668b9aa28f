//! Sends commands one by one, by themselves and in a script. A lost connection is opened anew, and
//! costs only the command after which it was lost.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::time::{Instant, timeout};

use super::super::super::facts::COMMANDS;
use super::super::super::gather::conn::{Conn, LATE, raw};
use super::report::{DURABILITY, HANDOVER, KEYS, Kind, OPERATOR, SCRIPTS, SHARED, WAKING};
use palisade::internal::{self, Endpoint, Secrets, error_text, missing_right, trial_key};

/// Without arguments it only shows that scripts run. Its key expires, also if the probe is killed.
const TRY: &str = "if #ARGV == 0 then return 1 end local answer = redis.pcall(unpack(ARGV)) \
                   redis.pcall('PEXPIRE', KEYS[1], 60000) return answer";
/// In ms, as in [`TRY`].
pub(super) const LEFT_FOR: u64 = 60_000;
/// The key of [`COMMANDS`].
const KEY: &str = "palisade:doctor";
/// What palisade reads in its script besides [`COMMANDS`].
const INFOS: [&str; 3] = ["INFO server", "INFO stats", "INFO commandstats"];
/// What is sent outside of the script, too, or only there. Some services want a key for each EVAL.
const AT_THE_DOOR: [&str; 8] = [
    "INFO replication",
    "TIME",
    "SET palisade:doctor x PX 60000",
    "WAIT 0 0",
    "SUBSCRIBE palisade:changed:x",
    "EVAL return(1) 1 palisade:doctor",
    "SCAN 0 COUNT 1",
    "ROLE",
];
const NEVER_IN_SCRIPT: [&str; 6] = ["HELLO", "SELECT", "SCRIPT", "EVALSHA", "WAIT", "SUBSCRIBE"];
/// A key that is in no `KEYS`, as after a planned handover.
const UNDECLARED: &str = "EXISTS palisade:doctor:undeclared";
/// Codes of errors that another time may not meet. A service answers `CLUSTERDOWN` while its log of
/// writes lags.
const PASSING: &str = "NOREPLICAS OOM LOADING BUSY NOSCRIPT READONLY MASTERDOWN \
                                  UNBLOCKED MISCONF TRYAGAIN CLUSTERDOWN HANDOVER";
/// After so many requests without an answer none is sent.
const SILENT_MAX: u8 = 2;

/// Why a trial did not succeed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    LacksRight(String),
    Refused(String),
    Unknown(String),
}

pub(super) struct Tried {
    /// As in [`COMMANDS`].
    pub(super) command: &'static str,
    pub(super) in_script: bool,
    pub(super) failure: Option<Failure>,
}

pub(super) struct Door {
    target: Endpoint,
    conn: Option<Conn>,
    /// For each answer.
    within: Duration,
    silent: u8,
}

impl Door {
    pub(super) fn new(target: Endpoint, within: Duration) -> Self {
        Self { target, conn: None, within, silent: 0 }
    }

    pub(super) async fn open(&mut self) -> Result<Conn, Failure> {
        let e = match timeout(self.within, internal::open(&self.target)).await {
            Ok(Ok(line)) => return Ok(self.conn.insert(Conn::over(line, Instant::now())).clone()),
            Ok(Err(e)) => e,
            Err(_) => return Err(self.unanswered(LATE)),
        };
        let words = internal::opening_text(&e, &self.target);
        let too_many = e.detail().is_some_and(|detail| detail.starts_with("max number of clients"));
        let lacks_it = e.code() == Some("ERR") && !too_many;
        if lacks_it || e.kind() == ErrorKind::RESP3NotSupported {
            return Err(Failure::Refused(words));
        }
        Err(self.unanswered(&words))
    }

    /// The next command is sent on a new connection, however many got no answer.
    pub(super) fn reopen(&mut self) {
        (self.conn, self.silent) = (None, 0);
    }

    fn unanswered(&mut self, why: &str) -> Failure {
        self.silent = self.silent.saturating_add(1);
        self.conn = None;
        Failure::Unknown(why.to_owned())
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        if self.silent >= SILENT_MAX {
            let why = "not tried: earlier commands were not answered";
            return Err(Failure::Unknown(why.to_owned()));
        }
        let conn = match &self.conn {
            Some(conn) => conn.clone(),
            None => self.open().await?,
        };
        match conn.until(Instant::now() + self.within).send(command).await {
            None => Err(self.unanswered(LATE)),
            Some(answer) => answer.map_err(|e| self.refused(&e, &conn.secrets())),
        }
    }

    fn refused(&mut self, e: &RedisError, secrets: &Secrets) -> Failure {
        let words = error_text(e, secrets);
        match e.code() {
            None => {
                // Some proxies close the connection after what they do not know.
                self.conn = None;
                Failure::Unknown(words)
            }
            Some(code) if passes(code) => Failure::Unknown(words),
            Some(_) if missing_right(e, secrets).is_some() => Failure::LacksRight(words),
            Some(_) => Failure::Refused(words),
        }
    }

    async fn in_script(
        &mut self,
        hash: &str,
        trial: u64,
        command: &str,
        words: &[String],
    ) -> Option<Failure> {
        let call =
            redis::cmd("EVALSHA").arg(hash).arg(1).arg(key(trial, command)).arg(words).take();
        let failure = self.ask(&call).await.err()?;
        // As after SCRIPT FLUSH.
        if !matches!(&failure, Failure::Unknown(why) if why.starts_with("NOSCRIPT")) {
            return Some(failure);
        }
        let _ = self.ask(&load()).await;
        self.ask(&call).await.err()
    }

    /// Each of [`COMMANDS`], where palisade sends it. The login has tried `HELLO` and `SELECT`.
    pub(super) async fn commands(&mut self, trial: u64) -> Vec<Tried> {
        let loaded = self.ask(&load()).await;
        let hash = loaded.as_ref().ok().and_then(raw);
        let (command, in_script) = ("SCRIPT LOAD x", false);
        let mut all = vec![Tried { command, in_script, failure: loaded.err() }];
        if let Some(hash) = &hash {
            let failure = self.in_script(hash, trial, "EVALSHA", &[]).await;
            let runs = failure.is_none();
            all.push(Tried { command: "EVALSHA", in_script, failure });
            let script = COMMANDS.iter().filter(|c| !NEVER_IN_SCRIPT.contains(&name(c)));
            for &command in script.chain(&INFOS).chain([&UNDECLARED]).filter(|_| runs) {
                let failure = self.in_script(hash, trial, command, &words(trial, command)).await;
                all.push(Tried { command, in_script: true, failure });
            }
        }
        for command in AT_THE_DOOR {
            let failure = self.ask(Cmd::new().arg(words(trial, command))).await.err();
            all.push(Tried { command, in_script, failure });
        }
        all
    }
}

impl Tried {
    pub(super) fn is_of(&self, kind: Kind) -> bool {
        let of = match name(self.command) {
            "PUBLISH" | "SUBSCRIBE" => WAKING,
            "WAIT" => DURABILITY,
            "EVAL" | "SCAN" | "ROLE" => OPERATOR,
            "SETRANGE" | "STRLEN" => KEYS,
            "PEXPIREAT" | "ZADD" | "ZREM" | "ZRANGE" | "ZCARD" | "ZSCORE" | "ZREMRANGEBYSCORE" => {
                SHARED
            }
            "HSET" | "HMGET" => HANDOVER,
            _ if self.command == UNDECLARED => HANDOVER,
            _ => SCRIPTS,
        };
        of.0 == kind.0
    }

    pub(super) fn words(&self) -> Option<String> {
        let (Failure::LacksRight(words) | Failure::Refused(words)) = self.failure.as_ref()? else {
            return None;
        };
        let place = if self.in_script { " in a script" } else { "" };
        Some(format!("{}{place}: {words}", name(self.command)))
    }
}

/// What the commands of a feature met.
pub(super) fn met(tried: &[Tried], kind: Kind) -> Option<Failure> {
    let failed = || tried.iter().filter(|t| t.failure.is_some() && t.is_of(kind));
    let mut words: Vec<_> = failed().filter_map(Tried::words).collect();
    let others = words.len().saturating_sub(2);
    words.truncate(2);
    words.extend((others > 0).then(|| format!("{others} more")));
    if failed().any(|t| matches!(t.failure, Some(Failure::Refused(_)))) {
        return Some(Failure::Refused(words.join("; ")));
    }
    if !words.is_empty() {
        return Some(Failure::LacksRight(words.join("; ")));
    }
    failed().next()?.failure.clone()
}

pub(super) fn passes(code: &str) -> bool {
    PASSING.split(' ').any(|passing| passing == code)
}

fn load() -> Cmd {
    redis::cmd("SCRIPT").arg("LOAD").arg(TRY).take()
}

fn name(command: &str) -> &str {
    command.split(' ').next().unwrap_or_default()
}

/// Each command has a key of its own, because their values have different types.
fn key(trial: u64, command: &str) -> String {
    trial_key(trial, &name(command).to_ascii_lowercase())
}

fn words(trial: u64, command: &str) -> Vec<String> {
    let key = key(trial, command);
    command.split(' ').map(|word| word.replace(KEY, &key)).collect()
}

pub(super) fn keys(trial: u64) -> impl Iterator<Item = String> {
    COMMANDS.iter().chain(&AT_THE_DOOR).map(move |command| key(trial, command))
}
