//! The idempotency keys of a namespace, for operators: lists them, and changes them.
//!
//! Listing reads each node's key space by `SCAN`, in pages. A key that exists from the first page
//! to the last is found. A key that is claimed, or expires, in between may be missing. A node that
//! fails over or is restarted in between counts as not read, because the cursor of a page has no
//! meaning at another server.

mod change;
mod facts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

pub use self::change::{Audit, Change, KeyChange, NodeChange, Purge, Purged, resolve};
pub use self::facts::{KeyFacts, KeyState};
use self::facts::{Seen, facts};
use super::Deployment;
use super::gather::conn::{Conn, raw};
use super::init::{escaped, scan_for};
use super::masters::{self, Absent, Found, Master};
use palisade::ConfigError;
use palisade::internal::{DECISIONS, MARKER, check_namespace, check_prefix, of_record, record_key};

const READ: &str = include_str!("../lua/records.lua");

/// Number of records that are read in one request; a larger number would block the server for long.
const PAGE: usize = 500;

/// The idempotency keys of one namespace on a deployment's servers.
#[derive(Clone, Debug)]
pub struct Records {
    deployment: Deployment,
    prefix: String,
    namespace: String,
    /// Beginning of the keys of this namespace on the servers.
    begins: String,
}

/// A selection of keys. A key has to meet every condition that is set.
#[derive(Clone, Debug, Default)]
#[must_use = "it only says what to look for"]
pub struct Select {
    states: Vec<&'static str>,
    forgotten: bool,
    older_than: Duration,
    expires_within: Option<Duration>,
    limit: Option<usize>,
}

/// Result of [`Records::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyList {
    /// The keys that match the selection, in order.
    pub keys: Vec<KeyFacts>,
    /// Nodes that could not be read, or not to their end, each with the reason. Keys that only
    /// these nodes have are missing.
    pub unread: Vec<(String, String)>,
    /// True if the limit was reached, so there may be more keys.
    pub more: bool,
    /// Number of nodes.
    pub nodes: usize,
}

impl Select {
    /// Selects every key.
    pub fn all() -> Self {
        Self::default()
    }

    fn state(mut self, state: &'static str) -> Self {
        self.states.push(state);
        self
    }

    /// Selects keys whose claim runs, besides those of the other states that are selected.
    pub fn running(self) -> Self {
        self.state("running")
    }

    /// Selects keys whose earlier attempt left no result, besides those of the other states that
    /// are selected.
    pub fn lapsed(self) -> Self {
        self.state("lapsed")
    }

    /// Selects keys with a result, besides those of the other states that are selected.
    pub fn stored(self) -> Self {
        self.state("stored")
    }

    /// Restricts the selection to keys with attempts that may be forgotten
    /// ([`KeyFacts::forgotten`]).
    pub fn forgotten(self) -> Self {
        Self { forgotten: true, ..self }
    }

    /// Restricts the selection to keys whose last claim is at least this [old](KeyFacts::age).
    pub fn older_than(self, age: Duration) -> Self {
        Self { older_than: age, ..self }
    }

    /// Restricts the selection to keys that have a record which expires within this time.
    pub fn expires_within(self, span: Duration) -> Self {
        Self { expires_within: Some(span), ..self }
    }

    /// Limits the number of keys.
    pub fn limit(self, keys: usize) -> Self {
        Self { limit: Some(keys), ..self }
    }

    fn takes(&self, key: &KeyFacts) -> bool {
        (self.states.is_empty() || self.states.contains(&key.state.word()))
            && (!self.forgotten || key.forgotten)
            && key.age >= self.older_than
            && self.expires_within.is_none_or(|span| key.expires_in <= span)
    }
}

impl KeyState {
    /// Returns the state as one word, as the program `palisade` prints it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Unsettled => "unsettled",
            Self::Running { .. } => "running",
            Self::Lapsed => "lapsed",
            Self::Free => "free",
        }
    }
}

/// The nodes during one listing or change: each with its master, or the reason for which it has
/// none.
struct Nodes(Vec<(String, Result<Master, String>)>);

