//! `RabbitMQ`: a node of its own, with a port mapper of its own, below a temporary directory.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use palisade::Idempotency;
use palisade::idempotency::Context;
use palisade::idempotency::consumer::Rules;
use palisade_lapin::{Consumer, Message, Publisher, dead_letters, retry_queue};
use tokio::time::{Instant, sleep};

use super::{Dead, publish_all};
use crate::Failure;
use crate::child::Work;
use crate::invoices::{Invoice, Letter};
use crate::process::{self, Process, command};

const QUEUE: &str = "invoices";
/// How long the broker may take to start.
const START: Duration = Duration::from_secs(120);
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// A broker; its processes end with it.
pub(crate) struct Rabbit {
    dir: PathBuf,
    port: u16,
    mapper_port: u16,
    dist_port: u16,
    // The node ends before its port mapper.
    node: Mutex<Process>,
    _mapper: Process,
}

impl Rabbit {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let dir = process::directory()?;
        let (port, mapper_port) = (process::free_port()?, process::free_port()?);
        let dist_port = process::free_port()?;
        let mut mapper = command("epmd");
        mapper.args(["-port", &mapper_port.to_string(), "-address", "127.0.0.1"]);
        mapper.stdout(Stdio::null()).stderr(Stdio::null());
        let mapper = Process::spawn(mapper)?;
        std::fs::write(dir.join("enabled_plugins"), "[].\n")?;
        let node = Mutex::new(node(&dir, port, mapper_port, dist_port)?);
        let rabbit = Self { dir, port, mapper_port, dist_port, node, _mapper: mapper };
        rabbit.answers().await?;
        Ok(rabbit)
    }

    pub(crate) fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Until it lets somebody in.
    async fn answers(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            match Connection::connect(&self.uri(), ConnectionProperties::default()).await {
                Ok(connection) => {
                    let _ = connection.close(200, "it answers".into()).await;
                    return Ok(());
                }
                Err(e) if begun.elapsed() > START => {
                    let log = std::fs::read_to_string(self.dir.join("out")).unwrap_or_default();
                    return Err(format!("the broker does not answer: {e}\n{log}").into());
                }
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        {
            let mut now = self.node.lock().unwrap_or_else(PoisonError::into_inner);
            now.crash()?;
            *now = node(&self.dir, self.port, self.mapper_port, self.dist_port)?;
        }
        self.answers().await
    }

    pub(crate) async fn publish_all(&self, letters: &[Letter]) -> Result<(), Failure> {
        let publisher = Arc::new(Publisher::new(&self.uri(), QUEUE));
        publish_all(letters, move |letter, made| {
            let publisher = Arc::clone(&publisher);
            let text = letter.body;
            async move { publisher.publish(&letter.key, made, text.as_bytes()).await.is_ok() }
        })
        .await;
        Ok(())
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        Ok(Connection::connect(&self.uri(), ConnectionProperties::default()).await?)
    }

    pub(crate) async fn left(&self) -> Result<usize, Failure> {
        let connection = self.connect().await?;
        let mut left = 0;
        let delays = (0..13).map(|n| retry_queue(QUEUE, 250 << n));
        for queue in std::iter::once(QUEUE.to_owned()).chain(delays) {
            // A queue that is not there closes its channel.
            let channel = connection.create_channel().await?;
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let name = queue.as_str().into();
            if let Ok(found) = channel.queue_declare(name, passive, FieldTable::default()).await {
                left += found.message_count() as usize;
                channel.close(200, "looked".into()).await?;
            }
        }
        connection.close(200, "looked".into()).await?;
        Ok(left)
    }

    pub(crate) async fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        let mut dead = Vec::new();
        let queue = dead_letters(QUEUE);
        while let Some(got) =
            channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?
        {
            let nothing = BTreeMap::new();
            let properties = &got.delivery.properties;
            let headers = properties.headers().as_ref().map_or(&nothing, FieldTable::inner);
            let text = |name: &str| match headers.get(name) {
                Some(AMQPValue::LongString(text)) => text.to_string(),
                _ => String::new(),
            };
            let key = properties.message_id().as_ref().map(ToString::to_string);
            let reason = format!("{}: {}", text("x-palisade-reason"), text("x-palisade-detail"));
            dead.push(Dead { key: key.unwrap_or_default(), reason });
            got.delivery.acker.ack(BasicAckOptions::default()).await?;
        }
        connection.close(200, "read".into()).await?;
        Ok(dead)
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        self.node.lock().unwrap_or_else(PoisonError::into_inner).kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn node(dir: &PathBuf, port: u16, mapper_port: u16, dist_port: u16) -> Result<Process, Failure> {
    let mut node = command(PROGRAM);
    let out = std::fs::File::create(dir.join("out"))?;
    node.stdout(out.try_clone()?).stderr(out);
    node.env("HOME", dir)
        .env("RABBITMQ_NODENAME", format!("demo-{port}@localhost"))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", dist_port.to_string())
        .env("ERL_EPMD_PORT", mapper_port.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
        .env("RABBITMQ_LOG_BASE", dir.join("log"))
        .env("RABBITMQ_PID_FILE", dir.join("pid"))
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", dir.join("no-such-file"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
        // The shell script becomes the Erlang machine, so that its process is the child.
        .env("RABBITMQ_ALLOW_INPUT", "1")
        .arg("-noinput");
    Process::spawn(node)
}

/// Consumes until `stop` resolves.
pub(crate) async fn consume(
    uri: &str,
    of: Idempotency,
    rules: Rules,
    work: Work,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let consumer = Consumer::builder(uri, QUEUE, of).rules(rules).build()?;
    let asked = work.clone();
    let probe = move |cx: Context, _: Arc<Message>| asked.clone().probe(cx);
    let book =
        move |cx: Context, message: Arc<Message>| work.clone().book(cx, message.json::<Invoice>());
    consumer.run_probed(probe, book, stop).await?;
    Ok(())
}
