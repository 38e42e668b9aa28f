//! Receives hints on a connection of its own.
//!
//! Redis closes a connection with subscriptions whose output exceeds the limits for subscribers (by
//! default 32 MB, or 8 MB for a minute), so batches use another, and only hints are lost. It is
//! made when an op first asks for a hint, because most programs never wait. Who asked before it was
//! ready is woken once when it is, because its hint may have been missed.
//!
//! Any client of the server may publish any message. So each request for a hint lets one through,
//! and is then deleted by client and server. A hint without a request is dropped after one look-up
//! (overview 6).

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
use crate::dial::login::NoCredentials;
use crate::node::NodeSignal;
use crate::op::{IfHeld, Op, Place};
use crate::sync::SyncMutex;
use crate::tls;

/// For all callers that watch. Each handle that waits in a queue has its own: this name, a colon,
/// and its number.
const CHANGED: &str = "palisade:changed";
/// To whose channels one node subscribes. Further handles ask again when their timers end.
const HANDLES_MAX: usize = 64;
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);
/// How often it doubles while there are no credentials.
const PAUSES: u32 = 4;
/// Keys in `early`. The waiters of the oldest keys beyond that ask again when their timers end.
const EARLY_MAX: usize = 256;
/// Keys with a request for a hint. One more, and all earlier requests are deleted: their waiters
/// ask again when their timers end.
const AWAITED_MAX: usize = 65_536;

pub(super) struct Hints {
    line: Arc<Line>,
    task: SyncMutex<Option<JoinHandle<()>>>,
}

struct Line {
    endpoint: Endpoint,
    events: broadcast::Sender<NodeSignal>,
    /// The connection receives hints; or the server has refused the subscription, and then it stays
    /// true.
    settled: AtomicBool,
    early: SyncMutex<VecDeque<Arc<str>>>,
    awaited: Arc<Awaited>,
    handles: SyncMutex<Vec<u64>>,
    joined: Notify,
}

/// Requested and not arrived, each with who requested it.
#[derive(Debug, Default)]
struct Awaited(SyncMutex<HashMap<Arc<str>, HintRequest>>);

/// True if a caller watches the key, and the handles that wait in its queue.
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

    /// If this hint was requested, and deletes the request. `waiter` is the handle for which it was
    /// published; `None` on the common channel, which answers those that watch or, if nobody does,
    /// those in the queue.
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
    pub(super) fn new(endpoint: Endpoint, events: broadcast::Sender<NodeSignal>) -> Self {
        let (settled, early) = (AtomicBool::new(false), SyncMutex::default());
        let (awaited, handles, joined) = (Arc::default(), SyncMutex::default(), Notify::new());
        let line = Line { endpoint, events, settled, early, awaited, handles, joined };
        Self { line: Arc::new(line), task: SyncMutex::default() }
    }

    /// Within a tokio runtime, before the ops are sent.
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
    fn join(&self, handle: u64) {
        let mut handles = self.handles.lock();
        if !handles.contains(&handle) && handles.len() < HANDLES_MAX {
            handles.push(handle);
            self.joined.notify_one();
        }
    }

    /// To be woken when the connection is ready. False, and nothing is stored, if it already
    /// receives hints.
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

    fn settle(&self) {
        let mut early = self.early.lock();
        self.settled.store(true, Ordering::Release);
        for key in early.drain(..) {
            let _ = self.events.send(NodeSignal::Changed(key));
        }
    }

    async fn run(self: Arc<Self>) {
        let mut refusals = 0;
        loop {
            let lost = Arc::<Notify>::default();
            match timeout(LIMIT, self.subscribe(&lost)).await {
                Ok(Ok(con)) => {
                    refusals = 0;
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
                    // For example because the user may not read the channel. The waiters then ask
                    // again when their timers end.
                    let error = error_text(&e, &self.endpoint.secrets());
                    tracing::debug!(%error, "no release hints from this server");
                    return self.settle();
                }
                Ok(Err(e)) if tls::inside::<NoCredentials>(&e).is_some() => refusals += 1,
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(PAUSE * (1 << refusals.min(PAUSES))).await;
        }
    }

    async fn subscribe(&self, lost: &Arc<Notify>) -> Result<dial::Line, RedisError> {
        let config = AsyncConnectionConfig::new().set_push_sender(listener(
            self.events.clone(),
            &self.awaited,
            Arc::clone(lost),
        ));
        let con = self.endpoint.dial("hints", config, Limits::EVENTS).await?;
        ask(&con, redis::cmd("SUBSCRIBE").arg(CHANGED)).await?;
        let own: Vec<String> = {
            // All that joined until now are in the list, so their notification is not needed any
            // more.
            let handles = self.handles.lock();
            let _ = self.joined.notified().now_or_never();
            handles.iter().map(|handle| format!("{CHANGED}:{handle:016x}")).collect()
        };
        // One by one, because the connection expects one answer per command.
        for channel in own {
            if let Err(e) = ask(&con, redis::cmd("SUBSCRIBE").arg(channel)).await
                && (e.is_io_error() || e.is_timeout())
            {
                return Err(e);
            }
        }
        // No error if the user has no permission for these channels: then its releases cannot
        // publish on them either, and use the common one.
        Ok(con)
    }
}

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

/// `None` for the common channel.
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
