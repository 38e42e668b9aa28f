//! Fake servers and Sentinels whose replies a test defines: a listener, the server side of the
//! protocol, and the replies of an honest Sentinel.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::{JoinHandle, JoinSet};

/// Name of the group that each fake Sentinel reports.
pub const NAME: &str = "orders";

/// A command as a list of words.
pub type Command = Vec<Vec<u8>>;

/// A listener on a free loopback port. Dropping this value closes the listener.
pub struct Fake {
    pub at: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    connections: AtomicUsize,
    /// Commands received since [`Fake::start`], each as one text.
    received: Mutex<Vec<String>>,
    /// Messages for the subscribed connections.
    events: broadcast::Sender<Vec<u8>>,
}

impl Fake {
    /// Starts a listener that replies to each command with the result of `answer`. Must be called
    /// within a runtime.
    pub fn start(answer: impl Fn(&[&str]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let answer = Arc::new(answer);
        Self::listen(move |socket, shared| converse(socket, shared, Arc::clone(&answer)))
    }

    /// Starts a listener that calls `serve` for each connection.
    pub fn serve<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<()>> + Send + 'static,
    {
        Self::listen(move |socket, _| serve(socket))
    }

    fn listen<F>(serve: impl Fn(TcpStream, Arc<Shared>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<()>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let at = listener.local_addr().expect("it is bound").to_string();
        let listener = TcpListener::from_std(listener).expect("a runtime");
        let (connections, received) = (AtomicUsize::new(0), Mutex::default());
        let shared =
            Arc::new(Shared { connections, received, events: broadcast::Sender::new(1_024) });
        let ours = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut all = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                ours.connections.fetch_add(1, Relaxed);
                while all.try_join_next().is_some() {}
                all.spawn(serve(socket, Arc::clone(&ours)));
            }
        });
        Self { at, shared, task }
    }

    /// Returns the number of connections that the listener has accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Relaxed)
    }

    /// Returns the number of received commands whose text begins with `command`.
    pub fn received(&self, command: &str) -> usize {
        let received = self.shared.received.lock().unwrap();
        received.iter().filter(|words| words.starts_with(command)).count()
    }

    /// Publishes an event to all subscribers.
    pub fn tell(&self, channel: &str, payload: &str) {
        let _ = self.shared.events.send(message(channel, payload));
    }

    /// Publishes a hundred events again and again, with this pause in between, until the listener
    /// is dropped.
    pub fn flood(&self, pause: Duration) {
        let shared = Arc::downgrade(&self.shared);
        let event = message("+sdown", format!("master {NAME} 127.0.0.1 1"));
        tokio::spawn(async move {
            while let Some(shared) = shared.upgrade() {
                for _ in 0..100 {
                    let _ = shared.events.send(event.clone());
                }
                drop(shared);
                tokio::time::sleep(pause).await;
            }
        });
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse<A>(socket: TcpStream, shared: Arc<Shared>, answer: Arc<A>) -> Option<()>
where
    A: Fn(&[&str]) -> Vec<u8>,
{
    let (from, to) = socket.into_split();
    let (mut from, to) = (BufReader::new(from), Arc::new(tokio::sync::Mutex::new(to)));
    let mut events = JoinSet::new();
    loop {
        let command = command(&mut from).await?;
        let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        shared.received.lock().unwrap().push(words.join(" "));
        to.lock().await.write_all(&answer(&words)).await.ok()?;
        if words[0] == "SUBSCRIBE" {
            let (to, mut receiver) = (Arc::clone(&to), shared.events.subscribe());
            events.spawn(async move {
                loop {
                    match receiver.recv().await {
                        Ok(event) => to.lock().await.write_all(&event).await?,
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return Ok::<(), std::io::Error>(()),
                    }
                }
            });
        }
    }
}

/// Contents of a Sentinel's report about its group.
#[derive(Clone, Default)]
pub struct View {
    pub master: String,
    pub epoch: u64,
    pub replicas: Vec<String>,
    pub others: Vec<String>,
    /// Number of other Sentinels in the report. `None` stands for two.
    pub others_known: Option<u32>,
    pub in_tilt: bool,
    /// The flags and the priority of every replica, if not the usual ones.
    pub replicas_are: Option<(&'static str, &'static str)>,
}

/// Starts a Sentinel that reports the current contents of `view`.
pub fn sentinel(id: char, view: &Arc<Mutex<View>>) -> Fake {
    let view = Arc::clone(view);
    Fake::start(move |words| view.lock().unwrap().answer(id, words))
}

impl View {
    /// Returns the reply of the Sentinel `id` to a command.
    pub fn answer(&self, id: char, words: &[&str]) -> Vec<u8> {
        let id = id.to_string().repeat(40);
        match words {
            ["HELLO", ..] => map(&[("server", "redis"), ("mode", "sentinel")]),
            ["SUBSCRIBE", channels @ ..] => subscribed(channels),
            ["SENTINEL", "MYID"] => bulk(id),
            ["SENTINEL", "MASTER", _] => self.facts(),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                let (host, port) = self.master.rsplit_once(':').expect("host:port");
                array(&[bulk(host), bulk(port)])
            }
            ["SENTINEL", "SENTINELS", _] => list(&self.others, "sentinel", None),
            ["SENTINEL", "REPLICAS", _] => match self.replicas_are {
                Some((flags, priority)) => list(&self.replicas, flags, Some(priority)),
                None => list(&self.replicas, "slave", None),
            },
            ["SENTINEL", "CONFIG", ..] => map(&[("resolve-hostnames", "no")]),
            ["SENTINEL", "CKQUORUM", _] => b"+OK 3 usable Sentinels\r\n".to_vec(),
            ["INFO", ..] => {
                let tilt = u8::from(self.in_tilt);
                bulk(format!(
                    "redis_version:7.0.15\r\nredis_mode:sentinel\r\nrun_id:{id}\r\n\
                     sentinel_tilt:{tilt}\r\n"
                ))
            }
            _ => ok(),
        }
    }

    fn facts(&self) -> Vec<u8> {
        let (host, port) = self.master.rsplit_once(':').expect("host:port");
        map(&[
            ("name", NAME),
            ("ip", host),
            ("port", port),
            ("flags", "master"),
            ("config-epoch", &self.epoch.to_string()),
            ("num-slaves", &self.replicas.len().to_string()),
            ("num-other-sentinels", &self.others_known.unwrap_or(2).to_string()),
            ("quorum", "2"),
            ("down-after-milliseconds", "30000"),
            ("failover-timeout", "60000"),
        ])
    }
}

