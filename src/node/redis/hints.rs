//! Receives hints on a connection of its own. A hint is a published message that a lock may be free
//! or a claim may be over.
//!
//! Redis cuts off a connection that has subscribed once its output exceeds the limits for
//! subscribers (by default 32 MB, or 8 MB for a minute), whatever this output is. So batches use
//! another connection, which by default has no such limits, and a subscriber that is cut off loses
//! only hints. The connection for hints is made when an op first asks for a hint, because most
//! programs never wait. A waiter that asked before the connection was ready is woken once when it
//! is, because its hint may have been missed.
//!
//! Any client of the server may publish anything. So each request for a hint lets one hint through,
//! and is then forgotten, here and on the server. A hint that was not requested, or comes a second
//! time, costs one look-up and is dropped (overview 6).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::session::ask;
use crate::dial;
use crate::dial::endpoint::Endpoint;
use crate::dial::error_text::error_text;
use crate::dial::frames::Limits;
use crate::name::LockKeys;
use crate::node::NodeSignal;
use crate::op::{IfHeld, Op, Place};

/// Channel of the hints for all callers that watch a lock, a claim or a list. With a colon and a
/// handle's number appended it is the channel of the hints for that handle, while it waits in a
/// queue.
const CHANGED: &str = "palisade:changed";
/// Most waiting handles for which one node's channels are subscribed. Further handles get no hints,
/// and ask again when their timers end.
const HANDLES_MAX: usize = 64;
/// Longest time to connect and subscribe.
const LIMIT: Duration = Duration::from_secs(5);
/// Pause after the loss of the connection, or a failed try to open it, before the next try.
const PAUSE: Duration = Duration::from_millis(500);
/// Most keys that are remembered until the connection is ready, to wake their waiters then. Waiters
/// of further keys ask again when their timers end.
const EARLY_MAX: usize = 256;
/// Most keys for which a hint is awaited. A further key makes all of them be forgotten, and their
/// waiters ask again when their timers end.
const AWAITED_MAX: usize = 65_536;

/// Receiver of the hints for one session. Its task ends with the session.
pub(super) struct Hints {
    line: Arc<Line>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Line {
    endpoint: Endpoint,
    events: broadcast::Sender<NodeSignal>,
    /// True while hints are received, and for good once the server has refused the subscription.
    settled: AtomicBool,
    /// Keys for which a hint was requested while `settled` was false, the oldest first.
    early: Mutex<VecDeque<Arc<str>>>,
    awaited: Arc<Awaited>,
    /// Numbers of the handles that have waited for a lock; nearly always one.
    handles: Mutex<Vec<u64>>,
    /// Notified when a new handle waits, so that the task subscribes to its channel.
    joined: Notify,
}

/// Keys for which a hint was requested and has not come, each with its callers.
#[derive(Debug, Default)]
struct Awaited(Mutex<HashMap<Arc<str>, HintRequest>>);

/// Callers that requested a hint for one key: whether any watches it, and the handles that wait in
/// its queue.
#[derive(Debug, Default)]
struct HintRequest {
    watched: bool,
    waiters: Vec<u64>,
}

impl Awaited {
    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, HintRequest>> {
        // The map can be used even if a thread panicked while it held the mutex: each change is one
        // statement, or an unfinished one only costs hints.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, key: &str, waiter: Option<u64>) {
        let mut keys = self.keys();
        if !keys.contains_key(key) {
            if keys.len() >= AWAITED_MAX {
                keys.clear();
            }
            keys.insert(key.into(), HintRequest::default());
        }
        let Some(request) = keys.get_mut(key) else { return };
        match waiter {
            None => request.watched = true,
            Some(waiter) if request.waiters.contains(&waiter) => {}
            Some(waiter) if request.waiters.len() < HANDLES_MAX => request.waiters.push(waiter),
            Some(_) => {}
        }
    }

    /// Returns the key if this hint was requested, and forgets that request. `waiter` is the handle
    /// for which the hint was published; `None` for a hint on the common channel. The latter is for
    /// the callers that watch the key; only if there are none does it wake the waiters of the
    /// queue.
    fn take(&self, key: &[u8], waiter: Option<u64>) -> Option<Arc<str>> {
        let key = std::str::from_utf8(key).ok()?;
        let mut keys = self.keys();
        let key = Arc::clone(keys.get_key_value(key)?.0);
        let request = keys.get_mut(&key)?;
        match waiter {
            None if std::mem::take(&mut request.watched) => {}
            None => request.waiters.clear(),
            Some(waiter) => {
                request.waiters.swap_remove(request.waiters.iter().position(|w| *w == waiter)?);
            }
        }
        if request.waiters.is_empty() && !request.watched {
            keys.remove(&key);
        }
        Some(key)
    }
}

impl Hints {
    /// Makes the receiver for a session. Opens no connection yet.
    pub(super) fn new(endpoint: Endpoint, events: broadcast::Sender<NodeSignal>) -> Self {
        let (settled, early) = (AtomicBool::new(false), Mutex::default());
        let (awaited, handles, joined) = (Arc::default(), Mutex::default(), Notify::new());
        let line = Line { endpoint, events, settled, early, awaited, handles, joined };
        Self { line: Arc::new(line), task: Mutex::default() }
    }

