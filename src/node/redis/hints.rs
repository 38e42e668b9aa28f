//! Receives hints on a separate connection. A hint is a published message that a lock may be free
//! or a claim may be over.
//!
//! Redis closes a connection with subscriptions if the output of the connection exceeds the limits
//! for subscribers (by default 32 MB, or 8 MB for a minute). These limits apply to all output of
//! the connection. So batches use another connection, which by default has no such limits. If Redis
//! closes the connection for hints, only hints are lost. The connection for hints is made when an
//! op first asks for a hint, because most programs never wait. A waiter that asked before the
//! connection was ready is woken once when the connection is ready, because the hint of this waiter
//! may have been missed.
//!
//! Any client of the server may publish any message. So each request for a hint lets one hint
//! through. After that hint, the client and the server delete the request. A hint without a request
//! is dropped after one look-up (rule overview 6 in docs/design).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::node::NodeSignal;
use crate::op::{IfHeld, Op, Place};
use crate::sync::SyncMutex;

/// Channel of the hints (wake-up messages) for all callers that watch a lock, a claim or a list.
/// Each handle (client) that waits in a queue has a channel of its own: this name, a colon, and the
/// number of the handle.
const CHANGED: &str = "palisade:changed";
/// Largest number of waiting handles whose channels one node subscribes to. Further handles receive
/// no hints (wake-up messages), and ask again when their timers end.
const HANDLES_MAX: usize = 64;
/// Longest time for one try to connect and subscribe.
const LIMIT: Duration = Duration::from_secs(5);
/// Pause before the next try to connect, after the connection was lost or a try failed.
const PAUSE: Duration = Duration::from_millis(500);
/// Largest number of keys in `early`: keys with waiters that wait for the connection and are woken
/// when it is ready. If there are more, the waiters of the oldest keys ask again when their timers
/// end.
const EARLY_MAX: usize = 256;
/// Largest number of keys with a request for a hint (a wake-up message). When one more key is
/// added, all earlier requests are deleted, and their waiters ask again when their timers end.
const AWAITED_MAX: usize = 65_536;

/// Receiver of the hints (wake-up messages) for one session, a node's connection. The task of the
/// receiver ends with the session.
pub(super) struct Hints {
    line: Arc<Line>,
    task: SyncMutex<Option<JoinHandle<()>>>,
}

struct Line {
    endpoint: Endpoint,
    events: broadcast::Sender<NodeSignal>,
    /// True while the connection receives hints. Also true after the server has refused the
    /// subscription; then it stays true.
    settled: AtomicBool,
    /// Keys for which a hint (wake-up message) was requested while `settled` was false (no
    /// subscription yet), the oldest first.
    early: SyncMutex<VecDeque<Arc<str>>>,
    awaited: Arc<Awaited>,
    /// Numbers of the handles (clients) that have waited for a lock. Most programs have only one
    /// handle.
    handles: SyncMutex<Vec<u64>>,
    /// Notified when another handle (client) begins to wait. The task then subscribes to the
    /// channel of that handle.
    joined: Notify,
}

/// Keys for which a hint (wake-up message) was requested and has not arrived, each with the callers
/// that requested it.
#[derive(Debug, Default)]
struct Awaited(SyncMutex<HashMap<Arc<str>, HintRequest>>);

/// Callers that requested a hint (wake-up message) for one key: true if a caller watches the key,
/// and the handles (clients) that wait in the queue of the key.
#[derive(Debug, Default)]
struct HintRequest {
    watched: bool,
    waiters: Vec<u64>,
}

