//! The protocol between clients and the ledger: lines of JSON over a Unix socket, which no network
//! fault cuts.
//!
//! Each task of a client has its own connection, so its lines stay in order, and lines that a
//! killed client has written are still read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::event::{Event, EventKind, Nanos, TaskId, now};

/// A client's line; only `Ask` is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Say(Event),
    Ask(TaskId, LedgerRequest),
}

/// A request to the ledger.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerRequest {
    /// Writes under a lock; answered with yes if the fence accepts the write.
    Write { name: Arc<str>, token: u64 },
    /// Books an order.
    Book { key: Arc<str>, token: u64, value: Arc<str> },
    /// Asks for the value that was booked for this order, and closes the order to smaller tokens.
    Probe { key: Arc<str>, token: u64 },
    /// Asks for the next order to do.
    Next,
    /// Reports that a call returned a result, so the order need not be handed out again.
    Settle { key: Arc<str> },
    /// Asks for the keys of a batch.
    Batch,
    /// Performs the work of a batch's key; never refused.
    Act { key: Arc<str>, token: u64, value: Arc<str> },
    /// Asks for the effect of this parked key. Without an effect the operator runs the key again.
    Decide { key: Arc<str> },
}

/// A key of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) key: Arc<str>,
    /// Time of the key's creation, in milliseconds of the Unix epoch.
    pub(crate) made_ms: u64,
}

/// A reply of the ledger.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerReply {
    Yes,
    No,
    Value(Option<Arc<str>>),
    Batch(Vec<Item>),
}

/// A task's connection to the ledger.
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

    /// Opens one more connection for the same task.
    pub(crate) async fn again(&self) -> io::Result<Self> {
        Self::connect(&self.path, self.who).await
    }

    /// Reports an event that happens now.
    pub(crate) async fn report(&mut self, kind: EventKind) -> io::Result<()> {
        self.report_at(now(), kind).await
    }

    /// Reports an event that happened at `at`.
    pub(crate) async fn report_at(&mut self, at: Nanos, kind: EventKind) -> io::Result<()> {
        let who = self.who;
        self.line(&Line::Say(Event { at, who, kind })).await
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
