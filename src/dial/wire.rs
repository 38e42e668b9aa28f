//! A connection without a task of its own: [`Wire::send`] writes at once what the socket accepts,
//! and the future of the oldest request without an answer, or else the one that waits for the end,
//! is woken to read. So the polling task drives the socket, and a closed connection is noticed
//! without a request.

mod line;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use redis::{Cmd, RedisError, RedisResult, Value};

use self::line::{LOADING, Line, Request};
use super::frames::{Excess, Limits};
use super::limited::Socket;
use super::login::Sends;
use crate::op::{Batch, Op};
use crate::sync::SyncMutex;
use crate::tls;

type Answer = RedisResult<Vec<Value>>;

pub(crate) trait Retry: Send {
    /// Ops that the last answer has settled; all that were sent, if nothing is sent again.
    fn settled(&self) -> &[Op] {
        &self.batch().ops
    }

    /// Ops that are sent, or are to be sent again.
    fn batch(&self) -> &Batch;

    /// May keep the answer. The bytes are sent before any newer request.
    fn again(&mut self, _answer: &mut Value) -> Option<Vec<u8>> {
        None
    }

    /// What is to be sent without the ops of these ops' owners; `None` if nothing is left, or it
    /// cannot be divided.
    fn without(&mut self, _overtaken_by: &[Op]) -> Option<Vec<u8>> {
        None
    }
}

pub(crate) struct Wire(Arc<Shared>);

struct Shared {
    over: AtomicBool,
    state: SyncMutex<State>,
    /// Lock `state` before `readiness`, never the other way round.
    readiness: SyncMutex<Readiness>,
}

struct State {
    line: Option<Line>,
    waiters: VecDeque<Waiter>,
    watch: Option<Waker>,
    sent: u64,
    wake: Vec<Waker>,
    excess: Option<Excess>,
    refused_script: Option<RedisError>,
}

struct Waiter {
    id: u64,
    waker: Option<Waker>,
    answer: Option<Answer>,
}

