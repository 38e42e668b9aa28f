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
//!    both before `send + validity` (rules locks 2, 3 in docs/design).
//! 2. The fencing token of an attempt is a value that a majority of the nodes granted. If no value
//!    is on a majority, it is the largest granted value, after a majority has raised its fence (its
//!    last fencing token) to this value. A node raises its fence only for the owner of the lock
//!    (rule locks 3 in docs/design).
//! 3. The validity of an extension counts from the moment at which the extension was sent. It
//!    counts only if a majority answered before the old validity ended
//!    (rule renewal 1 in docs/design). A failed extension releases nothing.
//! 4. A failed attempt ends as "taken" only if a majority answered. An attempt to take over the
//!    lock by a ticket of its holder ends as "taken" only if the nodes that did not refuse are no
//!    majority, because "taken" is final for this attempt (rule hand_over 5 in docs/design). In all
//!    other cases the result is "no quorum", with the answer of each node
//!    (rule locks 7 in docs/design).

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

/// Returns the size of a majority of `n` nodes: `n / 2 + 1`. It is the smallest number for which
/// any two sets with this number of nodes share a node. The state machines of this module use no
/// other property of a majority.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);

/// A node's reply to one op, or an error if no valid reply arrived.
pub type Answer = Result<Reply, NodeError>;

/// Next step of a state machine. The caller of the machine carries out this step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<D> {
    /// Wait for the next reply, at most until this moment.
    Wait(Moment),
    /// Send each op to the node with this number. Then wait for a reply, at most until this moment.
    Send(Vec<(usize, Op)>, Moment),
    /// The state machine has decided. No further calls of its methods are needed.
    Decided(D),
}

/// A state machine that decides one operation by the nodes' answers.
///
/// The caller first sends the requests to the nodes. Then the caller calls
/// [`on_time`](Self::on_time) to begin, and again at each moment that a step contains. The caller
/// passes every reply to [`on_reply`](Self::on_reply). After [`Progress::Decided`] the caller
/// stops.
pub trait Machine {
    /// Result of the operation that the state machine decides.
    type Decision;

    /// Handles a reply or an error of the node with this number, and returns the next step.
    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Self::Decision>;

    /// Handles the passing of time, and returns the next step. `now` is the present time.
    fn on_time(&mut self, now: Moment) -> Progress<Self::Decision>;
}
