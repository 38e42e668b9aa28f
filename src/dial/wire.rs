//! A connection for requests that are answered in the order in which they were sent, without a task
//! of its own.
//!
//! [`Wire::send`] writes at once what the socket takes. Any future that waits for an answer reads
//! the answers to all requests, and gives each future its own. The socket knows only one waker,
//! that of the wire. It wakes the future of the oldest request without an answer or, if there is
//! none, the future that waits for the end of the connection. So the task that polls the requests
//! in effect owns the socket, and a closed connection is noticed even without a request.

mod line;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use redis::{Cmd, RedisError, RedisResult, Value};

use self::line::{Line, Request};
use super::frames::{Excess, Limits};
use super::limited::Socket;
use crate::op::Batch;
use crate::tls;

/// Result of a request: one value per command, or the error because of which there is no answer.
type Answer = RedisResult<Vec<Value>>;

/// An open connection. It is closed when this is dropped.
pub(crate) struct Wire(Arc<Shared>);

struct Shared {
    /// True once nothing may be sent on this connection any more.
    over: AtomicBool,
    state: Mutex<State>,
    /// Lock order: `state` first, then `readiness`, never the reverse.
    readiness: Mutex<Readiness>,
}

struct State {
    /// The socket and its requests; `None` once the connection is closed.
    line: Option<Line>,
    /// Requests whose callers still want the answer, the oldest first.
    waiters: VecDeque<Waiter>,
    watch: Option<Waker>,
    sent: u64,
    /// Wakers to call as soon as no mutex is held.
    wake: Vec<Waker>,
    /// Limit that the server exceeded, if this program ended the connection because of that.
    excess: Option<Excess>,
}

struct Waiter {
    id: u64,
    waker: Option<Waker>,
    answer: Option<Answer>,
}

