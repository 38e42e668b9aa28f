//! A session with the Redis server of a stream. The session has two connections. Reads wait for
//! entries on one connection. All other commands use the other connection. If one of the
//! connections breaks, both are replaced.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::internal::{Endpoint, Line, open_wide};
use palisade_consumer::{BrokerError, Terms};
use redis::{RedisError, RedisResult, Script, ScriptInvocation};
use tokio::time::timeout;

use crate::error::{address, failed, lost};
use crate::message::Message;
use crate::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(500);
/// Time after which the name of an inactive consumer is removed from the group. The consumer must
/// have no pending entries.
const NAMES: Duration = Duration::from_secs(3_600);
/// Maximum size of an entry that a handler receives, in bytes. The size of an entry is the length
/// of its names and values, and [`PIECE`] for each name and each value.
pub(crate) const ENTRY_MAX: usize = 16 << 20;
/// Bytes that are added to the length of each name and each value. So an entry with many short
/// names and values also counts as large.
const PIECE: usize = 64;
/// Maximum size of the entries that one command takes over from other consumers, in bytes. These
/// entries fit in the server's reply. A reply may have 64 MiB.
const TAKEN_MAX: usize = 2 * ENTRY_MAX;

/// Names and values of an entry, in order. Any client may have added the entry. So names and values
/// are bytes and not texts.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

pub(crate) struct Entry {
    pub(crate) id: String,
    /// Fields of the entry. If the entry is too large, this list contains only the short fields
    /// that identify the entry.
    pub(crate) fields: Fields,
    /// Number of deliveries of the entry in Redis, including the current delivery.
    pub(crate) deliveries: u32,
    /// Size in bytes, if the entry is larger than [`ENTRY_MAX`]; otherwise `None`.
    pub(crate) too_large: Option<usize>,
}

/// Reply of `XREADGROUP`: streams by name, each with its entries.
type Read = Vec<(String, Vec<(String, Fields)>)>;

/// Returns the name of the stream with the dead letters of `stream`. In a Redis Cluster both
/// streams are in the same hash slot. So one script can use both streams.
pub fn dead_letters(stream: &str) -> String {
    if stream.contains('{') { format!("{stream}:dead") } else { format!("{{{stream}}}:dead") }
}

/// A session with the Redis server of a stream. Reads wait on one connection. Another connection is
/// for all other commands.
pub struct Session {
    link: Arc<Link>,
    wait: Line,
    claim: Script,
    /// The cursor of `XAUTOCLAIM`: the position in the stream at which the next search begins. The
    /// search looks for entries that are pending for too long.
    cursor: String,
    /// True if the last read returned entries that were pending for too long. Then the next read
    /// looks for new entries first.
    new_first: bool,
}

/// The part of a session that all messages of the session share.
pub(crate) struct Link {
    stream: Arc<str>,
    group: Arc<str>,
    /// Name of this session's consumer in the group. No other process ever has the same name.
    me: Arc<str>,
    /// Idle time after which another consumer may take over an entry of the stream.
    pub(crate) min_idle: Duration,
    talk: Line,
    hold: Script,
    settle: Script,
    leave: Script,
    broken: AtomicBool,
}

pub(crate) async fn connect(endpoint: &Endpoint) -> RedisResult<Line> {
    // The future is large. Without the box it would be part of each consumer's future.
    answered(Box::pin(open_wide(endpoint))).await
}

/// Returns the server's reply. Returns an error if the reply takes longer than [`PATIENCE`].
pub(crate) async fn answered<T>(answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into());
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| late())
}

/// Returns the size of an entry with these fields in bytes. [`ENTRY_MAX`] is the limit of this
/// size.
fn size(fields: &Fields) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.len() + 2 * PIECE).sum()
}

impl Session {
    /// Removes unused consumer names from the group, too.
    pub(crate) async fn open(of: &Stream, terms: &Terms) -> Result<Self, BrokerError> {
        let endpoint = of.endpoint().map_err(|e| address(&of.name, &e))?;
        let min_idle = of.idle(terms)?;
        let opened = Self::connected(of, terms, &endpoint, min_idle).await;
        opened.map_err(|e| failed(&of.name, &e, &endpoint.secrets()))
    }

    async fn connected(
        of: &Stream,
        terms: &Terms,
        endpoint: &Endpoint,
        min_idle: Duration,
    ) -> RedisResult<Self> {
        let talk = connect(endpoint).await?;
        let wait = connect(endpoint).await?;
        let mut group = redis::cmd("XGROUP");
        group.arg("CREATE").arg(&*of.name).arg(&*of.group).arg("0").arg("MKSTREAM");
        match answered(group.query_async::<()>(&mut talk.clone())).await {
            Err(e) if e.code() != Some("BUSYGROUP") => return Err(e),
            _ => {}
        }
        let link = Link {
            stream: Arc::clone(&of.name),
            group: Arc::clone(&of.group),
            me: Arc::clone(&terms.name),
            min_idle,
            talk,
            hold: Script::new(include_str!("lua/hold.lua")),
            settle: Script::new(include_str!("lua/settle.lua")),
            leave: Script::new(include_str!("lua/leave.lua")),
            broken: AtomicBool::new(false),
        };
        link.remove_consumers("", NAMES).await?;
        let claim = Script::new(include_str!("lua/claim.lua"));
        Ok(Self { link: Arc::new(link), wait, claim, cursor: "0-0".to_owned(), new_first: false })
    }

