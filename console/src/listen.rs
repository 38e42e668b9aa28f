//! Accepts connections and limits them. A client that sends nothing or sends slowly does not block
//! others: a new connection replaces the one that has been idle for the longest time.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::access::{Access, Listen};
use crate::stall::Stalls;
use crate::visitor::Peer;

const CONNECTIONS: usize = 256;
/// Maximum time for a request's head, and for a TLS handshake.
const HEAD: Duration = Duration::from_secs(5);
/// Time after which a connection without a request ends.
const IDLE: Duration = Duration::from_secs(30);
/// Time after which a connection ends if its client reads nothing of what is sent.
const STALL: Duration = Duration::from_secs(30);
/// Maximum size of a request's head and of the buffered part of a response, in bytes.
const BUFFER: usize = 16 << 10;
const HEADERS: usize = 64;
/// Pause after `accept` failed, for example because no file descriptor was free.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket of the console, bound to its address.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(TcpListener),
    /// The listener, and the id of the user who may connect.
    Unix(UnixListener, u32),
}

#[derive(Debug)]
pub(crate) struct Activity {
    /// Number of requests whose answers are not complete. Requests of visitors who are not signed
    /// in do not count.
    busy: AtomicUsize,
    since: Mutex<Instant>,
}

/// A request that is being answered. The connection counts as busy until this value is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Activity>);

/// Peer and activity of a connection. Each request of the connection has this value as an
/// extension.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    activity: Arc<Activity>,
}

impl Activity {
    fn new() -> Self {
        Self { busy: AtomicUsize::new(0), since: Mutex::new(Instant::now()) }
    }

    fn touch(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns the time for which the connection has done nothing; `None` if it is answering.
    fn idle(&self) -> Option<Duration> {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        (self.busy.load(Ordering::Relaxed) == 0).then(|| since.elapsed())
    }
}

impl Connection {
    pub(crate) fn busy(&self) -> Busy {
        self.activity.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Binds an address. Only the user of this process, or root, may connect to a unix socket.
pub(crate) async fn bind(listen: &Listen) -> io::Result<Bound> {
    match listen {
        Listen::Tcp(at) => Ok(Bound::Tcp(TcpListener::bind(at).await?)),
        Listen::Unix(path) => {
            use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
            // If the file is a socket and no process listens at it, an earlier process has left it
            // behind.
            let is_socket =
                std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
            if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            // Another user can connect before the permissions are set. So each connection is later
            // compared with the owner of the socket file.
            let user = std::fs::symlink_metadata(path)?.uid();
            Ok(Bound::Unix(listener, user))
        }
    }
}

#[cfg(feature = "tls")]
pub(crate) type Tls = Option<tokio_rustls::TlsAcceptor>;
#[cfg(not(feature = "tls"))]
pub(crate) type Tls = ();

struct Open {
    task: AbortHandle,
    activity: Arc<Activity>,
}

/// Serves the connections of an address until the future is dropped.
pub(crate) async fn serve(bound: Bound, tls: Tls, access: Arc<Access>, router: Router) {
    let mut open = OpenConnections::default();
    loop {
        let accepted = match &bound {
            Bound::Tcp(listener) => listener.accept().await.map(|(stream, at)| {
                // Events are small and have to arrive at once, so the system must not delay small
                // packets.
                let _ = stream.set_nodelay(true);
                (Stream::Tcp(stream), Peer::Tcp(at))
            }),
            Bound::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                (Stream::Unix(stream), Peer::Unix(uid))
            }),
        };
        let Ok((stream, peer)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        if !access.accepts(&peer) || !is_of_user(&bound, &peer) {
            continue;
        }
        let activity = Arc::new(Activity::new());
        let connection = Connection { peer, activity: Arc::clone(&activity) };
        let (tls, router) = (tls.clone(), router.clone());
        let task = tokio::spawn(async move {
            match stream {
                Stream::Tcp(stream) => secured(stream, tls, connection, router).await,
                Stream::Unix(stream) => converse(stream, connection, router).await,
            }
        });
        open.add(Open { task: task.abort_handle(), activity });
    }
}

/// Returns true if the peer may connect. At a unix socket, only the user of the socket and root
/// may; at a TCP address, every peer may.
fn is_of_user(bound: &Bound, peer: &Peer) -> bool {
    match (bound, peer) {
        (Bound::Unix(_, user), Peer::Unix(peer)) => {
            peer.is_some_and(|peer| peer == *user || peer == 0)
        }
        _ => true,
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// Dropping this value ends all of them.
#[derive(Default)]
struct OpenConnections(Vec<Open>);

impl OpenConnections {
    /// Adds a connection. If there are too many, ends the one that has been idle for the longest
    /// time; if all are answering, the oldest one.
    fn add(&mut self, new: Open) {
        if self.0.len() >= CONNECTIONS {
            self.0.retain(|one| !one.task.is_finished());
        }
        if self.0.len() >= CONNECTIONS {
            let idle =
                (0..self.0.len()).max_by_key(|at| (self.0[*at].activity.idle(), usize::MAX - at));
            self.0.remove(idle.unwrap_or(0)).task.abort();
        }
        self.0.push(new);
    }
}

impl Drop for OpenConnections {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| one.task.abort());
    }
}

#[cfg(feature = "tls")]
async fn secured(stream: tokio::net::TcpStream, tls: Tls, of: Connection, router: Router) {
    let Some(tls) = tls else { return converse(stream, of, router).await };
    if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
        converse(stream, of, router).await;
    }
}

#[cfg(not(feature = "tls"))]
async fn secured(stream: tokio::net::TcpStream, (): Tls, of: Connection, router: Router) {
    converse(stream, of, router).await;
}

async fn converse<S>(stream: S, of: Connection, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::clone(&of.activity);
    let service = service_fn(move |mut request: Request<Incoming>| {
        // The idle time of the connection begins anew. The connection counts as busy later, as soon
        // as the visitor of the request is known.
        of.activity.touch();
        request.extensions_mut().insert(of.clone());
        hyper::service::Service::call(&TowerToHyperService::new(router.clone()), request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    http.max_buf_size(BUFFER).max_headers(HEADERS);
    let work = http.serve_connection(TokioIo::new(Stalls::new(stream, STALL)), service);
    tokio::pin!(work);
    loop {
        let rest = activity.idle().map_or(IDLE, |idle| IDLE.saturating_sub(idle));
        match timeout(rest.max(Duration::from_millis(10)), work.as_mut()).await {
            // An error means that the request was late, that it was not HTTP, or that the client
            // has closed the connection. hyper has sent a response if that was possible.
            Ok(_) => return,
            Err(_) if activity.idle().is_some_and(|idle| idle >= IDLE) => return,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_unix_socket_accepts_its_user_and_root() {
        let path = std::env::temp_dir().join(format!("palisade-{:032x}", rand::random::<u128>()));
        let bound = bind(&Listen::Unix(path.clone())).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let Bound::Unix(_, user) = &bound else { panic!("{bound:?}") };
        let is = |uid| is_of_user(&bound, &Peer::Unix(uid));
        assert!(is(Some(*user)) && is(Some(0)));
        assert!(!is(Some(user.wrapping_add(7))) && !is(None));
    }
}
