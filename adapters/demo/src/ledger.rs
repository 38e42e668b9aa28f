//! The ledger that books invoices in the demo's main process. Consumer processes send requests to
//! the ledger over a Unix socket. Each request is one line of JSON.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use palisade::FencingToken;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

use crate::Failure;
use crate::books::{self, Audit, Verdict};
use crate::process;

#[derive(Debug, Serialize, Deserialize)]
enum LedgerRequest {
    Book { key: Arc<str>, token: u64 },
    Probe { key: Arc<str>, token: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LedgerReply {
    Booked,
    /// The order is not booked. From now on the ledger refuses each booking of the order with a
    /// smaller fencing token than that of this request.
    NotBooked,
    /// The ledger refuses the booking, because an earlier request for the order had a larger
    /// fencing token.
    OldToken,
}

#[derive(Debug, Default)]
struct Shared {
    books: books::Ledger,
    booked: AtomicUsize,
}

/// The ledger, which records the bookings and refuses old fencing tokens. It replies to requests on
/// its socket. Dropping the value removes the socket.
pub(crate) struct Ledger {
    dir: PathBuf,
    shared: Arc<Shared>,
}

impl Ledger {
    pub(crate) fn serve() -> Result<Self, Failure> {
        let dir = process::directory()?;
        let listener = UnixListener::bind(dir.join("ledger"))?;
        let shared = Arc::<Shared>::default();
        let ledger = Self { dir, shared: Arc::clone(&shared) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(Arc::clone(&shared), stream));
            }
        });
        Ok(ledger)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("ledger")
    }

    pub(crate) fn executed(&self) -> usize {
        self.shared.booked.load(Ordering::Relaxed)
    }

    pub(crate) fn audit(&self, keys: &[Arc<str>]) -> Audit {
        self.shared.books.audit(keys.iter())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

async fn answer(shared: Arc<Shared>, stream: UnixStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(request) = serde_json::from_str(&line) else { return };
        let reply = match request {
            LedgerRequest::Book { key, token } => {
                match shared.books.book(&key, FencingToken::new(token), &key) {
                    Verdict::OldToken => LedgerReply::OldToken,
                    verdict => {
                        if verdict == Verdict::Booked {
                            shared.booked.fetch_add(1, Ordering::Relaxed);
                        }
                        LedgerReply::Booked
                    }
                }
            }
            LedgerRequest::Probe { key, token } => {
                match shared.books.probe(&key, FencingToken::new(token)) {
                    Some(_) => LedgerReply::Booked,
                    None => LedgerReply::NotBooked,
                }
            }
        };
        let mut line = serde_json::to_vec(&reply).unwrap_or_default();
        line.push(b'\n');
        if write.write_all(&line).await.is_err() {
            return;
        }
    }
}

pub(crate) struct Line(Mutex<BufReader<UnixStream>>);

impl Line {
    pub(crate) async fn open(socket: &Path) -> Result<Self, Failure> {
        Ok(Self(Mutex::new(BufReader::new(UnixStream::connect(socket).await?))))
    }

    pub(crate) async fn book(&self, key: &str, token: u64) -> Result<LedgerReply, Failure> {
        self.request(&LedgerRequest::Book { key: key.into(), token }).await
    }

    /// Asks the ledger if an order is booked. From now on the ledger refuses each booking of this
    /// order with a smaller fencing token than `token`.
    pub(crate) async fn probe(&self, key: &str, token: u64) -> Result<LedgerReply, Failure> {
        self.request(&LedgerRequest::Probe { key: key.into(), token }).await
    }

    async fn request(&self, request: &LedgerRequest) -> Result<LedgerReply, Failure> {
        let mut sent = serde_json::to_vec(request)?;
        sent.push(b'\n');
        let mut line = self.0.lock().await;
        line.get_mut().write_all(&sent).await?;
        let mut reply = String::new();
        line.read_line(&mut reply).await?;
        Ok(serde_json::from_str(&reply)?)
    }
}
