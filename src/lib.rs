//! [changing]: crate::manual::changing_settings
//! [command]: crate::manual::command
//! [compared]: crate::manual::compared
//! [consumer]: crate::manual::message_consumer
//! [cron]: crate::manual::singleton_cron
//! [deployment]: crate::manual::deployment
//! [durability]: crate::manual::durability
//! [endpoint]: crate::manual::order_endpoint
//! [failovers]: crate::manual::what_a_failover_can_do_to_you
//! [glossary]: crate::manual::glossary
//! [locks]: crate::manual::locks
//! [metrics]: crate::manual::metrics
//! [ordinary]: crate::manual::ordinary_deployments
//! [loss]: crate::manual::after_a_loss
//! [packages]: crate::manual::packages
//! [promises]: crate::manual::promises
//! [tested]: crate::manual::how_this_is_tested
//! [testing]: crate::manual::testing
//! [troubleshooting]: crate::manual::troubleshooting
#![doc = concat!("[apache]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/LICENSE-APACHE")]
#![doc = concat!("[architecture]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/ARCHITECTURE.md")]
#![doc = concat!("[changelog]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/CHANGELOG.md")]
#![doc = concat!("[contributing]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/CONTRIBUTING.md")]
#![doc = concat!("[mit]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/LICENSE-MIT")]
#![doc = concat!(
    "[nemesis]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/nemesis.svg?raw=true"
)]
#![doc = concat!("[proofs]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/proofs.md")]
#![doc = concat!("[rules]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/overview.md")]
#![doc = concat!("[security]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/SECURITY.md")]
#![doc = concat!(
    "[sentinel-conf]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/sentinel-conf/README.md"
)]
#![doc = include_str!("../README.md")]
#![warn(
    clippy::allow_attributes,
    clippy::dbg_macro,
    clippy::iter_over_hash_type,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::todo,
    clippy::unimplemented,
    clippy::unwrap_used
)]

// values: no IO, no clock
mod config;
mod durability;
pub mod error;
mod name;
mod op;
mod shown;
mod time;
mod token;
// the quorum core: pure machines
#[expect(
    unreachable_pub,
    reason = "what a machine offers to its client side, apart from its own parts"
)]
mod quorum;
// clocks and randomness, passed in
mod env;
// what is counted, and what a call looks like to `tracing`
mod metrics;
mod span;
// what the fuzz tests of parsers share
#[cfg(test)]
mod fuzzing;
// what a refused handshake means
mod tls;

mod dial;
// who is the master of a Sentinel group
mod sentinel;
// nodes: one vote each
pub mod node;
// one request, one lease: joins the machines, the nodes and tokio
mod client;
mod redlock;
// kinds of lock
mod lock;
// a handle from what a deployment says, and whether it can work now
mod health;
mod settings;
// a result per key, once
pub mod idempotency;
// one leader of a name
pub mod election;
// each tick once
#[cfg(feature = "cron")]
pub mod cron;
// for the packages beside this one
#[doc(hidden)]
pub mod internal;
// for tests: a clock that a test moves, and copies of a node's data
#[cfg(feature = "test-util")]
pub mod test_util;
// what code alone does not say
pub mod manual;

// The handle, and how it is ended.
pub use config::Config;
pub use health::{Ability, Health, NodeHealth, Waiting};
pub use redlock::{CloseReport, Redlock, RedlockBuilder};
pub use settings::Settings;
pub use time::{Drift, Moment};

// Nodes: one vote each. More in `node`.
pub use node::{MemoryNode, RedisNode, SentinelNode};

// Locks.
pub use client::failover::Failover;
pub use durability::{Achieved, Durability};
pub use lock::{
    DegradableGuard, DegradingMutex, Inspection, LockGuard, LockHolder, LostSignal, Mutex,
    MutexBuilder, NodeView, OnUnavailable, Owner, ReentrantGuard, ReentrantMutex, TakenOver,
    TryAcquire, WorkError,
};
pub use quorum::backoff::RetryPolicy;
pub use token::FencingToken;

// Elections. More in `election`.
pub use election::{Election, ElectionBuilder, Leadership};

// Ticks. More in `cron`.
#[cfg(feature = "cron")]
pub use cron::Cron;

// Idempotency keys. More in `idempotency`.
pub use idempotency::{
    Failed, Forgotten, Idempotency, IdempotencyBuilder, Lapsed, Outcome, Parked, Probed, RunError,
};

// What goes wrong. More in `error`.
pub use error::{AcquireError, Advice, ConfigError, ReleaseError, Taken};
