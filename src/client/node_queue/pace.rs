//! Splitting of batches, so that client and server do not take turns in waiting for each other.
//!
//! Callers whose answers came in one batch send their next requests together. On a runtime of one
//! thread these requests form one batch again, and so on. So the server waits while the client
//! works, and the client waits while the server works. After `IN_STEP` such batches in a row, half
//! of the waiting requests are sent first and the other half right after them. From then on the
//! server works on one half while the client works on the other.

/// Fewest ops of a batch that is split; for fewer a second batch is not worth its cost.
const MANY: usize = 16;
/// Number of batches in a row, each sent while no other was in flight, after which the next one is
/// split. A single large batch, as one caller makes it, is therefore sent as it is.
const IN_STEP: u32 = 4;

/// Number of batches in a row with at least `MANY` ops that a queue sent while no other was in
/// flight.
#[derive(Debug, Default)]
pub(super) struct Pace(u32);

impl Pace {
    /// Returns how many of the `waiting` ops may be sent together. `alone`: no other batch is in
    /// flight.
    pub(super) fn most(&mut self, waiting: usize, alone: bool) -> usize {
        match (waiting, alone) {
            (0, _) => return usize::MAX,
            (MANY.., true) => self.0 += 1,
            _ => self.0 = 0,
        }
        if self.0 > IN_STEP { waiting.div_ceil(2) } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_in_step_are_parted_and_others_are_not() {
        let mut pace = Pace::default();
        for _ in 0..IN_STEP {
            assert_eq!(pace.most(65, true), usize::MAX);
            assert_eq!(pace.most(0, true), usize::MAX);
        }
        assert_eq!(pace.most(65, true), 33);
        // The rest is sent right after, and from then on another batch is always under way.
        assert_eq!(pace.most(32, false), usize::MAX);
        assert_eq!(pace.most(33, false), usize::MAX);
        // Together again by chance: one such batch is not enough to split.
        assert_eq!(pace.most(65, true), usize::MAX);
        // Few ops, or a batch beside others, are never split.
        for _ in 0..=2 * IN_STEP {
            assert_eq!(pace.most(MANY - 1, true), usize::MAX);
            assert_eq!(pace.most(100, false), usize::MAX);
        }
    }
}
