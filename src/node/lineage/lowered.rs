//! How a person lowers what all clients share (quarantine 7).

use super::{Handover, Marker, Shown};

/// What a person lowers, and the marker under which the person said that no program asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    before: Marker,
    /// The server's clock then, in ms.
    at: u64,
    /// New length of a quarantine in ms.
    quarantine: u64,
    /// New E in µs.
    clock_error: u64,
    /// New epoch: that of the group's own Sentinels, if the marker's is higher.
    epoch: u64,
}

impl Lowering {
    /// Begins to lower the values of `before` to these: a length in ms, E in µs, and the epoch in
    /// which the Sentinels name the server. `at` is the server's clock in ms. Returns `None` if
    /// there is nothing to lower.
    ///
    /// # Errors
    /// The reason for which these values may not follow those of the marker.
    pub fn new(
        before: Marker,
        at: u64,
        (quarantine, clock_error, epoch): (u64, u64, Option<u64>),
    ) -> Result<Option<Self>, String> {
        let quarantine = quarantine.min(before.quarantine);
        let clock_error = clock_error.min(before.clock_error);
        let epoch = epoch.unwrap_or(before.epoch).min(before.epoch);
        let lowered = Self { before, at, quarantine, clock_error, epoch };
        if (quarantine, clock_error) == (before.quarantine, before.clock_error) {
            return Ok((epoch < before.epoch).then_some(lowered));
        }
        if clock_error.saturating_mul(2) >= quarantine.saturating_mul(1_000) {
            return Err(format!(
                "clock_error ({}) has to be less than half of max_ttl",
                seconds(clock_error)
            ));
        }
        // Until the values are lowered, proposals are clamped by the old E. A token of then has to
        // be below the floor of the next history (quarantine 8) and no more than 6E ahead where a
        // raise checks it.
        let least = before.clock_error.div_ceil(4);
        let most = quarantine.saturating_mul(1_000);
        if clock_error < before.clock_error && (clock_error < least || before.clock_error > most) {
            return Err(format!(
                "clock_error comes down in steps: from {} to {} at least, and max_ttl stays at \
                 least {} until then",
                seconds(before.clock_error),
                seconds(least),
                seconds(before.clock_error)
            ));
        }
        Ok(Some(lowered))
    }

    /// Time in ms until no lease and no token of the old values can be in use: q + 2E from the
    /// person's word on, by the server's clock.
    pub fn left(&self, now: u64) -> u64 {
        let apart = self.before.clock_error.div_ceil(500);
        let over = self.at.saturating_add(self.before.quarantine).saturating_add(apart);
        over.saturating_sub(now)
    }

    /// Checks that the marker still has what the person saw.
    ///
    /// # Errors
    /// What came back, by name.
    pub fn check(&self, now: &Marker) -> Result<(), String> {
        let before = &self.before;
        if now.id() != before.id() || now.vote != before.vote {
            return Err(
                "another data history has begun meanwhile: run the command again".to_owned()
            );
        }
        Self::grown(now, (before.quarantine, before.clock_error))?;
        if (now.quarantine, now.clock_error) != (before.quarantine, before.clock_error) {
            return Err("another command has lowered it meanwhile".to_owned());
        }
        Ok(())
    }

    /// Checks, after the marker was lowered, that no client has raised it again. `longest` is the
    /// longest quarantine in ms that a client with the new settings asks for.
    ///
    /// # Errors
    /// What came back, by name.
    pub fn holds(&self, now: &Marker, longest: u64) -> Result<(), String> {
        // A failover meanwhile has a lower one.
        if self.epoch < self.before.epoch && now.epoch >= self.before.epoch {
            return Err(format!(
                "the Sentinels' epoch came back ({}): a program asks other Sentinels than those of \
                 this group; end it and run the command again",
                now.epoch
            ));
        }
        Self::grown(now, (self.quarantine.max(longest), self.clock_error))
    }

    fn grown(now: &Marker, (quarantine, clock_error): (u64, u64)) -> Result<(), String> {
        let mut names = Vec::new();
        if now.quarantine > quarantine {
            let length = seconds(now.quarantine.saturating_mul(1_000));
            names.push(format!("max_ttl came back (with the failover window, {length})"));
        }
        if now.clock_error > clock_error {
            names.push(format!("clock_error came back ({})", seconds(now.clock_error)));
        }
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(", and ");
        Err(format!("{names}: a program still asks for it; end it and run the command again"))
    }
}

impl Marker {
    /// Lowers the length of a quarantine, E and the epoch. Clients only raise them (quarantine 7).
    ///
    /// # Errors
    /// The reason for which they may not be lowered now.
    pub fn lowered(&self, shown: &Shown, by: &Lowering) -> Result<Self, String> {
        let now = shown.micros / 1_000;
        by.check(self)?;
        if self.replid != shown.replid {
            return Err("it was restarted or replaced, and no program has connected to it since: \
                        let one connect, and run the command again"
                .to_owned());
        }
        let left = by.left(now).max(self.quarantine_end().saturating_sub(now));
        if left > 0 {
            return Err(format!("an earlier lease may last for another {left} ms"));
        }
        if let Some(Handover::Closed(till) | Handover::Settling(till)) = self.handover
            && now < till
        {
            let left = till - now;
            return Err(format!("a planned handover ends in {left} ms: try again after it"));
        }
        let lowered = Self {
            quarantine: by.quarantine,
            clock_error: by.clock_error,
            // A lower one hides no promotion (quarantine 16).
            epoch: by.epoch.min(self.epoch),
            handover: None,
            written: now,
            ..*self
        };
        // A marker is judged by the E that is in it (quarantine 2).
        if Self::parse(&lowered.to_string(), now).is_none() {
            return Err("its marker has times that the lower clock_error excludes: its clock was \
                        set; try again later"
                .to_owned());
        }
        Ok(lowered)
    }
}

