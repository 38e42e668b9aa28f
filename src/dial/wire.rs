//! A connection without a task of its own. The server answers the requests in the order in which
//! they were sent.
//!
//! [`Wire::send`] immediately writes as many bytes as the socket accepts. Each future that waits
//! for an answer reads the answers to all requests, and gives each answer to the future that waits
//! for it. The socket has only one waker: the waker of the wire. This waker wakes the future of the
//! oldest request without an answer. If there is no such request, the waker wakes the future that
//! waits for the end of the connection. So the task that polls the requests also drives the socket,
//! and a closed connection is noticed even without a request.

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
use crate::op::Batch;
use crate::sync::SyncMutex;
use crate::tls;

/// Result of a request: one value for each command, or an error if there is no answer.
type Answer = RedisResult<Vec<Value>>;

/// A batch that a server may refuse as a whole, and that is then sent again in its place.
pub(crate) trait Retry: Send {
    fn batch(&self) -> &Batch;

    /// Returns the bytes to send in place of a batch with this answer; `None` if the answer stands.
    fn again(&mut self, answer: &Value) -> Option<Vec<u8>>;
}

/// An open connection. The drop of this value closes the connection.
pub(crate) struct Wire(Arc<Shared>);

struct Shared {
    /// True if no further request may be sent on this connection.
    over: AtomicBool,
    state: SyncMutex<State>,
    /// Lock `state` before `readiness`, never the other way round.
    readiness: SyncMutex<Readiness>,
}

struct State {
    /// The socket and its requests; `None` after the connection was closed.
    line: Option<Line>,
    /// Requests with a caller that waits for the answer. The oldest request is the first.
    waiters: VecDeque<Waiter>,
    watch: Option<Waker>,
    sent: u64,
    /// Wakers to call after all mutexes are unlocked.
    wake: Vec<Waker>,
    /// The limit that the server exceeded, if this program ended the connection for that reason;
    /// `None` otherwise.
    excess: Option<Excess>,
    /// The server's answer to the last try to load the script, if it refused that.
    refused_script: Option<RedisError>,
}

struct Waiter {
    id: u64,
    waker: Option<Waker>,
    answer: Option<Answer>,
}

/// Readiness of the socket, and the waker of the future that reads next. There is no `reader` while
/// a future has `state` locked and reads.
#[derive(Default)]
struct Readiness {
    /// True if the socket became ready to read or write after its last use.
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

impl Wire {
    /// Creates a connection over a socket. `load` returns the command that loads the Lua script
    /// with which a server executes batches (script calls with several requests). The command is
    /// sent if the server reports that the script is missing.
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
            readiness: SyncMutex::default(),
        }))
    }

    /// Sends packed commands in one piece, and expects `wanted` answers. If the connection is over,
    /// sends nothing and returns `None`. If the commands are a batch (one script call) that the
    /// server refuses as a whole, sends it once more before any newer request: after loading the
    /// script that the server lacked, or as `retry` has it.
    pub(crate) fn send(
        &self,
        bytes: Vec<u8>,
        wanted: usize,
        retry: Option<Box<dyn Retry>>,
    ) -> Option<Reply> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        // Arrived bytes are read first. So a connection that the server has closed is noticed, and
        // nothing is sent on it.
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

    /// Sends commands in one piece. Returns the answers in the same order, including errors.
    pub(crate) fn ask(&self, commands: &[Cmd]) -> impl Future<Output = Answer> + use<> {
        let mut bytes = Vec::new();
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        let reply = self.send(bytes, commands.len(), None);
        async { reply.ok_or_else(|| broken("the connection is over"))?.await }
    }

    /// Returns true if no further request may be sent on this connection. Reads the bytes that have
    /// arrived, if any.
    pub(crate) fn is_over(&self) -> bool {
        let shared = &self.0;
        if !shared.over.load(Ordering::Acquire) && shared.readiness.lock().came {
            let mut state = shared.state.lock();
            shared.drive(&mut state);
            shared.leave(state);
        }
        shared.over.load(Ordering::Acquire)
    }

    /// Returns the limit that the server exceeded, if this program ended the connection for that
    /// reason; `None` otherwise.
    pub(crate) fn excess(&self) -> Option<Excess> {
        self.0.state.lock().excess
    }

    /// Returns why the server did not take the script, if that was so at the last try. A batch
    /// that it has answered with NOSCRIPT was not executed for this reason.
    pub(crate) fn refused_script(&self) -> Option<RedisError> {
        self.0.state.lock().refused_script.clone()
    }

    /// Resolves when no further request may be sent. If several futures of this function wait, only
    /// the future that was polled last is woken.
    ///
    /// # Cancellation safety
    /// The future may be dropped.
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

    /// Refuses all further requests. Requests under way may still get their answers.
    pub(crate) fn give_up(&self) {
        let mut state = self.0.state.lock();
        self.0.over.store(true, Ordering::Release);
        let watch = state.watch.take();
        state.wake.extend(watch);
        self.0.leave(state);
    }

    /// Closes the connection. Requests under way end with an error that contains `why`.
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
    /// Reads and writes until the socket would block.
    fn drive(self: &Arc<Self>, state: &mut State) {
        let State { line: Some(line), waiters, wake, refused_script, .. } = state else { return };
        // The readiness is reset before the socket is used. If the socket becomes ready after that,
        // the waker sets `Readiness::came` again, and `leave` then wakes the future that reads.
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

    /// Unlocks `state`. Selects the future that reads next, and wakes the futures with an answer.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let mut wake = std::mem::take(&mut state.wake);
        {
            let mut readiness = self.readiness.lock();
            readiness.reader = state.reader().cloned();
            // The socket became ready before the new `reader` was stored, so the reader is woken
            // now.
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
        // A request that was never polled has no waker. It is skipped, because its first poll
        // reads.
        open.find_map(|w| w.waker.as_ref())
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|w| w.id == id)
    }

    /// Removes and returns the answer to the request `id`, if it has arrived.
    fn take(&mut self, id: u64) -> Option<Answer> {
        let place = self.place(id)?;
        self.waiters[place].answer.as_ref()?;
        self.waiters.remove(place)?.answer
    }
}

/// A future that returns the answers to one request.
///
/// # Cancellation safety
/// The future may be dropped. The request still takes effect, and its answers are ignored.
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
            // The future of this request reads now, so it need not be woken to read.
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
        // This future may have been woken to read and has not read. `leave` then wakes another
        // future.
        self.shared.leave(state);
    }
}