/// Readiness of the socket, and the waker of the future that reads next. While a future holds
/// `state` to read, there is no `reader`.
#[derive(Default)]
struct Readiness {
    /// The socket became ready since it was last used.
    came: bool,
    reader: Option<Waker>,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let reader = {
            let mut readiness = lock(&self.readiness);
            readiness.came = true;
            readiness.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete before anything that can panic, so a poisoned mutex is still good.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(why: &'static str) -> RedisError {
    RedisError::from(io::Error::new(io::ErrorKind::BrokenPipe, why))
}

impl Wire {
    /// Makes a connection over this socket. `load` returns the command that loads the script of the
    /// batches, for a server that reports it missing.
    pub(super) fn new(socket: Box<dyn Socket>, limits: Limits, load: fn() -> Vec<u8>) -> Self {
        let state = State {
            line: Some(Line::new(socket, limits, load)),
            waiters: VecDeque::new(),
            watch: None,
            sent: 0,
            wake: Vec::new(),
            excess: None,
        };
        Self(Arc::new(Shared {
            over: AtomicBool::new(false),
            state: Mutex::new(state),
            readiness: Mutex::default(),
        }))
    }

    /// Sends packed commands in one piece, and expects `wanted` answers. Returns `None` if the
    /// connection is over; then nothing was sent. If the server does not have the script of a
    /// `batch`, the batch is sent once more after the script was loaded, before any newer request.
    pub(crate) fn send(
        &self,
        bytes: Vec<u8>,
        wanted: usize,
        batch: Option<Arc<Batch>>,
    ) -> Option<Reply> {
        let shared = &self.0;
        let mut state = lock(&shared.state);
        // What has arrived is read first, so that a connection that the server has closed is
        // noticed and nothing is sent on it.
        shared.drive(&mut state);
        let id = state.sent;
        let open = !shared.over.load(Ordering::Acquire);
        let line = state.line.as_mut().filter(|_| open);
        let sent = line.map(|line| line.queue(Request::new(id, bytes, wanted, batch)));
        if sent.is_some() {
            state.sent += 1;
            state.waiters.push_back(Waiter { id, waker: None, answer: None });
            shared.drive(&mut state);
        }
        shared.leave(state);
        sent.map(|()| Reply { shared: Arc::clone(shared), id })
    }

    /// Sends commands in one piece; returns their answers, errors included, in the same order.
    pub(crate) fn ask(&self, commands: &[Cmd]) -> impl Future<Output = Answer> + use<> {
        let mut bytes = Vec::new();
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        let reply = self.send(bytes, commands.len(), None);
        async { reply.ok_or_else(|| broken("the connection is over"))?.await }
    }

    /// Returns true if nothing may be sent any more. Reads what the socket has, if anything.
    pub(crate) fn is_over(&self) -> bool {
        let shared = &self.0;
        if !shared.over.load(Ordering::Acquire) && lock(&shared.readiness).came {
            let mut state = lock(&shared.state);
            shared.drive(&mut state);
            shared.leave(state);
        }
        shared.over.load(Ordering::Acquire)
    }

    /// Returns which limit the server exceeded, if this program ended the connection because of
    /// that.
    pub(crate) fn excess(&self) -> Option<Excess> {
        lock(&self.0.state).excess
    }

    /// Resolves when nothing may be sent any more. Of several futures that wait for this, only the
    /// one that was polled last is woken.
    ///
    /// # Cancellation safety
    /// May be dropped.
    pub(crate) async fn over(&self) {
        let shared = &self.0;
        poll_fn(|cx| {
            let mut state = lock(&shared.state);
            shared.drive(&mut state);
            let over = shared.over.load(Ordering::Acquire);
            state.watch = (!over).then(|| cx.waker().clone());
            shared.leave(state);
            if over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Stops sending; requests under way may still be answered.
    pub(crate) fn give_up(&self) {
        let mut state = lock(&self.0.state);
        self.0.over.store(true, Ordering::Release);
        let watch = state.watch.take();
        state.wake.extend(watch);
        self.0.leave(state);
    }

    /// Closes the connection. Requests under way end with an error that says `why`.
    pub(crate) fn close(&self, why: &'static str) {
        let mut state = lock(&self.0.state);
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
        let State { line: Some(line), waiters, wake, .. } = state else { return };
        // Reset before the socket is used. If the socket becomes ready after this, `came` is set
        // again, and `leave` handles it.
        *lock(&self.readiness) = Readiness::default();
        let waker = Waker::from(Arc::clone(self));
        let done = line.drive(&mut Context::from_waker(&waker), &mut |request| {
            // A request whose caller dropped it has no waiter.
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

    /// Releases `state`: selects the future that reads next, and wakes the futures that have an
    /// answer.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let mut wake = std::mem::take(&mut state.wake);
        {
            let mut readiness = lock(&self.readiness);
            readiness.reader = state.reader().cloned();
            // The socket became ready while no reader was registered, or another one, so the reader
            // is woken now.
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
        // A request that was never polled has no waker and is skipped: it reads when it is polled.
        open.find_map(|w| w.waker.as_ref())
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|w| w.id == id)
    }

    /// Takes the answer, if it has come.
    fn take(&mut self, id: u64) -> Option<Answer> {
        let place = self.place(id)?;
        self.waiters[place].answer.as_ref()?;
        self.waiters.remove(place)?.answer
    }
}

/// Answers to one request, as a future.
///
/// # Cancellation safety
/// May be dropped: the request takes effect all the same, and its answers are skipped.
pub(crate) struct Reply {
    shared: Arc<Shared>,
    id: u64,
}

impl Future for Reply {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let (shared, id) = (&self.shared, self.id);
        let mut state = lock(&shared.state);
        let mut answer = state.take(id);
        if answer.is_none() {
            // This request is about to read, so it need not be woken for that.
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
        let mut state = lock(&self.shared.state);
        let Some(place) = state.place(self.id) else { return };
        state.waiters.remove(place);
        // This future may have been woken to read and has not read. Then `leave` wakes another one.
        self.shared.leave(state);
    }
}
