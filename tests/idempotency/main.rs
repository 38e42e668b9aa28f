//! Idempotency keys as a user sees them: one result per key, whatever crashes or forgets.

mod batch;
mod births;
mod claims;
mod crashes;
mod decisions;
mod failover;
mod first_day;
mod forgotten;
mod histories;
mod large;
mod policy;
mod probe;
mod promises;
mod promotion;
mod recovery;
mod runs;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod waits;
