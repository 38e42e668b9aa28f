//! Writes that a node may have lost.

use std::time::Duration;

/// Writes that a node may lack: those between two readings of its clock, in milliseconds since
/// 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// All that was written before is there; 0: nothing need be.
    pub from: u64,
    /// When the data history began in which nothing of this kind is missing.
    pub to: u64,
}

impl Loss {
    /// Returns how long it lasted at most; `None` if nothing proves that.
    pub fn length(&self) -> Option<Duration> {
        // Both are truncated: within one millisecond something may have been written, too.
        let length = self.to.saturating_sub(self.from).saturating_add(1);
        (self.from > 0).then(|| Duration::from_millis(length))
    }
}
