//! A continuous survey of all nodes, for programs that show what is on them: one connection to each
//! node, and each call sends one request to each node. The functions only read.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::Deployment;
use super::gather::conn::Conn;
use super::masters::{Master, find_masters};
use super::records::{KeyFacts, Records, Seen, seen_of};
use palisade::ConfigError;
use palisade::node::spi::LockKeys;

const QUEUES: &str = include_str!("lua/queues.lua");
/// Shortest time between two searches for the masters, which cost many requests.
const SEARCH: Duration = Duration::from_secs(2);
/// Number of requests of a search to a server: the login, its role and `INFO`.
const SEARCH_REQUESTS: u64 = 3;
/// Length of one waiter in a queue's value.
const WAITER: usize = 48;

/// A survey of the nodes of a deployment.
#[derive(Debug)]
pub struct Survey {
    deployment: Deployment,
    nodes: Vec<Surveyed>,
    searched: Option<Instant>,
    /// Number of requests to each node, with those of the searches.
    sent: u64,
}

/// One node of a survey.
#[derive(Debug)]
struct Surveyed {
    node: String,
    master: Result<Master, String>,
    conn: Option<Conn>,
    /// Cursor of the next page of `SCAN`.
    cursor: String,
}

/// One page of the keys of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scanned {
    /// The node's name.
    pub node: String,
    /// The keys of the page that are UTF-8, or the reason for which the node could not be read.
    pub keys: Result<Vec<String>, String>,
    /// True if this was the last page of a round through all keys.
    pub is_last: bool,
    /// Time that the request took.
    pub took: Duration,
}

/// A lock's key and queue on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockQueue {
    /// True if there is a value under the lock's key.
    pub is_there: bool,
    /// The waiters, the longest wait first.
    pub waiters: Vec<Waiter>,
}

/// A handle that waits for a lock in a node's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Number of the handle, as 16 hexadecimal digits. It is the same on every node.
    pub handle: String,
    /// Start of the wait in ms since 1970, by the node's clock.
    pub since: u64,
    /// True if it waits to read.
    pub is_shared: bool,
}

/// One answer of each node, with the node's name.
pub type OfEach<T> = Vec<(String, Result<T, String>)>;

impl Survey {
    /// Creates a survey of these nodes. Connects with the first request.
    pub fn new(deployment: &Deployment) -> Self {
        Self { deployment: deployment.clone(), nodes: Vec::new(), searched: None, sent: 0 }
    }

    /// Returns the number of requests that each node has received since the last call, the searches
    /// for the masters included. If the nodes differ, it is the largest number.
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

    /// Reads the next page of about `count` keys from each node. After the last page of a node, the
    /// next round of that node begins.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the round of a node may begin again.
    pub async fn scan(&mut self, count: usize) -> Result<Vec<Scanned>, ConfigError> {
        self.search().await?;
        let deployment = &self.deployment;
        let scans = self.nodes.iter_mut().map(|node| async move {
            let mut command = redis::cmd("SCAN");
            command.arg(&node.cursor).arg("COUNT").arg(count);
            let began = Instant::now();
            let page = node.request::<(String, Vec<Vec<u8>>)>(deployment, &command, "SCAN").await;
            // After a failure the cursor may be another server's.
            let (keys, cursor) = match page {
                Ok((cursor, keys)) => (Ok(keys), cursor),
                Err(why) => (Err(why), "0".to_owned()),
            };
            node.cursor = cursor;
            let text = |keys: Vec<Vec<u8>>| {
                keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()
            };
            let is_last = keys.is_ok() && node.cursor == "0";
            Scanned {
                node: node.node.clone(),
                keys: keys.map(text),
                is_last,
                took: began.elapsed(),
            }
        });
        Ok(join_all(scans).await)
    }

