//! The answers of one Sentinel about its group.

use redis::Value;
use tokio::time::Instant;

use super::super::facts::{Fields, Read, Sentinel};
use super::conn::{Conn, fields, text};
use palisade::internal::Endpoint;

/// Sends all requests about this master; their answers have to arrive before the deadline `until`.
pub(super) async fn ask(
    at: &str,
    given: bool,
    hand: String,
    target: Endpoint,
    master: &str,
    until: Instant,
) -> Sentinel {
    let mut sentinel = Sentinel::unasked(at.to_owned(), given, hand);
    let conn = match Conn::open(&target, until).await {
        Ok(conn) => conn,
        Err(why) => {
            sentinel.reached = Err(why);
            return sentinel;
        }
    };
    sentinel.reached = Ok(());
    let conn = &conn;
    // The command is not split at spaces, because the user chose the master's name.
    let question = |what: &'static str| async move {
        let command = redis::cmd("SENTINEL").arg(what).arg(master).take();
        conn.ask(&command, &format!("SENTINEL {what}")).await
    };
    let (id, facts, replicas, others, quorum) = tokio::join!(
        conn.say("SENTINEL MYID", "SENTINEL MYID"),
        question("MASTER"),
        question("REPLICAS"),
        question("SENTINELS"),
        question("CKQUORUM"),
    );
    sentinel.id = id.then("SENTINEL MYID", text);
    sentinel.master = facts.then("SENTINEL MASTER", fields);
    sentinel.replicas = replicas.then("SENTINEL REPLICAS", list);
    sentinel.others = others.then("SENTINEL SENTINELS", list);
    sentinel.quorum = match quorum.then("SENTINEL CKQUORUM", text) {
        // CKQUORUM reports a missing quorum as an error, and that error is the answer.
        Read::Failed(why) if why.starts_with("NOQUORUM") || why.starts_with("NOGOODSLAVE") => {
            Read::Got(why)
        }
        other => other,
    };
    sentinel
}

impl Sentinel {
    pub(crate) fn unasked(at: String, given: bool, hand: String) -> Self {
        let not = || "not reached".to_owned();
        Self {
            at,
            given,
            hand,
            reached: Err(not()),
            id: Read::Failed(not()),
            master: Read::Failed(not()),
            replicas: Read::Failed(not()),
            others: Read::Failed(not()),
            quorum: Read::Failed(not()),
        }
    }
}

fn list(value: &Value) -> Option<Vec<Fields>> {
    match value {
        Value::Array(items) => items.iter().map(fields).collect(),
        _ => None,
    }
}
