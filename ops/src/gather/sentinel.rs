//! What a Sentinel reports about each group.

use redis::Value;
use tokio::time::Instant;

use super::super::facts::{Fields, Read, Sentinel};
use super::conn::{Conn, fields, text};
use palisade::internal::Endpoint;

/// Asks about each master, until the deadline; the answers are in the order of the masters.
pub(super) async fn ask(
    at: &str,
    given: bool,
    hand: String,
    target: Endpoint,
    masters: &[String],
    until: Instant,
) -> Vec<Sentinel> {
    let mut base = Sentinel::unasked(at.to_owned(), given, hand);
    let opened = Conn::open(&target, until).await;
    let conn = match opened {
        Ok(conn) => conn,
        Err(why) => {
            base.reached = Err(why);
            return masters.iter().map(|_| base.clone()).collect();
        }
    };
    base.reached = Ok(());
    base.id = conn.say("SENTINEL MYID", "SENTINEL MYID").await.then("SENTINEL MYID", text);
    let (conn, base) = (&conn, &base);
    let asked = masters.iter().map(|master| about(conn, base.clone(), master));
    futures_util::future::join_all(asked).await
}

async fn about(conn: &Conn, mut sentinel: Sentinel, master: &str) -> Sentinel {
    // Not split at spaces: the name is the user's.
    let question = |what: &'static str| async move {
        let command = redis::cmd("SENTINEL").arg(what).arg(master).take();
        conn.ask(&command, &format!("SENTINEL {what}")).await
    };
    let (facts, replicas, others, quorum) = tokio::join!(
        question("MASTER"),
        question("REPLICAS"),
        question("SENTINELS"),
        question("CKQUORUM"),
    );
    sentinel.master = facts.then("SENTINEL MASTER", fields);
    sentinel.replicas = replicas.then("SENTINEL REPLICAS", list);
    sentinel.others = others.then("SENTINEL SENTINELS", list);
    sentinel.quorum = match quorum.then("SENTINEL CKQUORUM", text) {
        // CKQUORUM reports a missing quorum as an error.
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