    /// If there are entries of both kinds, the calls return them in turn: the entry of a held
    /// message is pending for too long again and again, and new entries would wait behind it (rule
    /// consumers 12 in docs/design).
    async fn read(&mut self, room: usize) -> RedisResult<Vec<Entry>> {
        if std::mem::take(&mut self.new_first) {
            let new = self.read_new(room, None).await?;
            if !new.is_empty() {
                return Ok(new);
            }
        }
        let link = &*self.link;
        let idle = u64::try_from(link.min_idle.as_millis()).unwrap_or(u64::MAX);
        let mut claim = self.claim.key(&*link.stream);
        claim.arg(&*link.group).arg(&*link.me).arg(idle).arg(&self.cursor).arg(room);
        claim.arg(ENTRY_MAX).arg(TAKEN_MAX).arg(PIECE);
        let claimed = answered(claim.invoke_async(&mut self.wait.clone())).await;
        let (cursor, left): (String, Vec<(String, Fields, u32, usize)>) = claimed?;
        self.cursor = cursor;
        if !left.is_empty() {
            self.new_first = true;
            let entry = |(id, fields, deliveries, large)| {
                let too_large = (large > 0).then_some(large);
                Entry { id, fields, deliveries, too_large }
            };
            return Ok(left.into_iter().map(entry).collect());
        }
        self.read_new(room, Some(POLL)).await
    }

    /// Reads new entries. Waits for the first entry for at most `wait`.
    async fn read_new(&self, room: usize, wait: Option<Duration>) -> RedisResult<Vec<Entry>> {
        let link = &*self.link;
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&*link.group).arg(&*link.me).arg("COUNT").arg(room);
        if let Some(wait) = wait {
            read.arg("BLOCK").arg(wait.as_millis() as u64);
        }
        read.arg("STREAMS").arg(&*link.stream).arg(">");
        let new: Option<Read> = answered(read.query_async(&mut self.wait.clone())).await?;
        let entries = new.into_iter().flatten().flat_map(|(_, entries)| entries);
        let entry = |(id, fields)| {
            let too_large = Some(size(&fields)).filter(|size| *size > ENTRY_MAX);
            Entry { id, fields, deliveries: 1, too_large }
        };
        Ok(entries.map(entry).collect())
    }
}

impl palisade_consumer::Session for Session {
    type Delivery = Message;

    fn is_broken(&self) -> bool {
        self.link.broken.load(Ordering::Acquire)
    }

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, BrokerError> {
        let entries = self.read(room).await.map_err(|e| self.link.error(&e))?;
        Ok(entries.into_iter().map(|entry| Message::new(&self.link, entry)).collect())
    }

    async fn close(self) {
        self.link.close().await;
    }
}

impl Link {
    fn error(&self, e: &RedisError) -> BrokerError {
        self.broken.store(true, Ordering::Release);
        failed(&self.stream, e, &self.talk.secrets())
    }

    pub(crate) async fn ack(&self, of: &Entry) -> Result<bool, BrokerError> {
        let mut settle = self.settle.key(&*self.stream);
        self.name(&mut settle, of);
        self.fenced(&settle).await
    }

    /// Sets the idle time of a pending entry. A consumer can then take over the entry after `wait`,
    /// or after `min_idle` if `min_idle` is shorter. `deliveries`, if given, becomes the entry's
    /// delivery count.
    pub(crate) async fn hold(
        &self,
        of: &Entry,
        wait: Duration,
        deliveries: Option<u32>,
    ) -> Result<bool, BrokerError> {
        let idle = self.min_idle.saturating_sub(wait).as_millis();
        let mut hold = self.hold.key(&*self.stream);
        self.name(&mut hold, of);
        hold.arg(u64::try_from(idle).unwrap_or(u64::MAX)).arg(deliveries.map_or(-1, i64::from));
        self.fenced(&hold).await
    }

    pub(crate) async fn park(
        &self,
        of: &Entry,
        fields: &[(&[u8], &[u8])],
    ) -> Result<bool, BrokerError> {
        let mut settle = self.settle.key(&*self.stream);
        settle.key(dead_letters(&self.stream));
        self.name(&mut settle, of);
        for (name, value) in fields {
            settle.arg(*name).arg(*value);
        }
        self.fenced(&settle).await
    }

    fn name(&self, script: &mut ScriptInvocation<'_>, of: &Entry) {
        script.arg(&*self.group).arg(&*self.me).arg(&of.id).arg(of.deliveries);
    }

    /// Runs a script that changes an entry only for the delivery that has it. Returns false if this
    /// delivery does not have it any more (consumers 5).
    async fn fenced(&self, script: &ScriptInvocation<'_>) -> Result<bool, BrokerError> {
        let answer = answered(script.invoke_async(&mut self.talk.clone())).await;
        answer.map_err(|e| self.error(&e))
    }

    pub(crate) fn lost(&self) -> BrokerError {
        lost(&self.stream)
    }

    /// Removes the consumer `name` from the group. Removes all consumers if `name` is empty. A
    /// consumer is removed only if it has no pending entries and has been idle for at least `idle`.
    async fn remove_consumers(&self, name: &str, idle: Duration) -> Result<(), RedisError> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut leave = self.leave.key(&*self.stream);
        leave.arg(&*self.group).arg(idle).arg(name);
        answered(leave.invoke_async(&mut self.talk.clone())).await
    }

    async fn close(&self) {
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        if let Err(e) = self.remove_consumers(&self.me, Duration::ZERO).await {
            tracing::debug!(target: "palisade::consumer", error = %e, "the name stays for an hour");
        }
    }
}
