//! The contenders. Each contender runs the same pair of operations: acquire a lock on N servers,
//! and release the lock.
#![allow(unreachable_pub)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use palisade::{RedisNode, Redlock, RedlockBuilder};

/// Lease of every contender.
pub const TTL: Duration = Duration::from_secs(10);

const COMPARE_AND_DELETE: &str = r"
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// A lock implementation. `pair` acquires and releases a name. It returns false if it did not
/// acquire the lock.
pub trait Contender: Send + Sync + 'static {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// SET NX PX on all servers, followed by a compare-and-delete by EVALSHA on all servers. This is
/// the code of a careful user without a library. It has no quorum logic, no fencing and no
/// deadlines.
pub struct Raw {
    connections: Vec<redis::aio::MultiplexedConnection>,
    sha: String,
}

impl Raw {
    /// Connects with `TCP_NODELAY`, so that the kernel does not delay small packets. Palisade does
    /// the same.
    pub async fn connect(urls: &[String]) -> Self {
        Self::connect_with(urls, true).await
    }

    /// Connects to all servers. `nodelay` sets `TCP_NODELAY`, so that the kernel does not delay
    /// small packets. The `redis` crate does not set this option by default.
    async fn connect_with(urls: &[String], nodelay: bool) -> Self {
        let mut connections = Vec::new();
        let mut sha = String::new();
        for url in urls {
            let info: redis::ConnectionInfo =
                redis::IntoConnectionInfo::into_connection_info(url.as_str()).expect("a url");
            let tcp = info.tcp_settings().clone().set_nodelay(nodelay);
            let client = redis::Client::open(info.set_tcp_settings(tcp)).expect("a client");
            let mut c = client.get_multiplexed_async_connection().await.expect("a server");
            sha = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(COMPARE_AND_DELETE)
                .query_async(&mut c)
                .await
                .expect("a script");
            connections.push(c);
        }
        Self { connections, sha }
    }

    /// Runs a job once, as a program without a library does: sets the key on all servers if it is
    /// new, and then stores the result under it.
    pub async fn once(&self, key: &str, result: &str) {
        let owner: [u8; 16] = rand::random();
        let set = |value: &[u8], nx: bool| {
            let mut cmd = redis::cmd("SET");
            cmd.arg(key).arg(value).arg("PX").arg(86_400_000);
            if nx {
                cmd.arg("NX");
            }
            cmd
        };
        for cmd in [set(&owner, true), set(result.as_bytes(), false)] {
            let ask = |c: &redis::aio::MultiplexedConnection| {
                let (mut c, cmd) = (c.clone(), &cmd);
                async move { cmd.query_async::<Option<String>>(&mut c).await }
            };
            let said = join_all(self.connections.iter().map(ask)).await;
            assert!(said.iter().all(|r| matches!(r, Ok(Some(_)))), "the key is new");
        }
    }

    /// Returns true if the key has a value on the first server. Sends one command.
    pub async fn get(&self, key: &str) -> bool {
        let mut c = self.connections[0].clone();
        let value = redis::cmd("GET").arg(key).query_async::<Option<String>>(&mut c).await;
        value.is_ok_and(|v| v.is_some())
    }
}

impl Contender for Raw {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let token: [u8; 16] = rand::random();
            let set = |c: &redis::aio::MultiplexedConnection| {
                let mut c = c.clone();
                let mut cmd = redis::cmd("SET");
                cmd.arg(&name).arg(&token).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
                async move { cmd.query_async::<Option<String>>(&mut c).await }
            };
            let granted = join_all(self.connections.iter().map(set)).await;
            let yes = granted.iter().filter(|r| matches!(r, Ok(Some(_)))).count();
            let del = |c: &redis::aio::MultiplexedConnection| {
                let mut c = c.clone();
                let mut cmd = redis::cmd("EVALSHA");
                cmd.arg(&self.sha).arg(1).arg(&name).arg(&token);
                async move { cmd.query_async::<i64>(&mut c).await }
            };
            join_all(self.connections.iter().map(del)).await;
            yes > self.connections.len() / 2
        })
    }
}

/// The contender that uses rslock 0.10, as its README shows.
pub struct Rslock(rslock::LockManager);

impl Rslock {
    pub fn connect(urls: &[String]) -> Self {
        Self(rslock::LockManager::new(urls.iter().map(String::as_str).collect()))
    }
}

impl Contender for Rslock {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            match self.0.lock(name.as_bytes(), TTL).await {
                Ok(lock) => {
                    self.0.unlock(&lock).await;
                    true
                }
                Err(_) => false,
            }
        })
    }
}

/// The contender that uses this library: quorum, fencing token, deadline for each node, automatic
/// renewal, typed release.
pub struct Ours(pub Redlock);

impl Ours {
    pub fn connect(urls: &[String]) -> Self {
        let node =
            |url: &String| RedisNode::builder(url).trust_fresh(true).build().expect("a node");
        let builder = urls.iter().map(node).fold(Redlock::builder(), RedlockBuilder::node);
        Self(builder.ttl(TTL).build().expect("a handle"))
    }
}

impl Contender for Ours {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            match self.0.mutex(name).build().unwrap().try_acquire().await {
                Ok(palisade::TryAcquire::Acquired(guard)) => guard.release().await.is_ok(),
                _ => false,
            }
        })
    }
}

/// Connects the contender with this name to these servers.
pub async fn contender(who: &str, urls: &[String]) -> Arc<dyn Contender> {
    match who {
        "raw" => Arc::new(Raw::connect(urls).await),
        "raw default" => Arc::new(Raw::connect_with(urls, false).await),
        "rslock" => Arc::new(Rslock::connect(urls)),
        _ => Arc::new(Ours::connect(urls)),
    }
}
