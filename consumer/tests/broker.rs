//! A broker in memory with the behaviour of a real broker: at-least-once delivery, an
//! acknowledgement time, delayed redelivery and dead letters. A test can cut each connection.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use palisade::error::ConfigError;
use palisade_consumer::{BrokerError, DeadLetterReason, Delivery, Disposition, Session, Terms};
use tokio::time::{Instant, sleep};

/// Longest time without an acknowledgement. After this time the message is delivered again.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Message {
    key: String,
    body: String,
    failures: u32,
    created: Option<SystemTime>,
    /// Earliest time of the next delivery.
    due: Instant,
    /// Number of the delivery that has the message now; `None` if no delivery has it.
    tag: Option<u64>,
}

#[derive(Default)]
struct State {
    messages: BTreeMap<u64, Message>,
    tags: u64,
    dead: Vec<(String, DeadLetterReason)>,
    /// Dispositions of all deliveries (acknowledge, retry, dead letter), in the order in which the
    /// broker received them.
    log: Vec<(String, Disposition)>,
    extended: u32,
    closed: u32,
}

/// The broker with its queue. Clones share the queue.
#[derive(Clone, Default)]
pub(crate) struct Broker(Arc<Mutex<State>>);

#[derive(Clone)]
pub(crate) struct Connection {
    broker: Broker,
    cut: Arc<AtomicBool>,
    silent: bool,
    refuses: bool,
    created: Option<SystemTime>,
}

pub(crate) struct Handed {
    broker: Broker,
    cut: Arc<AtomicBool>,
    silent: bool,
    created: Option<SystemTime>,
    id: u64,
    tag: u64,
    message: Message,
}

/// Returns the error of a lost connection.
fn gone() -> BrokerError {
    BrokerError::passing("the connection is gone")
}

impl Broker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no one panics with it")
    }

    pub(crate) fn publish(&self, key: &str, body: &str) {
        self.put(key, body, None);
    }

    /// Publishes a message that was made at the time `at`.
    pub(crate) fn publish_at(&self, key: &str, body: &str, at: SystemTime) {
        self.put(key, body, Some(at));
    }

    fn put(&self, key: &str, body: &str, created: Option<SystemTime>) {
        let mut state = self.state();
        let id = state.messages.last_key_value().map_or(0, |(id, _)| id + 1);
        let (key, body) = (key.to_owned(), body.to_owned());
        let message = Message { key, body, failures: 0, created, due: Instant::now(), tag: None };
        state.messages.insert(id, message);
    }

    /// Returns a connection to the broker, and a flag. Setting the flag cuts the connection.
    pub(crate) fn connect(&self) -> (Connection, Arc<AtomicBool>) {
        let cut = Arc::new(AtomicBool::new(false));
        let (broker, cut_too) = (self.clone(), Arc::clone(&cut));
        (Connection { broker, cut: cut_too, silent: false, refuses: false, created: None }, cut)
    }

    /// Returns the number of messages that are not acknowledged.
    pub(crate) fn left(&self) -> usize {
        self.state().messages.len()
    }

    pub(crate) fn dead(&self) -> Vec<(String, DeadLetterReason)> {
        self.state().dead.clone()
    }

    pub(crate) fn log(&self) -> Vec<(String, Disposition)> {
        self.state().log.clone()
    }

    pub(crate) fn extended(&self) -> u32 {
        self.state().extended
    }

    /// Returns the number of sessions that their consumers closed.
    pub(crate) fn closed(&self) -> u32 {
        self.state().closed
    }
}

impl Connection {
    /// Returns the connection, changed so that the broker never answers a disposition.
    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// Returns the connection, changed so that the broker refuses to deliver messages.
    pub(crate) fn refused(self) -> Self {
        Self { refuses: true, ..self }
    }

