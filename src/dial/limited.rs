//! A socket that ends when an answer is larger than allowed, before memory is allocated for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{Excess, Frames, Limits};

/// Bytes that are read before other tasks get a turn. A server that sends without end would
/// otherwise occupy a thread and delay all other tasks.
pub(super) const TURN: usize = 2 * 1024 * 1024;

/// Any byte stream.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

pub(super) struct Limited {
    socket: Box<dyn Socket>,
    frames: Frames,
    over: Option<Excess>,
    /// Bytes that were read since other tasks had a turn.
    turn: usize,
}

impl Limited {
    pub(super) fn new(socket: Box<dyn Socket>, limits: Limits) -> Self {
        Self { socket, frames: Frames::new(limits), over: None, turn: 0 }
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.over.is_none() {
            if self.turn >= TURN {
                self.turn = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Poll::Ready(read) = Pin::new(&mut *self.socket).poll_read(cx, buf) else {
                self.turn = 0;
                return Poll::Pending;
            };
            read?;
            self.turn += buf.filled().len() - before;
            self.over = self.frames.take(&buf.filled()[before..]).err();
        }
        Poll::Ready(match self.over {
            Some(excess) => {
                buf.set_filled(before);
                Err(io::Error::new(io::ErrorKind::InvalidData, excess))
            }
            None => Ok(()),
        })
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
