//! Three pages over HTTP/1.1: one request a connection, each with an end in time and size. Nobody
//! who only connects can hold more than one of a few places, nor for long.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use palisade::{Health, Redlock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// Most connections at once; further ones are closed at once.
const CONNECTIONS: usize = 16;
/// How long a connection may last, besides what the nodes take.
const DEADLINE: Duration = Duration::from_secs(5);
/// Most bytes of a request.
const REQUEST: usize = 4 << 10;
/// How old an answer of the nodes may be: however often somebody asks, they are not asked more.
const FRESH: Duration = Duration::from_secs(1);
/// After the system refused a connection (no file descriptors).
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

struct Pages {
    counted: PrometheusHandle,
    redlock: Redlock,
    asked: Mutex<Option<(Instant, Health)>>,
}

struct Answer {
    status: &'static str,
    body: String,
    with_body: bool,
}

/// Serves until its runtime ends.
pub(super) async fn serve(listener: TcpListener, counted: PrometheusHandle, redlock: Redlock) {
    let deadline = DEADLINE + 2 * redlock.config().node_deadline;
    let pages = Arc::new(Pages { counted, redlock, asked: Mutex::default() });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            // Late, or gone: there is nobody to tell.
            drop(timeout(deadline, pages.converse(stream)).await);
            drop(place);
        });
    }
}

impl Pages {
    async fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let answer = match request(&mut stream).await? {
            Some(head) => self.answer(&head).await,
            None => refusal("431 Request Header Fields Too Large", "too long"),
        };
        let Answer { status, body, with_body } = answer;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        if with_body {
            stream.write_all(body.as_bytes()).await?;
        }
        stream.shutdown().await
    }

    async fn answer(&self, head: &str) -> Answer {
        let mut words = head.lines().next().unwrap_or_default().split(' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1")) = (method, target, version)
        else {
            return refusal("400 Bad Request", "not a request of HTTP/1");
        };
        let with_body = match method {
            "GET" => true,
            "HEAD" => false,
            _ => return refusal("405 Method Not Allowed", "only GET and HEAD"),
        };
        let (status, body) = match target.split('?').next().unwrap_or_default() {
            "/metrics" => ("200 OK", self.counted.render()),
            "/healthz" => ("200 OK", "alive\n".to_owned()),
            "/readyz" => {
                let health = self.health().await;
                let status = if health.is_ready() { "200 OK" } else { "503 Service Unavailable" };
                (status, format!("{health}\n"))
            }
            _ => ("404 Not Found", "there are /metrics, /healthz and /readyz\n".to_owned()),
        };
        Answer { status, body, with_body }
    }

    /// What the nodes can do, as they said it lately. Those who ask at the same time wait for one
    /// answer.
    async fn health(&self) -> Health {
        let mut asked = self.asked.lock().await;
        if let Some((at, health)) = &*asked
            && at.elapsed() < FRESH
        {
            return health.clone();
        }
        let health = self.redlock.health().await;
        *asked = Some((Instant::now(), health.clone()));
        health
    }
}

fn refusal(status: &'static str, why: &str) -> Answer {
    Answer { status, body: format!("{why}\n"), with_body: true }
}

/// The head of a request; none if it is too long.
async fn request(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let mut head = Vec::with_capacity(512);
    let mut part = [0; 512];
    loop {
        let read = stream.read(&mut part).await?;
        head.extend_from_slice(&part[..read]);
        let over = head.windows(4).any(|four| four == b"\r\n\r\n");
        if over || read == 0 {
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
        if head.len() > REQUEST {
            return Ok(None);
        }
    }
}
