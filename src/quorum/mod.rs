//! The quorum core: pure state machines. Each machine decides one operation by the answers of a
//! majority of the nodes.
//!
//! Each operation has a machine of its own. All machines have this shape:
//!
//! ```text
//!  replies ─▶ on_reply(now, node, reply) ─▶ Progress ─▶ Wait(until) · Send(ops, until)
//!  timers  ─▶ on_time(now)               ─▶ Progress ─▶ Decided(result)
//! ```
//!
//! The machines use no clock, no socket and no randomness. Every input has a time as an argument,
//! so a test can run whole histories of answers. The machines uphold these invariants (the rules in
//! parentheses are in `docs/design/`):
//! 1. An attempt succeeds only with a majority of grants **and** one fencing token on a majority,
//!    both before `send + validity` (locks 2, 3).
//! 2. The fencing token of an attempt is a value that a majority of the nodes granted. If no value
//!    is on a majority, it is the largest granted value, after a majority has raised its fence to
//!    this value. A node raises its fence only for the owner of the lock (locks 3).
//! 3. The validity of an extension counts from the moment at which the extension was sent. It
//!    counts only if a majority answered before the old validity ended (renewal 1). A failed
//!    extension releases nothing.
//! 4. A failed attempt ends as "taken" only if a majority answered. An attempt to take over the
//!    lock by a ticket of its holder ends as "taken" only if the nodes that did not refuse are no
//!    majority, because "taken" is final for this attempt (hand_over 5). In all other cases the
//!    result is "no quorum", with the answer of each node (locks 7).

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
