//! Serves the pages `/metrics`, `/healthz` and `/readyz` over HTTP/1.1, with one request per
//! connection. A client that sends nothing or sends slowly does not block other clients. Each
//! connection has a deadline. If all connections are in use, a new connection replaces the oldest
//! connection without a request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::PrometheusHandle;
use palisade::{Health, Redlock};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Maximum number of connections at the same time.
const CONNECTIONS: usize = 64;
/// Maximum duration of a connection, in addition to the time for the nodes' replies.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum size of a request's head and of the buffered part of a response, in bytes. hyper
/// requires at least this size.
const BUFFER: usize = 8 << 10;
/// Maximum age of the health that `/readyz` reports. So this is also the minimum interval between
/// two requests to the nodes.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after `accept` failed, for example because no file descriptor was free.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Sources of the served pages (metrics and health), and the host names that are allowed in
/// requests.
pub(super) struct Pages {
    pub(super) counted: PrometheusHandle,
    pub(super) redlock: Redlock,
    pub(super) hosts: Vec<String>,
    pub(super) health: Mutex<Option<(Instant, Health)>>,
}

struct Connection {
    task: AbortHandle,
    /// True after the request of the connection was read.
    asked: Arc<AtomicBool>,
}

/// Serves the pages (metrics and health) until the runtime ends.
pub(super) async fn serve(listener: TcpListener, pages: Pages) {
    let deadline = DEADLINE + 2 * pages.redlock.config().node_deadline;
    let pages = Arc::new(pages);
    // The connections in the order of their arrival. The oldest connection is first.
    let mut open = VecDeque::<Connection>::with_capacity(CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        open.retain(|one| !one.task.is_finished());
        if open.len() == CONNECTIONS {
            let idle = open.iter().position(|one| !one.asked.load(Ordering::Relaxed));
            if let Some(oldest) = open.remove(idle.unwrap_or(0)) {
                oldest.task.abort();
            }
        }
        let asked = Arc::<AtomicBool>::default();
        let (pages, mark) = (Arc::clone(&pages), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            // An error means that the request was late, that it was not HTTP, or that the client
            // has closed the connection. hyper has sent a response if it was possible. So the error
            // is ignored.
            drop(timeout(deadline, pages.converse(stream, &mark)).await);
        });
        open.push_back(Connection { task: task.abort_handle(), asked });
    }
}

impl Pages {
    async fn converse(&self, stream: TcpStream, asked: &AtomicBool) -> hyper::Result<()> {
        let service = service_fn(|request| async move {
            asked.store(true, Ordering::Relaxed);
            let (status, body) = self.answer(&request).await;
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, TEXT);
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            Ok::<_, Infallible>(response)
        });
        let mut http = http1::Builder::new();
        http.keep_alive(false).max_buf_size(BUFFER);
        http.serve_connection(TokioIo::new(stream), service).await
    }

    async fn answer(&self, request: &Request<Incoming>) -> (StatusCode, String) {
        if let Some(host) = host(request)
            && !self.is_ours(&host)
        {
            let why = "the Host header names neither an address nor localhost; a name has to be \
                       allowed by --metrics-host\n";
            return (StatusCode::MISDIRECTED_REQUEST, why.to_owned());
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        }
        match request.uri().path() {
            "/metrics" => (StatusCode::OK, self.counted.render()),
            "/healthz" => (StatusCode::OK, "alive\n".to_owned()),
            "/readyz" => {
                let health = self.health().await;
                let ready = if health.is_ready() {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                (ready, format!("{health}\n"))
            }
            _ => (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
        }
    }

    /// Returns true if this host name is allowed in requests. Without this check, a foreign web
    /// page whose host name resolves to this machine could read the pages.
    fn is_ours(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let named = |name: &str| name.eq_ignore_ascii_case(host);
        address.is_ok() || named("localhost") || self.hosts.iter().any(|name| named(name))
    }

    /// Returns the state of the nodes. The state is at most `FRESH` old. Clients that send requests
    /// at the same time share one reply of the nodes.
    async fn health(&self) -> Health {
        let mut known = self.health.lock().await;
        if let Some((at, health)) = &*known
            && at.elapsed() < FRESH
        {
            return health.clone();
        }
        let health = self.redlock.health().await;
        *known = Some((Instant::now(), health.clone()));
        health
    }
}

/// Returns the host of a request without the port. Returns an empty text if the host cannot be
/// parsed. Returns `None` if the request has no host. The requests of browsers always have a host.
fn host(request: &Request<Incoming>) -> Option<String> {
    if let Some(host) = request.uri().host() {
        return Some(host.to_owned());
    }
    let named = request.headers().get(HOST)?;
    let named = named.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    Some(named.map(|named| named.host().to_owned()).unwrap_or_default())
}