fn seconds(micros: u64) -> String {
    format!("{:?}", std::time::Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::super::{Process, ReplicationId};
    use super::*;

    fn marker() -> Marker {
        Marker {
            quarantine: 20_000,
            clock_error: 4_000_000,
            since: 50_000,
            floor: 78_000_000,
            ..Marker::born(1, 2, 3, ReplicationId::of(4))
        }
    }

    fn shown(marker: &Marker, now: u64) -> Shown {
        Shown {
            marker: Some(*marker),
            is_empty: false,
            note: None,
            replid: marker.replid,
            process: Process::fresh(),
            evicted: 0,
            stayed: false,
            disturbed: false,
            micros: now * 1_000,
        }
    }

    fn lowering(quarantine: u64, clock_error: u64) -> Lowering {
        Lowering::new(marker(), 100_000, (quarantine, clock_error, None)).unwrap().unwrap()
    }

    #[test]
    fn both_come_down_when_no_lease_and_no_token_of_before_can_be_in_use() {
        let (by, m) = (lowering(15_000, 2_000_000), marker());
        let early = m.lowered(&shown(&m, 127_999), &by).unwrap_err();
        assert_eq!(early, "an earlier lease may last for another 1 ms");
        let lowered = m.lowered(&shown(&m, 128_000), &by).unwrap();
        let wanted =
            Marker { quarantine: 15_000, clock_error: 2_000_000, written: 128_000, ..marker() };
        assert_eq!(lowered, wanted);
        assert_eq!(by.holds(&lowered, 0), Ok(()));
    }

    #[test]
    fn nothing_is_raised() {
        assert_eq!(Lowering::new(marker(), 0, (30_000, 5_000_000, Some(7))), Ok(None));
        let one = lowering(30_000, 2_000_000);
        let lowered = marker().lowered(&shown(&marker(), 200_000), &one).unwrap();
        assert_eq!((lowered.quarantine, lowered.clock_error), (20_000, 2_000_000));
    }

    #[test]
    fn the_epoch_of_another_group_comes_down_to_that_of_the_own_sentinels() {
        let m = Marker { epoch: 57, ..marker() };
        let by = |epoch| Lowering::new(m, 100_000, (20_000, 4_000_000, epoch)).unwrap();
        assert_eq!((by(None), by(Some(57)), by(Some(58))), (None, None, None));
        let by = by(Some(5)).unwrap();
        let lowered = m.lowered(&shown(&m, 128_000), &by).unwrap();
        assert_eq!(lowered, Marker { epoch: 5, written: 128_000, ..m });
        assert_eq!(by.holds(&lowered, 0), Ok(()));
        assert_eq!(by.holds(&Marker { epoch: 6, ..lowered }, 0), Ok(()), "a failover");
        let why = by.holds(&Marker { epoch: 57, ..lowered }, 0).unwrap_err();
        assert!(why.starts_with("the Sentinels' epoch came back (57): "), "{why}");
    }

    #[test]
    fn what_came_back_is_named() {
        let by = lowering(15_000, 2_000_000);
        let refused = |m: Marker| m.lowered(&shown(&m, 200_000), &by).unwrap_err();
        let longer = Marker { quarantine: 21_000, ..marker() };
        assert!(refused(longer).starts_with("max_ttl came back (with the failover window, 21s):"));
        let larger = Marker { clock_error: 5_000_000, ..marker() };
        assert!(refused(larger).starts_with("clock_error came back (5s):"));
        let why = by.holds(&marker(), 19_999).unwrap_err();
        assert!(
            why.starts_with("max_ttl came back (with the failover window, 20s), and "),
            "{why}"
        );
        let why = by.holds(&marker(), 20_000).unwrap_err();
        assert!(why.starts_with("clock_error came back (4s): "), "{why}");
        let begun = Marker { since: 90_000, ..marker() };
        assert!(refused(begun).contains("another data history"));
        let other = Marker { quarantine: 19_000, ..marker() };
        assert!(refused(other).contains("another command"));
    }

    #[test]
    fn a_server_that_was_replaced_or_is_handed_over_is_left_alone() {
        let (by, m) = (lowering(15_000, 2_000_000), marker());
        let renamed = Shown { replid: ReplicationId::of(5), ..shown(&m, 200_000) };
        assert!(m.lowered(&renamed, &by).unwrap_err().contains("restarted or replaced"));
        for state in [Handover::Closed(200_001), Handover::Settling(200_001)] {
            let m = Marker { handover: Some(state), ..m };
            let why = m.lowered(&shown(&m, 200_000), &by).unwrap_err();
            assert!(why.contains("a planned handover ends in 1 ms"), "{why}");
            assert_eq!(m.lowered(&shown(&m, 200_001), &by).unwrap().handover, None);
        }
    }

    #[test]
    fn the_next_floor_is_above_every_token_of_the_old_clock_error() {
        let new = |q, e| Lowering::new(marker(), 0, (q, e, None));
        assert!(new(20_000, 1_000_000).is_ok());
        assert!(new(20_000, 999_999).unwrap_err().contains("from 4s to 1s at least"));
        assert!(new(4_000, 1_000_000).is_ok());
        assert!(new(3_999, 1_000_000).unwrap_err().contains("max_ttl stays at least 4s"));
        assert!(new(4_000, 2_000_000).unwrap_err().contains("less than half of max_ttl"));
    }
}
