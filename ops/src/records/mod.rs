//! Lists and changes the idempotency keys of a namespace. A listing contains every key that exists
//! from its first page to its last. A node that fails over or restarts meanwhile counts as not
//! read, because the cursor of a page is not valid on another server.

mod change;
mod facts;
mod key_change;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

pub use self::change::{Audit, Change, Purge, Purged, resolve};
pub(crate) use self::facts::NodeRecords;
use self::facts::{Found, Seen, facts};
pub use self::facts::{KeyFacts, KeyState};
pub use self::key_change::{KeyChange, NodeChange};
use super::Deployment;
use super::gather::conn::raw;
use super::masters::{Master, find_masters};
use super::scan::{Scan, escaped};
use super::script;
use palisade::ConfigError;
use palisade::internal::lineage::Marker;
use palisade::internal::{
    DECISIONS, MARKER, QuarantineId, RecordRead, check_namespace, check_prefix, of_record,
    record_key,
};

/// Number of records in one request. A larger number would block the server for too long.
const PAGE: usize = 500;

/// The idempotency keys of one namespace on the servers of a deployment.
#[derive(Clone, Debug)]
pub struct Records {
    deployment: Deployment,
    prefix: String,
    namespace: String,
    begins: String,
}

/// A selection of keys: the keys that meet all conditions.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// The selected states. An empty list selects all states.
    pub states: Vec<KeyState>,
    /// If true, selects only keys of which the nodes may have lost earlier attempts to run the
    /// handler ([`KeyFacts::forgotten`]).
    pub forgotten: bool,
    /// Smallest selected [age](KeyFacts::age) of the last claim.
    pub older_than: Duration,
    /// Largest selected [age](KeyFacts::age) of the last claim.
    pub younger_than: Option<Duration>,
    /// Longest selected time until a record of the key expires ([`KeyFacts::expires_in`]).
    pub expires_within: Option<Duration>,
    /// Largest number of keys that are selected.
    pub limit: Option<usize>,
}

/// Result of [`Records::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyList {
    /// The selected keys, in order.
    pub keys: Vec<KeyFacts>,
    /// Nodes that could not be read completely, with the reasons. If only these nodes have a key,
    /// the key is not in `keys`.
    pub unread: Vec<(String, String)>,
    /// True if the limit of the selection was reached. There may be more keys then.
    pub more: bool,
    /// Number of nodes.
    pub nodes: usize,
}

impl Select {
    fn takes(&self, key: &KeyFacts) -> bool {
        (self.states.is_empty() || self.states.contains(&key.state))
            && (!self.forgotten || key.forgotten)
            && key.age >= self.older_than
            && self.younger_than.is_none_or(|age| key.age <= age)
            && self.expires_within.is_none_or(|span| key.expires_in <= span)
    }
}

/// The error is the reason for which the node has no master.
type Nodes = Vec<(String, Result<Master, String>)>;

/// `None` if the node could not be read.
type NodeSeen = Option<NodeRecords>;

impl Records {
    /// Creates a `Records` for a namespace. The prefix and the namespace must be those of the
    /// handles that use the keys.
    ///
    /// # Errors
    /// [`ConfigError`] if the prefix or the namespace is invalid.
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