    fn take(&self, room: usize) -> Vec<Handed> {
        let mut state = self.broker.state();
        let now = Instant::now();
        let due = state.messages.iter().filter(|(_, m)| m.due <= now);
        let ids: Vec<u64> = due.map(|(id, _)| *id).take(room).collect();
        let mut handed = Vec::new();
        for id in ids {
            state.tags += 1;
            let tag = state.tags;
            let message = state.messages.get_mut(&id).expect("just seen");
            (message.tag, message.due) = (Some(tag), now + ACK_WAIT);
            let (broker, cut) = (self.broker.clone(), Arc::clone(&self.cut));
            let (silent, created, message) = (self.silent, self.created, message.clone());
            handed.push(Handed { broker, cut, silent, created, id, tag, message });
        }
        handed
    }

    /// Returns the connection, changed so that each message without a creation time has the time
    /// `at`.
    pub(crate) fn created(self, at: SystemTime) -> Self {
        Self { created: Some(at), ..self }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl palisade_consumer::Broker for Connection {
    type Session = Self;
    type Delivery = Handed;

    fn check(&self, _: &Terms) -> Result<(), ConfigError> {
        Ok(())
    }

    async fn open(&self, _: &Terms) -> Result<Self, BrokerError> {
        Ok(self.clone())
    }
}

impl Session for Connection {
    type Delivery = Handed;

    async fn next(&mut self, room: usize) -> Result<Vec<Handed>, BrokerError> {
        if self.refuses {
            return Err(BrokerError::refused("this user may not read the queue"));
        }
        for _ in 0..10 {
            if self.cut.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            let handed = self.take(room);
            if !handed.is_empty() {
                return Ok(handed);
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(Vec::new())
    }

    async fn close(self) {
        self.broker.state().closed += 1;
    }
}

impl Handed {
    pub(crate) fn text(&self) -> &str {
        &self.message.body
    }

    /// Returns the message of this delivery. Returns `None` if the message is settled, or if the
    /// broker has delivered it again since then.
    fn mine<'a>(&self, state: &'a mut State) -> Option<&'a mut Message> {
        state.messages.get_mut(&self.id).filter(|m| m.tag == Some(self.tag))
    }
}

impl Delivery for Handed {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        let key = &self.message.key;
        assert_ne!(key, "defect", "a defect in the user's function");
        if key.is_empty() { Err("it has no key".to_owned()) } else { Ok(Cow::Borrowed(key)) }
    }

    fn created_at(&self) -> Option<SystemTime> {
        self.message.created.or(self.created)
    }

    fn body(&self) -> &[u8] {
        self.message.body.as_bytes()
    }

    fn failures(&self) -> u32 {
        self.message.failures
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        if self.silent {
            std::future::pending::<()>().await;
        }
        if self.cut.load(SeqCst) {
            return Err(gone());
        }
        let mut state = self.broker.state();
        state.log.push((self.message.key.clone(), how.clone()));
        // If the broker has delivered the message again since this delivery, the late disposition
        // of this delivery changes nothing.
        let Some(message) = self.mine(&mut state) else { return Err(gone()) };
        match how {
            Disposition::Retry(after) => {
                (message.tag, message.failures) = (None, failures);
                message.due = Instant::now() + *after;
            }
            Disposition::Stop(_) => (message.tag, message.due) = (None, Instant::now()),
            Disposition::Ack => drop(state.messages.remove(&self.id)),
            Disposition::Park(why) => {
                state.messages.remove(&self.id);
                state.dead.push((self.message.key.clone(), why.reason));
            }
        }
        Ok(())
    }

    fn heartbeat(&self) -> Option<Duration> {
        Some(ACK_WAIT / 3)
    }

    async fn extend(&self) -> Result<(), BrokerError> {
        if self.cut.load(SeqCst) {
            return Err(gone());
        }
        let mut state = self.broker.state();
        state.extended += 1;
        let message = self.mine(&mut state).ok_or_else(gone)?;
        message.due = Instant::now() + ACK_WAIT;
        Ok(())
    }
}
