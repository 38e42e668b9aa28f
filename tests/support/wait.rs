//! Functions by which a test waits for a condition.
#![allow(dead_code, unreachable_pub)]

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time limit of a wait. Only a hang exceeds it, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);

/// Waits until `holds` returns true. The text `what` names the condition in the error.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
