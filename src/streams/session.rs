//! One pair of connections to the server of a stream: one on which reads wait, one for all else.
//! When anything breaks both are replaced.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};

/// How long the server may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a read waits for entries.
const POLL: Duration = Duration::from_millis(500);
/// For how long a name that is not used any more is kept.
const NAMES: Duration = Duration::from_secs(3_600);

/// An entry: its id, its fields, how often it was delivered.
pub(super) type Entry = (String, HashMap<String, Vec<u8>>, u32);
/// Streams by name, each with its entries.
type Read = Vec<(String, Vec<(String, HashMap<String, Vec<u8>>)>)>;

/// The server of a stream could not be asked, or refuses. Its sentence has the server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamError {
    stream: Arc<str>,
    detail: String,
    passing: bool,
}

impl StreamError {
    pub(super) fn new(stream: &Arc<str>, cause: &RedisError) -> Self {
        let refusals = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];
        let passing = !cause.code().is_some_and(|code| refusals.contains(&code));
        Self { stream: Arc::clone(stream), detail: cause.to_string(), passing }
    }

    pub(super) fn lost(stream: &Arc<str>) -> Self {
        let detail = "somebody else has taken the entry over".to_owned();
        Self { stream: Arc::clone(stream), detail, passing: true }
    }

    /// Whether trying again can help.
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:?}: {}", self.stream, self.detail)?;
        if self.passing {
            return Ok(());
        }
        f.write_str("; check the login, its rights on the stream, and the kind of the key")
    }
}

// The sentence has all that the server's answer says.
impl std::error::Error for StreamError {}

/// The stream with the dead letters of `stream`; in the same hash slot.
pub fn dead_letters(stream: &str) -> String {
    if stream.contains('{') { format!("{stream}:dead") } else { format!("{{{stream}}}:dead") }
}

/// What is consumed, and as whom.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) url: String,
    pub(super) stream: Arc<str>,
    pub(super) group: Arc<str>,
    /// A name that no other process has, nor this one after a restart.
    pub(super) me: Arc<str>,
    /// After how long without a sign of life an entry is taken over.
    pub(super) min_idle: Duration,
}

/// Connections and scripts.
pub(super) struct Session {
    pub(super) plan: Plan,
    talk: MultiplexedConnection,
    hold: Script,
    park: Script,
    leave: Script,
    broken: AtomicBool,
}

/// The other connection.
pub(super) struct Reader {
    wait: MultiplexedConnection,
    claim: Script,
    /// Where the search for what others left goes on.
    cursor: String,
}

pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

impl Session {
    /// Connects, makes the group if it is not there, and forgets names that nobody uses.
    pub(super) async fn open(plan: &Plan) -> Result<(Self, Reader), RedisError> {
        let mut talk = connect(&plan.url).await?;
        let wait = connect(&plan.url).await?;
        let mut group = redis::cmd("XGROUP");
        group.arg("CREATE").arg(&*plan.stream).arg(&*plan.group).arg("0").arg("MKSTREAM");
        match group.query_async::<()>(&mut talk).await {
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
        Ok((session, Reader { wait, claim, cursor: "0-0".to_owned() }))
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    pub(super) fn error(&self, e: &RedisError) -> StreamError {
        self.give_up();
        StreamError::new(&self.plan.stream, e)
    }

    pub(super) async fn ack(&self, id: &str) -> Result<(), StreamError> {
        let mut ack = redis::cmd("XACK");
        ack.arg(&*self.plan.stream).arg(&*self.plan.group).arg(id);
        ack.query_async(&mut self.talk.clone()).await.map_err(|e| self.error(&e))
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
        let ours: i64 =
            hold.invoke_async(&mut self.talk.clone()).await.map_err(|e| self.error(&e))?;
        if ours == 1 { Ok(()) } else { Err(StreamError::lost(&self.plan.stream)) }
    }

    pub(super) async fn park(&self, id: &str, fields: &[(&str, &[u8])]) -> Result<(), StreamError> {
        let mut park = self.park.key(&*self.plan.stream);
        park.key(dead_letters(&self.plan.stream)).arg(&*self.plan.group).arg(id);
        for (name, value) in fields {
            park.arg(*name).arg(*value);
        }
        let _: i64 = park.invoke_async(&mut self.talk.clone()).await.map_err(|e| self.error(&e))?;
        Ok(())
    }

    /// Removes the name, or all of them if it is empty, if nothing is pending under it.
    async fn forget(&self, name: &str, idle: Duration) -> Result<(), RedisError> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut leave = self.leave.key(&*self.plan.stream);
        leave.arg(&*self.plan.group).arg(idle).arg(name);
        leave.invoke_async(&mut self.talk.clone()).await
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
    /// What others left pending for too long, else what is new; empty if there is neither.
    pub(super) async fn next(
        &mut self,
        plan: &Plan,
        room: usize,
    ) -> Result<Vec<Entry>, RedisError> {
        let idle = u64::try_from(plan.min_idle.as_millis()).unwrap_or(u64::MAX);
        let mut claim = self.claim.key(&*plan.stream);
        claim.arg(&*plan.group).arg(&*plan.me).arg(idle).arg(&self.cursor).arg(room);
        let (cursor, left): (String, Vec<Entry>) = claim.invoke_async(&mut self.wait).await?;
        self.cursor = cursor;
        if !left.is_empty() {
            return Ok(left);
        }
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&*plan.group).arg(&*plan.me).arg("COUNT").arg(room);
        read.arg("BLOCK").arg(POLL.as_millis() as u64).arg("STREAMS").arg(&*plan.stream).arg(">");
        let new: Option<Read> = read.query_async(&mut self.wait).await?;
        let entries = new.into_iter().flatten().flat_map(|(_, entries)| entries);
        Ok(entries.map(|(id, fields)| (id, fields, 1)).collect())
    }
}
