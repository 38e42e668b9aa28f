//! Which idempotency keys of a namespace the nodes have, and in which state. Reads only, by SCAN.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::gather::conn::Conn;
use super::init::{escaped, scan_for};
use super::masters::{self, Absent, Master};
use super::{Deployment, facts::Read};
use crate::error::ConfigError;
use crate::name::{check_name, check_prefix, record_key};

const READ: &str = include_str!("lua/keys.lua");

/// The keys of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keys {
    /// Every key that was found on a node, in order.
    pub keys: Vec<KeyFacts>,
    /// Nodes that could not be read, each with why. What only they have is missing.
    pub unread: Vec<(String, String)>,
}

/// What the nodes have of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyFacts {
    /// The key as its callers give it.
    pub key: String,
    /// What the nodes say of it together.
    pub state: KeyState,
    /// How many attempts are known to have begun and not to have been taken back.
    pub attempts: u32,
    /// On how many nodes there is a record.
    pub nodes: usize,
    /// When the first of these records expires: a copy of the request that comes later runs again,
    /// unless its age is known.
    pub expires_in: Duration,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// A majority of the nodes has a result.
    Stored,
    /// Fewer nodes have a result; the next call settles it without running the handler.
    Unsettled,
    /// A claim runs.
    Running {
        /// When its lease ends if it is not renewed.
        remaining: Duration,
    },
    /// An attempt began and left no result: with `at_most_once` the key is parked. Settle it by
    /// [`Call::resolve`](crate::idempotency::Call::resolve) or
    /// [`Call::rerun`](crate::idempotency::Call::rerun).
    Lapsed,
    /// Every attempt was taken back: the next call runs as the first.
    Free,
}

/// What one node has.
#[derive(Clone, Copy, Debug)]
struct Seen {
    attempts: u32,
    left: Duration,
    result: bool,
    expires: Duration,
}

/// Lists the keys of a namespace, of all nodes, as they are now. It reads each node's whole key
/// space in steps (`SCAN`), which takes a while on large ones and stops nobody.
///
/// # Errors
/// What was given makes no sense. What was found at the nodes is in the result.
///
/// # Cancellation safety
/// Reads only.
pub async fn keys(
    deployment: &Deployment,
    prefix: &str,
    namespace: &str,
) -> Result<Keys, ConfigError> {
    check_prefix(prefix)?;
    check_name("namespace", namespace)?;
    let (_, found) = masters::find(deployment).await?;
    let begins = record_key(prefix, namespace, "");
    let reads = found.iter().map(|found| async {
        match &found.master {
            Ok(master) => read(deployment, master, &begins).await,
            Err(Absent::Refused(why) | Absent::Unreachable(why)) => Err(why.clone()),
        }
    });
    let (n, mut all, mut unread) = (found.len(), BTreeMap::new(), Vec::new());
    for (found, read) in found.iter().zip(join_all(reads).await) {
        match read {
            Ok(seen) => {
                for (key, seen) in seen {
                    all.entry(key).or_insert_with(Vec::new).push(seen);
                }
            }
            Err(why) => unread.push((found.node.clone(), why)),
        }
    }
    let keys = all.into_iter().map(|(key, seen)| facts(key, &seen, n)).collect();
    Ok(Keys { keys, unread })
}

/// What the nodes that have a record say together, of so many nodes.
fn facts(key: String, seen: &[Seen], n: usize) -> KeyFacts {
    let results = seen.iter().filter(|s| s.result).count();
    let remaining = seen.iter().filter(|s| !s.result).map(|s| s.left).max().unwrap_or_default();
    let attempts = seen.iter().map(|s| s.attempts).max().unwrap_or(0);
    let state = if results > n / 2 {
        KeyState::Stored
    } else if !remaining.is_zero() {
        KeyState::Running { remaining }
    } else if results > 0 {
        KeyState::Unsettled
    } else if attempts > 0 {
        KeyState::Lapsed
    } else {
        KeyState::Free
    };
    let expires_in = seen.iter().map(|s| s.expires).min().unwrap_or_default();
    KeyFacts { key, state, attempts, nodes: seen.len(), expires_in }
}

/// All records on one server.
async fn read(
    deployment: &Deployment,
    master: &Master,
    begins: &str,
) -> Result<BTreeMap<String, Seen>, String> {
    let (mut all, mut cursor) = (BTreeMap::new(), "0".to_owned());
    let pattern = format!("{}*", escaped(begins));
    loop {
        // Each page has the time of one question.
        let conn = master.open(deployment).await?;
        let (next, keys) = scan_for(&conn, &cursor, Some(&pattern)).await?;
        if !keys.is_empty() {
            let seen = records(&conn, &keys).await?;
            let named = keys.iter().map(|key| {
                let key = String::from_utf8_lossy(key);
                key.strip_prefix(begins).unwrap_or(&key).to_owned()
            });
            all.extend(named.zip(seen).filter_map(|(key, seen)| Some((key, seen?))));
        }
        if next == "0" {
            return Ok(all);
        }
        cursor = next;
    }
}

async fn records(conn: &Conn, keys: &[Vec<u8>]) -> Result<Vec<Option<Seen>>, String> {
    let mut command = redis::cmd("EVAL");
    command.arg(READ).arg(keys.len()).arg(keys);
    let answer: Read<Value> = conn.ask(&command, "EVAL").await;
    let Value::Array(records) = answer.known()? else {
        return Err("EVAL: answer not understood".to_owned());
    };
    Ok(records.iter().map(seen).collect())
}

fn seen(record: &Value) -> Option<Seen> {
    let Value::Array(parts) = record else { return None };
    let number = |part: &Value| match part {
        Value::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    };
    let parts: Vec<u64> = parts.iter().filter_map(number).collect();
    let [attempts, left, result, expires] = parts[..] else { return None };
    Some(Seen {
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        left: Duration::from_millis(left),
        result: result == 1,
        expires: Duration::from_millis(expires),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_nodes_say_together() {
        let of = |cells: &str| {
            let seen = |cell: &str| {
                let (what, number) = cell.split_at(1);
                let number: u32 = number.parse().unwrap();
                Seen {
                    attempts: if what == "r" { 1 } else { number },
                    left: Duration::from_secs(if what == "r" { number.into() } else { 0 }),
                    result: what == "d",
                    expires: Duration::from_secs(9),
                }
            };
            let seen: Vec<_> = cells.split(' ').map(seen).collect();
            facts("k".to_owned(), &seen, 3)
        };
        // d: a result; r: runs for so many seconds; l: so many attempts without a result.
        for (cells, state) in [
            ("d1 d1 d1", KeyState::Stored),
            ("d1 d1 r5", KeyState::Stored),
            ("d1 r5 r3", KeyState::Running { remaining: Duration::from_secs(5) }),
            ("d1 l1", KeyState::Unsettled),
            ("r5", KeyState::Running { remaining: Duration::from_secs(5) }),
            ("l1 l2 l0", KeyState::Lapsed),
            ("l0 l0", KeyState::Free),
        ] {
            assert_eq!(of(cells).state, state, "{cells}");
        }
        assert_eq!((of("l1 l2").attempts, of("l1 l2").nodes), (2, 2));
    }
}