impl Awaited {
    fn add(&self, key: &str, waiter: Option<u64>) {
        let mut keys = self.0.lock();
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

    /// Returns the key if this hint (wake-up message) was requested, and deletes the request.
    /// `waiter` is the handle for which the hint was published; it is `None` for a hint on the
    /// channel that all handles share. Such a hint answers the callers that watch the key. If no
    /// caller watches the key, the hint answers the callers in the lock's queue.
    fn take(&self, key: &[u8], waiter: Option<u64>) -> Option<Arc<str>> {
        let key = std::str::from_utf8(key).ok()?;
        let mut keys = self.0.lock();
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
    /// Makes the receiver of hints (wake-up messages) for a session. This function opens no
    /// connection.
    pub(super) fn new(endpoint: Endpoint, events: broadcast::Sender<NodeSignal>) -> Self {
        let (settled, early) = (AtomicBool::new(false), SyncMutex::default());
        let (awaited, handles, joined) = (Arc::default(), SyncMutex::default(), Notify::new());
        let line = Line { endpoint, events, settled, early, awaited, handles, joined };
        Self { line: Arc::new(line), task: SyncMutex::default() }
    }

    /// Registers the hints (wake-up messages) that these ops request. Call this function within a
    /// tokio runtime, before the ops are sent.
    pub(super) fn expect(&self, ops: &[Op]) {
        let mut expected = ops.iter().filter_map(awaited).peekable();
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
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(Arc::clone(&self.line).run()));
        }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Returns the key for which the op requests a hint (wake-up message), and the place of the op in
/// the queue of a lock. The place is `None` if the op does not wait in a queue. Returns `None` if
/// the op requests no hint.
fn awaited(op: &Op) -> Option<(&str, Option<&Place>)> {
    match op {
        Op::Acquire {
            keys,
            if_held: Some(IfHeld::Queue(place) | IfHeld::Fair { place, ticket: Some(_) }),
            ..
        } => Some((keys.lock(), Some(place))),
        Op::Acquire { keys, if_held: Some(IfHeld::Watch), .. }
        | Op::Inspect { keys, wait: true } => Some((keys.lock(), None)),
        Op::Enlist(enlist) if enlist.entry.is_some() => Some((&enlist.key, None)),
        Op::Claim(claim) if claim.wait => Some((&claim.key, None)),
        _ => None,
    }
}

impl Line {
    /// Adds a handle (client) that waits for a lock. The task then subscribes to the channel of the
    /// handle.
    fn join(&self, handle: u64) {
        let mut handles = self.handles.lock();
        if !handles.contains(&handle) && handles.len() < HANDLES_MAX {
            handles.push(handle);
            self.joined.notify_one();
        }
    }

    /// Stores keys of locks or claims whose waiters have to be woken when the connection is ready.
    /// Returns false, and stores nothing, if the connection already receives hints (wake-up
    /// messages).
    fn note<'a>(&self, keys: impl Iterator<Item = &'a str>) -> bool {
        let mut early = self.early.lock();
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

    /// Records that the subscription to hints was made or was refused for good. Wakes the callers
    /// that requested a hint before that, for the keys in `early`.
    fn settle(&self) {
        let mut early = self.early.lock();
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
                    // The server refused the subscription, for example because the user may not
                    // read the channel. The waiters then ask again when their timers end.
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
            // All waiting handles (clients) that joined until now are in the list, so their
            // notification is not needed any more.
            let handles = self.handles.lock();
            let _ = self.joined.notified().now_or_never();
            handles.iter().map(|handle| format!("{CHANGED}:{handle:016x}")).collect()
        };
        // Each channel is subscribed with a separate command, because the connection expects one
        // answer per command.
        for channel in own {
            if let Err(e) = ask(&con, redis::cmd("SUBSCRIBE").arg(channel)).await
                && (e.is_io_error() || e.is_timeout())
            {
                return Err(e);
            }
        }
        // It is no error if the user has no permission for the channels of the handles (clients).
        // Such a user may not publish on these channels either, so its releases publish their hints
        // on the common channel.
        Ok(con)
    }
}

/// Returns the function that handles the server's push messages. The function forwards the
/// requested hints, and reports the end of the connection.
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

/// Returns the number of the waiting handle (client) in the name of the channel; `None` for the
/// common channel.
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
            assert!(signals.try_recv().is_err(), "a flood is passed on");
        }
    }

    #[test]
    fn keys_that_were_waited_for_do_not_pile_up() {
        let awaited = Awaited::default();
        for i in 0..AWAITED_MAX + 10 {
            awaited.add(&format!("k{i}"), Some(1));
        }
        assert_eq!(awaited.0.lock().len(), 10);
    }

    #[test]
    fn a_handle_that_asks_again_takes_no_second_place() {
        let awaited = Awaited::default();
        for _ in 0..2 * HANDLES_MAX {
            awaited.add("k", Some(1));
        }
        awaited.add("k", Some(2));
        assert_eq!(awaited.0.lock()["k"].waiters, [1, 2]);
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
