//! A continuous survey of all nodes: one connection to each, one round trip to each for a reading.
//! Only reads.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::{Instant, timeout};

use super::Deployment;
use super::gather::conn::Conn;
use super::masters::{Master, find_masters};
use super::records::{KeyFacts, NodeRecords, Records, records_of};
use super::script;
use palisade::ConfigError;
use palisade::node::spi::LockKeys;

/// Shortest time between two searches for the masters, which cost many requests.
const SEARCH: Duration = Duration::from_secs(2);
/// The login, `ROLE` and `INFO`.
const SEARCH_REQUESTS: u64 = 3;
/// In bytes.
const WAITER: usize = 48;

/// A survey of the nodes of a deployment: connections that read locks and keys repeatedly.
#[derive(Debug)]
pub struct Survey {
    deployment: Deployment,
    nodes: Vec<Surveyed>,
    searched: Option<Instant>,
    /// To each node, since the last call of `take_sent`, with those of the searches.
    sent: u64,
}

#[derive(Debug)]
struct Surveyed {
    node: String,
    master: Result<Master, String>,
    conn: Option<Conn>,
    cursor: String,
}

/// The parts of one request of a survey. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Approximate number of keys of the next page of `SCAN`; `None` asks for no page. After the
    /// last page of a node, the next request begins again with the first page.
    pub scan: Option<usize>,
    /// Main keys of locks. For each lock, the request reads if its key exists, and its queue of
    /// waiting clients.
    pub locks: &'a [&'a str],
    /// Keys of a namespace, whose records are read.
    pub keys: Option<(&'a Records, &'a [String])>,
}

/// The answers of all nodes to one request of a survey.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Answers {
    /// One page of each node's keys; empty if no page was asked for.
    pub scanned: Vec<Scanned>,
    /// The queues of waiting clients on each node, in the order of the locks; empty if no lock was
    /// asked for.
    pub queues: OfEach<Vec<LockQueue>>,
    /// The state of each requested key that has a record.
    pub facts: Vec<KeyFacts>,
    /// Nodes whose records could not be read, with the reasons.
    pub unread: Vec<(String, String)>,
}

/// One page of the keys of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scanned {
    /// The node's name.
    pub node: String,
    /// The keys of this page that are UTF-8, or the reason for which the node could not be read.
    pub keys: Result<Vec<String>, String>,
    /// True if this was the last page of a pass over all keys of the node.
    pub is_last: bool,
    /// Time that the request took.
    pub took: Duration,
}

/// A lock's key and its queue of waiting clients, on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockQueue {
    /// True if there is a value under the lock's key.
    pub is_there: bool,
    /// The handles that wait for the lock. The one that has waited longest is the first.
    pub waiters: Vec<Waiter>,
}

/// A handle that waits for a lock in a node's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Number of the handle, as 16 hexadecimal digits. It is the same on every node.
    pub handle: String,
    /// Start of the wait in ms since 1970, by the node's clock.
    pub since: u64,
    /// True if the client waits for a shared lock, to read.
    pub is_shared: bool,
}

/// One answer of each node, with the node's name.
pub type OfEach<T> = Vec<(String, Result<T, String>)>;

impl Survey {
    /// Creates a survey, which reads locks and keys of these nodes. Connects with the first
    /// request.
    pub fn new(deployment: &Deployment) -> Self {
        Self { deployment: deployment.clone(), nodes: Vec::new(), searched: None, sent: 0 }
    }

    /// Returns the number of requests that each node has received since the last call, the searches
    /// for the masters included. If the nodes differ, returns the largest number.
    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Has the next request find the masters again, at most every two seconds. Call this function
    /// after a node's event, which may be a failover.
    pub fn search_again(&mut self) {
        for node in &mut self.nodes {
            node.conn = None;
            node.master = Err("its master is searched again".to_owned());
        }
    }

