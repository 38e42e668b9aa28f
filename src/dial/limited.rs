//! A socket that refuses a too large answer before the parser allocates memory for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::frames::{Excess, Frames, Limits};

/// Read before other tasks run: a server that sends without end would occupy a thread.
pub(super) const TURN: usize = 2 * 1024 * 1024;

const SPAN: Duration = Duration::from_millis(20);

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

pub(super) struct Limited {
    socket: Box<dyn Socket>,
    frames: Frames,
    over: Option<Excess>,
    turn: usize,
    most: u64,
    answers: u64,
    since: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Limited {
    pub(super) fn new(socket: Box<dyn Socket>, limits: Limits) -> Self {
        Self {
            socket,
            frames: Frames::new(limits),
            over: None,
            turn: 0,
            most: limits.answers,
            answers: 0,
            since: Instant::now(),
            pause: None,
        }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.answers < self.most {
            return Poll::Ready(());
        }
        let next = self.since + SPAN;
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep_until(next)));
        if pause.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        (self.pause, self.answers, self.since) = (None, 0, Instant::now());
        Poll::Ready(())
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
            if self.poll_pause(cx).is_pending() {
                return Poll::Pending;
            }
            let Poll::Ready(read) = Pin::new(&mut *self.socket).poll_read(cx, buf) else {
                self.turn = 0;
                return Poll::Pending;
            };
            read?;
            self.turn += buf.filled().len() - before;
            match self.frames.take(&buf.filled()[before..]) {
                Ok(answers) => self.answers = self.answers.saturating_add(answers),
                Err(excess) => self.over = Some(excess),
            }
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
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_pushes_are_read_than_the_pace_allows() {
        let (near, mut far) = duplex(100);
        let push = b">2\r\n+x\r\n:1\r\n";
        let sends = tokio::spawn(async move {
            for _ in 0..10_000 {
                far.write_all(push).await.expect("it is read");
            }
        });
        let (mut limited, begun) = (Limited::new(Box::new(near), Limits::SENTINEL), Instant::now());
        let mut all = Vec::new();
        limited.read_to_end(&mut all).await.expect("it is the protocol");
        sends.await.expect("it ends");
        assert_eq!(all, push.repeat(10_000));
        let least = SPAN * (10_000 / (256 + 16));
        assert!(begun.elapsed() >= least, "after {:?}", begun.elapsed());
        assert!(begun.elapsed() <= SPAN * 45, "after {:?}", begun.elapsed());
    }
}
