//! One RabbitMQ for all tests of this program, because RabbitMQ takes seconds to start. Each test
//! has its own queue. When this program ends or is killed, a shell kills the broker by the broker's
//! process id.

mod node;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use node::{PROGRAM, Ports, apart};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Maximum time for the broker to start.
const START: Duration = Duration::from_secs(120);

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
    listener.local_addr().expect("an address").port()
}

fn start() -> u16 {
    let ports = Ports { amqp: free_port(), mapper: free_port(), dist: free_port() };
    let name = format!("palisade-rabbit-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
    std::fs::write(dir.join("enabled_plugins"), "[].\n").expect("a file below it");
    // At the end of this process, the shell reads the end of its standard input. Then the shell
    // kills the broker.
    let script = r#"
epmd -port "$2" -address 127.0.0.1 </dev/null >/dev/null 2>&1 & m=$!
"$3" -noinput </dev/null >"$1/out" 2>&1 & p=$!
read _
kill -9 $p $m 2>/dev/null
wait $p $m 2>/dev/null
rm -rf "$1""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&dir).arg(ports.mapper.to_string()).arg(PROGRAM);
    apart(&mut shell, &dir, ports);
    // Leak the shell process. So its standard input stays open until this process ends.
    let shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
    std::mem::forget(shell);
    ports.amqp
}

/// A queue at the broker. The test observes the queue over a connection of its own.
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) uri: String,
    connection: Connection,
}

impl Queue {
    pub(crate) async fn new(name: &str) -> Self {
        static PORT: OnceLock<u16> = OnceLock::new();
        let port = *PORT.get_or_init(start);
        let uri = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let begun = Instant::now();
        let connection = loop {
            match Connection::connect(&uri, ConnectionProperties::default()).await {
                Ok(connection) => break connection,
                Err(e) => assert!(begun.elapsed() < START, "the broker does not answer: {e}"),
            }
            sleep(Duration::from_millis(200)).await;
        };
        Self { name: name.to_owned(), uri, connection }
    }

    /// Returns the number of ready messages in this queue, or 0 if the queue does not exist.
    pub(crate) async fn ready(&self, queue: &str) -> u32 {
        self.found(queue).await.unwrap_or(0)
    }

    pub(crate) async fn is_there(&self, queue: &str) -> bool {
        self.found(queue).await.is_some()
    }

    async fn found(&self, queue: &str) -> Option<u32> {
        // If a queue is missing, its passive declaration closes the channel. So each call opens its
        // own channel.
        let channel = self.channel().await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
        found.ok().map(|found| found.message_count())
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.connection.create_channel().await.expect("a channel")
    }

    pub(crate) async fn dead(&self) -> Option<BasicGetMessage> {
        let (channel, queue) = (self.channel().await, palisade_lapin::dead_letters(&self.name));
        let got = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await;
        let got = got.expect("the queue is there")?;
        got.delivery.acker.ack(BasicAckOptions::default()).await.expect("it is taken");
        Some(got)
    }

    /// Returns the address of a proxy to the broker. The test can cut the connections of the proxy.
    pub(crate) async fn through_a_line(&self) -> (String, Line) {
        let broker = self.uri.split('@').nth(1).and_then(|rest| rest.split('/').next());
        let broker = broker.expect("host and port").to_owned();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("an address");
        let cuts = watch::Sender::new(0);
        let refuses = Arc::new(AtomicBool::new(false));
        let line = Line { cuts: cuts.clone(), refuses: Arc::clone(&refuses) };
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if refuses.load(SeqCst) {
                    continue;
                }
                let (broker, mut cut) = (broker.clone(), cuts.subscribe());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(broker).await?;
                    tokio::select! {
                        biased;
                        _ = cut.changed() => Ok(()),
                        done = copy_bidirectional(&mut client, &mut server) => done.map(drop),
                    }
                });
            }
        });
        (format!("amqp://guest:guest@{at}/%2f"), line)
    }
}

/// A proxy. The test can cut its connections. Clients can connect again at once, unless the proxy
/// refuses them.
pub(crate) struct Line {
    cuts: watch::Sender<u32>,
    refuses: Arc<AtomicBool>,
}

impl Line {
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|n| *n += 1);
    }

    /// Cuts the connections and refuses new ones (`true`), or lets clients connect again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, SeqCst);
        if refuses {
            self.cut();
        }
    }
}
