//! Writes that a node may have lost.

use std::fmt;
use std::time::Duration;

use crate::time::{AtMost, span_utc, until_utc, utc};

/// Range of writes that a node may lack, by server clocks, in milliseconds since 1970.
///
/// Shown as `lost at most 1.3 s of writes, 2026-11-23 14:03:20.1–14:03:21.4 UTC`, or, if no note
/// survived, as `may have lost every write until 2026-11-23 14:03:21.4 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Last surviving note of the server's clock: every earlier write is present. 0: no note
    /// survived.
    pub from: u64,
    /// Server clock when the data history after the loss began. With `from` it names the loss.
    pub began: u64,
    /// `began` plus the failover window (L) of that time: until then a replaced server may have
    /// accepted writes. A client with a longer L moves this time later during the quarantine.
    pub to: u64,
}

impl Loss {
    /// Makes a loss whose window is zero.
    #[cfg(test)]
    pub(crate) const fn between(from: u64, to: u64) -> Self {
        Self { from, began: to, to }
    }

    /// Returns the longest possible duration, without the error of the clocks that measured it
    /// (2E); `None` if nothing proves one.
    pub fn length(&self) -> Option<Duration> {
        // Both times are truncated: there may be writes within the last millisecond, too.
        let length = self.to.saturating_sub(self.from).saturating_add(1);
        (self.from > 0).then(|| Duration::from_millis(length))
    }

    /// Returns the number by which operators name the loss: the second (UTC) at which the data
    /// after it began, as `20261123-140321`. Unlike a place in a list it stays the same when other
    /// losses are removed.
    pub fn number(&self) -> String {
        let digits = |c: char| !matches!(c, '-' | ':');
        let second: String = utc(self.began).chars().take(19).filter(|c| digits(*c)).collect();
        second.replace('T', "-")
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length() {
            Some(length) => {
                // If the clock was set back between the two times, `to` is before `from`.
                let to = self.to.max(self.from);
                write!(f, "lost at most {} of writes, {}", AtMost(length), span_utc(self.from, to))
            }
            None => write!(f, "may have lost every write until {}", until_utc(self.to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_shown_with_its_length_and_when_it_was() {
        let noon = 1_763_906_600_000;
        let shown = |from, to| Loss::between(from, to).to_string();
        assert_eq!(
            shown(noon + 100, noon + 1_399),
            "lost at most 1.3 s of writes, 2025-11-23 14:03:20.1–14:03:21.4 UTC"
        );
        assert_eq!(shown(0, noon), "may have lost every write until 2025-11-23 14:03:20.0 UTC");
        assert_eq!(
            shown(noon, noon - 5),
            "lost at most 0.1 s of writes, 2025-11-23 14:03:20.0–14:03:20.0 UTC"
        );
        assert_eq!(Loss::between(0, noon + 1_399).number(), "20251123-140321");
        let longer = Loss { to: noon + 9_000, ..Loss::between(0, noon + 1_399) };
        assert_eq!(longer.number(), "20251123-140321", "a longer window does not rename it");
    }
}
