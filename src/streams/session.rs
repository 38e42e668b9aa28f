//! One pair of connections to the server of a stream: one on which reads wait, one for all else.
//! When anything breaks both are replaced.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult, Script};
use tokio::time::timeout;

use crate::dial::Line;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::{Excess, Limits};
use crate::dial::said::{refusal, said};
use crate::error::ConfigError;
use crate::shown::{Quoted, Secrets};
use crate::tls;

/// Longest wait for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait of a read for entries.
const POLL: Duration = Duration::from_millis(500);
/// Time for which a name that is not used any more is kept.
const NAMES: Duration = Duration::from_secs(3_600);
/// Largest entry that is handled, in bytes of its names and values and [`PIECE`] for each.
pub(super) const ENTRY_MAX: usize = 16 << 20;
/// Size of a name or a value besides its bytes.
const PIECE: usize = 64;
/// Most that is taken over at once. An answer ([`Limits::ENTRIES`]) has room for it.
const TAKEN_MAX: usize = 2 * ENTRY_MAX;

/// The names and values of an entry, in their order. They are bytes: any client may have added it.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// An entry that was read.
pub(super) struct Entry {
    pub(super) id: String,
    /// Of an entry that is too large only what names it, if that is short.
    pub(super) fields: Fields,
    /// Delivery count.
    pub(super) deliveries: u32,
    /// Its size, if it is larger than [`ENTRY_MAX`].
    pub(super) too_large: Option<usize>,
}

/// Streams by name, each with its entries.
type Read = Vec<(String, Vec<(String, Fields)>)>;

/// The server of a stream could not be asked, or refuses. Its sentence has the server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamError {
    stream: Arc<str>,
    detail: String,
    passing: bool,
}

impl StreamError {
    pub(super) fn new(stream: &Arc<str>, cause: &RedisError, secrets: &Secrets) -> Self {
        let refusals = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];
        let is_refused = cause.code().is_some_and(|code| refusals.contains(&code))
            || cause.kind() == ErrorKind::AuthenticationFailed;
        let mut detail = match tls::inside::<Excess>(cause) {
            Some(excess) => excess.to_string(),
            None => refusal(cause, secrets).unwrap_or_else(|| said(cause, secrets)),
        };
        if is_refused {
            detail.push_str("; check the login, its rights on the stream, and the kind of the key");
        }
        Self { stream: Arc::clone(stream), detail, passing: !is_refused }
    }

    pub(super) fn address(stream: &Arc<str>, cause: &ConfigError) -> Self {
        Self { stream: Arc::clone(stream), detail: cause.to_string(), passing: false }
    }

    pub(super) fn lost(stream: &Arc<str>) -> Self {
        let detail = "another consumer has taken the entry over".to_owned();
        Self { stream: Arc::clone(stream), detail, passing: true }
    }

    /// Returns true if trying again can help.
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}: {}", Quoted(&self.stream), self.detail)
    }
}

// The sentence has all that the server's answer says.
impl std::error::Error for StreamError {}

/// The stream with the dead letters of `stream`; in the same hash slot.
pub fn dead_letters(stream: &str) -> String {
    if stream.contains('{') { format!("{stream}:dead") } else { format!("{{{stream}}}:dead") }
}

/// Stream, group and consumer name.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) endpoint: Endpoint,
    pub(super) stream: Arc<str>,
    pub(super) group: Arc<str>,
    /// A name that no other process has, nor this one after a restart.
    pub(super) me: Arc<str>,
    /// Idle time after which an entry is taken over.
    pub(super) min_idle: Duration,
}

/// Connections and scripts.
pub(super) struct Session {
    pub(super) plan: Plan,
    talk: Line,
    hold: Script,
    park: Script,
    leave: Script,
    broken: AtomicBool,
}

/// The other connection.
pub(super) struct Reader {
    wait: Line,
    claim: Script,
    /// Position of the search for entries that others left pending.
    cursor: String,
    /// The last entries were such: new ones are first now.
    new_first: bool,
}

/// Connects, logs in, and limits what the server may answer.
pub(super) async fn connect(endpoint: &Endpoint) -> RedisResult<Line> {
    // Boxed: it is large, and part of each consumer's future.
    answered(Box::pin(endpoint.dial(AsyncConnectionConfig::new(), Limits::ENTRIES))).await
}

/// The server's answer, if it comes in time.
pub(super) async fn answered<T>(answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into());
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| late())
}

/// Returns the size of an entry in an answer.
fn size(fields: &Fields) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.len() + 2 * PIECE).sum()
}

