//! Captured log output, for tests of log lines.
//!
//! All tests of a process share one subscriber. If each test had its own, a log line could first be
//! reached in a test without a subscriber. The tracing crate would then disable this line for the
//! whole process.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError};

use tracing_subscriber::filter::LevelFilter;

thread_local! {
    static HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// Captured log lines. New lines are appended.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts to capture the log lines of this thread at this level and above. All tests of a
    /// process must use the same level.
    pub fn of_this_thread(level: LevelFilter) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(level)
                .with_writer(|| HERE.with_borrow(Clone::clone).unwrap_or_default());
            let set = tracing::subscriber::set_global_default(subscriber.finish());
            set.expect("the only one of this process");
        });
        let log = Self::default();
        HERE.set(Some(log.clone()));
        log
    }

    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the lines that contain all of these parts.
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