    /// Reads from each node what `ask` names, in one round trip.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// The function only reads. If the future is dropped, the scan of a node's keys may begin again
    /// at the first page.
    pub async fn read(&mut self, ask: &Ask<'_>) -> Result<Answers, ConfigError> {
        self.search().await?;
        let deployment = &self.deployment;
        let reads = self.nodes.iter_mut().map(|node| async move {
            let began = Instant::now();
            let parts = node.request(deployment, ask).await;
            (node.node.clone(), parts, began.elapsed())
        });
        let mut answers = Answers::default();
        let mut seen = Vec::new();
        for (name, parts, took) in join_all(reads).await {
            let Parts { scan, queues, records } = parts;
            if let Some(scan) = scan {
                let is_last = scan.as_ref().is_ok_and(|(_, cursor)| cursor == "0");
                let (node, keys) = (name.clone(), scan.map(|(keys, _)| keys));
                answers.scanned.push(Scanned { node, keys, is_last, took });
            }
            if let Some(queues) = queues {
                answers.queues.push((name.clone(), queues));
            }
            if let Some(records) = records {
                seen.push(records.map_err(|why| answers.unread.push((name, why))).ok());
            }
        }
        if let Some((_, keys)) = ask.keys {
            answers.facts = Records::combine(keys.to_vec(), &seen);
        }
        Ok(answers)
    }

    /// Once in each call of [`read`](Self::read).
    async fn search(&mut self) -> Result<(), ConfigError> {
        self.sent += 1;
        let missing = self.nodes.is_empty() || self.nodes.iter().any(|node| node.master.is_err());
        if !missing || self.searched.is_some_and(|at| at.elapsed() < SEARCH) {
            return Ok(());
        }
        let found = find_masters(&self.deployment).await?;
        self.searched = Some(Instant::now());
        self.sent += SEARCH_REQUESTS;
        let known = std::mem::take(&mut self.nodes);
        let node = |(node, master): (String, Result<Master, String>)| {
            // A master that did not change keeps its connection and the cursor of its scan.
            let same = known.iter().find(|one| {
                one.node == node
                    && matches!((&one.master, &master), (Ok(a), Ok(b)) if a.run_id == b.run_id)
            });
            let conn = same.and_then(|one| one.conn.clone());
            let cursor = same.map_or_else(|| "0".to_owned(), |one| one.cursor.clone());
            Surveyed { node, master, conn, cursor }
        };
        self.nodes = found.into_iter().map(node).collect();
        Ok(())
    }
}

impl Surveyed {
    /// Within the deployment's time-out. If a part fails, the next request finds the master again.
    async fn request(&mut self, deployment: &Deployment, ask: &Ask<'_>) -> Parts {
        let mut commands = redis::pipe();
        let mut count = 0;
        if let Some(keys) = ask.scan {
            commands.cmd("SCAN").arg(&self.cursor).arg("COUNT").arg(keys);
            count += 1;
        }
        if !ask.locks.is_empty() {
            commands.cmd("EVAL").arg(script::QUEUES).arg(2 * ask.locks.len());
            for lock in ask.locks {
                let keys = LockKeys::new(lock);
                commands.arg(keys.lock()).arg(keys.queue());
            }
            count += 1;
        }
        if let Some((records, keys)) = ask.keys {
            commands.add_command(records.read_command(keys));
            count += 1;
        }
        let mut answers = match self.send(deployment, &commands, count).await {
            Ok(answers) => answers.into_iter(),
            Err(why) => vec![Err(why); count].into_iter(),
        };
        let mut next = || answers.next().unwrap_or_else(|| Err(strange()));
        let scan = ask.scan.map(|_| next().and_then(page));
        let queues = (!ask.locks.is_empty()).then(|| next().and_then(|all| queues(all, ask)));
        let records = ask.keys.map(|(_, keys)| next().and_then(|all| records(all, keys.len())));
        if let Some(scan) = &scan {
            // After a failure the cursor may be that of another server.
            scan.as_ref().map_or("0", |(_, cursor)| cursor).clone_into(&mut self.cursor);
        }
        let parts = Parts { scan, queues, records };
        if let Some(why) = parts.failed() {
            (self.conn, self.master) = (None, Err(why));
        }
        parts
    }

    /// In one write.
    async fn send(
        &mut self,
        deployment: &Deployment,
        commands: &redis::Pipeline,
        count: usize,
    ) -> Result<Vec<Result<Value, String>>, String> {
        let master = self.master.as_ref().map_err(Clone::clone)?;
        let sent = async {
            let conn = match &self.conn {
                Some(conn) => conn.until(Instant::now() + deployment.within()),
                None => {
                    Conn::open_wide(&master.target, Instant::now() + deployment.within()).await?
                }
            };
            let answers = conn.all_needed(commands, count).await?;
            Ok::<_, String>((conn, answers))
        };
        let late = || Err("no answer before the deadline".to_owned());
        let (conn, answers) =
            timeout(deployment.within(), sent).await.unwrap_or_else(|_| late())?;
        self.conn = Some(conn);
        Ok(answers)
    }
}

