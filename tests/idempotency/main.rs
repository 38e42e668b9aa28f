//! Idempotency keys over memory nodes and real servers: each key has one result, also after crashes
//! and losses of data.

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
mod overtaken;
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
