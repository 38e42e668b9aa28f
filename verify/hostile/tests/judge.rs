//! Checks for all cases of the hostile tests (clients with bad servers): the texts that a case
//! shows, and the memory, files and log lines that it uses.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Password of every server and Sentinel in these tests.
pub(crate) const PASSWORD: &str = "s3cr3t-of-ours";
/// Maximum length of an error text, log line or finding, in bytes.
const SENTENCE_MAX: usize = 2_000;
/// Maximum growth of the process's memory, in KiB.
const GROWTH_MAX: usize = 64 << 10;
/// Number of cases that run at the same time.
pub(crate) const AT_ONCE: u32 = 12;
/// Maximum number of open files while the cases run. Most of these files are sockets of servers and
/// clients.
const FILES_MAX: usize = AT_ONCE as usize * 80;
/// Maximum number of open files after the last case, in addition to the files that were open before
/// the first case.
const FILES_LEFT: usize = 40;
/// Maximum average number of log lines per case.
const LINES_MAX: usize = 30;

/// A flaw of a text, for example of an error message, that appeared in a test case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flaw {
    /// The text shows the password.
    Secret,
    /// The text contains control characters or invisible characters. An attacker can forge lines
    /// with them.
    Control,
    Long,
}

/// Kind of output in which a text was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    Error,
    Debug,
    Log,
    Doctor,
}

/// Counters and results that all cases of the hostile tests share.
pub(crate) struct Judge {
    pub(crate) places: Semaphore,
    flaws: Mutex<BTreeSet<(Shown, Flaw, String)>>,
    cases: AtomicUsize,
    lines: AtomicUsize,
    files: AtomicUsize,
    panics: AtomicUsize,
    /// Number of tests that are running.
    running: AtomicUsize,
    /// Memory of the process before the first case (test of one fault), in KiB.
    resident: usize,
    files_before: usize,
}

pub(crate) static JUDGE: LazyLock<Judge> = LazyLock::new(|| {
    std::panic::set_hook(Box::new(|info| {
        JUDGE.panics.fetch_add(1, Relaxed);
        eprintln!("{info}");
    }));
    let log = tracing_subscriber::fmt().with_writer(Log).with_ansi(false);
    let log = log.with_max_level(LevelFilter::DEBUG).finish();
    tracing::subscriber::set_global_default(log).expect("the only one");
    Judge {
        places: Semaphore::new(AT_ONCE as usize),
        flaws: Mutex::default(),
        cases: AtomicUsize::new(0),
        lines: AtomicUsize::new(0),
        files: AtomicUsize::new(0),
        panics: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
        resident: status("VmRSS"),
        files_before: open_files(),
    }
});

impl Judge {
    fn flaws(&self) -> MutexGuard<'_, BTreeSet<(Shown, Flaw, String)>> {
        self.flaws.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a test. The test must call [`Self::verdict`] at its end.
    pub(crate) fn starts(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    /// Counts a new case, and updates the maximum number of open files.
    pub(crate) fn begins(&self) {
        self.cases.fetch_add(1, Relaxed);
        self.files.fetch_max(open_files(), Relaxed);
    }

    /// Checks a text (such as an error message) that a test case produced. Records the flaws of the
    /// text.
    pub(crate) fn text(&self, case: &str, at: Shown, text: &str) {
        // Only the text of the doctor (`palisade doctor`) may contain line breaks.
        let unseen = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
        let invisible = |c: char| {
            (c.is_control() && !(at == Shown::Doctor && c == '\n'))
                || unseen.iter().any(|range| range.contains(&c))
        };
        let longest = match at {
            Shown::Doctor => text.lines().map(str::len).max().unwrap_or(0),
            _ => text.len(),
        };
        for (flaw, is) in [
            (Flaw::Secret, text.contains(PASSWORD)),
            (Flaw::Control, text.contains(invisible)),
            (Flaw::Long, longest > SENTENCE_MAX),
        ] {
            let mut flaws = self.flaws();
            let known = flaws.iter().filter(|(s, f, _)| (*s, *f) == (at, flaw)).count();
            if is && known < 3 {
                let shown: String = text.chars().take(300).collect();
                flaws.insert((at, flaw, format!("{case}: {shown:?}")));
            }
        }
    }

    pub(crate) fn error(&self, case: &str, e: &(impl Display + Debug)) {
        self.text(case, Shown::Error, &e.to_string());
        self.debug(case, e);
    }

    pub(crate) fn debug(&self, case: &str, what: &impl Debug) {
        self.text(case, Shown::Debug, &format!("{what:?}"));
    }

    /// Asserts that no case so far has failed, panicked, used too many resources, or shown a text
    /// with a flaw.
    pub(crate) async fn verdict(&self, wrong: &[String]) {
        if self.running.fetch_sub(1, Relaxed) == 1 {
            self.closed().await;
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
        let grown = status("VmHWM").saturating_sub(self.resident);
        let (cases, lines) = (self.cases.load(Relaxed), self.lines.load(Relaxed));
        let (files, panics) = (self.files.load(Relaxed), self.panics.load(Relaxed));
        println!("{cases} cases: at most {grown} KiB more, {files} files, {lines} log lines");
        assert!(grown <= GROWTH_MAX, "{grown} KiB more than before");
        assert!(files <= self.files_before + FILES_MAX, "{files} sockets at once");
        assert!(lines <= 2_000 + cases * LINES_MAX, "{lines} log lines in {cases} cases");
        assert_eq!(panics, 0);
        let flaws: Vec<_> = self.flaws().iter().cloned().collect();
        assert!(flaws.is_empty(), "{flaws:#?}");
    }

    /// Waits until the sockets are closed. A socket closes shortly after both of its ends were
    /// dropped.
    async fn closed(&self) {
        let most = self.files_before + FILES_LEFT;
        let end = Instant::now() + Duration::from_secs(5);
        while open_files() > most && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let left = open_files();
        assert!(left <= most, "{left} files are open, {} were before", self.files_before);
    }
}

/// Runs the test `name` in a child process and returns true. In the child process, returns false.
///
/// The child's allocator returns freed memory at once. Otherwise, memory that the allocator keeps
/// would count as growth.
pub(crate) fn elsewhere(name: &str) -> bool {
    const CHILD: &str = "PALISADE_HOSTILE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let program = std::env::current_exe().expect("this test");
    let mut run = std::process::Command::new(program);
    run.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    run.env("MALLOC_MMAP_THRESHOLD_", "131072").env("MALLOC_ARENA_MAX", "2");
    let out = run.output().expect("it starts");
    println!("{}", String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    true
}

/// Returns a field of `/proc/self/status`, in KiB.
fn status(field: &str) -> usize {
    let all = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = all.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.parse().ok());
    number.unwrap_or(0)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// A log writer that checks each line and then drops it.
#[derive(Clone, Copy)]
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if !line.contains(" DEBUG ") {
            JUDGE.lines.fetch_add(1, Relaxed);
        }
        JUDGE.text("log", Shown::Log, line.strip_suffix('\n').unwrap_or(&line));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}
