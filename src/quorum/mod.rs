//! The quorum core: pure machines that decide by the answers of a majority.
//!
//! Each operation has a machine, and all have one shape:
//!
//! ```text
//!  replies ─▶ on_reply(now, node, reply) ─▶ Progress ─▶ Wait(until) · Send(ops, until)
//!  timers  ─▶ on_time(now)               ─▶ Progress ─▶ Decided(result)
//! ```
//!
//! No clock, no socket, no randomness: time is an argument of every input, so that whole histories
//! run in a test. Invariants upheld here (the rules are in `docs/design/`):
//! 1. A win needs a majority of grants **and** one fencing token on a majority, both before
//!    `send + validity` (locks 2, 3).
//! 2. A token is either a value that a majority granted, or the largest granted, raised on a
//!    majority under the owner check (locks 3).
//! 3. An extension counts from its own send, and only if a majority answered before the old
//!    validity ended (renewal 1). A failed extension releases nothing.
//! 4. "Taken" is answered only when a majority answered; otherwise it is "no quorum" with causes
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

/// Reply of a node, or the reason for which there is none.
pub type Answer = Result<Reply, NodeError>;

/// Next step of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<D> {
    /// Do nothing until the next reply, or until this moment.
    Wait(Moment),
    /// Send these ops to these nodes, then wait until this moment.
    Send(Vec<(usize, Op)>, Moment),
    /// The machine has decided, and needs nothing more.
    Decided(D),
}

/// A machine that decides one operation by the nodes' answers.
///
/// The caller has sent the first requests to the nodes. It calls [`on_time`](Self::on_time) to
/// begin, and again at each moment that the machine named; it passes every reply to
/// [`on_reply`](Self::on_reply), and stops at [`Progress::Decided`].
pub trait Machine {
    /// Result of the machine.
    type Decision;

    /// Takes in a node's answer, or its failure.
    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision>;

    /// Takes in that it is `now`.
    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision>;
}
