//! Connections that end if their client reads nothing of what is sent. Otherwise such a client
//! could keep its connection and the unsent bytes without limit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail after the client has taken nothing for `limit`.
pub(crate) struct Stalls<S> {
    stream: S,
    limit: Duration,
    /// Time at which the present wait of a write ends; `None` if no write waits.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalls<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, wait: None }
    }

    /// Returns what a write returned, or an error if writes have waited for too long.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.wait = None;
            return written;
        }
        let limit = self.limit;
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(limit)));
        if wait.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let why = "the client takes nothing of what is sent";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        all: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, all);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // For TLS, a flush sends the bytes that earlier writes have left in the buffer.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_client_that_takes_nothing_loses_its_connection() {
        let (client, server) = duplex(16);
        let mut server = Stalls::new(server, Duration::from_millis(50));
        let error = server.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn a_client_that_takes_a_little_keeps_its_connection() {
        let (mut client, server) = duplex(16);
        let mut server = Stalls::new(server, Duration::from_secs(1));
        let send = async { server.write_all(&[7; 64]).await };
        let take = async {
            let mut all = Vec::new();
            while all.len() < 64 {
                tokio::time::sleep(Duration::from_millis(400)).await;
                let mut part = [0; 16];
                let n = client.read(&mut part).await.unwrap();
                all.extend_from_slice(&part[..n]);
            }
            all
        };
        let (written, all) = tokio::join!(send, take);
        assert!(written.is_ok() && all == [7; 64]);
    }
}