    /// Returns the prefix of the handles that use the keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the namespace of the keys.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Lists the selected keys of all nodes. The function reads the whole key space of each node in
    /// pages (`SCAN`). That takes a while if the key space is large, but blocks no other client. A
    /// key that is claimed or expires during the listing may be missing. The result names the nodes
    /// that could not be read.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// The function only reads.
    pub async fn list(&self, select: &Select) -> Result<KeyList, ConfigError> {
        let mut nodes = find_masters(&self.deployment).await?;
        let (mut found, mut more) = (BTreeMap::new(), false);
        'nodes: for at in 0..nodes.len() {
            let Ok(master) = nodes[at].1.clone() else { continue };
            let pattern = format!("{}*", escaped(&self.begins));
            let mut scan = Scan::new(&self.deployment, &master, Some(pattern));
            // A node that failed gets no request for the next page.
            while nodes[at].1.is_ok() {
                let page = match scan.next().await {
                    Ok(Some((_, keys))) => self.named(&keys),
                    Ok(None) => break,
                    Err(why) => {
                        nodes[at].1 = Err(why);
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
            }
        }
        let n = nodes.len();
        let unread = nodes.into_iter().filter_map(|(node, read)| Some((node, read.err()?)));
        Ok(KeyList {
            keys: found.into_values().collect(),
            unread: unread.collect(),
            more,
            nodes: n,
        })
    }

    fn named(&self, keys: &[Vec<u8>]) -> Vec<String> {
        let named = |key: &Vec<u8>| {
            let key = String::from_utf8_lossy(key);
            key.strip_prefix(&self.begins).map(str::to_owned)
        };
        keys.iter().filter_map(named).collect()
    }

    /// A node that fails is marked as unread, and gets no further request.
    async fn read(&self, nodes: &mut Nodes, keys: Vec<String>) -> Vec<KeyFacts> {
        if keys.is_empty() {
            return Vec::new();
        }
        let all = self.seen(nodes, &keys).await;
        Self::combine(keys, &all)
    }

    /// A key without a record is left out.
    pub(crate) fn combine(keys: Vec<String>, all: &[NodeSeen]) -> Vec<KeyFacts> {
        let of = |(i, key)| facts(key, all, i);
        keys.into_iter().enumerate().filter_map(of).collect()
    }

    /// `None` if the node cannot be read.
    async fn seen(&self, nodes: &mut Nodes, keys: &[String]) -> Vec<NodeSeen> {
        let asks = nodes.iter().map(|(_, master)| async move {
            self.ask(master.as_ref().map_err(Clone::clone)?, keys).await
        });
        let answers = join_all(asks).await.into_iter().zip(nodes);
        let note = |(answer, (_, master)): (Result<_, String>, &mut (_, Result<_, String>))| {
            answer.map_err(|why| *master = Err(why)).ok()
        };
        answers.map(note).collect()
    }

    pub(crate) fn read_command(&self, keys: &[String]) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script::RECORDS).arg(keys.len() + 1).arg(MARKER);
        for key in keys {
            command.arg(format!("{}{key}", self.begins));
        }
        command.arg(RecordRead::HEAD);
        command
    }

    async fn ask(&self, master: &Master, keys: &[String]) -> Result<NodeRecords, String> {
        let conn = master.open(&self.deployment).await?;
        let answer: Vec<Value> = conn.read(&self.read_command(keys), "EVAL").await?;
        let (run_id, records) = records_of(answer, keys.len())
            .ok_or_else(|| format!("{}: EVAL: answer not understood", master.at))?;
        if run_id != master.run_id {
            let why = "another process answers there than when the listing began; list again";
            return Err(format!("{}: {why}", master.at));
        }
        Ok(records)
    }
}

/// Lists the namespaces that have a record or a decision on a node, in order. Returns also the
/// nodes that could not be read, with the reasons. The function reads the whole key space of each
/// node in pages (`SCAN`).
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
    let (mut all, mut unread) = (BTreeSet::new(), Vec::new());
    for (node, master) in find_masters(deployment).await? {
        let read = match master {
            Ok(master) => namespaces_on(deployment, &master, prefix, &mut all).await,
            Err(why) => Err(why),
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
    let mut scan = Scan::new(deployment, master, Some(format!("{}*", escaped(prefix))));
    while let Some((_, keys)) = scan.next().await? {
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
    }
    Ok(())
}

pub(crate) fn records_of(answer: Vec<Value>, n: usize) -> Option<(String, NodeRecords)> {
    let mut answer = answer.into_iter();
    let (run_id, micros) = (raw(&answer.next()?)?, answer.next()?);
    let micros: u64 = redis::from_redis_value(micros).ok()?;
    let marker = redis::from_redis_value::<Vec<u8>>(answer.next()?).ok()?;
    let text = std::str::from_utf8(&marker).unwrap_or_default();
    let lineage = Marker::parse(text, micros / 1_000);
    let mut all = NodeRecords {
        history: lineage.map(|m| Duration::from_millis((micros / 1_000).saturating_sub(m.since))),
        micros,
        marker,
        lineage,
        ..NodeRecords::default()
    };
    while let Some(text) = answer.next() {
        let text: Vec<u8> = redis::from_redis_value(text).ok()?;
        let left: i64 = redis::from_redis_value(answer.next()?).ok()?;
        let found = match RecordRead::parse(&text) {
            Some(record) => Found::Record(record),
            None if left == NO_KEY => Found::Nothing,
            None => Found::Foreign,
        };
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        all.records.push(match &found {
            Found::Record(record) => Some(seen_of(record, left, micros, lineage.map(|m| m.id()))),
            _ => None,
        });
        all.found.push(found);
    }
    (all.found.len() == n).then_some((run_id, all))
}

/// Value of `PTTL` for a key that does not exist.
const NO_KEY: i64 = -2;

fn seen_of(
    record: &RecordRead,
    expires: Duration,
    micros: u64,
    history: Option<QuarantineId>,
) -> Seen {
    Seen {
        attempts: record.attempts(),
        left: Duration::from_millis(record.lease_end().saturating_sub(micros / 1_000)),
        result: record.has_result(),
        expires,
        fence: record.ballot().to_string(),
        age: Duration::from_millis(micros.saturating_sub(record.ballot()) / 1_000),
        current: history.is_some_and(|history| record.is_of(history)),
    }
}
