//! Reads the facts of one data server.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::Instant;

use super::super::facts::{
    COMMANDS, Clock, Fields, KeptData, REPLAYED, Read, Role, SETTINGS, Server, Unread, is_plain,
    join, unreached,
};
use super::Depth;
use super::conn::{Conn, fields, info, parsed, raw, text};
use palisade::internal::Endpoint;
use palisade::internal::{MARKER, NOTE};
use palisade::node::spi::{Env as _, SystemEnv};

/// A request that has no answer at `until` counts as failed.
pub(super) async fn ask(
    at: String,
    given: bool,
    hand: String,
    target: Endpoint,
    depth: Depth<'_>,
    until: Instant,
) -> Server {
    let mut server = Server::unreached(at, given, hand);
    server.tls = target.is_tls();
    let conn = match Conn::open(&target, until).await {
        Ok(conn) => conn,
        Err(why) => {
            server.reached = Err(why);
            return server;
        }
    };
    server.reached = Ok(());
    let Depth::All(whose) = depth else {
        (server.role, server.info) =
            tokio::join!(conn.query("ROLE", "ROLE", read_role), conn.query("INFO", "INFO", info));
        return server;
    };
    // First, so that no other request delays the answer to `TIME`.
    server.clock = clock(&conn).await;
    let ahead = server.clock.as_ref().map_or(0, |clock| clock.ahead);
    let now = || SystemEnv.wall_micros().saturating_add_signed(ahead) / 1_000;
    let get = redis::cmd("MGET").arg(MARKER).arg(NOTE).take();
    let marker = async { read_marker(&conn.execute(&get, "MGET").await?, now()) };
    let permissions = permissions(&conn, whose);
    let reset = |value: &Value| Some(info(value)?.contains_key("cmdstat_config|resetstat"));
    let may;
    (
        server.role,
        server.info,
        server.was_reset,
        server.marker,
        server.config,
        may,
        server.replays,
    ) = tokio::join!(
        conn.query("ROLE", "ROLE", read_role),
        conn.query("INFO", "INFO", info),
        conn.query("INFO commandstats", "INFO", reset),
        marker,
        config(&conn),
        permissions,
        rehearse(&conn, "default", REPLAYED),
    );
    (server.user, server.may) = may;
    server
}

impl Server {
    pub(crate) fn unreached(at: String, given: bool, hand: String) -> Self {
        Self {
            at,
            given,
            hand,
            tls: false,
            url: String::new(),
            allows_eviction: false,
            durable: false,
            window: Duration::ZERO,
            reached: unreached().map_err(String::from),
            role: unreached(),
            info: unreached(),
            was_reset: unreached(),
            config: unreached(),
            clock: unreached(),
            marker: unreached(),
            user: unreached(),
            may: unreached(),
            replays: unreached(),
        }
    }
}

/// Of three round trips the shortest has the smallest error.
async fn clock(conn: &Conn) -> Read<Clock> {
    let mut best: Read<Clock> = Err(Unread::Failed("the clock was not read".to_owned()));
    for _ in 0..3 {
        let (before, started) = (SystemEnv.wall_micros(), SystemEnv.now());
        let parse = |value: &Value| {
            let round_trip = micros(SystemEnv.now().since(started).as_micros());
            let Value::Array(parts) = value else { return None };
            let [s, us] = parts.as_slice() else { return None };
            let (s, us): (i64, i64) = (text(s)?.parse().ok()?, text(us)?.parse().ok()?);
            let theirs = s.checked_mul(1_000_000)?.checked_add(us)?;
            let ours = i64::try_from(before).ok()? + i64::try_from(round_trip / 2).ok()?;
            Some(Clock { ahead: theirs.checked_sub(ours)?, error: round_trip.div_ceil(2) })
        };
        let read = conn.query("TIME", "TIME", parse).await;
        match (&best, &read) {
            (Ok(old), Ok(new)) if old.error <= new.error => {}
            (Ok(_), Err(_)) => {}
            _ => best = read,
        }
        if best.is_err() {
            break;
        }
    }
    best
}

fn micros(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn plain(value: &Value) -> Option<String> {
    text(value).filter(|name| is_plain(name))
}

/// Servers before 7.0 accept only one pattern in a request.
async fn config(conn: &Conn) -> Read<Fields> {
    let settings = SETTINGS.iter().map(|name| async move {
        conn.query(&format!("CONFIG GET {name}"), "CONFIG", fields).await
    });
    let all: Vec<Fields> = join_all(settings).await.into_iter().collect::<Read<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

async fn permissions(
    conn: &Conn,
    whose: Option<&str>,
) -> (Read<String>, Read<Vec<(String, Option<String>)>>) {
    let user = match whose {
        Some(name) => Ok(name.to_owned()),
        None => conn.query("ACL WHOAMI", "ACL WHOAMI", plain).await,
    };
    let may = match &user {
        Ok(name) => {
            let commands = COMMANDS.iter().map(|command| async move {
                Ok(((*command).to_owned(), rehearse(conn, name, command).await?))
            });
            join_all(commands).await.into_iter().collect()
        }
        Err(why) => Err(Unread::Closed(why.into())),
    };
    (user, may)
}

async fn rehearse(conn: &Conn, name: &str, command: &str) -> Read<Option<String>> {
    let question = format!("ACL DRYRUN {name} {command}");
    let answer = conn.query(&question, "ACL DRYRUN", text).await?;
    Ok(Some(answer).filter(|answer| answer != "OK"))
}

/// `now` is the server's time in ms.
pub(super) fn read_marker(value: &Value, now: u64) -> Read<Option<KeptData>> {
    let both = parsed(value, "MGET", |value| match value {
        Value::Array(both) => <&[Value; 2]>::try_from(&both[..]).ok(),
        _ => None,
    })?;
    match &both[0] {
        Value::Nil => Ok(None),
        marker => parsed(marker, "MGET", |marker| {
            KeptData::parse(&raw(marker)?, raw(&both[1]).as_deref(), now)
        })
        .map(Some),
    }
}

pub(crate) fn read_role(value: &Value) -> Option<Role> {
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