/// There is no `reader` while a future has `state` locked and reads.
#[derive(Default)]
struct Readiness {
    came: bool,
    reader: Option<Waker>,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let reader = {
            let mut readiness = self.readiness.lock();
            readiness.came = true;
            readiness.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

fn broken(why: &'static str) -> RedisError {
    RedisError::from(io::Error::new(io::ErrorKind::BrokenPipe, why))
}

fn is_over() -> RedisError {
    broken("the connection is over")
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>, limits: Limits, load: fn() -> Vec<u8>) -> Self {
        let state = State {
            line: Some(Line::new(socket, limits, load)),
            waiters: VecDeque::new(),
            watch: None,
            sent: 0,
            wake: Vec::new(),
            excess: None,
            refused_script: None,
        };
        Self(Arc::new(Shared {
            over: AtomicBool::new(false),
            state: SyncMutex::new(state),
            // Nothing was read, so nothing would wake `is_over`.
            readiness: SyncMutex::new(Readiness { came: true, reader: None }),
        }))
    }

    /// In one piece, with `wanted` answers to come. `None` if the connection is over. A batch that
    /// the server refuses as a whole is sent once more before any newer request.
    pub(crate) fn send(
        &self,
        bytes: Vec<u8>,
        wanted: usize,
        retry: Option<Box<dyn Retry>>,
    ) -> Option<Reply> {
        self.0.send(bytes, wanted, retry)
    }

    /// Does not keep the connection open.
    pub(crate) fn sends(&self) -> Sends {
        let shared = Arc::clone(&self.0);
        Box::new(move |command| {
            let reply = shared.send(command.get_packed_command(), 1, None).ok_or_else(is_over);
            Box::pin(async { Ok(reply?.await?.pop().unwrap_or(Value::Nil)) })
        })
    }

    pub(crate) fn ask(&self, commands: &[Cmd]) -> impl Future<Output = Answer> + use<> {
        let mut bytes = Vec::new();
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        let reply = self.send(bytes, commands.len(), None);
        async { reply.ok_or_else(is_over)?.await }
    }

    pub(crate) fn is_over(&self) -> bool {
        let shared = &self.0;
        if !shared.over.load(Ordering::Acquire) && shared.readiness.lock().came {
            let mut state = shared.state.lock();
            shared.drive(&mut state);
            shared.leave(state);
        }
        shared.over.load(Ordering::Acquire)
    }

    pub(crate) fn excess(&self) -> Option<Excess> {
        self.0.state.lock().excess
    }

    pub(crate) fn refused_script(&self) -> Option<RedisError> {
        self.0.state.lock().refused_script.clone()
    }

    /// Only the future that was polled last is woken.
    pub(crate) async fn over(&self) {
        let shared = &self.0;
        poll_fn(|cx| {
            let mut state = shared.state.lock();
            shared.drive(&mut state);
            let over = shared.over.load(Ordering::Acquire);
            state.watch = (!over).then(|| cx.waker().clone());
            shared.leave(state);
            if over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Requests under way may still get their answers.
    pub(crate) fn give_up(&self) {
        let mut state = self.0.state.lock();
        self.0.over.store(true, Ordering::Release);
        let watch = state.watch.take();
        state.wake.extend(watch);
        self.0.leave(state);
    }

    pub(crate) fn close(&self, why: &'static str) {
        let mut state = self.0.state.lock();
        self.0.end(&mut state, &broken(why));
        self.0.leave(state);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close("the connection was given up");
    }
}

impl Shared {
    fn send(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        wanted: usize,
        retry: Option<Box<dyn Retry>>,
    ) -> Option<Reply> {
        let shared = self;
        let mut state = shared.state.lock();
        // Notices a connection that the server has closed.
        shared.drive(&mut state);
        let id = state.sent;
        let open = !shared.over.load(Ordering::Acquire);
        let line = state.line.as_mut().filter(|_| open);
        let sent = line.map(|line| line.queue(Request::new(id, bytes, wanted, retry)));
        if sent.is_some() {
            state.sent += 1;
            state.waiters.push_back(Waiter { id, waker: None, answer: None });
            shared.drive(&mut state);
        }
        shared.leave(state);
        sent.map(|()| Reply { shared: Arc::clone(shared), id })
    }

    fn drive(self: &Arc<Self>, state: &mut State) {
        let State { line: Some(line), waiters, wake, refused_script, .. } = state else { return };
        // If the socket becomes ready after that, `leave` wakes the future that reads.
        *self.readiness.lock() = Readiness::default();
        let waker = Waker::from(Arc::clone(self));
        let done = line.drive(&mut Context::from_waker(&waker), &mut |mut request| {
            if request.id == LOADING {
                let answer = request.got.pop().map(Value::extract_error);
                *refused_script = answer.and_then(Result::err);
                return;
            }
            if let Some(waiter) = waiters.iter_mut().find(|w| w.id == request.id) {
                waiter.answer = Some(Ok(request.got));
                wake.extend(waiter.waker.take());
            }
        });
        if let Err(e) = done {
            self.end(state, &e);
        }
    }

    fn end(&self, state: &mut State, why: &RedisError) {
        self.over.store(true, Ordering::Release);
        state.line = None;
        state.excess = state.excess.or_else(|| tls::inside::<Excess>(why).copied());
        let State { waiters, wake, watch, .. } = state;
        for waiter in waiters.iter_mut().filter(|w| w.answer.is_none()) {
            waiter.answer = Some(Err(why.clone()));
            wake.extend(waiter.waker.take());
        }
        wake.extend(watch.take());
    }

    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let mut wake = std::mem::take(&mut state.wake);
        {
            let mut readiness = self.readiness.lock();
            readiness.reader = state.reader().cloned();
            // Before the new `reader` was stored.
            if readiness.came {
                wake.extend(readiness.reader.take());
            }
        }
        drop(state);
        for waker in wake {
            waker.wake();
        }
    }
}

impl State {
    fn reader(&self) -> Option<&Waker> {
        let mut open = self.waiters.iter().filter(|w| w.answer.is_none()).peekable();
        if open.peek().is_none() {
            return self.watch.as_ref();
        }
        // A request that was never polled reads at its first poll.
        open.find_map(|w| w.waker.as_ref())
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|w| w.id == id)
    }

    fn take(&mut self, id: u64) -> Option<Answer> {
        let place = self.place(id)?;
        self.waiters[place].answer.as_ref()?;
        self.waiters.remove(place)?.answer
    }
}

/// If it is dropped, the request still takes effect, and its answers are ignored.
pub(crate) struct Reply {
    shared: Arc<Shared>,
    id: u64,
}

impl Future for Reply {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let (shared, id) = (&self.shared, self.id);
        let mut state = shared.state.lock();
        let mut answer = state.take(id);
        if answer.is_none() {
            // It reads now, so it need not be woken.
            if let Some(place) = state.place(id) {
                state.waiters[place].waker = None;
            }
            shared.drive(&mut state);
            answer = state.take(id);
        }
        if answer.is_none()
            && let Some(place) = state.place(id)
        {
            state.waiters[place].waker = Some(cx.waker().clone());
        }
        shared.leave(state);
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let Some(place) = state.place(self.id) else { return };
        state.waiters.remove(place);
        // It may have been woken to read and has not: `leave` wakes another.
        self.shared.leave(state);
    }
}
