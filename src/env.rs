//! What the outside world hands in: the clocks and the dice.
//!
//! The protocol never reads a clock or a random source itself; it asks an [`Env`]. A program uses
//! [`SystemEnv`]; a simulator hands in its own and so decides every history by a seed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt as _;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::time::Moment;

/// A background task of the library.
#[doc(hidden)]
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Clocks and randomness, as the library sees them.
///
/// `now` must run in step with `tokio::time`: timers are tokio's.
pub trait Env: Send + Sync + fmt::Debug + 'static {
    /// The monotonic clock that goes on during suspend.
    fn now(&self) -> Moment;
    /// The wall clock, microseconds since 1970. Only ever proposed to nodes, which clamp it.
    fn wall_micros(&self) -> u64;
    /// 128 unpredictable bits.
    fn random(&self) -> u128;
    /// Runs a background task of the library (a lane, the keeper, the listeners). A simulator wraps
    /// it, so that it can stop or kill all that one process does.
    #[doc(hidden)]
    fn spawn(&self, runtime: &Handle, task: Task) -> JoinHandle<()> {
        runtime.spawn(task)
    }
}

/// The machine's own clocks and the thread's cryptographic generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    fn now(&self) -> Moment {
        // CLOCK_MONOTONIC stands still while a laptop or a VM sleeps; a lease on a node does not.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let t = clock_gettime(CLOCK);
        Moment::from_nanos(t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs())
    }

    fn wall_micros(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_micros()).unwrap_or(0)
    }

    fn random(&self) -> u128 {
        rand::rng().random()
    }
}
