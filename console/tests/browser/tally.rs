//! Measured numbers of all browser tests, in two JSON files: one has the numbers that
//! `make test-console` prints in its last line, and one has the others.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;

/// Measurements of the tests of this process that have ended.
#[derive(Default)]
struct Tally {
    /// Names of the pages that showed what a client did.
    pages: Vec<&'static str>,
    /// Times from a client's call until the page showed it.
    live: Vec<Duration>,
    console_errors: usize,
    foreign_requests: usize,
    first_page_bytes: u64,
    first_page_ms: f64,
}

static TALLY: Mutex<Option<Tally>> = Mutex::new(None);

fn add(change: impl FnOnce(&mut Tally)) {
    let mut tally = TALLY.lock().unwrap();
    let tally = tally.get_or_insert_default();
    change(tally);
    tally.live.sort();
    let p95 = tally.live.get(tally.live.len() * 95 / 100).copied().unwrap_or_default();
    let main = json!({
        "pages": tally.pages.len(), "live_ms_p95": p95.as_millis(),
        "console_errors": tally.console_errors, "foreign_requests": tally.foreign_requests,
    });
    let more = json!({
        "changes": tally.live.len(), "first_page_bytes": tally.first_page_bytes,
        "first_page_ms": tally.first_page_ms,
    });
    for (file, figures) in [("console-browser.json", main), ("console-first.json", more)] {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        std::fs::write(file, figures.to_string() + "\n").expect("cargo made the directory");
    }
}

pub(crate) fn page(name: &'static str) {
    add(|tally| {
        if !tally.pages.contains(&name) {
            tally.pages.push(name);
        }
    });
}

/// Records the time until a page showed a change without a reload.
pub(crate) fn live(took: Duration) {
    add(|tally| tally.live.push(took));
}

/// Adds the numbers of errors, and of requests to other servers than the console, that the browser
/// reported for one page.
pub(crate) fn reported(console_errors: usize, foreign_requests: usize) {
    add(|tally| {
        tally.console_errors += console_errors;
        tally.foreign_requests += foreign_requests;
    });
}

/// Records the size of the first page in bytes, and the time in ms until it was shown.
pub(crate) fn first_page(bytes: u64, ms: f64) {
    add(|tally| (tally.first_page_bytes, tally.first_page_ms) = (bytes, ms));
}