    /// Registers the hints that these ops request. Must be called within a tokio runtime, before
    /// the ops are sent.
    pub(super) fn expect(&self, ops: &[Op]) {
        let mut expected = ops.iter().flat_map(awaited).peekable();
        if expected.peek().is_none() {
            return;
        }
        for (key, place) in expected.clone() {
            let waiter = place.map(|place| place.waiter);
            self.line.awaited.add(key, waiter);
            if let Some(waiter) = waiter {
                self.line.join(waiter);
            }
        }
        let keys = expected.map(|(key, _)| key);
        if self.line.settled.load(Ordering::Acquire) || !self.line.note(keys) {
            return;
        }
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(Arc::clone(&self.line).run()));
        }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Returns the keys for which the op requests a hint, with its place in the queue if it waits in
/// one.
fn awaited(op: &Op) -> impl Iterator<Item = (&str, Option<&Place>)> + Clone {
    let (keys, key, place) = match op {
        Op::Acquire { keys, if_held: Some(IfHeld::Queue(place)), .. } => {
            (Some(keys), None, Some(place))
        }
        Op::Acquire { keys, if_held: Some(IfHeld::Watch), .. }
        | Op::Inspect { keys, wait: true } => (Some(keys), None, None),
        Op::Enlist(enlist) if enlist.entry.is_some() => (None, Some(&*enlist.key), None),
        Op::Claim(claim) if claim.wait => (None, Some(&*claim.key), None),
        _ => (None, None, None),
    };
    let locks = keys.into_iter().flat_map(LockKeys::all).map(LockKeys::lock);
    locks.chain(key).map(move |key| (key, place))
}

impl Line {
    fn early(&self) -> MutexGuard<'_, VecDeque<Arc<str>>> {
        // The keys can be used even if a thread panicked while it held the mutex, because each
        // change is one statement.
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, Vec<u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle that waits for a lock, so that the task subscribes to its channel.
    fn join(&self, handle: u64) {
        let mut handles = self.handles();
        if !handles.contains(&handle) && handles.len() < HANDLES_MAX {
            handles.push(handle);
            self.joined.notify_one();
        }
    }

    /// Remembers keys whose waiters are to be woken when the connection is ready. Returns false,
    /// and remembers nothing, if hints are received already.
    fn note<'a>(&self, keys: impl Iterator<Item = &'a str>) -> bool {
        let mut early = self.early();
        if self.settled.load(Ordering::Acquire) {
            return false;
        }
        for key in keys {
            if early.len() == EARLY_MAX {
                early.pop_front();
            }
            early.push_back(key.into());
        }
        true
    }