    /// Reads from each node which of the locks with these main keys are there, and their queues.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    ///
    /// # Cancellation safety
    /// The function only reads.
    pub async fn queues(&mut self, locks: &[&str]) -> Result<OfEach<Vec<LockQueue>>, ConfigError> {
        self.search().await?;
        let mut command = redis::cmd("EVAL");
        command.arg(QUEUES).arg(2 * locks.len());
        for lock in locks {
            let keys = LockKeys::new(lock);
            command.arg(keys.lock()).arg(keys.queue());
        }
        let (deployment, command) = (&self.deployment, &command);
        let reads = self.nodes.iter_mut().map(|node| async move {
            let all = node.request::<Vec<(i64, Vec<u8>)>>(deployment, command, "EVAL").await;
            let whole = |all: Vec<(i64, Vec<u8>)>| {
                let is_whole = all.len() == locks.len();
                is_whole.then(|| all.into_iter().map(queue).collect()).ok_or_else(strange)
            };
            (node.node.clone(), all.and_then(whole))
        });
        Ok(join_all(reads).await)
    }

    /// Reads these keys of a namespace from each node. A key without a record is left out. Also
    /// returns the nodes that could not be read, with the reasons.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    ///
    /// # Cancellation safety
    /// The function only reads.
    pub async fn records(
        &mut self,
        records: &Records,
        keys: &[String],
    ) -> Result<(Vec<KeyFacts>, Vec<(String, String)>), ConfigError> {
        self.search().await?;
        let (deployment, command) = (&self.deployment, &records.read_command(keys));
        let reads = self.nodes.iter_mut().map(|node| async move {
            let all = node.request::<Vec<redis::Value>>(deployment, command, "EVAL").await;
            let whole = |all: Vec<redis::Value>| {
                let is_whole = all.len() == keys.len() + 1;
                let seen = || all.into_iter().skip(1).map(seen_of).collect::<Vec<Option<Seen>>>();
                is_whole.then(seen).ok_or_else(strange)
            };
            (node.node.clone(), all.and_then(whole))
        });
        let all = join_all(reads).await;
        let seen: Vec<_> = all.iter().map(|(_, read)| read.as_ref().ok().cloned()).collect();
        let facts = Records::combine(keys.to_vec(), &seen);
        let unread = all.into_iter().filter_map(|(node, read)| Some((node, read.err()?)));
        Ok((facts, unread.collect()))
    }

    /// Finds the masters if one is not known. It is called once before each request.
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
            // A master that did not change keeps its connection and its cursor.
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
    /// Sends a command on the node's connection, within the deployment's time-out. If that fails,
    /// the next request finds the master again.
    async fn request<T: redis::FromRedisValue>(
        &mut self,
        deployment: &Deployment,
        command: &redis::Cmd,
        what: &str,
    ) -> Result<T, String> {
        let master = self.master.as_ref().map_err(Clone::clone)?;
        let sent = async {
            let conn = match &self.conn {
                Some(conn) => conn.until(Instant::now() + deployment.within),
                None => Conn::open_wide(&master.target, Instant::now() + deployment.within).await?,
            };
            let answer = conn.read(command, what).await?;
            Ok::<_, String>((conn, answer))
        };
        let late = || Err("no answer before the deadline".to_owned());
        match timeout(deployment.within, sent).await.unwrap_or_else(|_| late()) {
            Ok((conn, answer)) => {
                self.conn = Some(conn);
                Ok(answer)
            }
            Err(why) => {
                (self.conn, self.master) = (None, Err(why.clone()));
                Err(why)
            }
        }
    }
}

fn strange() -> String {
    "EVAL: answer not understood".to_owned()
}

/// Reads one answer of `queues.lua`.
fn queue((left, value): (i64, Vec<u8>)) -> LockQueue {
    let waiters = value.get(1..).unwrap_or_default().chunks_exact(WAITER);
    LockQueue { is_there: left != -2, waiters: waiters.filter_map(waiter).collect() }
}

/// Reads a waiter; `None` if another program wrote the value.
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
        // Nothing listens at port 1, so the master is missing.
        let mut survey = Survey::new(&Deployment::new().node("redis://127.0.0.1:1"));
        let sent = async |survey: &mut Survey| {
            assert!(survey.scan(10).await.unwrap()[0].keys.is_err());
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
