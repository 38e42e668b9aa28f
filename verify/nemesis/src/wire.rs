//! Protocol between the clients and the ledger: lines of JSON over a Unix socket, which faults of
//! the network do not affect. Each task has its own connection, so its lines stay in order.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::event::{Answer, Event, EventKind, Nanos, TaskId, Verb, now};

/// A line that a client sends to the ledger, the system that records the clients' effects. The
/// ledger replies only to `Ask`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Say(Event),
    Ask(TaskId, LedgerRequest),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerRequest {
    /// Writes under a lock. The reply is yes if the token is not smaller than that of any earlier
    /// write under this name.
    Write { name: Arc<str>, token: u64 },
    /// Asks the ledger to record the effect of an order. The reply is yes if the ledger accepts the
    /// effect.
    Book { key: Arc<str>, token: u64, value: Arc<str> },
    /// Asks for the recorded effect of this order. After that, the ledger refuses bookings of this
    /// order with smaller tokens.
    Probe { key: Arc<str>, token: u64 },
    /// Asks for an order to process.
    Next,
    /// Reports that a call returned the result of this order. The ledger then counts the order as
    /// done.
    Settle { key: Arc<str> },
    /// Asks for the keys of a batch.
    Batch,
    /// Performs the effect of an idempotency key of a batch. The ledger accepts all effects of such
    /// keys.
    Act { key: Arc<str>, token: u64, value: Arc<str> },
    /// Asks for the effect of this parked key. If there is no effect, the operator runs the key
    /// again.
    Decide { key: Arc<str> },
}

/// An idempotency key of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) key: Arc<str>,
    /// Creation time of the key, in milliseconds since 1970.
    pub(crate) made_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerReply {
    Yes,
    No,
    Value(Option<Arc<str>>),
    Batch(Vec<Item>),
}

/// Connection of one task to the ledger, the process that logs all events and records all effects.
pub(crate) struct Ledger {
    who: TaskId,
    path: PathBuf,
    read: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Ledger {
    pub(crate) async fn connect(path: &Path, who: TaskId) -> io::Result<Self> {
        let (read, write) = UnixStream::connect(path).await?.into_split();
        Ok(Self { who, path: path.to_owned(), read: BufReader::new(read).lines(), write })
    }

    pub(crate) async fn again(&self) -> io::Result<Self> {
        Self::connect(&self.path, self.who).await
    }

    /// Reports an event to the ledger with the current time.
    pub(crate) async fn report(&mut self, kind: EventKind) -> io::Result<()> {
        self.report_at(now(), kind).await
    }

    /// Reports an event to the ledger that happened at the time `at`.
    pub(crate) async fn report_at(&mut self, at: Nanos, kind: EventKind) -> io::Result<()> {
        let who = self.who;
        self.line(&Line::Say(Event { at, who, kind })).await
    }

    pub(crate) async fn verb<T>(
        &mut self,
        verb: Verb,
        name: &Arc<str>,
        within: Duration,
        call: impl Future<Output = T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> io::Result<T> {
        let within = within.as_millis() as u64;
        self.report(EventKind::Begin { verb, name: Arc::clone(name), within }).await?;
        let result = call.await;
        let answer = answer(&result);
        self.report(EventKind::End { verb, name: Arc::clone(name), answer }).await?;
        Ok(result)
    }

    pub(crate) async fn request(&mut self, request: LedgerRequest) -> io::Result<LedgerReply> {
        self.line(&Line::Ask(self.who, request)).await?;
        let line = self.read.next_line().await?;
        let line = line.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok(serde_json::from_str(&line)?)
    }

    pub(crate) async fn accepts(&mut self, request: LedgerRequest) -> io::Result<bool> {
        Ok(matches!(self.request(request).await?, LedgerReply::Yes))
    }

    async fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.write.write_all(&text).await
    }
}
