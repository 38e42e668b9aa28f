//! Writes that a node may have lost.

use std::time::Duration;

/// Range of writes that a node may lack, by server clocks, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Last surviving note of the server's clock: every earlier write is present. 0: no note
    /// survived.
    pub from: u64,
    /// Server clock when the data history after the loss began.
    pub to: u64,
}

impl Loss {
    /// Returns the longest possible duration, but for the error of the clocks that measured it
    /// (2E); `None` if nothing proves one.
    pub fn length(&self) -> Option<Duration> {
        // Both are truncated: within one millisecond something may have been written, too.
        let length = self.to.saturating_sub(self.from).saturating_add(1);
        (self.from > 0).then(|| Duration::from_millis(length))
    }
}
