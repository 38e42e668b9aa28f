//! Copies the output of the command that `palisade` runs to palisade's own standard output and
//! standard error. Keeps the output up to a limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Maximum time to read the rest of the output after the command has ended.
const LAST: Duration = Duration::from_secs(1);
/// Maximum number of parts of a stream that wait to be written. The limit applies while the command
/// runs.
const AHEAD: usize = 4;

/// Output of a command: a text, or bytes if the output is not UTF-8.
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

/// The kept bytes of one stream of the command. A stream is standard output or standard error.
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

    fn cut(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).cut = true;
    }

    fn take(&self) -> (Output, bool) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut kept.bytes);
        let output =
            String::from_utf8(bytes).map_or_else(|e| Output::Bytes(e.into_bytes()), Output::Text);
        (output, kept.cut)
    }
}

/// Standard output and standard error of a command. At most `limit` bytes of each stream are kept.
#[derive(Debug)]
pub(crate) struct Capture {
    out: Stream,
    err: Stream,
    limit: usize,
    writers: Vec<JoinHandle<()>>,
}

/// Bytes of a stream that wait to be written. While the command runs, the bytes have a permit. The
/// number of permits (`AHEAD`) limits the number of waiting parts.
type Part = (Vec<u8>, Option<OwnedSemaphorePermit>);

/// A task that reads one stream and keeps its bytes.
struct Copy {
    reader: JoinHandle<()>,
    places: Arc<Semaphore>,
    stream: Stream,
}

/// The tasks that read a command's streams.
pub(crate) struct Copies(Vec<Copy>);

impl Capture {
    pub(crate) fn new(limit: usize) -> Self {
        Self { out: Stream::default(), err: Stream::default(), limit, writers: Vec::new() }
    }

    /// Starts to copy the child's output to palisade's own standard output and standard error, and
    /// to keep the output.
    pub(crate) fn begin(&mut self, child: &mut Child) -> Copies {
        let mut copies = Vec::new();
        if let Some(from) = child.stdout.take() {
            copies.push(self.copy(from, tokio::io::stdout(), self.out.clone()));
        }
        if let Some(from) = child.stderr.take() {
            copies.push(self.copy(from, tokio::io::stderr(), self.err.clone()));
        }
        Copies(copies)
    }

    fn copy(
        &mut self,
        from: impl AsyncRead + Unpin + Send + 'static,
        to: impl AsyncWrite + Unpin + Send + 'static,
        stream: Stream,
    ) -> Copy {
        let (tx, rx) = unbounded_channel();
        let places = Arc::new(Semaphore::new(AHEAD));
        let reading = read(from, tx, stream.clone(), self.limit, Arc::clone(&places));
        self.writers.push(tokio::spawn(write(rx, to)));
        Copy { reader: tokio::spawn(reading), places, stream }
    }

    /// Returns standard output, standard error, and a flag. The flag is true if one of the two
    /// streams is incomplete.
    pub(crate) fn take(&self) -> (Output, Output, bool) {
        let ((out, out_cut), (err, err_cut)) = (self.out.take(), self.err.take());
        (out, err, out_cut || err_cut)
    }

    /// Waits until all output is written to palisade's own streams. Also returns if the reader of
    /// these streams has closed them.
    pub(crate) async fn written(&mut self) {
        for writer in self.writers.drain(..) {
            // The writer's task returns no error.
            drop(writer.await);
        }
    }
}

impl Copies {
    /// Reads the rest of the output after the command has ended. Does not wait for the reader of
    /// palisade's own output. If a stream has not ended after `LAST`, another process still has it
    /// open. Then the read stops, and the output counts as incomplete.
    pub(crate) async fn end(self) {
        self.0.iter().for_each(|copy| copy.places.close());
        let until = Instant::now() + LAST;
        for mut copy in self.0 {
            if timeout_at(until, &mut copy.reader).await.is_err() {
                copy.reader.abort();
                copy.stream.cut();
            }
        }
    }
}

/// Reads a stream, keeps the first `limit` bytes, and sends all bytes to the writer task. While the
/// command runs, at most `AHEAD` parts wait for the writer task.
async fn read(
    mut from: impl AsyncRead + Unpin,
    to: UnboundedSender<Part>,
    stream: Stream,
    limit: usize,
    places: Arc<Semaphore>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        stream.add(&buffer[..n], limit);
        // After the command has ended, the semaphore is closed and gives no permit. So the read no
        // longer waits for the writer task.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        // `send` fails only if the writer task has ended. Then the part is not needed.
        drop(to.send((buffer[..n].to_vec(), place)));
    }
}

async fn write(mut parts: UnboundedReceiver<Part>, mut to: impl AsyncWrite + Unpin) {
    while let Some((part, place)) = parts.recv().await {
        // The reader of palisade's output may close the stream. So errors are ignored, and the
        // command continues.
        drop(to.write_all(&part).await);
        drop(to.flush().await);
        drop(place);
    }
}
