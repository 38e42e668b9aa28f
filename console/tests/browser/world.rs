//! Real servers, a console that watches them, and an independent client of the servers.

use std::time::Duration;

use palisade::{Idempotency, Redlock, Settings};
use palisade_console::{Console, Options};
use palisade_ops::Deployment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::server::Server;

/// Longest lease. A node's quarantine, the time after a loss of data in which the node grants
/// nothing, is a little longer.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(6);

/// Servers, a console and a client. Dropping this value ends the console and the servers.
pub(crate) struct World {
    pub(crate) servers: Vec<Server>,
    pub(crate) client: Redlock,
    pub(crate) base: String,
    settings: Settings,
    end: Option<oneshot::Sender<()>>,
    console: JoinHandle<()>,
}

impl World {
    pub(crate) async fn start(nodes: usize, max_ttl: Duration, options: Options) -> Self {
        let servers = (0..nodes).map(|_| Server::start(&[])).collect();
        Self::start_on(servers, max_ttl, options).await
    }

    pub(crate) async fn start_on(
        servers: Vec<Server>,
        max_ttl: Duration,
        options: Options,
    ) -> Self {
        let mut settings = Settings::new(servers.iter().map(Server::url));
        settings.max_ttl = Some(max_ttl);
        settings.ttl = Some(max_ttl.min(Duration::from_secs(10)) / 2);
        let deployment = Deployment::of(settings.clone());
        let marked = palisade_ops::init(&deployment, "").await.expect("valid settings");
        assert!(marked.is_done(), "{marked}");
        let watch = settings.build().expect("valid settings");
        let console = Console::bind(watch, deployment, options).await.expect("it starts");
        let base = console.address();
        let (end, ended) = oneshot::channel();
        let console = tokio::spawn(console.run(async move {
            let _ = ended.await;
        }));
        let client = settings.build().expect("valid settings");
        Self { servers, client, base, settings, end: Some(end), console }
    }

    pub(crate) fn other(&self) -> Redlock {
        self.settings.build().expect("valid settings")
    }

    pub(crate) fn keys(&self, namespace: &str) -> Idempotency {
        let keys = self.client.idempotency(namespace).lease(Duration::from_secs(2));
        keys.at_most_once().build().expect("valid settings")
    }

    pub(crate) async fn end_console(&mut self) {
        drop(self.end.take());
        let _ = (&mut self.console).await;
    }

    /// Sends a request to the console without the browser. Returns the status and the body.
    pub(crate) async fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let host = self.base.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(host).await.expect("the console listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\n\
             content-type: application/json\r\nx-palisade-console: 1\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let mut all = String::new();
        stream.read_to_string(&mut all).await.expect("it answers in UTF-8");
        let status = all.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = all.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned());
        (status, body)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.console.abort();
    }
}

/// Options of a console in which visitors may act.
pub(crate) fn acting() -> Options {
    let mut options = Options::default();
    options.allow_actions = true;
    options
}