impl Records {
    /// Creates the records of this namespace. Prefix and namespace are those of the handles that
    /// use the keys.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn new(
        deployment: &Deployment,
        prefix: &str,
        namespace: &str,
    ) -> Result<Self, ConfigError> {
        check_prefix(prefix)?;
        check_namespace(namespace)?;
        let begins = record_key(prefix, namespace, "").to_string();
        let (prefix, namespace) = (prefix.to_owned(), namespace.to_owned());
        Ok(Self { deployment: deployment.clone(), prefix, namespace, begins })
    }

    /// Returns the prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Lists the keys on all nodes as they are now. It reads each node's whole key space in pages
    /// (`SCAN`), which takes a while if the key space is large, and blocks no other client. A key
    /// that is claimed or expires during the listing may be missing; nodes that could not be read
    /// are in the result.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// The function only reads.
    pub async fn list(&self, select: &Select) -> Result<KeyList, ConfigError> {
        let mut nodes = self.nodes().await?;
        let (mut found, mut more) = (BTreeMap::new(), false);
        'nodes: for at in 0..nodes.0.len() {
            let mut cursor = "0".to_owned();
            while let Ok(master) = nodes.0[at].1.clone() {
                let page = match self.page(&master, &cursor).await {
                    Ok((next, keys)) => {
                        cursor = next;
                        keys
                    }
                    Err(why) => {
                        nodes.0[at].1 = Err(why);
                        break;
                    }
                };
                for keys in page.chunks(PAGE) {
                    let new = keys.iter().filter(|key| !found.contains_key(*key));
                    for facts in self.read(&mut nodes, new.cloned().collect()).await {
                        if !select.takes(&facts) {
                            continue;
                        }
                        if select.limit.is_some_and(|limit| found.len() >= limit) {
                            more = true;
                            break 'nodes;
                        }
                        found.insert(facts.key.clone(), facts);
                    }
                }
                if cursor == "0" {
                    break;
                }
            }
        }
        let n = nodes.0.len();
        let unread = nodes.0.into_iter().filter_map(|(node, read)| Some((node, read.err()?)));
        Ok(KeyList {
            keys: found.into_values().collect(),
            unread: unread.collect(),
            more,
            nodes: n,
        })
    }

    async fn nodes(&self) -> Result<Nodes, ConfigError> {
        let (_, found) = masters::find_masters(&self.deployment).await?;
        let node = |Found { node, master }: Found| {
            let master = master.map_err(|absent| match absent {
                Absent::Refused(why) | Absent::Unreachable(why) => why,
            });
            (node, master)
        };
        Ok(Nodes(found.into_iter().map(node).collect()))
    }

    /// Returns the next cursor and one page of keys on a server, as callers give them.
    async fn page(&self, master: &Master, from: &str) -> Result<(String, Vec<String>), String> {
        let pattern = format!("{}*", escaped(&self.begins));
        // Each page gets its own connection, and so the whole time-out.
        let conn = master.open(&self.deployment).await?;
        let (next, keys) = scan_for(&conn, from, Some(&pattern)).await?;
        let named = |key: &Vec<u8>| {
            let key = String::from_utf8_lossy(key);
            key.strip_prefix(&self.begins).map(str::to_owned)
        };
        Ok((next, keys.iter().filter_map(named).collect()))
    }

    /// Returns the facts about these keys. A node that fails is marked as unread and not queried
    /// again.
    async fn read(&self, nodes: &mut Nodes, keys: Vec<String>) -> Vec<KeyFacts> {
        if keys.is_empty() {
            return Vec::new();
        }
        let all = self.seen(nodes, &keys).await;
        let n = nodes.0.len();
        let of = |(i, key): (usize, String)| {
            let seen: Vec<&Seen> = all.iter().flatten().filter_map(|s| s[i].as_ref()).collect();
            (!seen.is_empty()).then(|| facts(key, &seen, n))
        };
        keys.into_iter().enumerate().filter_map(of).collect()
    }

    /// Returns each node's records of these keys; `None` for a node that cannot be read.
    async fn seen(&self, nodes: &mut Nodes, keys: &[String]) -> Vec<Option<Vec<Option<Seen>>>> {
        let asks = nodes.0.iter().map(|(_, master)| async move {
            let Ok(master) = master else { return None };
            let conn = match master.open(&self.deployment).await {
                Ok(conn) => conn,
                Err(why) => return Some(Err(why)),
            };
            Some(self.ask(&conn, master, keys).await)
        });
        let answers = join_all(asks).await;
        let mut all = Vec::with_capacity(answers.len());
        for (answer, (_, master)) in answers.into_iter().zip(&mut nodes.0) {
            all.push(match answer {
                Some(Ok(seen)) => Some(seen),
                Some(Err(why)) => {
                    *master = Err(why);
                    None
                }
                None => None,
            });
        }
        all
    }

    async fn ask(
        &self,
        conn: &Conn,
        master: &Master,
        keys: &[String],
    ) -> Result<Vec<Option<Seen>>, String> {
        let mut command = redis::cmd("EVAL");
        command.arg(READ).arg(keys.len() + 1).arg(MARKER);
        for key in keys {
            command.arg(format!("{}{key}", self.begins));
        }
        let strange = || format!("{}: EVAL: answer not understood", master.at);
        let mut records: Vec<Value> = conn.read(&command, "EVAL").await?;
        if records.len() != keys.len() + 1 {
            return Err(strange());
        }
        let records_seen = records.split_off(1);
        let run_id = records.first().and_then(raw).ok_or_else(strange)?;
        if run_id != master.run_id {
            let why = "another process answers there than when the listing began; list again";
            return Err(format!("{}: {why}", master.at));
        }
        Ok(records_seen.into_iter().map(seen).collect())
    }
}

