//! Reads the facts about a group from one Sentinel.

use redis::Value;
use tokio::time::Instant;

use super::super::facts::{Fields, Read, Sentinel, Unread, unreached};
use super::conn::{Conn, fields, info, parsed, text};
use palisade::internal::{Endpoint, not_monitored};

pub(super) async fn ask(
    at: &str,
    given: bool,
    hand: String,
    target: Endpoint,
    master: &str,
    until: Instant,
) -> Sentinel {
    let mut sentinel = Sentinel::unreached(at.to_owned(), given, hand);
    sentinel.tls = target.is_tls();
    let conn = match Conn::open(&target, until).await {
        Ok(conn) => conn,
        Err(why) => {
            sentinel.reached = Err(why);
            return sentinel;
        }
    };
    sentinel.reached = Ok(());
    let conn = &conn;
    // The master's name may contain spaces.
    let about = |what: &'static str| async move {
        let command = redis::cmd("SENTINEL").arg(what).arg(master).take();
        conn.execute(&command, &format!("SENTINEL {what}")).await
    };
    let (id, facts, replicas, others, quorum, tilt) = tokio::join!(
        conn.query("SENTINEL MYID", "SENTINEL MYID", text),
        about("MASTER"),
        about("REPLICAS"),
        about("SENTINELS"),
        about("CKQUORUM"),
        in_tilt(conn),
    );
    sentinel.tilt = tilt;
    sentinel.id = id;
    sentinel.master = match facts {
        Err(Unread::Failed(why)) if why.contains("No such master") => {
            let known = conn.query("SENTINEL MASTERS", "SENTINEL MASTERS", list).await;
            let known = known.unwrap_or_default().into_iter();
            let known: Vec<_> = known.filter_map(|mut of| of.remove("name")).collect();
            Err(Unread::Failed(not_monitored(master, &known, &conn.secrets())))
        }
        facts => facts.and_then(|answer| parsed(&answer, "SENTINEL MASTER", fields)),
    };
    sentinel.replicas = replicas.and_then(|answer| parsed(&answer, "SENTINEL REPLICAS", list));
    sentinel.others = others.and_then(|answer| parsed(&answer, "SENTINEL SENTINELS", list));
    let quorum = quorum.and_then(|answer| parsed(&answer, "SENTINEL CKQUORUM", text));
    sentinel.quorum = match quorum {
        // A Sentinel reports a missing quorum as an error.
        Err(Unread::Failed(why))
            if why.starts_with("NOQUORUM") || why.starts_with("NOGOODSLAVE") =>
        {
            Ok(why)
        }
        other => other,
    };
    sentinel
}

impl Sentinel {
    pub(crate) fn unreached(at: String, given: bool, hand: String) -> Self {
        Self {
            at,
            given,
            hand,
            tls: false,
            reached: unreached().map_err(String::from),
            id: unreached(),
            master: unreached(),
            replicas: unreached(),
            others: unreached(),
            quorum: unreached(),
            tilt: unreached(),
        }
    }
}

/// In tilt its clock jumped or it stood still: it does nothing for half a minute, and begins a
/// failover that it accepted only then.
pub(crate) async fn in_tilt(conn: &Conn) -> Read<bool> {
    let facts = conn.query("INFO sentinel", "INFO", info).await?;
    Ok(facts.get("sentinel_tilt").is_some_and(|tilt| tilt == "1"))
}

fn list(value: &Value) -> Option<Vec<Fields>> {
    match value {
        Value::Array(items) => items.iter().map(fields).collect(),
        _ => None,
    }
}
