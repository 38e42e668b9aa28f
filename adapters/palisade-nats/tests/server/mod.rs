//! A NATS server for one test. The server chooses its port and stores its files in a temporary
//! directory. When the test ends, the kernel kills the server.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::consumer::{Info, PullConsumer};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, Context, stream};
use palisade_nats::{Durable, Publisher, dead_letters};

const START: Duration = Duration::from_secs(30);
static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) const STREAM: &str = "orders";
pub(crate) const DURABLE: &str = "billing";

/// A server with a stream. Dropping the value ends the server's process.
pub(crate) struct Nats {
    dir: PathBuf,
    process: Child,
    pub(crate) client: Client,
    pub(crate) context: Context,
}

impl Nats {
    pub(crate) async fn start() -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-nats-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
        // The kernel kills the server when the thread that started the server ends. This thread
        // belongs to the test.
        let mut server = Command::new("setpriv");
        server.args(["--pdeathsig", "KILL", "--", "nats-server", "--addr", "127.0.0.1"]);
        server.args(["--port", "-1", "--jetstream", "--store_dir"]).arg(&dir);
        server.arg("--ports_file_dir").arg(&dir);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = server.spawn().expect("nats-server: see scripts/need");
        let Some(url) = address(&dir, process.id()).await else {
            let _ = process.kill();
            panic!("nats-server does not say its port");
        };
        let client = async_nats::connect(url).await.expect("it answers");
        let context = jetstream::new(client.clone());
        let config = stream::Config { name: STREAM.to_owned(), ..stream::Config::default() };
        context.create_stream(config).await.expect("a stream");
        Self { dir, process, client, context }
    }

    /// Publishes a message with its key in the header `order`. With the header `Nats-Msg-Id` the
    /// stream would drop a copy of the message.
    pub(crate) async fn publish(&self, key: &str, body: &str) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("order", key);
        let body = body.to_owned().into();
        let sent = self.context.publish_with_headers(STREAM, headers, body).await;
        sent.expect("sent").await.expect("confirmed");
    }

    pub(crate) fn durable(&self) -> Durable {
        Durable::new(self.client.clone(), STREAM, DURABLE)
    }

    pub(crate) fn publisher(&self) -> Publisher {
        Publisher::new(self.client.clone(), STREAM)
    }

    pub(crate) async fn info(&self) -> Info {
        let found = self.context.get_consumer_from_stream(DURABLE, STREAM).await;
        let mut found: PullConsumer = found.expect("it is there");
        found.info().await.expect("an answer").clone()
    }

    pub(crate) fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            loop {
                let found = self.context.get_consumer_from_stream(DURABLE, STREAM).await;
                // The durable consumer may not exist yet: the first palisade consumer that runs
                // creates it.
                if found.is_ok_and(|_: PullConsumer| true) {
                    let info = self.info().await;
                    if info.num_pending == 0 && info.num_ack_pending == 0 {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }

    pub(crate) async fn dead(&self) -> Vec<StreamMessage> {
        let stream = self.context.get_stream(dead_letters(STREAM)).await.expect("it is there");
        let mut dead = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            dead.push(stream.get_raw_message(sequence).await.expect("a dead letter"));
        }
        dead
    }
}

async fn address(dir: &std::path::Path, pid: u32) -> Option<String> {
    let file = dir.join(format!("nats-server_{pid}.ports"));
    let begun = Instant::now();
    while begun.elapsed() < START {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let ports: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let url = ports.and_then(|p| Some(p["nats"][0].as_str()?.to_owned()));
        if url.is_some() {
            return url;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
