//! Copies a command's output to its destination, and keeps it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::task::JoinHandle;

/// How long the last output may take after the command has ended.
const LAST: Duration = Duration::from_secs(1);

/// Output: a text, or bytes if it is not UTF-8.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Output {
    Text(String),
    Bytes(Vec<u8>),
}

impl Output {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// One stream.
#[derive(Clone, Debug, Default)]
struct Stream(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: bool,
}

impl Stream {
    fn add(&self, bytes: &[u8], limit: usize) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = limit - kept.bytes.len();
        kept.cut |= bytes.len() > left;
        kept.bytes.extend_from_slice(&bytes[..bytes.len().min(left)]);
    }

    fn take(&self) -> (Output, bool) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut kept.bytes);
        let output =
            String::from_utf8(bytes).map_or_else(|e| Output::Bytes(e.into_bytes()), Output::Text);
        (output, kept.cut)
    }
}

/// Standard output and standard error, up to a limit each.
#[derive(Debug)]
pub(crate) struct Capture {
    out: Stream,
    err: Stream,
    limit: usize,
}

/// The tasks that copy.
pub(crate) struct Copies(Vec<JoinHandle<()>>);

impl Capture {
    pub(crate) fn new(limit: usize) -> Self {
        Self { out: Stream::default(), err: Stream::default(), limit }
    }

    /// Copies the child's output to our own streams, and keeps it.
    pub(crate) fn begin(&mut self, child: &mut Child) -> Copies {
        let mut copies = Vec::new();
        if let Some(from) = child.stdout.take() {
            let copy = copy(from, tokio::io::stdout(), self.out.clone(), self.limit);
            copies.push(tokio::spawn(copy));
        }
        if let Some(from) = child.stderr.take() {
            let copy = copy(from, tokio::io::stderr(), self.err.clone(), self.limit);
            copies.push(tokio::spawn(copy));
        }
        Copies(copies)
    }

    /// Standard output, standard error, and whether they are incomplete.
    pub(crate) fn take(&self) -> (Output, Output, bool) {
        let ((out, out_cut), (err, err_cut)) = (self.out.take(), self.err.take());
        (out, err, out_cut || err_cut)
    }
}

impl Copies {
    /// Waits for the last output.
    pub(crate) async fn end(self) {
        for mut copy in self.0 {
            if tokio::time::timeout(LAST, &mut copy).await.is_err() {
                copy.abort();
            }
        }
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    stream: Stream,
    limit: usize,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        stream.add(&buffer[..n], limit);
        // The reader may close our output; the command goes on.
        drop(to.write_all(&buffer[..n]).await);
        drop(to.flush().await);
    }
}
