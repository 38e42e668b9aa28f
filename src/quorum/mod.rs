//! The quorum core: pure machines that decide what a majority said.
//!
//! ```text
//!            ┌───────────── one attempt ─────────────┐
//!  replies ─▶│ on_reply(now, node, reply) ─▶ Step     │─▶ Wait · Raise · Won · Lost
//!  timers  ─▶│ on_time(now)               ─▶ Step     │
//!            └────────────────────────────────────────┘
//! ```
//!
//! No clock, no socket, no dice: time is handed in with every input, so that whole histories run in
//! a test. Invariants upheld here (the rules are in `docs/design/`):
//! 1. A win needs a majority of grants **and** one fencing token on a majority, both
//!    before `send + validity` (locks 2, 3).
//! 2. A token is either a value that a majority granted, or the largest granted, raised on a
//!    majority under the owner check (locks 3).
//! 3. An extension counts from its own send, and only if a majority answered before the old
//!    validity ended (renewal 1). A failed extension releases nothing.
//! 4. "Taken" is answered only when a majority could speak; otherwise it is "no quorum" with causes
//!    (locks 7).

pub mod acquire;
pub mod backoff;
pub mod complete;
pub mod extend;
pub mod fence;
pub mod leader;
pub mod majority;
pub mod record;
pub mod release;
#[cfg(test)]
mod tables;
