//! The quorum core: pure machines that decide what a majority said.
//!
//! Each operation has a machine, and all have one shape:
//!
//! ```text
//!  replies ─▶ on_reply(now, node, reply) ─▶ Progress ─▶ Wait(until) · Send(ops, until)
//!  timers  ─▶ on_time(now)               ─▶ Progress ─▶ Decided(result)
//! ```
//!
//! No clock, no socket, no randomness: time is handed in with every input, so that whole histories
//! run in a test. Invariants upheld here (the rules are in `docs/design/`):
//! 1. A win needs a majority of grants **and** one fencing token on a majority, both
//!    before `send + validity` (locks 2, 3).
//! 2. A token is either a value that a majority granted, or the largest granted, raised on a
//!    majority under the owner check (locks 3).
//! 3. An extension counts from its own send, and only if a majority answered before the old
//!    validity ended (renewal 1). A failed extension releases nothing.
//! 4. "Taken" is answered only when a majority could speak; otherwise it is "no quorum" with causes
//!    (locks 7).

use crate::error::NodeError;
use crate::op::{Op, Reply};
use crate::time::Moment;

pub mod acquire;
pub mod backoff;
pub mod candidates;
pub mod clock;
pub mod complete;
pub mod extend;
pub mod fence;
pub mod holdings;
pub mod leader;
pub mod majority;
pub mod record;
pub mod release;
#[cfg(test)]
mod tables;
pub mod vote;

/// What a node said, or why it said nothing.
pub type Answer = Result<Reply, NodeError>;

/// What a machine does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<D> {
    /// Nothing until the next reply, or until this moment.
    Wait(Moment),
    /// Sends these ops to these nodes, then waits until this moment.
    Send(Vec<(usize, Op)>, Moment),
    /// It is decided, and asks for nothing more.
    Decided(D),
}

/// What decides one question from the nodes' answers.
///
/// The caller has sent the question to the nodes. It calls [`on_time`](Self::on_time) to begin, and
/// whenever the moment that the machine named has come; it hands every reply to
/// [`on_reply`](Self::on_reply), and stops at [`Progress::Decided`].
pub trait Machine {
    /// What is decided.
    type Decision;

    /// A node answered, or failed to.
    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision>;

    /// It is `now`.
    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision>;
}
