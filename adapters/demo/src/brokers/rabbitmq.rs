//! A `RabbitMQ` node and its port mapper (Erlang's `epmd`). The demo starts both, with their files
//! in a temporary directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use palisade_lapin::{Publisher, Queue, dead_letters, retry_queue};
use tokio::time::{Instant, sleep, timeout};

use self::settings::{PROGRAM, Ports, apart};
use super::{Dead, publish_all};
use crate::Failure;
use crate::invoices::Letter;
use crate::process::{self, Process, command};

/// Settings of a RabbitMQ node. The tests of palisade-lapin use the same file.
#[path = "../../../palisade-lapin/tests/server/node.rs"]
mod settings;

const QUEUE: &str = "invoices";
/// Maximum time for the broker to start.
const START: Duration = Duration::from_secs(120);
/// Maximum time for the broker to accept a login.
const ANSWER: Duration = Duration::from_secs(5);

/// A RabbitMQ node and its port mapper. Dropping the value ends the processes of both.
pub(crate) struct Rabbit {
    dir: PathBuf,
    ports: Ports,
    // Fields are dropped in this order: the node has to end before its port mapper.
    node: Mutex<Process>,
    _mapper: Process,
}

impl Rabbit {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let dir = process::directory()?;
        let [amqp, mapper, dist] =
            [process::free_port()?, process::free_port()?, process::free_port()?];
        let ports = Ports { amqp, mapper, dist };
        let mut mapper = command("epmd");
        mapper.args(["-port", &ports.mapper.to_string(), "-address", "127.0.0.1"]);
        mapper.stdout(Stdio::null()).stderr(Stdio::null());
        let mapper = Process::spawn(mapper)?;
        std::fs::write(dir.join("enabled_plugins"), "[].\n")?;
        let node = Mutex::new(node(&dir, ports)?);
        let rabbit = Self { dir, ports, node, _mapper: mapper };
        rabbit.answers().await?;
        Ok(rabbit)
    }

    pub(crate) fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports.amqp)
    }

    async fn answers(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let asked = async {
                let connection = self.connect().await?;
                let _ = connection.close(200, "it answers".into()).await;
                Ok::<_, Failure>(())
            };
            // A node that is still starting may accept a connection and then send nothing. So the
            // wait for its answer has a timeout.
            let asked = timeout(ANSWER, asked).await;
            match asked.unwrap_or_else(|_| Err("it says nothing".into())) {
                Ok(()) => return Ok(()),
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
            *now = node(&self.dir, self.ports)?;
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
            // If a queue is missing, its passive declaration closes the channel. So each queue gets
            // its own channel.
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

fn node(dir: &Path, ports: Ports) -> Result<Process, Failure> {
    let mut node = command(PROGRAM);
    let out = std::fs::File::create(dir.join("out"))?;
    node.stdout(out.try_clone()?).stderr(out).arg("-noinput");
    apart(&mut node, dir, ports);
    Process::spawn(node)
}

pub(crate) fn queue(uri: &str) -> Queue {
    Queue::new(uri, QUEUE)
}