impl Session {
    /// Connects, makes the group if it is not there, and removes names that are not used any more.
    pub(super) async fn open(plan: &Plan) -> Result<(Self, Reader), RedisError> {
        let talk = connect(&plan.endpoint).await?;
        let wait = connect(&plan.endpoint).await?;
        let mut group = redis::cmd("XGROUP");
        group.arg("CREATE").arg(&*plan.stream).arg(&*plan.group).arg("0").arg("MKSTREAM");
        match answered(group.query_async::<()>(&mut talk.clone())).await {
            Err(e) if e.code() != Some("BUSYGROUP") => return Err(e),
            _ => {}
        }
        let session = Self {
            plan: plan.clone(),
            talk,
            hold: Script::new(include_str!("lua/hold.lua")),
            park: Script::new(include_str!("lua/park.lua")),
            leave: Script::new(include_str!("lua/leave.lua")),
            broken: AtomicBool::new(false),
        };
        session.forget("", NAMES).await?;
        let claim = Script::new(include_str!("lua/claim.lua"));
        Ok((session, Reader { wait, claim, cursor: "0-0".to_owned(), new_first: false }))
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    pub(super) fn error(&self, e: &RedisError) -> StreamError {
        self.give_up();
        StreamError::new(&self.plan.stream, e, self.talk.secrets())
    }

    pub(super) async fn ack(&self, id: &str) -> Result<(), StreamError> {
        let mut ack = redis::cmd("XACK");
        ack.arg(&*self.plan.stream).arg(&*self.plan.group).arg(id);
        answered(ack.query_async(&mut self.talk.clone())).await.map_err(|e| self.error(&e))
    }

    /// Lets the entry be taken over after `wait`, at most `min_idle`; `deliveries` is what counts
    /// as the number of its deliveries, if that is to change.
    pub(super) async fn hold(
        &self,
        id: &str,
        wait: Duration,
        deliveries: Option<u32>,
    ) -> Result<(), StreamError> {
        let idle = self.plan.min_idle.saturating_sub(wait).as_millis();
        let mut hold = self.hold.key(&*self.plan.stream);
        hold.arg(&*self.plan.group).arg(&*self.plan.me).arg(id);
        hold.arg(u64::try_from(idle).unwrap_or(u64::MAX)).arg(deliveries.map_or(-1, i64::from));
        let answer = answered(hold.invoke_async(&mut self.talk.clone())).await;
        let ours: i64 = answer.map_err(|e| self.error(&e))?;
        if ours == 1 { Ok(()) } else { Err(StreamError::lost(&self.plan.stream)) }
    }

    /// Puts a dead letter with these fields in the place of the entry.
    pub(super) async fn park(
        &self,
        id: &str,
        fields: &[(&[u8], &[u8])],
    ) -> Result<(), StreamError> {
        let mut park = self.park.key(&*self.plan.stream);
        park.key(dead_letters(&self.plan.stream)).arg(&*self.plan.group).arg(id);
        for (name, value) in fields {
            park.arg(*name).arg(*value);
        }
        let parked = answered(park.invoke_async(&mut self.talk.clone())).await;
        let _: i64 = parked.map_err(|e| self.error(&e))?;
        Ok(())
    }

    /// Removes the name, or all of them if it is empty, if nothing is pending under it.
    async fn forget(&self, name: &str, idle: Duration) -> Result<(), RedisError> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut leave = self.leave.key(&*self.plan.stream);
        leave.arg(&*self.plan.group).arg(idle).arg(name);
        answered(leave.invoke_async(&mut self.talk.clone())).await
    }

    /// The process ends: its name goes if nothing is pending under it.
    pub(super) async fn close(&self) {
        if self.is_broken() {
            return;
        }
        if let Err(e) = self.forget(&self.plan.me, Duration::ZERO).await {
            tracing::debug!(target: "palisade::consumer", error = %e, "the name stays for an hour");
        }
    }
}

impl Reader {
    /// Reads entries that others left pending for too long, or new ones: in turn while there are
    /// both, since messages that are held are such entries again and again (consumers 12). Empty
    /// if there are neither.
    pub(super) async fn next(
        &mut self,
        plan: &Plan,
        room: usize,
    ) -> Result<Vec<Entry>, RedisError> {
        if std::mem::take(&mut self.new_first) {
            let new = self.read(plan, room, None).await?;
            if !new.is_empty() {
                return Ok(new);
            }
        }
        let idle = u64::try_from(plan.min_idle.as_millis()).unwrap_or(u64::MAX);
        let mut claim = self.claim.key(&*plan.stream);
        claim.arg(&*plan.group).arg(&*plan.me).arg(idle).arg(&self.cursor).arg(room);
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
        self.read(plan, room, Some(POLL)).await
    }

    /// Reads new entries, and waits for the first one at most this long.
    async fn read(
        &self,
        plan: &Plan,
        room: usize,
        wait: Option<Duration>,
    ) -> Result<Vec<Entry>, RedisError> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&*plan.group).arg(&*plan.me).arg("COUNT").arg(room);
        if let Some(wait) = wait {
            read.arg("BLOCK").arg(wait.as_millis() as u64);
        }
        read.arg("STREAMS").arg(&*plan.stream).arg(">");
        let new: Option<Read> = answered(read.query_async(&mut self.wait.clone())).await?;
        let entries = new.into_iter().flatten().flat_map(|(_, entries)| entries);
        let entry = |(id, fields)| {
            let too_large = Some(size(&fields)).filter(|size| *size > ENTRY_MAX);
            Entry { id, fields, deliveries: 1, too_large }
        };
        Ok(entries.map(entry).collect())
    }
}
