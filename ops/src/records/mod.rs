//! The idempotency keys of a namespace, for people: which there are, and deciding about them.
//!
//! Listing reads each node's key space by `SCAN`, in pages. A key that is there from the first page
//! to the last is found. One that is claimed, or expires, in between may be missing. A node that
//! fails over, or is restarted, in between counts as not read, because the place at which a page
//! ended means nothing to another server.

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

/// So many records are read in one question, so that no server is held up for long.
const PAGE: usize = 500;

/// The idempotency keys of one namespace on a deployment's servers.
#[derive(Clone, Debug)]
pub struct Records {
    deployment: Deployment,
    prefix: String,
    namespace: String,
    /// How their keys begin on the servers.
    begins: String,
}

/// What is looked for. Everything that is set has to be so.
#[derive(Clone, Debug, Default)]
#[must_use = "it only says what to look for"]
pub struct Select {
    states: Vec<&'static str>,
    forgotten: bool,
    older_than: Duration,
    expires_within: Option<Duration>,
    limit: Option<usize>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyList {
    /// The keys that were looked for, in order.
    pub keys: Vec<KeyFacts>,
    /// Nodes that could not be read, or not to their end, each with why. What only they have is
    /// missing.
    pub unread: Vec<(String, String)>,
    /// The limit was reached, and there may be more.
    pub more: bool,
    /// How many nodes there are.
    pub nodes: usize,
}

impl Select {
    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    fn state(mut self, state: &'static str) -> Self {
        self.states.push(state);
        self
    }

    /// Keys whose claim runs. With the other states: those too.
    pub fn running(self) -> Self {
        self.state("running")
    }

    /// Keys whose earlier attempt left no result. With the other states: those too.
    pub fn lapsed(self) -> Self {
        self.state("lapsed")
    }

    /// Keys with a result. With the other states: those too.
    pub fn stored(self) -> Self {
        self.state("stored")
    }

    /// Only keys of which attempts may be forgotten ([`KeyFacts::forgotten`]).
    pub fn forgotten(self) -> Self {
        Self { forgotten: true, ..self }
    }

    /// Only keys whose last claim is at least so [old](KeyFacts::age).
    pub fn older_than(self, age: Duration) -> Self {
        Self { older_than: age, ..self }
    }

    /// Only keys of which a record expires within this time.
    pub fn expires_within(self, span: Duration) -> Self {
        Self { expires_within: Some(span), ..self }
    }

    /// At most so many.
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
    /// The state in one word, as the program `palisade` prints it.
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

/// The nodes as they are while a question is answered: each with its server, or why it has none.
struct Nodes(Vec<(String, Result<Master, String>)>);

impl Records {
    /// The keys of this namespace. Prefix and namespace are those of the handles that use them.
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

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Lists keys, of all nodes, as they are now. It reads each node's whole key space in pages
    /// (`SCAN`), which takes a while on large ones and stops nobody. A key that is claimed or
    /// expires while it runs may be missing; nodes that could not be read are named.
    ///
    /// # Errors
    /// What was given makes no sense. What was found at the nodes is in the result.
    ///
    /// # Cancellation safety
    /// Reads only.
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

    /// One page of keys on a server, as callers give them.
    async fn page(&self, master: &Master, from: &str) -> Result<(String, Vec<String>), String> {
        let pattern = format!("{}*", escaped(&self.begins));
        // Each page has the time of one question.
        let conn = master.open(&self.deployment).await?;
        let (next, keys) = scan_for(&conn, from, Some(&pattern)).await?;
        let named = |key: &Vec<u8>| {
            let key = String::from_utf8_lossy(key);
            key.strip_prefix(&self.begins).map(str::to_owned)
        };
        Ok((next, keys.iter().filter_map(named).collect()))
    }

    /// What all nodes say of these keys. A node that fails is not read from then on.
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

    /// What each node has under these keys; none of a node that cannot be read.
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

/// Lists the namespaces of which a node has a record or a decision, in order, and the nodes that
/// could not be read, each with why. It reads each node's whole key space in pages (`SCAN`).
///
/// # Errors
/// What was given makes no sense.
///
/// # Cancellation safety
/// Reads only.
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
        // Each page has the time of one question.
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
    // A negative number would wrap as an unsigned one.
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

/// The facts of a record, in the order in which `records.lua` returns them.
type Numbers = (i64, i64, bool, i64, String, i64, bool);