/// `None` for a part that was not asked for.
struct Parts {
    /// With the cursor of the next page.
    scan: Option<Result<(Vec<String>, String), String>>,
    queues: Option<Result<Vec<LockQueue>, String>>,
    records: Option<Result<NodeRecords, String>>,
}

impl Parts {
    /// `None` if no part failed.
    fn failed(&self) -> Option<String> {
        let scan = self.scan.as_ref().and_then(|part| part.as_ref().err());
        let queues = self.queues.as_ref().and_then(|part| part.as_ref().err());
        let records = self.records.as_ref().and_then(|part| part.as_ref().err());
        scan.or(queues).or(records).cloned()
    }
}

/// The keys that are UTF-8, and the next cursor.
fn page(answer: Value) -> Result<(Vec<String>, String), String> {
    let (cursor, keys): (String, Vec<Vec<u8>>) =
        redis::from_redis_value(answer).map_err(|_| "SCAN: answer not understood".to_owned())?;
    Ok((keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect(), cursor))
}

fn queues(answer: Value, ask: &Ask<'_>) -> Result<Vec<LockQueue>, String> {
    let all: Vec<(i64, Vec<u8>)> = redis::from_redis_value(answer).map_err(|_| strange())?;
    let is_whole = all.len() == ask.locks.len();
    is_whole.then(|| all.into_iter().map(queue).collect()).ok_or_else(strange)
}

fn records(answer: Value, n: usize) -> Result<NodeRecords, String> {
    let all: Vec<Value> = redis::from_redis_value(answer).map_err(|_| strange())?;
    records_of(all, n).map(|(_, records)| records).ok_or_else(strange)
}

fn strange() -> String {
    "EVAL: answer not understood".to_owned()
}

fn queue((left, value): (i64, Vec<u8>)) -> LockQueue {
    let waiters = value.get(1..).unwrap_or_default().chunks_exact(WAITER);
    LockQueue { is_there: left != -2, waiters: waiters.filter_map(waiter).collect() }
}

/// `None` if another program wrote it.
fn waiter(text: &[u8]) -> Option<Waiter> {
    let text = std::str::from_utf8(text).ok()?;
    let (since, kind, handle) = (text.get(..16)?, text.get(16..17)?, text.get(17..33)?);
    let is_hex = handle.bytes().all(|b| b.is_ascii_hexdigit());
    let is_known = is_hex && ["x", "s"].contains(&kind);
    let since = since.parse::<u64>().ok().filter(|_| is_known)? / 1_000;
    Some(Waiter { handle: handle.to_owned(), since, is_shared: kind == "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn searches_count_as_requests() {
        let mut survey = Survey::new(&Deployment::new().node("redis://127.0.0.1:1"));
        let sent = async |survey: &mut Survey| {
            let ask = Ask { scan: Some(10), ..Ask::default() };
            assert!(survey.read(&ask).await.unwrap().scanned[0].keys.is_err());
            survey.take_sent()
        };
        assert_eq!(sent(&mut survey).await, 1 + SEARCH_REQUESTS);
        survey.searched = Some(Instant::now());
        assert_eq!(sent(&mut survey).await, 1, "it is not searched again so soon");
    }

    #[test]
    fn a_queue_shows_its_waiters_in_their_order() {
        let one = |since: u64, kind: char, handle: u64| {
            format!("{since:016}{kind}{handle:016x}10{:013}", 0)
        };
        let value = format!("1{}{}", one(5_000, 'x', 10), one(7_000, 's', 11));
        let seen = queue((30, value.into_bytes()));
        let waiter =
            |since, is_shared, handle: &str| Waiter { handle: handle.to_owned(), since, is_shared };
        assert!(seen.is_there);
        assert_eq!(
            seen.waiters,
            [waiter(5, false, "000000000000000a"), waiter(7, true, "000000000000000b")]
        );
        for odd in
            ["", "0", "foreign", &format!("0{}", "x".repeat(48)), &format!("0{}", "é".repeat(24))]
        {
            assert_eq!(queue((-2, odd.into())), LockQueue::default(), "{odd:?}");
        }
    }
}
