//! The socket of a [`Wire`](super::Wire). It sends a batch again that the server refused as a
//! whole, because it has lost the script (NOSCRIPT) or has other data (`Retry`).
//!
//! Another client may load the script at any time, so that later batches are executed. So nothing
//! new is sent until all sent requests are answered; then the refused batches go again, in their
//! first order.
//!
//! So does the rest of a batch, if the server executed a part of it (`Retry` has another plan).
//!
//! A refused batch is not sent again if the server executed a later one with the same owner token:
//! it may acquire a lock whose release has found none, and that lock would stay held.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::io::ReadBuf;

use super::Retry;
use crate::dial::frames::{Excess, Frames, Limits};
use crate::dial::limited::{Socket, TURN};
use crate::op::Op;

const CHUNK: usize = 16 * 1024;
const KEPT: usize = 4 * CHUNK;

pub(super) struct Request {
    pub(super) id: u64,
    pub(super) got: Vec<Value>,
    bytes: Vec<u8>,
    wanted: usize,
    retry: Option<Box<dyn Retry>>,
    lacked_script: bool,
}

impl Request {
    pub(super) fn new(
        id: u64,
        bytes: Vec<u8>,
        wanted: usize,
        retry: Option<Box<dyn Retry>>,
    ) -> Self {
        Self { id, got: Vec::with_capacity(wanted), bytes, wanted, retry, lacked_script: false }
    }

    fn found_no_script(&self) -> bool {
        matches!(self.got.first(), Some(Value::ServerError(e)) if e.code() == "NOSCRIPT")
    }

    fn shares_an_owner_with(&self, others: &[Op]) -> bool {
        let mut mine = self.retry.iter().flat_map(|retry| &retry.batch().ops);
        mine.any(|op| others.iter().any(|other| op.shares_an_owner_with(other)))
    }
}

pub(super) const LOADING: u64 = u64::MAX;

pub(super) struct Line {
    socket: Box<dyn Socket>,
    frames: Frames,
    load: fn() -> Vec<u8>,
    chunk: Box<[u8]>,
    /// `frames` has searched the first `seen` bytes.
    buffer: Vec<u8>,
    seen: usize,
    unsent: VecDeque<Request>,
    /// Of the first unsent request, by the socket.
    begun: usize,
    flushed: bool,
    sent: VecDeque<Request>,
    missing: VecDeque<Request>,
    lacks_script: bool,
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
            lacks_script: false,
        }
    }

    pub(super) fn queue(&mut self, request: Request) {
        self.unsent.push_back(request);
    }

    /// Until the socket would block. After an error the caller must drop the line.
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
                // The server may send without a pause.
                cx.waker().wake_by_ref();
                return Ok(());
            }
        }
    }

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
        if let Some(mut retry) = request.retry.take() {
            if request.found_no_script() && !std::mem::replace(&mut request.lacked_script, true) {
                request.retry = Some(retry);
                self.lacks_script = true;
                return self.missing.push_back(request);
            }
            let again = request.got.first_mut().and_then(|got| retry.again(got));
            self.give_up_overtaken(retry.settled(), answered);
            if let Some(bytes) = again {
                (request.bytes, request.retry) = (bytes, Some(retry));
                return self.missing.push_back(request);
            }
        }
        answered(request);
    }

    fn give_up_overtaken(&mut self, settled: &[Op], answered: &mut impl FnMut(Request)) {
        for mut missing in std::mem::take(&mut self.missing) {
            if missing.shares_an_owner_with(settled) {
                let rest = missing.retry.as_mut().and_then(|retry| retry.without(settled));
                let Some(bytes) = rest else {
                    answered(missing);
                    continue;
                };
                missing.bytes = bytes;
            }
            self.missing.push_back(missing);
        }
    }

    /// Before all unsent requests, behind the command that loads the script if they need it.
    /// Nothing while a sent request has no answer. True if a batch was queued.
    fn send_missing(&mut self) -> bool {
        if self.missing.is_empty() || !self.sent.is_empty() || self.begun > 0 {
            return false;
        }
        for mut request in self.missing.drain(..).rev() {
            request.got.clear();
            self.unsent.push_front(request);
        }
        if std::mem::take(&mut self.lacks_script) {
            self.unsent.push_front(Request::new(LOADING, (self.load)(), 1, None));
        }
        true
    }
}
