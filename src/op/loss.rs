//! Ranges of writes that a node may have lost by a restart or a failover.

use std::fmt;
use std::time::Duration;

use crate::time::{AtMost, span_utc, until_utc, utc};

/// Range of writes that a node may have lost in one event, such as a restart or a failover. Its
/// times are in milliseconds since 1970, by the clocks of the node's servers.
///
/// Shown as `lost at most 1.3 s of writes, 2026-11-23 14:03:20.1–14:03:21.4 UTC` or, if `from` is
/// 0, as `may have lost every write until 2026-11-23 14:03:21.4 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time of the last note that came back, so every write before it is present. 0 if any earlier
    /// write may be lost.
    pub from: u64,
    /// Time at which the data after the loss began. Together with `from` it identifies the loss.
    pub began: u64,
    /// End of the range: `began` plus the failover window (L), because a server that was replaced
    /// may have accepted writes until then. During the quarantine, a client with a longer L moves
    /// this end to a later time.
    pub to: u64,
}

impl Loss {
    #[cfg(test)]
    pub(crate) const fn between(from: u64, to: u64) -> Self {
        Self { from, began: to, to }
    }

    /// Returns the largest possible length of the range, without the error of the clocks that
    /// measured it (2E). Returns `None` if `from` is 0, because then the range has no known start.
    pub fn length(&self) -> Option<Duration> {
        // Both times are truncated, so the last millisecond may contain writes, too.
        let length = self.to.saturating_sub(self.from).saturating_add(1);
        (self.from > 0).then(|| Duration::from_millis(length))
    }

    /// Returns the number by which operators name the loss: the millisecond (UTC) at which the data
    /// after the loss began, for example `20261123-140321.417`. Unlike a position in a list, this
    /// number stays the same when other losses are removed.
    pub fn number(&self) -> String {
        let digits = |c: &char| !matches!(c, '-' | ':' | 'Z');
        utc(self.began).chars().filter(digits).collect::<String>().replace('T', "-")
    }

    /// Returns the numbers of the losses without duplicates, with commas between them: the name by
    /// which an operator decides about exactly these losses.
    pub fn names(losses: &[Self]) -> String {
        let mut numbers: Vec<String> = losses.iter().map(Self::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.join(",")
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length() {
            Some(length) => {
                // If the clock was set back, `to` is before `from`.
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
        assert_eq!(Loss::between(0, noon + 1_399).number(), "20251123-140321.399");
        let longer = Loss { to: noon + 9_000, ..Loss::between(0, noon + 1_399) };
        assert_eq!(longer.number(), "20251123-140321.399", "a longer window does not rename it");
    }
}
