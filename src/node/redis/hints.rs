//! Hears of releases that somebody waits for, on a connection of its own.
//!
//! A server that counts a connection among its subscribers cuts it off at the output limits for
//! those (by default at 32 MB, or 8 MB for a minute), whatever it sends there. So batches have
//! another one: large results can cost hints, and nothing else. The connection is made when an op
//! first asks for a hint, for most programs never wait; who asked before it stood is woken once
//! when it does, since the hint may have been missed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::session::ask;
use crate::dial;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::dial::said::said;
use crate::node::NodeEvent;
use crate::op::Op;

/// Where releases that somebody waits for are told.
const CHANGED: &str = "palisade:changed";
/// Longest time to connect and subscribe.
const LIMIT: Duration = Duration::from_secs(5);
/// Between the loss of a connection, or a failed try, and the next try.
const PAUSE: Duration = Duration::from_millis(500);
/// Most keys that are remembered until the connection stands; who waits for others has a timer.
const EARLY_MAX: usize = 256;

/// The hints of one session. Ends with it.
pub(super) struct Hints {
    line: Arc<Line>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Line {
    endpoint: Endpoint,
    events: broadcast::Sender<NodeEvent>,
    /// Hints are heard, or the user may not hear them.
    settled: AtomicBool,
    /// Keys for which hints were asked before that.
    early: Mutex<VecDeque<Arc<str>>>,
}

impl Hints {
    /// Connects to nothing yet.
    pub(super) fn new(endpoint: Endpoint, events: broadcast::Sender<NodeEvent>) -> Self {
        let line =
            Line { endpoint, events, settled: AtomicBool::new(false), early: Mutex::default() };
        Self { line: Arc::new(line), task: Mutex::default() }
    }

    /// To be called within a runtime before these ops are sent.
    pub(super) fn expect(&self, ops: &[Op]) {
        if self.line.settled.load(Ordering::Acquire) {
            return;
        }
        let mut asked = ops.iter().filter_map(awaited).peekable();
        if asked.peek().is_none() || !self.line.note(asked) {
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

/// The key for which the op asks for a hint.
fn awaited(op: &Op) -> Option<&str> {
    match op {
        Op::Acquire { keys, wait: true, .. } | Op::Inspect { keys, wait: true } => {
            Some(keys.lock())
        }
        _ => None,
    }
}

impl Line {
    fn early(&self) -> MutexGuard<'_, VecDeque<Arc<str>>> {
        // Each change of it is one statement.
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers keys, unless hints are heard by now.
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

    /// From here on hints are heard, or never will be.
    fn settle(&self) {
        let mut early = self.early();
        self.settled.store(true, Ordering::Release);
        for key in early.drain(..) {
            // No receiver, no interest.
            let _ = self.events.send(NodeEvent::Changed(key));
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let lost = Arc::<Notify>::default();
            match timeout(LIMIT, self.subscribe(&lost)).await {
                Ok(Ok(con)) => {
                    self.settle();
                    lost.notified().await;
                    drop(con);
                    self.settled.store(false, Ordering::Release);
                }
                Ok(Err(e)) if !e.is_io_error() && !e.is_timeout() => {
                    // Without the permission waiters poll; nothing else changes.
                    let error = said(&e, &self.endpoint.secrets());
                    tracing::debug!(%error, "no release hints from this server");
                    return self.settle();
                }
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    }

    async fn subscribe(&self, lost: &Arc<Notify>) -> Result<dial::Line, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_push_sender(listener(self.events.clone(), Arc::clone(lost)));
        let con = self.endpoint.dial(config, Limits::WORDS).await?;
        ask(&con, redis::cmd("SUBSCRIBE").arg(CHANGED)).await?;
        Ok(con)
    }
}

/// Takes what the server tells without being asked.
fn listener(
    events: broadcast::Sender<NodeEvent>,
    lost: Arc<Notify>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => lost.notify_one(),
            PushKind::Message => {
                if let [_, Value::BulkString(key)] = push.data.as_slice()
                    && let Ok(key) = std::str::from_utf8(key)
                {
                    // No receiver, no interest.
                    let _ = events.send(NodeEvent::Changed(key.into()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzzing::{any_value, config, text};

    #[test]
    fn who_asked_before_hints_were_heard_is_woken_once() {
        let (events, mut heard) = broadcast::channel(EARLY_MAX);
        let hints = Hints::new(Endpoint::parse("redis://localhost").unwrap(), events);
        let keys: Vec<String> = (0..EARLY_MAX + 2).map(|i| format!("k{i}")).collect();
        assert!(hints.line.note(keys.iter().map(String::as_str)));
        hints.line.settle();
        for key in &keys[2..] {
            assert_eq!(heard.try_recv(), Ok(NodeEvent::Changed(key.as_str().into())));
        }
        assert!(!hints.line.note(["later"].into_iter()), "it is heard of by the server's word");
        assert!(heard.try_recv().is_err());
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn fuzz_a_push_is_a_hint_or_nothing(
            data in proptest::collection::vec(any_value(), 0..4),
        ) {
            let (events, mut heard) = broadcast::channel(4);
            let listen = listener(events, Arc::default());
            listen(PushInfo { kind: PushKind::Message, data: data.clone() }).unwrap();
            match heard.try_recv() {
                Ok(NodeEvent::Changed(key)) => prop_assert_eq!(&data[1], &text(&key)),
                other => prop_assert!(other.is_err(), "{other:?}"),
            }
        }
    }
}
