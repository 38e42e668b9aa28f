#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

// values: no IO, no clock
#[cfg(feature = "sim-bugs")]
#[doc(hidden)]
pub mod bugs;
mod config;
mod durability;
pub mod error;
mod name;
mod op;
mod receipt;
mod shown;
mod time;
mod token;
// the quorum core: pure machines
#[expect(unreachable_pub, reason = "what a machine offers to its driver, apart from its own parts")]
mod quorum;
// clocks and dice, handed in
mod env;
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
// joins core, nodes and tokio
mod driver;
mod redlock;
// kinds of lock
mod lock;
// a result per key, once
pub mod idempotency;
// one leader of a name
pub mod election;
// for operators of the nodes; public names only
#[cfg(feature = "doctor")]
pub mod ops;
// for tests of programs and of nodes
#[cfg(feature = "test-util")]
pub mod test_util;
// what code alone does not say
pub mod manual;

// The handle, and how it is ended.
pub use config::Config;
pub use redlock::{Closed, Redlock, RedlockBuilder};
pub use time::{Drift, Moment};

// Nodes: one vote each. More in `node`.
pub use node::{MemoryNode, RedisNode, SentinelNode};

// Locks.
pub use durability::{Achieved, Durability};
pub use lock::{LockGuard, LostSignal, Mutex, MutexBuilder, TryAcquire, WorkError};
pub use quorum::backoff::RetryPolicy;
pub use receipt::{Fate, Receipt};
pub use token::FencingToken;

// Elections. More in `election`.
pub use election::{Election, ElectionBuilder, Leadership};

// Idempotency keys. More in `idempotency`.
pub use idempotency::{
    Failed, Forgotten, Idempotency, IdempotencyBuilder, Lapsed, Outcome, Parked, Probed, RunError,
};

// What goes wrong. More in `error`.
pub use error::{AcquireError, Advice, ConfigError, ReleaseError, Taken};
