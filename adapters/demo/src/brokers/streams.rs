//! A Redis server that the demo starts. The messages are in a Redis stream. The server loses no
//! confirmed write.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_streams::{Publisher, Stream, dead_letters};
use redis::streams::{StreamInfoGroupsReply, StreamPendingReply, StreamRangeReply};
use redis::{AsyncCommands as _, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep};

use super::{Dead, publish_all};
use crate::Failure;
use crate::invoices::Letter;
use crate::process::{self, Process, command};

const STREAM: &str = "invoices";
const GROUP: &str = "ledger";
/// Maximum time for the server to start.
const START: Duration = Duration::from_secs(30);

/// Dropping the value ends the server's process.
pub(crate) struct Streams {
    dir: PathBuf,
    port: u16,
    server: Mutex<Process>,
}

impl Streams {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let (dir, port) = (process::directory()?, process::free_port()?);
        let server = Mutex::new(server(&dir, port)?);
        let streams = Self { dir, port, server };
        streams.answers().await?;
        Ok(streams)
    }

    pub(crate) fn uri(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        Ok(redis::Client::open(self.uri())?.get_multiplexed_async_connection().await?)
    }

    async fn answers(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            // While the server loads its data, it returns the error LOADING. Then the server is not
            // ready yet.
            let asked = async { self.connect().await?.exists(STREAM).await.map_err(Failure::from) };
            let asked = asked.await;
            if self.server.lock().unwrap_or_else(PoisonError::into_inner).has_ended() {
                return Err(format!("the server at {} has ended", self.uri()).into());
            }
            match asked {
                Ok(true | false) => return Ok(()),
                Err(e) if begun.elapsed() > START => return Err(e),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        {
            let mut now = self.server.lock().unwrap_or_else(PoisonError::into_inner);
            now.crash()?;
            *now = server(&self.dir, self.port)?;
        }
        self.answers().await
    }

    pub(crate) async fn publish_all(&self, letters: &[Letter]) -> Result<(), Failure> {
        let publisher = Arc::new(Publisher::new(&self.uri(), STREAM));
        publish_all(letters, move |letter, made| {
            let publisher = Arc::clone(&publisher);
            let body = letter.body;
            async move { publisher.publish(&letter.key, made, body.as_bytes()).await.is_ok() }
        })
        .await;
        Ok(())
    }

    /// Returns the number of messages that are not read or not acknowledged yet.
    pub(crate) async fn left(&self) -> Result<usize, Failure> {
        let mut connection = self.connect().await?;
        let groups: StreamInfoGroupsReply = connection.xinfo_groups(STREAM).await?;
        let group = groups.groups.into_iter().find(|g| g.name == GROUP).ok_or("no group")?;
        let after = format!("({}", group.last_delivered_id);
        let unread: StreamRangeReply =
            connection.xrange_count(STREAM, after, "+", 1_000_000).await?;
        let pending: StreamPendingReply = connection.xpending(STREAM, GROUP).await?;
        Ok(unread.ids.len() + pending.count())
    }

    pub(crate) async fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        let mut connection = self.connect().await?;
        let all: StreamRangeReply = connection.xrange_all(dead_letters(STREAM)).await?;
        let dead = all.ids.iter().map(|entry| {
            let text = |name| entry.get::<String>(name).unwrap_or_default();
            Dead { key: text("key"), reason: format!("{}: {}", text("reason"), text("detail")) }
        });
        Ok(dead.collect())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn server(dir: &Path, port: u16) -> Result<Process, Failure> {
    let mut server = command("redis-server");
    let port = port.to_string();
    server.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
    // The server writes each command to disk before it confirms it.
    server.args(["--appendfsync", "always", "--dir"]).arg(dir);
    Process::spawn({
        server.stdout(Stdio::null());
        server
    })
}

pub(crate) fn stream(uri: &str) -> Stream {
    Stream::new(uri, STREAM, GROUP)
}
