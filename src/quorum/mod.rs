//! The quorum core: pure state machines, one for each operation. Every input has a time as an
//! argument, and no machine uses a clock, a socket or randomness.
//!
//! ```text
//!  replies ─▶ on_reply(now, node, reply) ─▶ Progress ─▶ Wait(until) · Send(ops, until)
//!  timers  ─▶ on_time(now)               ─▶ Progress ─▶ Decided(result)
//! ```
//!
//! Invariants:
//! 1. An attempt succeeds only with a majority of grants **and** one fencing token on a majority,
//!    both before `send + validity` (locks 2, 3).
//! 2. That token is a value that a majority granted or, after a majority has raised its fence to
//!    it, the largest granted value. A node raises its fence only for the owner of the lock.
//! 3. The validity of an extension counts from its sending, and only if a majority answered before
//!    the old validity ended (renewal 1). A failed extension releases nothing.
//! 4. A failed attempt is "taken" only if a majority answered, and one by a ticket only if the
//!    nodes that did not refuse are no majority (hand_over 5). Else it is "no quorum" (locks 7).

use crate::error::NodeError;
use crate::op::{Op, Reply};
use crate::time::Moment;

pub mod acquire;
pub mod answers;
pub mod candidates;
pub mod claim;
pub mod clock;
pub mod complete;
pub mod extend;
pub mod grant;
pub mod leader;
pub mod release;
pub mod slots;
#[cfg(test)]
mod tables;
pub mod vote;

/// `n / 2 + 1`: any two sets of that size share a node. The machines use no other property of a
/// majority.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);

pub type Answer = Result<Reply, NodeError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<D> {
    Wait(Moment),
    Send(Vec<(usize, Op)>, Moment),
    Decided(D),
}

/// The caller first sends the requests, then calls [`on_time`](Self::on_time) to begin, and again
/// at each moment that a step contains; it passes every reply to [`on_reply`](Self::on_reply).
/// After [`Progress::Decided`] it stops.
pub trait Machine {
    type Decision;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision>;

    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision>;
}
