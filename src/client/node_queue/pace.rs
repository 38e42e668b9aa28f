//! Keeps callers out of step.
//!
//! Callers whose answers came in one batch send their next requests together. On a runtime of one
//! thread these leave as one batch again, and so on: the server waits while the client works, and
//! the client while the server does. After some such batches in a row half of what waits leaves
//! first and the rest right behind it. From then on the server works on one half while the client
//! works on the other.

/// Fewer ops than these are not worth a batch more.
const MANY: usize = 16;
/// So many batches in a row are no accident. A batch that a caller made is sent as it is.
const IN_STEP: u32 = 4;

/// The batches of a queue that left while no other was under way.
#[derive(Debug, Default)]
pub(super) struct Pace(u32);

impl Pace {
    /// How many of the ops that wait may leave together; `alone`: no batch is under way.
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
        // The rest leaves behind it, and each half meets the other one under way.
        assert_eq!(pace.most(32, false), usize::MAX);
        assert_eq!(pace.most(33, false), usize::MAX);
        // Together again by chance.
        assert_eq!(pace.most(65, true), usize::MAX);
        // Few, and what is sent beside others, part nobody.
        for _ in 0..=2 * IN_STEP {
            assert_eq!(pace.most(MANY - 1, true), usize::MAX);
            assert_eq!(pace.most(100, false), usize::MAX);
        }
    }
}
