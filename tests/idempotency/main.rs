//! Idempotency keys over nodes in memory and on real servers: one result per key, whatever crashes
//! or loses data.

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
