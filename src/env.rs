//! Clocks and randomness, as a trait that a simulator can replace, so that a seed determines each
//! run.

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

/// Clocks and randomness that the library uses. Tests and simulators replace them.
///
/// `now` must run in step with `tokio::time`, because the library uses tokio's timers.
pub trait Env: Send + Sync + fmt::Debug + 'static {
    /// Returns the reading of a monotonic clock. The clock must not stop while the machine is
    /// suspended.
    fn now(&self) -> Moment;
    /// Returns the wall clock, in microseconds since 1970. It is the library's proposal for the
    /// next fencing token; the nodes limit such proposals by their own clocks. The library also
    /// compares it with the times of requests and of cron ticks.
    fn wall_micros(&self) -> u64;
    /// Returns 128 unpredictable bits.
    fn random(&self) -> u128;
    /// Spawns a background task of the library. A simulator wraps them, so that it can stop or kill
    /// all tasks of one simulated process.
    #[doc(hidden)]
    fn spawn(&self, runtime: &Handle, task: Task) -> JoinHandle<()> {
        runtime.spawn(task)
    }
}

/// The first half is fixed, the second random (by 16 bits of `random`), so that clients do not
/// retry at the same time.
pub(crate) fn pause(
    random: u128,
    failures: u32,
    (first, longest): (Duration, Duration),
) -> Duration {
    let full = first.saturating_mul(1 << failures.min(30)).min(longest);
    let share = f64::from(random as u16) / f64::from(u16::MAX);
    full / 2 + (full / 2).mul_f64(share)
}

/// The machine's own clocks, and the cryptographic random generator of the thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnv;

/// An environment on tokio's clock, for tests under `tokio::time::pause` or `start_paused`. Leases
/// are renewed, expire and are lost in virtual time, so hours pass in milliseconds.
///
/// With [`SystemEnv`] no guard expires in a paused test: tokio's timers jump, but leases expire by
/// the machine's clock, which hardly advances. Pass the same `TokioEnv` to the handle and to every
/// node in memory. Clones of a `TokioEnv` have the same time:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use palisade::test_util::TokioEnv;
/// use palisade::{MemoryNode, Redlock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // #[tokio::test(start_paused = true)]
/// let env = Arc::new(TokioEnv::new());
/// let node = MemoryNode::builder().env(env.clone()).build();
/// let redlock = Redlock::builder().node(node).env(env).build()?;
/// let guard = redlock.mutex("job").auto_renew(false).build()?.acquire().await?;
/// tokio::time::sleep(Duration::from_secs(3_600)).await;
/// assert!(!guard.is_valid());
/// # Ok(()) }
/// ```
///
/// The wall clock of a `TokioEnv` starts with the machine's time at its creation, and advances with
/// tokio's clock. Do not use a `TokioEnv` with real servers, because they have clocks of their own.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug)]
pub struct TokioEnv {
    start: tokio::time::Instant,
    wall: u64,
}

#[cfg(feature = "test-util")]
impl TokioEnv {
    /// Makes an environment with the present time of tokio's clock as its start. Call this function
    /// within the runtime of that clock.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now(), wall: SystemEnv.wall_micros() }
    }
}

#[cfg(feature = "test-util")]
impl Default for TokioEnv {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "test-util")]
impl Env for TokioEnv {
    fn now(&self) -> Moment {
        // Zero means "never" in some places.
        Moment::from_nanos(1) + self.start.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        let passed = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.wall.saturating_add(passed)
    }

    fn random(&self) -> u128 {
        SystemEnv.random()
    }
}

impl Env for SystemEnv {
    fn now(&self) -> Moment {
        // It must count while a laptop or a VM sleeps, because the node's clock does.
        // `CLOCK_MONOTONIC` does not.
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
