//! Deadline of a batch, by the clock of the server that executes it (overview 3).

use std::sync::Arc;

/// A deadline, as a reading of one server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAfter {
    /// Identity of the server by whose clock the deadline is measured, as in
    /// [`Facts::identity`](super::Facts::identity).
    pub server: Arc<str>,
    /// Reading of the clock of `server` at the deadline, in microseconds since 1970.
    pub micros: u64,
}

impl NotAfter {
    pub(crate) fn over() -> Self {
        Self { server: Arc::from(""), micros: ALWAYS_PAST }
    }

    /// Returns the deadline by the clock of `server`. If it was made for the clock of another
    /// server, it counts as passed, because the difference between the two clocks is not known.
    pub fn on(&self, server: &str) -> u64 {
        if *self.server == *server { self.micros } else { ALWAYS_PAST }
    }
}

/// 1, because 0 means that there is no deadline.
const ALWAYS_PAST: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_over_by_the_clock_of_another_server() {
        let deadline = NotAfter { server: "a".into(), micros: 7 };
        assert_eq!((deadline.on("a"), deadline.on("b")), (7, ALWAYS_PAST));
        assert_eq!(NotAfter::over().on("a"), ALWAYS_PAST);
    }
}
