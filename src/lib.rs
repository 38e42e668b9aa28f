#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

// values: no IO, no clock
#[cfg(feature = "sim-bugs")]
#[doc(hidden)]
pub mod bugs;
pub mod config;
pub mod durability;
pub mod error;
pub mod name;
pub mod op;
pub mod receipt;
mod shown;
pub mod time;
pub mod token;
// the quorum core: pure machines
pub mod quorum;
// clocks and dice, handed in
pub mod env;
// what the fuzz tests of parsers share
#[cfg(test)]
mod fuzzing;
// what a refused handshake means
mod tls;

mod dial;
// who is the master of a Sentinel group
pub mod sentinel;
// nodes: one vote each
pub mod node;
// joins core, nodes and tokio
mod driver;
mod redlock;
// kinds of lock
pub mod lock;
// a result per key, once
pub mod idempotency;
// messages of a Redis stream, each once
#[cfg(feature = "streams")]
pub mod streams;
// one leader of a name
pub mod election;
// for whoever operates the nodes; public names only
#[cfg(feature = "doctor")]
pub mod ops;
// what code alone does not tell
pub mod manual;

pub use config::Config;
pub use durability::{Achieved, Durability};
pub use election::{Election, Leadership};
pub use error::{AcquireError, Advice, ConfigError, ReleaseOutcome, Taken};
pub use idempotency::{Failed, Forgotten, Idempotency, Lapsed, Outcome, Parked, Probed, RunError};
pub use lock::{LockGuard, Mutex, TryAcquire};
pub use node::{LockNode, MemoryNode, RedisNode, SentinelNode};
pub use quorum::backoff::RetryPolicy;
pub use receipt::{Fate, Receipt};
pub use redlock::{Closed, Redlock, RedlockBuilder};
pub use token::{FencingToken, OwnerToken};
