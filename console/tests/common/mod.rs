//! Real servers, a console over them, and a small HTTP client.
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../../../tests/support/server.rs"]
pub mod server;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::{Redlock, Settings};
use palisade_console::{AuditLine, Console, Options};
use palisade_ops::{Deployment, init};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use self::server::Server;

/// Maximum time until the console shows a change. It is long, because test machines are busy.
pub const SOON: Duration = Duration::from_secs(20);

/// Servers that were initialised as new servers, and a console over them.
pub struct World {
    pub servers: Vec<Server>,
    pub at: SocketAddr,
    pub audit: Arc<Mutex<Vec<AuditLine>>>,
    prefix: &'static str,
    max_ttl: Duration,
    console: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.console.abort();
    }
}

/// Lease duration of most tests.
const TTL: Duration = Duration::from_secs(3);

fn settings(servers: &[Server], prefix: &str, max_ttl: Duration) -> Settings {
    let mut settings = Settings::new(servers.iter().map(Server::url));
    settings.prefix = Some(prefix.to_owned());
    (settings.ttl, settings.max_ttl) = (Some(TTL), Some(max_ttl));
    // On a busy machine a server replies late, so the nodes have more time.
    settings.node_deadline = Some(Duration::from_millis(700));
    settings
}

impl World {
    /// Starts `n` servers and a console that allows no actions.
    pub async fn new(n: usize) -> Self {
        Self::with(n, "", Options::default()).await
    }

    /// Starts `n` servers and a console that allows no actions. The longest lease on the servers is
    /// `max_ttl`.
    pub async fn lasting(n: usize, max_ttl: Duration) -> Self {
        Self::start(n, "", Options::default(), max_ttl).await
    }

    /// Starts `n` servers and a console with these options. The handles of the tests have this
    /// prefix.
    pub async fn with(n: usize, prefix: &'static str, options: Options) -> Self {
        Self::start(n, prefix, options, TTL).await
    }

    async fn start(n: usize, prefix: &'static str, options: Options, max_ttl: Duration) -> Self {
        let servers: Vec<Server> = (0..n)
            .map(|_| Server::start(&["--appendonly", "yes", "--appendfsync", "always"]))
            .collect();
        let deployment = Deployment::of(settings(&servers, prefix, max_ttl));
        assert!(init(&deployment, prefix).await.unwrap().is_done());
        let audit = Arc::<Mutex<Vec<AuditLine>>>::default();
        let lines = Arc::clone(&audit);
        let mut options = options;
        options.audit = Some(Arc::new(move |line| lines.lock().unwrap().push(line.clone())));
        let redlock = deployment.handle().unwrap().build().unwrap();
        let console = Console::bind(redlock, deployment, options).await.unwrap();
        let at = console.address();
        let at = at.split("//").nth(1).unwrap().trim_end_matches('/').parse().unwrap();
        let console = tokio::spawn(console.run(std::future::pending()));
        Self { servers, at, audit, prefix, max_ttl, console }
    }

    /// Builds another handle of the same servers, as an application does.
    pub fn client(&self) -> Redlock {
        self.deployment().handle().unwrap().build().unwrap()
    }

    pub fn deployment(&self) -> Deployment {
        Deployment::of(settings(&self.servers, self.prefix, self.max_ttl))
    }

    /// Requests a page of the console, and returns its JSON.
    pub async fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path, &[], "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// Requests a page of the console until it is as expected, and returns its JSON.
    pub async fn until(&self, path: &str, is_good: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + SOON;
        loop {
            // What is asked for may not be there yet.
            let answer = self.request("GET", path, &[], "").await;
            if answer.status == 200 && is_good(&answer.json()) {
                return answer.json();
            }
            assert!(Instant::now() < end, "{path} stays {}: {}", answer.status, answer.body);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends an action, as a page of the console does.
    pub async fn act(&self, body: &Value, more: &[(&str, &str)]) -> Answer {
        let own = [("X-Palisade-Console", "1"), ("Content-Type", "application/json")];
        let headers = [&own[..], more].concat();
        self.request("POST", "actions", &headers, &body.to_string()).await
    }

    /// Sends a request to the console's API.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        request(self.at, method, &format!("/api/v1/{path}"), headers, body).await
    }
}

/// Stores a measured figure in a JSON file, which `make test-console` prints.
pub fn measured(name: &str, value: f64) {
    change("console-more.json", |all| drop(all.insert(name.to_owned(), value.into())));
}

/// Changes a JSON file with figures that the tests have measured. The test binaries run one after
/// the other, so a lock within this process is enough.
fn change(file: &str, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    static FILES: Mutex<()> = Mutex::new(());
    let _lock = FILES.lock().unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let mut all: serde_json::Map<String, Value> = serde_json::from_str(&known).unwrap_or_default();
    change(&mut all);
    std::fs::write(path, Value::Object(all).to_string()).unwrap();
}

/// A test that attacks the console. Its beginning adds one to the figure `attacks`. If it ends
/// without a failed assertion, it adds one to the figure `refused`. `make test-console` prints
/// both.
#[must_use = "it counts the attack when it is dropped"]
pub struct Attack;

impl Attack {
    pub fn begin() -> Self {
        count("attacks");
        Self
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            count("refused");
        }
    }
}

fn count(name: &str) {
    change("console-attacks.json", |all| {
        let known = all.get(name).and_then(Value::as_u64).unwrap_or_default();
        all.insert(name.to_owned(), (known + 1).into());
        // The number `refused` must be in the file even if no attack was refused.
        all.entry("refused").or_insert(0.into());
    });
}

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        pairs
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .next()
    }
}

/// Sends a request and reads the whole answer. A Host header in `headers` replaces the usual one.
pub async fn request(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        let _ = write!(head, "Host: {at}\r\n");
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    answer(&mut stream).await
}

/// Reads an answer to the end of the connection.
pub async fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A server that closes early may reset the connection after its answer.
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("an answer");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { joined(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

fn joined(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_default();
        if size == 0 || rest.len() < size {
            break;
        }
        all.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    all
}

/// A stream of server-sent events.
pub struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    pub async fn open(at: SocketAddr, topics: &str) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head =
            format!("GET /api/v1/events?topics={topics} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Returns the next event of this name, and its data.
    pub async fn next(&mut self, name: &str) -> Value {
        let read = async {
            loop {
                while let Some(end) = self.text.find("\n\n") {
                    let event: String = self.text.drain(..end + 2).collect();
                    // The HTTP head and the sizes of chunks are on lines of their own, so these
                    // lines are skipped.
                    let is = |line: &&str| line.strip_prefix("event: ") == Some(name);
                    let data = || event.lines().find_map(|line| line.strip_prefix("data: "));
                    if event.lines().any(|line| is(&line))
                        && let Some(data) = data()
                    {
                        return serde_json::from_str(data).unwrap();
                    }
                }
                let mut bytes = vec![0; 64 << 10];
                let n = self.stream.read(&mut bytes).await.unwrap();
                assert!(n > 0, "the stream ended; last: {}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        };
        tokio::time::timeout(SOON, read).await.unwrap_or_else(|_| panic!("no event {name}"))
    }
}