fn list(all: &[String], flags: &str, priority: Option<&str>) -> Vec<u8> {
    let each = all.iter().map(|at| {
        let (host, port) = at.rsplit_once(':').expect("host:port");
        let id = format!("{at:0>40}");
        let mut its = vec![("ip", host), ("port", port), ("runid", &*id), ("flags", flags)];
        its.extend(priority.map(|priority| ("slave-priority", priority)));
        map(&its)
    });
    array(&each.collect::<Vec<_>>())
}

/// Reads the next command. Returns `None` at the end of the connection.
pub async fn command<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> Option<Command> {
    let count = number(from, b'*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(from, b'$').await?;
        let mut word = vec![0; length + 2];
        from.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

async fn number<R: AsyncRead + Unpin>(from: &mut BufReader<R>, mark: u8) -> Option<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await.ok()?;
    let digits = line.strip_prefix(&[mark])?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

pub fn bulk(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

pub fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", items.len()).into_bytes(), items.concat()].concat()
}

pub fn map(pairs: &[(&str, &str)]) -> Vec<u8> {
    let all: Vec<Vec<u8>> = pairs.iter().map(|(k, v)| [bulk(k), bulk(v)].concat()).collect();
    [format!("%{}\r\n", pairs.len()).into_bytes(), all.concat()].concat()
}

pub fn integer(n: impl std::fmt::Display) -> Vec<u8> {
    format!(":{n}\r\n").into_bytes()
}

pub fn ok() -> Vec<u8> {
    b"+OK\r\n".to_vec()
}

/// Returns the reply to a subscription.
pub fn subscribed(channels: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let all = channels.iter().enumerate();
    let all = all.map(|(i, channel)| {
        [&b">3\r\n"[..], &bulk("subscribe"), &bulk(channel), &integer(i + 1)].concat()
    });
    all.collect::<Vec<_>>().concat()
}

/// Returns a message for subscribers.
pub fn message(channel: &str, payload: impl AsRef<[u8]>) -> Vec<u8> {
    [&b">3\r\n"[..], &bulk("message"), &bulk(channel), &bulk(payload)].concat()
}
