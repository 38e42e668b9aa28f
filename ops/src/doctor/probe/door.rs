//! Sends commands one by one, by themselves and in a script. A lost connection is opened anew, and
//! costs only the command after which it was lost.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use super::super::super::facts::COMMANDS;
use super::super::super::gather::conn::{Conn, LATE, raw};
use super::report::{
    DURABILITY, HANDOVER, KEYS, Kind, MIN_REPLICAS, OPERATOR, SCRIPTS, SHARED, WAKING,
};
use palisade::internal::{self, Endpoint, error_text, missing_right, trial_key};

/// Without arguments it only shows that scripts run.
const TRY: &str = "return #ARGV == 0 or redis.call(unpack(ARGV))";
/// The key of [`COMMANDS`].
const KEY: &str = "palisade:doctor";
/// What palisade reads in its script besides [`COMMANDS`].
const INFOS: [&str; 3] = ["INFO server", "INFO stats", "INFO commandstats"];
/// Of [`COMMANDS`], what is sent outside of the script, too, or only there.
const AT_THE_DOOR: [&str; 5] = ["INFO", "TIME", "SET", "WAIT", "SUBSCRIBE"];
/// What only operators need, or what may be refused.
const MORE: [&str; 4] = ["CONFIG GET min-replicas-*", "EVAL return(1) 0", "SCAN 0 COUNT 1", "ROLE"];
const NEVER_IN_SCRIPT: [&str; 6] = ["HELLO", "SELECT", "SCRIPT", "EVALSHA", "WAIT", "SUBSCRIBE"];
/// A key that is in no `KEYS`, as after a planned handover.
const UNDECLARED: &str = "EXISTS palisade:doctor:undeclared";
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
    pub(super) command: String,
    pub(super) in_script: bool,
    pub(super) said: Said,
}

pub(super) struct Door<'a> {
    target: &'a Endpoint,
    conn: Option<Conn>,
    within: Duration,
    until: Instant,
    silent: u8,
    /// The words by which a server of a cluster sends a client elsewhere.
    pub(super) elsewhere: Option<String>,
}

impl<'a> Door<'a> {
    pub(super) fn new(target: &'a Endpoint, within: Duration) -> Self {
        let until = Instant::now() + 6 * within;
        Self { target, conn: None, within, until, silent: 0, elsewhere: None }
    }

    /// `Yes` has no meaning.
    pub(super) async fn open(&mut self) -> Said {
        let until = self.until.min(Instant::now() + self.within);
        let line = timeout_at(until, internal::open(self.target)).await;
        let e = match line {
            Ok(Ok(line)) => {
                self.conn = Some(Conn::over(line, until));
                return Said::Yes(Value::Nil);
            }
            Ok(Err(e)) => e,
            Err(_) => return self.nothing(LATE.to_owned()),
        };
        let words = internal::opening_text(&e, self.target);
        let of_login = [ErrorKind::AuthenticationFailed, ErrorKind::RESP3NotSupported];
        if e.code().is_some() || of_login.contains(&e.kind()) {
            Said::No { lacks_right: false, words }
        } else {
            self.nothing(words)
        }
    }

    /// The next command is sent on a new connection, however many got no answer.
    pub(super) fn reopen(&mut self) {
        (self.conn, self.silent) = (None, 0);
        self.until = Instant::now() + 2 * self.within;
    }

    fn nothing(&mut self, why: String) -> Said {
        self.silent = self.silent.saturating_add(1);
        self.conn = None;
        Said::Nothing(why)
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Said {
        if self.silent >= SILENT_MAX || Instant::now() >= self.until {
            return Said::Nothing("not tried, because the server did not answer before".to_owned());
        }
        if self.conn.is_none() {
            match self.open().await {
                Said::Yes(_) => {}
                other => return other,
            }
        }
        let until = self.until.min(Instant::now() + self.within);
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
        let words = error_text(e, &conn.secrets());
        let Some(code) = e.code() else {
            // Some proxies close the connection after what they do not know.
            self.conn = None;
            return Said::Nothing(words);
        };
        if ["MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"].contains(&code) {
            self.elsewhere.get_or_insert_with(|| words.clone());
        }
        let lacks_right = missing_right(e, &conn.secrets()).is_some();
        Said::No { lacks_right, words }
    }

    /// Each of [`COMMANDS`], where palisade sends it. The login has tried `HELLO` and `SELECT`.
    pub(super) async fn commands(&mut self, trial: u64) -> Vec<Tried> {
        let mut all = Vec::new();
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(TRY).take();
        let loaded = self.ask(&load).await;
        let hash = if let Said::Yes(hash) = &loaded { raw(hash) } else { None };
        all.push(Tried { command: "SCRIPT LOAD x".to_owned(), in_script: false, said: loaded });
        let mut runs = false;
        if let Some(hash) = &hash {
            let evalsha = redis::cmd("EVALSHA").arg(hash).arg(1).arg(key(trial, "EVALSHA")).take();
            let said = self.ask(&evalsha).await;
            runs = matches!(said, Said::Yes(_));
            all.push(Tried { command: "EVALSHA".to_owned(), in_script: false, said });
        }
        let script = COMMANDS.iter().filter(|c| !NEVER_IN_SCRIPT.contains(&name(c)));
        let script = script.chain(&INFOS).chain([&UNDECLARED]).filter(|_| runs).map(|c| (c, true));
        let door = COMMANDS.iter().filter(|c| AT_THE_DOOR.contains(&name(c)));
        for (command, in_script) in script.chain(door.chain(&MORE).map(|c| (c, false))) {
            let mut cmd = Cmd::new();
            if in_script {
                cmd.arg("EVALSHA").arg(&hash).arg(1).arg(key(trial, command));
            }
            command.split(' ').for_each(|word| _ = cmd.arg(in_its_place(trial, command, word)));
            let (command, said) = ((*command).to_owned(), self.ask(&cmd).await);
            all.push(Tried { command, in_script, said });
        }
        all
    }
}

impl Tried {
    pub(super) fn is_of(&self, kind: Kind) -> bool {
        let of = match name(&self.command) {
            "PUBLISH" | "SUBSCRIBE" => WAKING,
            "WAIT" => DURABILITY,
            "CONFIG" => MIN_REPLICAS,
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
        Some(format!("{}{place}: {words}", name(&self.command)))
    }
}

fn name(command: &str) -> &str {
    command.split(' ').next().unwrap_or_default()
}

/// Each command has a key of its own, because their values have different types.
fn key(trial: u64, command: &str) -> String {
    trial_key(trial, &name(command).to_ascii_lowercase())
}

fn in_its_place(trial: u64, command: &str, word: &str) -> String {
    match word.strip_prefix(KEY) {
        Some(end) => key(trial, command) + end,
        None => word.to_owned(),
    }
}

pub(super) fn keys(trial: u64) -> impl Iterator<Item = String> {
    COMMANDS.iter().map(move |command| key(trial, command))
}
