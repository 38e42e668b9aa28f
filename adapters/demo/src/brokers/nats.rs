//! A NATS JetStream server that the demo starts. Its stream is stored in files.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};
use palisade_consumer::headers::{DETAIL, KEY, REASON};
use palisade_nats::{Durable, Publisher, dead_letters};
use tokio::time::{Instant, sleep};

use super::{Dead, publish_all};
use crate::Failure;
use crate::invoices::Letter;
use crate::process::{self, Process, command};

const STREAM: &str = "invoices";
const DURABLE: &str = "ledger";
/// Maximum time for the server to start.
const START: Duration = Duration::from_secs(30);

/// Dropping the value ends the server's process.
pub(crate) struct Nats {
    dir: PathBuf,
    port: u16,
    server: Mutex<Process>,
}

impl Nats {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let (dir, port) = (process::directory()?, process::free_port()?);
        let server = Mutex::new(server(&dir, port)?);
        let nats = Self { dir, port, server };
        nats.answers().await?;
        Ok(nats)
    }

    pub(crate) fn uri(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    async fn connect(&self) -> Result<jetstream::Context, Failure> {
        Ok(jetstream::new(async_nats::connect(self.uri()).await?))
    }

    async fn answers(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            // This request can be repeated safely, because the server creates a stream of this name
            // only once.
            let config = stream::Config {
                name: STREAM.to_owned(),
                // The shortest duplicate window that the server accepts. The server does not drop
                // later duplicates, so they reach the consumers.
                duplicate_window: Duration::from_millis(100),
                num_replicas: 1,
                ..stream::Config::default()
            };
            let asked = async { Ok(self.connect().await?.create_stream(config).await?) };
            match asked.await {
                Ok(_) => return Ok(()),
                Err::<_, Failure>(e) if begun.elapsed() > START => return Err(e),
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
        let publisher = Publisher::new(async_nats::connect(self.uri()).await?, STREAM);
        publish_all(letters, move |letter, made| {
            let publisher = publisher.clone();
            let text = letter.body;
            async move { publisher.publish(&letter.key, made, text.as_bytes()).await.is_ok() }
        })
        .await;
        Ok(())
    }

    /// Returns the number of messages that are not delivered or not acknowledged yet.
    pub(crate) async fn left(&self) -> Result<usize, Failure> {
        let context = self.connect().await?;
        let found = context.get_consumer_from_stream(DURABLE, STREAM).await;
        let mut found: consumer::PullConsumer = found?;
        let info = found.info().await?;
        Ok(info.num_ack_pending + usize::try_from(info.num_pending)?)
    }

    pub(crate) async fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        let context = self.connect().await?;
        let stream = context.get_stream(dead_letters(STREAM)).await?;
        let mut dead = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let letter = stream.get_raw_message(sequence).await?;
            let text = |name| letter.headers.get(name).map_or("", |value| value.as_str());
            let reason = format!("{}: {}", text(REASON), text(DETAIL));
            dead.push(Dead { key: text(KEY).to_owned(), reason });
        }
        Ok(dead)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn server(dir: &Path, port: u16) -> Result<Process, Failure> {
    let mut server = command("nats-server");
    server.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"]);
    Process::spawn({
        server.arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
        server
    })
}

pub(crate) async fn durable(uri: &str) -> Result<Durable, Failure> {
    // A consumer process may start while the server is down. So the client also retries its first
    // connection.
    let client = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(uri).await?;
    Ok(Durable::new(client, STREAM, DURABLE))
}