    /// Records that hints are received from now on, or never will be, and wakes the waiters of the
    /// remembered keys.
    fn settle(&self) {
        let mut early = self.early();
        self.settled.store(true, Ordering::Release);
        for key in early.drain(..) {
            // An error means that this node's signals have no receiver.
            let _ = self.events.send(NodeSignal::Changed(key));
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let lost = Arc::<Notify>::default();
            match timeout(LIMIT, self.subscribe(&lost)).await {
                Ok(Ok(con)) => {
                    self.settle();
                    let joined = tokio::select! {
                        biased;
                        () = lost.notified() => false,
                        () = self.joined.notified() => true,
                    };
                    drop(con);
                    self.settled.store(false, Ordering::Release);
                    if joined {
                        continue;
                    }
                }
                Ok(Err(e)) if !e.is_io_error() && !e.is_timeout() => {
                    // The server refused the subscription, as without the permission for the
                    // channel. The waiters then ask again when their timers end.
                    let error = error_text(&e, &self.endpoint.secrets());
                    tracing::debug!(%error, "no release hints from this server");
                    return self.settle();
                }
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    }

    async fn subscribe(&self, lost: &Arc<Notify>) -> Result<dial::Line, RedisError> {
        let config = AsyncConnectionConfig::new().set_push_sender(listener(
            self.events.clone(),
            &self.awaited,
            Arc::clone(lost),
        ));
        let con = self.endpoint.dial(config, Limits::EVENTS).await?;
        ask(&con, redis::cmd("SUBSCRIBE").arg(CHANGED)).await?;
        let own: Vec<String> = {
            // The handles that joined until now are all in the list, so their notification is taken
            // back.
            let handles = self.handles();
            let _ = self.joined.notified().now_or_never();
            handles.iter().map(|handle| format!("{CHANGED}:{handle:016x}")).collect()
        };
        // The channels are subscribed one by one, because the connection expects one answer per
        // command.
        for channel in own {
            if let Err(e) = ask(&con, redis::cmd("SUBSCRIBE").arg(channel)).await
                && (e.is_io_error() || e.is_timeout())
            {
                return Err(e);
            }
        }
        // A user whose ACL lacks the channels of the handles is no error. It may not publish there
        // either, so its releases send their hints on the common channel.
        Ok(con)
    }
}

/// Returns the function that handles the server's pushes: it passes on the hints that were
/// requested, and reports the end of the connection.
fn listener(
    events: broadcast::Sender<NodeSignal>,
    awaited: &Arc<Awaited>,
    lost: Arc<Notify>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    let awaited = Arc::clone(awaited);
    move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => lost.notify_one(),
            PushKind::Message => {
                let [Value::BulkString(channel), Value::BulkString(key)] = push.data.as_slice()
                else {
                    return Ok(());
                };
                let waiter = waiter(channel);
                // An error means that this node's signals have no receiver.
                let _ = awaited.take(key, waiter).map(|key| match waiter {
                    Some(waiter) => events.send(NodeSignal::Turn { key, waiter }),
                    None => events.send(NodeSignal::Changed(key)),
                });
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the number of the handle to which the channel belongs; `None` for the common channel.
fn waiter(channel: &[u8]) -> Option<u64> {
    let handle = std::str::from_utf8(channel).ok()?.strip_prefix(CHANGED)?.strip_prefix(':')?;
    u64::from_str_radix(handle, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzzing::{any_value, config, text};

    #[test]
    fn waiters_from_before_the_subscription_are_woken_once() {
        let (events, mut signals) = broadcast::channel(EARLY_MAX);
        let hints = Hints::new(Endpoint::parse("redis://localhost").unwrap(), events);
        let keys: Vec<String> = (0..EARLY_MAX + 2).map(|i| format!("k{i}")).collect();
        assert!(hints.line.note(keys.iter().map(String::as_str)));
        hints.line.settle();
        for key in &keys[2..] {
            assert_eq!(signals.try_recv(), Ok(NodeSignal::Changed(key.as_str().into())));
        }
        assert!(!hints.line.note(["later"].into_iter()), "it is signals of by the server's word");
        assert!(signals.try_recv().is_err());
    }

    fn hint(key: &str) -> PushInfo {
        PushInfo { kind: PushKind::Message, data: vec![text("palisade:changed"), text(key)] }
    }

    #[test]
    fn a_request_gets_one_hint_and_unrequested_hints_are_dropped() {
        let (events, mut signals) = broadcast::channel(16);
        let awaited = Arc::<Awaited>::default();
        let listen = listener(events, &awaited, Arc::default());
        for round in 0..3 {
            awaited.add("mine", None);
            for i in 0..10_000 {
                listen(hint(&format!("foreign {i}"))).unwrap();
                listen(hint("mine")).unwrap();
            }
            assert_eq!(signals.try_recv(), Ok(NodeSignal::Changed("mine".into())), "{round}");
            assert!(signals.try_recv().is_err(), "a flood is passed on to everybody");
        }
    }

    #[test]
    fn keys_that_were_waited_for_do_not_pile_up() {
        let awaited = Awaited::default();
        for i in 0..AWAITED_MAX + 10 {
            awaited.add(&format!("k{i}"), Some(1));
        }
        assert_eq!(awaited.keys().len(), 10);
    }

    #[test]
    fn a_handle_that_asks_again_takes_no_second_place() {
        let awaited = Awaited::default();
        for _ in 0..2 * HANDLES_MAX {
            awaited.add("k", Some(1));
        }
        awaited.add("k", Some(2));
        assert_eq!(awaited.keys()["k"].waiters, [1, 2]);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn fuzz_a_push_is_a_hint_or_nothing(
            data in proptest::collection::vec(any_value(), 0..4),
        ) {
            let (events, mut signals) = broadcast::channel(4);
            let awaited = Arc::<Awaited>::default();
            if let Some(Value::BulkString(key)) = data.get(1)
                && let Ok(key) = std::str::from_utf8(key)
            {
                awaited.add(key, Some(1));
            }
            let listen = listener(events, &awaited, Arc::default());
            listen(PushInfo { kind: PushKind::Message, data: data.clone() }).unwrap();
            match signals.try_recv() {
                Ok(NodeSignal::Changed(key) | NodeSignal::Turn { key, .. }) => {
                    prop_assert_eq!(&data[1], &text(&key));
                }
                other => prop_assert!(other.is_err(), "{other:?}"),
            }
        }
    }
}
