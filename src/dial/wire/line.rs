//! The socket of a [`Wire`](super::Wire), the requests that are to be sent, and those that wait for
//! their answers. It also sends batches again for which the server has lost the script.
//!
//! A server that lost its scripts executes none of the batches that are under way, unless another
//! client loads the script in between. So nothing new is sent until all of them are answered. Then
//! the script is loaded, and the batches are sent again in their first order. A batch is not sent
//! again if a later batch that shares an owner token with it was executed: a release that ran
//! before its acquire would have found nothing, and the acquire would leave a lock without a
//! holder.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::io::ReadBuf;

use crate::dial::frames::{Excess, Frames, Limits};
use crate::dial::limited::{Socket, TURN};
use crate::op::Batch;

/// Number of bytes per read from the socket.
const CHUNK: usize = 16 * 1024;
/// Largest capacity that an empty read buffer keeps; a larger buffer is freed.
const KEPT: usize = 4 * CHUNK;

pub(super) struct Request {
    pub(super) id: u64,
    pub(super) got: Vec<Value>,
    bytes: Vec<u8>,
    wanted: usize,
    /// The batch, while it may be sent again; `None` if it was sent again, or if the request is no
    /// batch.
    batch: Option<Arc<Batch>>,
}

impl Request {
    pub(super) fn new(id: u64, bytes: Vec<u8>, wanted: usize, batch: Option<Arc<Batch>>) -> Self {
        Self { id, got: Vec::with_capacity(wanted), bytes, wanted, batch }
    }

    fn found_no_script(&self) -> bool {
        matches!(self.got.first(), Some(Value::ServerError(e)) if e.code() == "NOSCRIPT")
    }

    fn shares_an_owner_with(&self, other: &Batch) -> bool {
        let mine = self.batch.iter().flat_map(|b| &b.ops).filter_map(|op| op.owner());
        mine.into_iter().any(|me| other.ops.iter().any(|op| op.owner() == Some(me)))
    }
}

/// Id of the request that loads the script; no caller waits for its answer.
const NO_REQUEST: u64 = u64::MAX;

pub(super) struct Line {
    socket: Box<dyn Socket>,
    frames: Frames,
    load: fn() -> Vec<u8>,
    chunk: Box<[u8]>,
    /// Received bytes that are not a whole answer yet. `frames` has counted the first `seen` of
    /// them.
    buffer: Vec<u8>,
    seen: usize,
    unsent: VecDeque<Request>,
    /// Number of bytes of the first unsent request that were sent already.
    begun: usize,
    flushed: bool,
    sent: VecDeque<Request>,
    /// Batches for which the server had no script.
    missing: VecDeque<Request>,
}

impl Line {
    pub(super) fn new(socket: Box<dyn Socket>, limits: Limits, load: fn() -> Vec<u8>) -> Self {
        Self {
            socket,
            frames: Frames::new(limits),
            load,
            chunk: vec![0; CHUNK].into(),
            buffer: Vec::new(),
            seen: 0,
            unsent: VecDeque::new(),
            begun: 0,
            flushed: true,
            sent: VecDeque::new(),
            missing: VecDeque::new(),
        }
    }

    pub(super) fn queue(&mut self, request: Request) {
        self.unsent.push_back(request);
    }

    /// Reads and writes until the socket would block. After an error the line must not be used.
    pub(super) fn drive(
        &mut self,
        cx: &mut Context<'_>,
        answered: &mut impl FnMut(Request),
    ) -> RedisResult<()> {
        loop {
            self.read(cx, answered)?;
            let again = self.send_missing();
            self.write(cx)?;
            if !again {
                return Ok(());
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut socket = Pin::new(&mut *self.socket);
        while let Some(next) = self.unsent.front()
            && (self.begun > 0 || self.missing.is_empty())
        {
            let Poll::Ready(n) = socket.as_mut().poll_write(cx, &next.bytes[self.begun..]) else {
                return Ok(());
            };
            self.flushed = false;
            self.begun += match n? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => n,
            };
            if self.begun == next.bytes.len() {
                self.begun = 0;
                self.sent.extend(self.unsent.pop_front());
            }
        }
        if !self.flushed
            && let Poll::Ready(done) = socket.poll_flush(cx)
        {
            done?;
            self.flushed = true;
        }
        Ok(())
    }

    fn read(
        &mut self,
        cx: &mut Context<'_>,
        answered: &mut impl FnMut(Request),
    ) -> RedisResult<()> {
        let mut turn = 0;
        loop {
            let mut into = ReadBuf::new(&mut self.chunk);
            match Pin::new(&mut *self.socket).poll_read(cx, &mut into) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            let came = into.filled();
            if came.is_empty() {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            }
            turn += came.len();
            self.buffer.extend_from_slice(came);
            self.take_answers(answered)?;
            if turn >= TURN {
                // Other tasks get a turn, because the server may send without end.
                cx.waker().wake_by_ref();
                return Ok(());
            }
        }
    }

    /// Takes whole answers out of the buffer.
    fn take_answers(&mut self, answered: &mut impl FnMut(Request)) -> RedisResult<()> {
        let excess = |e: Excess| io::Error::new(io::ErrorKind::InvalidData, e);
        let mut begin = 0;
        while self.seen < self.buffer.len() {
            let (used, whole) = self.frames.next(&self.buffer[self.seen..]).map_err(excess)?;
            self.seen += used;
            if whole {
                let value = redis::parse_redis_value(&self.buffer[begin..self.seen])?;
                begin = self.seen;
                self.answer(value, answered)?;
            }
        }
        self.buffer.drain(..begin);
        self.seen -= begin;
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    fn answer(&mut self, value: Value, answered: &mut impl FnMut(Request)) -> RedisResult<()> {
        if matches!(value, Value::Push { .. }) {
            // Pushes are skipped, because there is no subscription on this connection. `frames`
            // limits their number.
            return Ok(());
        }
        let Some(first) = self.sent.front_mut() else {
            let what = "an answer to nothing that was asked";
            return Err(RedisError::from((ErrorKind::Parse, what)));
        };
        first.got.push(value);
        if first.got.len() == first.wanted
            && let Some(request) = self.sent.pop_front()
        {
            self.settle(request, answered);
        }
        Ok(())
    }

    fn settle(&mut self, mut request: Request, answered: &mut impl FnMut(Request)) {
        if let Some(batch) = request.batch.take() {
            if request.found_no_script() {
                request.batch = Some(batch);
                return self.missing.push_back(request);
            }
            let overtaken = |missing: &Request| missing.shares_an_owner_with(&batch);
            let missing = std::mem::take(&mut self.missing);
            let (late, rest): (VecDeque<_>, _) = missing.into_iter().partition(overtaken);
            self.missing = rest;
            late.into_iter().for_each(&mut *answered);
        }
        answered(request);
    }

    /// Once no request is under way, queues the batches for which the server had no script: after a
    /// command that loads the script, and before all unsent requests. Each batch is queued again
    /// only once. Returns true if any was queued.
    fn send_missing(&mut self) -> bool {
        if self.missing.is_empty() || !self.sent.is_empty() || self.begun > 0 {
            return false;
        }
        for mut request in self.missing.drain(..).rev() {
            request.got.clear();
            request.batch = None;
            self.unsent.push_front(request);
        }
        self.unsent.push_front(Request::new(NO_REQUEST, (self.load)(), 1, None));
        true
    }
}
