//! Sends commands one by one, by themselves and in a script. A lost connection is opened anew, and
//! costs only the command after which it was lost.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::time::{Instant, timeout};

use super::super::super::facts::COMMANDS;
use super::super::super::gather::conn::{Conn, LATE, raw};
use super::report::{DURABILITY, HANDOVER, KEYS, Kind, OPERATOR, SCRIPTS, SHARED, WAKING};
use palisade::internal::{self, Endpoint, error_text, missing_right, trial_key};

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
/// Codes of errors that another time may not meet.
pub(super) const PASSING: [&str; 12] = [
    "NOREPLICAS",
    "OOM",
    "LOADING",
    "BUSY",
    "NOSCRIPT",
    "READONLY",
    "MASTERDOWN",
    "UNBLOCKED",
    "MISCONF",
    "TRYAGAIN",
    // A service answers it while its log of writes lags.
    "CLUSTERDOWN",
    "HANDOVER",
];
/// After so many requests without an answer none is sent.
const SILENT_MAX: u8 = 2;

#[derive(Clone, Debug)]
pub(super) enum Said {
    Yes(Value),
    No { lacks_right: bool, words: String },
    Nothing(String),
}

pub(super) struct Tried {
    /// As in [`COMMANDS`].
    pub(super) command: &'static str,
    pub(super) in_script: bool,
    pub(super) said: Said,
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

    /// `Yes` has no meaning.
    pub(super) async fn open(&mut self) -> Said {
        let e = match timeout(self.within, internal::open(&self.target)).await {
            Ok(Ok(line)) => {
                self.conn = Some(Conn::over(line, Instant::now()));
                return Said::Yes(Value::Nil);
            }
            Ok(Err(e)) => e,
            Err(_) => return self.nothing(LATE.to_owned()),
        };
        let words = internal::opening_text(&e, &self.target);
        let too_many = e.detail().is_some_and(|detail| detail.starts_with("max number of clients"));
        let lacks_it = e.code() == Some("ERR") && !too_many;
        if lacks_it || e.kind() == ErrorKind::RESP3NotSupported {
            Said::No { lacks_right: false, words }
        } else {
            self.nothing(words)
        }
    }

    /// The next command is sent on a new connection, however many got no answer.
    pub(super) fn reopen(&mut self) {
        (self.conn, self.silent) = (None, 0);
    }

    fn nothing(&mut self, why: String) -> Said {
        self.silent = self.silent.saturating_add(1);
        self.conn = None;
        Said::Nothing(why)
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Said {
        if self.silent >= SILENT_MAX {
            return Said::Nothing("not tried: earlier commands were not answered".to_owned());
        }
        if self.conn.is_none()
            && let other @ (Said::No { .. } | Said::Nothing(_)) = self.open().await
        {
            return other;
        }
        let until = Instant::now() + self.within;
        let Some(conn) = self.conn.as_ref().map(|conn| conn.until(until)) else {
            return Said::Nothing(LATE.to_owned());
        };
        match conn.send(command).await {
            None => self.nothing(LATE.to_owned()),
            Some(Ok(answer)) => Said::Yes(answer),
            Some(Err(e)) => self.refused(&e, &conn),
        }
    }

    fn refused(&mut self, e: &RedisError, conn: &Conn) -> Said {
        let words = error_text(e, conn.secrets());
        match e.code() {
            None => {
                // Some proxies close the connection after what they do not know.
                self.conn = None;
                Said::Nothing(words)
            }
            Some(code) if PASSING.contains(&code) => Said::Nothing(words),
            Some(_) => Said::No { lacks_right: missing_right(e, conn.secrets()).is_some(), words },
        }
    }

    async fn in_script(&mut self, hash: &str, key: String, words: &[String]) -> Said {
        let call = redis::cmd("EVALSHA").arg(hash).arg(1).arg(key).arg(words).take();
        match self.ask(&call).await {
            // As after SCRIPT FLUSH.
            Said::Nothing(why) if why.starts_with("NOSCRIPT") => {
                self.ask(&load()).await;
                self.ask(&call).await
            }
            said => said,
        }
    }

    /// Each of [`COMMANDS`], where palisade sends it. The login has tried `HELLO` and `SELECT`.
    pub(super) async fn commands(&mut self, trial: u64) -> Vec<Tried> {
        let loaded = self.ask(&load()).await;
        let hash = if let Said::Yes(hash) = &loaded { raw(hash) } else { None };
        let mut all = vec![Tried { command: "SCRIPT LOAD x", in_script: false, said: loaded }];
        if let Some(hash) = &hash {
            let said = self.in_script(hash, key(trial, "EVALSHA"), &[]).await;
            let runs = matches!(said, Said::Yes(_));
            all.push(Tried { command: "EVALSHA", in_script: false, said });
            let script = COMMANDS.iter().filter(|c| !NEVER_IN_SCRIPT.contains(&name(c)));
            let script = script.chain(&INFOS).chain([&UNDECLARED]);
            for &command in script.filter(|_| runs) {
                let words = words(trial, command);
                let said = self.in_script(hash, key(trial, command), &words).await;
                all.push(Tried { command, in_script: true, said });
            }
        }
        for command in AT_THE_DOOR {
            let mut cmd = Cmd::new();
            let said = self.ask(cmd.arg(words(trial, command))).await;
            all.push(Tried { command, in_script: false, said });
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
        let Said::No { words, .. } = &self.said else { return None };
        let place = if self.in_script { " in a script" } else { "" };
        Some(format!("{}{place}: {words}", name(self.command)))
    }
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
