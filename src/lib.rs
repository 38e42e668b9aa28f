//! [changing]: crate::manual::changing_settings
//! [command]: crate::manual::command
//! [compared]: crate::manual::compared
//! [console]: crate::manual::console
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
//! [services]: crate::manual::services
//! [tested]: crate::manual::how_this_is_tested
//! [testing]: crate::manual::testing
//! [troubleshooting]: crate::manual::troubleshooting
//! [apache]: https://github.com/palisade-rs/palisade/blob/main/LICENSE-APACHE
//! [architecture]: https://github.com/palisade-rs/palisade/blob/main/ARCHITECTURE.md
//! [changelog]: https://github.com/palisade-rs/palisade/blob/main/CHANGELOG.md
//! [contributing]: https://github.com/palisade-rs/palisade/blob/main/CONTRIBUTING.md
//! [mit]: https://github.com/palisade-rs/palisade/blob/main/LICENSE-MIT
//! [nemesis]: https://github.com/palisade-rs/palisade/blob/main/docs/nemesis.svg?raw=true
//! [overview]: https://github.com/palisade-rs/palisade/blob/main/docs/console/overview.png?raw=true
//! [proofs]: https://github.com/palisade-rs/palisade/blob/main/docs/proofs.md
//! [rules]: https://github.com/palisade-rs/palisade/blob/main/docs/design/overview.md
//! [security]: https://github.com/palisade-rs/palisade/blob/main/SECURITY.md
//! [sentinel-conf]: https://github.com/palisade-rs/palisade/blob/main/sentinel-conf/README.md
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

// Modules of plain values: they do no IO and read no clock.
mod config;
mod durability;
pub mod error;
mod name;
mod op;
mod retry_policy;
mod safe_text;
mod store;
mod sync;
mod time;
mod token;
// The quorum core: state machines without IO and without clocks.
#[expect(
    unreachable_pub,
    reason = "what a machine offers to its client side, apart from its own parts"
)]
#[cfg_attr(
    feature = "test-util",
    expect(missing_docs, reason = "shown to the model checker (`internal::model`) alone")
)]
mod quorum;
// The rules of a node: what an op makes of its data. Pure functions.
mod rules;
// The trait `Env` for clocks and randomness. The builders of nodes and handles take an
// implementation of it.
mod env;
// Metrics, and the `tracing` spans of calls.
mod metrics;
mod span;
// Shared tools of the fuzz tests of the parsers.
#[cfg(test)]
mod fuzzing;
// TLS, and the causes of failed handshakes.
mod tls;

mod dial;
// Finds the master of a Sentinel group.
mod sentinel;
// Nodes. Each node has one vote.
pub mod node;
// The client side sends requests and keeps leases. It joins the quorum core, the nodes and tokio.
mod client;
mod redlock;
// Locks.
mod lock;
// The health of a handle, and handles made from the settings of a deployment.
mod health;
mod settings;
// Idempotency keys: one result for each key.
pub mod idempotency;
// Elections: one leader for each name.
pub mod election;
// Interface for the other packages of this workspace.
#[doc(hidden)]
pub mod internal;
// For tests: a clock that tests control, and copies of a node's data.
#[cfg(feature = "test-util")]
pub mod test_util;
// The manual, with the facts that the code does not show.
pub mod manual;

// The handle `Redlock`: its settings, its health, and its closing.
pub use config::Config;
pub use health::{Ability, Health, NodeHealth, Waiting};
pub use redlock::{CloseReport, Redlock, RedlockBuilder};
pub use settings::Settings;
pub use time::{Drift, Moment};

// Nodes. Each node has one vote. See also module `node`.
pub use node::{MemoryNode, RedisNode, SentinelNode};

// Locks.
pub use client::failover::Failover;
pub use durability::{Achieved, Durability};
pub use lock::{
    DegradableGuard, DegradingMutex, HandOver, Inspection, LockGuard, LockHolder, LostSignal,
    MultiGuard, MultiMutex, MultiMutexBuilder, Mutex, MutexBuilder, NodePermits, NodeView,
    OnUnavailable, Owner, Permit, PermitHolder, Permits, ReadGuard, ReentrantGuard, ReentrantMutex,
    RwLock, Semaphore, SemaphoreBuilder, SemaphoreInspection, TakenOver, TryAcquire, WorkError,
    WriteGuard,
};
pub use op::Queued;
pub use retry_policy::RetryPolicy;
pub use token::FencingToken;

// Elections. See also module `election`.
pub use election::{Election, ElectionBuilder, Leadership};

// Idempotency keys. See also module `idempotency`.
pub use idempotency::{
    Failed, Forgotten, Idempotency, IdempotencyBuilder, Lapsed, Outcome, Parked, Probed, RunError,
};

// The errors that most callers handle. The other errors are in module `error`.
pub use error::{AcquireError, Advice, ConfigError, ReleaseError, Taken};
