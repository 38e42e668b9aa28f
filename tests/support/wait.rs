//! Waits of tests for something that must happen.
#![allow(dead_code, unreachable_pub)]

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time limit, which only a hang exceeds, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);

/// Waits until `holds` returns true.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
