//! How clients and the ledger talk: lines of JSON over a Unix socket, which no network fault cuts.
//!
//! Each task of a client has a connection of its own, so its lines stay in order, and what a
//! killed client has written is still read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::event::{Event, Nanos, What, Who, now};

/// What a client writes. Only `Ask` is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Say(Event),
    Ask(Who, Ask),
}

/// A question to the ledger.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Write under a lock; answered with whether the fence let it pass.
    Write { name: Arc<str>, token: u64 },
    /// Book an order.
    Book { key: Arc<str>, token: u64, value: Arc<str> },
    /// What was booked as this order? Closes it to smaller tokens.
    Probe { key: Arc<str>, token: u64 },
    /// Which order is to be done next?
    Next,
    /// A call answered with a result: the order need not be handed out again.
    Settle { key: Arc<str> },
    /// Keys for a batch.
    Batch,
    /// Do the work of a key of a batch; never refused.
    Act { key: Arc<str>, token: u64, value: Arc<str> },
    /// Asks for the effect of this parked key. Without one the operator decides to run it again.
    Decide { key: Arc<str> },
}

/// A key of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) key: Arc<str>,
    /// Its creation, in milliseconds of the Unix epoch.
    pub(crate) made_ms: u64,
}

/// The ledger's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    Yes,
    No,
    Value(Option<Arc<str>>),
    Batch(Vec<Item>),
}

/// A task's connection.
pub(crate) struct Ledger {
    who: Who,
    path: PathBuf,
    read: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Ledger {
    pub(crate) async fn connect(path: &Path, who: Who) -> io::Result<Self> {
        let (read, write) = UnixStream::connect(path).await?.into_split();
        Ok(Self { who, path: path.to_owned(), read: BufReader::new(read).lines(), write })
    }

    /// One more connection of the same task.
    pub(crate) async fn again(&self) -> io::Result<Self> {
        Self::connect(&self.path, self.who).await
    }

    /// Says what happens now.
    pub(crate) async fn say(&mut self, what: What) -> io::Result<()> {
        self.say_at(now(), what).await
    }

    /// Says what happened.
    pub(crate) async fn say_at(&mut self, at: Nanos, what: What) -> io::Result<()> {
        let who = self.who;
        self.line(&Line::Say(Event { at, who, what })).await
    }

    pub(crate) async fn ask(&mut self, ask: Ask) -> io::Result<Told> {
        self.line(&Line::Ask(self.who, ask)).await?;
        let line = self.read.next_line().await?;
        let line = line.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok(serde_json::from_str(&line)?)
    }

    pub(crate) async fn yes(&mut self, ask: Ask) -> io::Result<bool> {
        Ok(matches!(self.ask(ask).await?, Told::Yes))
    }

    async fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.write.write_all(&text).await
    }
}
