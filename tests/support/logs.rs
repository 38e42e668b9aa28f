//! What is logged, for tests that read it.
//!
//! One subscriber per process: one per test would be missed by code that another test runs at the
//! same moment and that so learns that nobody listens.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError};

use tracing_subscriber::filter::LevelFilter;

thread_local! {
    static HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// Lines of a log, growing.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What this thread logs from here on, down to this level: the same for all tests of a process.
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

    /// The lines with all of these parts.
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
