//! The pages in a real browser (Chromium), on real servers that independent clients use.
//!
//! Each test has one browser, and the tests run one after the other. What they measure together is
//! in `console-browser.json` and `console-first.json` in cargo's directory for temporary files of
//! tests.

mod actions;
mod chrome;
mod failures;
mod honest;
mod large;
mod live;
mod looks;
mod pictures;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod server;
mod tally;
mod world;

use std::time::Duration;

/// Time within which the console must show a change. It reads the servers' state several times a
/// second; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(10);
