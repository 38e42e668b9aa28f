//! Opens connections: the socket, TLS, the limits on answers, and the login.

pub(crate) mod address;
pub(crate) mod credentials;
pub(crate) mod endpoint;
pub(crate) mod error_text;
pub(crate) mod frames;
#[cfg(test)]
mod fuzz;
mod limited;
pub(crate) mod login;
pub(crate) mod url;
pub(crate) mod wire;

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;

use self::endpoint::Endpoint;
use self::frames::Limits;
use self::limited::{Limited, Socket};
use self::login::Keeper;
use self::wire::Wire;
use crate::safe_text::Secrets;
use crate::tls::Tls;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(Box<str>, u16),
    Unix(Box<Path>),
}

/// An open connection. The drop of this value ends the task that reads from the connection.
pub struct Line {
    handle: MultiplexedConnection,
    task: JoinHandle<()>,
    at: Endpoint,
    _keeper: Option<Keeper>,
}

impl Line {
    /// Returns the user names and the passwords of the connection's logins, so that they can be
    /// hidden in texts.
    pub fn secrets(&self) -> Secrets {
        self.at.secrets()
    }

    pub(crate) fn blamed(&self, e: RedisError) -> RedisError {
        self.at.blamed(e)
    }
}

impl Deref for Line {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.handle
    }
}

impl DerefMut for Line {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.handle
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The caller has to set a time-out. A dropped future closes the connection.
async fn log_in(
    socket: Box<dyn Socket>,
    at: Endpoint,
    login: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
    limits: Limits,
) -> RedisResult<Line> {
    let stream = Limited::new(socket, limits);
    let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
    let (handle, work) = opened.map_err(|e| at.blamed(e))?;
    let task = tokio::spawn(work);
    let con = handle.clone();
    let sends = move |auth| {
        let mut con = con.clone();
        async move { con.send_packed_command(&auth).await }.boxed()
    };
    let keeper = Keeper::new(&at, Box::new(sends));
    Ok(Line { handle, task, at, _keeper: keeper })
}

/// The login is the caller's first request. The caller has to set a time-out.
pub(crate) async fn wire(
    place: &Place,
    tls: Option<&Tls>,
    limits: Limits,
    load: fn() -> Vec<u8>,
) -> io::Result<Wire> {
    Ok(Wire::new(socket(place, tls).await?, limits, load))
}

async fn socket(place: &Place, tls: Option<&Tls>) -> io::Result<Box<dyn Socket>> {
    match place {
        Place::Tcp(host, port) => {
            let stream = tcp(host, *port).await?;
            match tls {
                Some(tls) => Ok(Box::new(tls.over(host, stream).await?)),
                None => Ok(Box::new(stream)),
            }
        }
        #[cfg(unix)]
        Place::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        #[cfg(not(unix))]
        Place::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let tries: Vec<_> =
        lookup_host((host, port)).await?.map(|at| Box::pin(TcpStream::connect(at))).collect();
    if tries.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let (stream, _) = select_ok(tries).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