/// Lists the namespaces that have a record or a decision on a node, in order, and the nodes that
/// could not be read, each with the reason. It reads each node's whole key space in pages (`SCAN`).
///
/// # Errors
/// [`ConfigError`] if a setting is invalid.
///
/// # Cancellation safety
/// The function only reads.
pub async fn namespaces(
    deployment: &Deployment,
    prefix: &str,
) -> Result<(BTreeSet<String>, Vec<(String, String)>), ConfigError> {
    check_prefix(prefix)?;
    let (_, found) = masters::find_masters(deployment).await?;
    let (mut all, mut unread) = (BTreeSet::new(), Vec::new());
    for Found { node, master } in found {
        let read = match master {
            Ok(master) => namespaces_on(deployment, &master, prefix, &mut all).await,
            Err(Absent::Refused(why) | Absent::Unreachable(why)) => Err(why),
        };
        unread.extend(read.err().map(|why| (node, why)));
    }
    Ok((all, unread))
}

async fn namespaces_on(
    deployment: &Deployment,
    master: &Master,
    prefix: &str,
    all: &mut BTreeSet<String>,
) -> Result<(), String> {
    let (pattern, mut cursor) = (format!("{}*", escaped(prefix)), "0".to_owned());
    loop {
        // Each page gets its own connection, and so the whole time-out.
        let conn = master.open(deployment).await?;
        let (next, keys) = scan_for(&conn, &cursor, Some(&pattern)).await?;
        for key in keys {
            let key = String::from_utf8_lossy(&key);
            let Some((mut namespace, name)) = of_record(prefix, &key) else { continue };
            if namespace == DECISIONS {
                namespace = name.rsplit_once('/').map_or("", |(namespace, _)| namespace);
            }
            if check_namespace(namespace).is_ok() {
                all.insert(namespace.to_owned());
            }
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

fn seen(record: Value) -> Option<Seen> {
    let (attempts, left, result, expires, fence, age, current): Numbers =
        redis::from_redis_value(record).ok()?;
    // Lua may return a negative number, which would become a huge unsigned one.
    let span = |ms| u64::try_from(ms).ok().map(Duration::from_millis);
    Some(Seen {
        attempts: u32::try_from(u64::try_from(attempts).ok()?).unwrap_or(u32::MAX),
        left: span(left)?,
        result,
        expires: span(expires)?,
        fence,
        age: span(age)?,
        current,
    })
}

/// The fields of a record, in the order in which `records.lua` returns them.
type Numbers = (i64, i64, bool, i64, String, i64, bool);
