//! What the library logs, kept for a test to read.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The lines so far. Clones share them.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What this thread logs at this level and above, until the guard is dropped.
    pub fn of_thread(level: LevelFilter) -> (Self, DefaultGuard) {
        let log = Self::default();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_max_level(level);
        let guard = tracing::subscriber::set_default(lines.with_writer(log.clone()).finish());
        (log, guard)
    }

    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The lines that contain all of these parts.
    pub fn lines(&self, parts: &[&str]) -> Vec<String> {
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        self.text().lines().filter(has_all).map(ToOwned::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
