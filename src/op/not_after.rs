//! Deadline of a batch, in the time of the server that executes it (overview 3).

use std::sync::Arc;

/// A moment by one server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAfter {
    /// Server whose clock it is, as in [`Facts::identity`](super::Facts::identity).
    pub server: Arc<str>,
    /// Value of that clock at the moment, in microseconds since 1970.
    pub micros: u64,
}

impl NotAfter {
    /// Returns a moment that has passed by every clock.
    pub(crate) fn over() -> Self {
        Self { server: Arc::from(""), micros: ALWAYS_PAST }
    }

    /// Returns the moment by the clock of this server. By another server's clock it has passed
    /// already, because the difference between the two clocks is not known.
    pub fn on(&self, server: &str) -> u64 {
        if *self.server == *server { self.micros } else { ALWAYS_PAST }
    }
}

/// A deadline that has passed by every clock. 1, because 0 means no deadline.
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
