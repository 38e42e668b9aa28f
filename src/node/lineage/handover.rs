//! The marker around a planned handover (quarantine 11 and 20).

use super::{EVICTED, Handover, Marker, Shown, has_evicted};

const DELETED: &str = "has deleted keys because its memory was full";

impl Marker {
    /// Closes a server for `span`. Leases that it may not know, or that may last longer than its
    /// clock shows, forbid it (quarantine 11), as do a replication id or a later epoch that no
    /// batch has been executed under, and keys that the server has deleted since (quarantine 20).
    ///
    /// # Errors
    /// The reason for which it may not be closed now.
    pub fn close(&self, shown: &Shown, epoch: Option<u64>, span: u64) -> Result<Self, String> {
        let now = shown.micros / 1_000;
        if self.replid != shown.replid || epoch.is_some_and(|epoch| epoch > self.epoch) {
            return Err(
                "its marker belongs to an earlier data history: let an application connect \
                        first, or run `palisade init --new` on a new deployment"
                    .to_owned(),
            );
        }
        if has_evicted(self, shown) {
            return Err(format!(
                "it {DELETED}: let an application connect first, which notices it"
            ));
        }
        if now < self.quarantine_end() {
            let left = self.quarantine_end() - now;
            return Err(format!(
                "it is in quarantine for another {left} ms, because earlier leases may last until \
                 then: try again after it"
            ));
        }
        match self.handover {
            Some(Handover::Closed(till)) if now < till => Err(format!(
                "it is closed by another handover for at most {} ms: try again then",
                till - now
            )),
            Some(Handover::Settling(till)) if now < till => Err(format!(
                "it is still settling after another handover: try again in {} ms",
                till - now
            )),
            _ => Ok(Self { handover: Some(Handover::Closed(now.saturating_add(span))), ..*self }),
        }
    }

    /// Leaves the keys that the server has deleted to those who do not allow it (quarantine 21).
    #[must_use]
    pub fn leaving_evictions(self, shown: &Shown) -> Self {
        if self.has_evicted(shown) { Self { evicted: EVICTED, ..self } } else { self }
    }

    /// Opens a server that was closed. Outside of its history the next batch begins another one.
    #[must_use]
    pub fn opened(&self) -> Self {
        Self { handover: None, ..*self }
    }

    /// Goes on with the closed server's history on the server that shows this marker.
    ///
    /// # Errors
    /// The reason for which it may not go on.
    pub fn finish(&self, shown: &Shown, epoch: Option<u64>, apart: u64) -> Result<Self, String> {
        let now = shown.micros / 1_000;
        let Some(Handover::Closed(till)) = self.handover else {
            return Err("it is not closed".to_owned());
        };
        if self.replid == shown.replid {
            return Err("it is still the server that was closed".to_owned());
        }
        // Another server with this marker opens by its own clock, up to 2E before this one.
        if now.saturating_add(apart) > till {
            return Err(
                "the handover took longer than the time for which the server was closed".to_owned()
            );
        }
        if self.evicted != EVICTED && has_evicted(self, shown) {
            return Err(format!("it {DELETED}"));
        }
        Ok(self.taken_over(shown, epoch))
    }

    /// The same history on another server, whose data are certainly complete.
    #[must_use]
    pub fn taken_over(&self, shown: &Shown, epoch: Option<u64>) -> Self {
        let now = shown.micros / 1_000;
        Self {
            replid: shown.replid,
            process: shown.process,
            evicted: if self.evicted == EVICTED { EVICTED } else { shown.evicted },
            // Lower after a reset of the Sentinels: the next promotion must be above it
            // (quarantine 16).
            epoch: epoch.unwrap_or(self.epoch),
            handover: Some(Handover::Settling(now.saturating_add(self.quarantine))),
            written: now,
            ..*self
        }
    }
}
