//! The answers of one data server.

use redis::Value;
use tokio::time::Instant;

use super::super::facts::{
    COMMANDS, Clock, Fields, Kept, Marker, REPLAYED, Read, Role, SETTINGS, Server, is_plain, join,
};
use super::conn::{Conn, fields, info, raw, text};
use palisade::internal::Endpoint;
use palisade::internal::MARKER;
use palisade::node::spi::{Env as _, SystemEnv};

/// Sends all requests. Facts without an answer before the deadline `until` are marked as failed.
pub(super) async fn ask(
    at: String,
    given: bool,
    hand: String,
    target: Endpoint,
    whose: Option<&str>,
    until: Instant,
) -> Server {
    let mut server = Server::unasked(at, given, hand);
    let opened = Conn::open(&target, until).await;
    let conn = match opened {
        Ok(conn) => conn,
        Err(why) => {
            server.reached = Err(why);
            return server;
        }
    };
    server.reached = Ok(());
    // The clock is read first, before the other requests delay its answer.
    server.clock = clock(&conn).await;
    let get = format!("GET {MARKER}");
    let (role, all, marker, config, may, replays) = tokio::join!(
        conn.say("ROLE", "ROLE"),
        conn.say("INFO", "INFO"),
        conn.say(&get, "GET"),
        config(&conn),
        permissions(&conn, whose),
        rehearse(&conn, "default", REPLAYED),
    );
    let ahead = server.clock.ok().map_or(0, |clock| clock.ahead);
    let now = SystemEnv.wall_micros().saturating_add_signed(ahead) / 1_000;
    server.marker = marker.then("GET", |value| read_marker(value, now));
    server.role = role.then("ROLE", read_role);
    server.info = all.then("INFO", info);
    server.config = config;
    (server.user, server.may) = may;
    server.replays = replays;
    server
}

impl Server {
    pub(crate) fn unasked(at: String, given: bool, hand: String) -> Self {
        let not = || "not reached".to_owned();
        Self {
            at,
            given,
            hand,
            reached: Err(not()),
            role: Read::Failed(not()),
            info: Read::Failed(not()),
            config: Read::Failed(not()),
            clock: Read::Failed(not()),
            marker: Read::Failed(not()),
            user: Read::Failed(not()),
            may: Read::Failed(not()),
            replays: Read::Failed(not()),
        }
    }
}

/// Measures the difference between the clocks by the shortest of three round trips, which has the
/// smallest error.
async fn clock(conn: &Conn) -> Read<Clock> {
    let mut best: Read<Clock> = Read::Failed("not asked".to_owned());
    for _ in 0..3 {
        let (before, started) = (SystemEnv.wall_micros(), SystemEnv.now());
        let answer = conn.say("TIME", "TIME").await;
        let round_trip = micros(SystemEnv.now().since(started).as_micros());
        let read = answer.then("TIME", |value| {
            let Value::Array(parts) = value else { return None };
            let [s, us] = parts.as_slice() else { return None };
            let (s, us): (i64, i64) = (text(s)?.parse().ok()?, text(us)?.parse().ok()?);
            let theirs = s.checked_mul(1_000_000)?.checked_add(us)?;
            let ours = i64::try_from(before).ok()? + i64::try_from(round_trip / 2).ok()?;
            Some(Clock { ahead: theirs.checked_sub(ours)?, error: round_trip.div_ceil(2) })
        });
        match (&best, &read) {
            (Read::Got(old), Read::Got(new)) if old.error <= new.error => {}
            (Read::Got(_), Read::Closed(_) | Read::Failed(_)) => {}
            _ => best = read,
        }
        if best.ok().is_none() {
            break;
        }
    }
    best
}

fn micros(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Returns a name if it is safe in a command line.
fn plain(value: &Value) -> Option<String> {
    text(value).filter(|name| is_plain(name))
}

/// Reads the settings with one request each: servers before 7.0 accept only one pattern.
async fn config(conn: &Conn) -> Read<Fields> {
    let asked = SETTINGS.iter().map(|name| async move {
        conn.say(&format!("CONFIG GET {name}"), "CONFIG").await.then("CONFIG GET", fields)
    });
    let mut all = Fields::new();
    for answer in futures_util::future::join_all(asked).await {
        match answer {
            Read::Got(some) => all.extend(some),
            other => return other,
        }
    }
    Read::Got(all)
}

/// Returns the name of the user, and for each command of the library the reason for which `ACL
/// DRYRUN` refuses it, if it does.
async fn permissions(
    conn: &Conn,
    whose: Option<&str>,
) -> (Read<String>, Read<Vec<(String, Option<String>)>>) {
    let user = match whose {
        Some(name) => Read::Got(name.to_owned()),
        None => conn.say("ACL WHOAMI", "ACL WHOAMI").await.then("ACL WHOAMI", plain),
    };
    let may = match &user {
        Read::Got(name) => asked(conn, name).await,
        Read::Closed(why) | Read::Failed(why) => Read::Closed(why.clone()),
    };
    (user, may)
}

async fn asked(conn: &Conn, name: &str) -> Read<Vec<(String, Option<String>)>> {
    let asked = COMMANDS.iter().map(|command| async move {
        let why = rehearse(conn, name, command).await;
        why.then("ACL DRYRUN", |why| Some(((*command).to_owned(), why.clone())))
    });
    let mut all = Vec::new();
    for answer in futures_util::future::join_all(asked).await {
        match answer {
            Read::Got(one) => all.push(one),
            Read::Closed(why) => return Read::Closed(why),
            Read::Failed(why) => return Read::Failed(why),
        }
    }
    Read::Got(all)
}

/// Returns the reason for which this user may not send this command; `None` if it may.
async fn rehearse(conn: &Conn, name: &str, command: &str) -> Read<Option<String>> {
    let question = format!("ACL DRYRUN {name} {command}");
    let answer = conn.say(&question, "ACL DRYRUN").await.then("ACL DRYRUN", text);
    answer.then("ACL DRYRUN", |said| Some((said != "OK").then(|| said.clone())))
}

/// Parses the marker, if there is one; `now` is the server's time in ms.
pub(super) fn read_marker(value: &Value, now: u64) -> Option<Marker> {
    match value {
        Value::Nil => Some(Marker::Absent),
        value => Kept::parse(&raw(value)?, now).map(Marker::Kept),
    }
}

pub(super) fn read_role(value: &Value) -> Option<Role> {
    let Value::Array(parts) = value else { return None };
    match (text(parts.first()?)?.as_str(), parts.as_slice()) {
        ("master", _) => Some(Role::Master),
        ("slave", [_, host, port, ..]) => Some(Role::Replica { master: at(host, port)? }),
        ("sentinel", _) => Some(Role::Sentinel),
        _ => None,
    }
}

fn at(host: &Value, port: &Value) -> Option<String> {
    let (host, port) = (text(host)?, text(port)?);
    (is_plain(&host) && is_plain(&port)).then(|| join(&host, &port))
}
