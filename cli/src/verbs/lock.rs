//! The command `palisade lock`.

use std::future::pending;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use palisade::error::AcquireError;
use palisade::{LockGuard, ReleaseError, TryAcquire};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::kind::{Acquired, Kind, KindArgs};
use super::{CommandArgs, Ground, GroundArgs, is_nothing_there, refused};
use crate::child::{self, Ended};
use crate::codes::{Fail, INTERNAL, NOT_ACQUIRED};
use crate::metrics::MetricsArgs;
use crate::say::Say;
use crate::span::{Span, or_zero};
use crate::warnings;

/// Time for which a call waits, while another process holds the lock, if `--wait` is not given.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Interval between the attempts with which a waiting command checks if a majority of the nodes can
/// still grant.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// Runs a command while no other process holds the lock NAME. With --read, other commands with
/// --read can hold the lock at the same time. With --permits, up to K processes hold a permit of
/// the semaphore NAME at the same time. With --also, no other process holds any of the named locks.
/// The lock is renewed while the command runs, and released when the command ends. If the lock
/// cannot be renewed, the command gets TERM, and then KILL before the lease ends. So no process
/// that the lock excludes can hold the lock while the command still runs. Processes that the
/// command leaves in its process group are killed with it.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    of: KindArgs,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for at most this long [default: until the lock is free]
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = or_zero)]
    wait: Option<Span>,
    /// Exit code if another process holds the lock [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// Hold the lock for at least this long
    #[arg(long, value_name = "SPAN")]
    at_least: Option<Span>,
    #[command(flatten)]
    command: CommandArgs,
}

impl LockArgs {
    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let ground = self.metrics.ground(self.ground).await?;
        let command = self.command.command(&ground)?;
        let wait = self.wait.map(|Span(wait)| wait);
        let wanted = Wanted {
            lock: self.of.lock(&ground, wait)?,
            patient: self.of.lock(&ground, wait.or(Some(FOREVER)))?,
            nonblock: self.nonblock || wait == Some(Duration::ZERO),
            waits_forever: wait.is_none(),
        };
        let (began, say) = (Instant::now(), ground.say);
        let acquired = tokio::select! {
            biased;
            signal = ground.signals.next() => {
                ground.close().await;
                return Ok(128 + signal as u8);
            }
            acquired = wanted.acquire(say) => acquired,
        };
        let Acquired { guard, slot } = match acquired {
            Ok(acquired) => acquired,
            Err(e) => {
                ground.close().await;
                return Err(e.refused(&wanted.lock, self.conflict_exit_code));
            }
        };
        let token = guard.fencing_token();
        let fields = json!({ "name": self.of.name, "also": self.of.also, "slot": slot,
                             "token": token.get(), "waited_ms": began.elapsed().as_millis() });
        let of_slot = slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
        let text = format!("{}{of_slot}, token {token}", wanted.lock.title());
        ground.say.progress("acquired", fields, &text);
        let mut env = environment(&self.of.name, token.get(), guard.remaining());
        env.extend(slot.map(|slot| ("PALISADE_SLOT", slot.to_string())));
        let began = Instant::now();
        let lease = (guard.lost_signal(), pending());
        let ended = child::run(&command, &env, lease, (&ground.signals, ground.say), None).await;
        if let Some(Span(least)) = self.at_least {
            let rest = least.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = guard.lost() => {}
                _ = ground.signals.next() => {}
            }
        }
        let code = give_back(guard, ended, &ground).await;
        ground.close().await;
        code
    }
}

/// Releases the lock and returns the exit code: `LOST` if the lease ended before the release,
/// because the command then ran without the lock.
async fn give_back(
    guard: LockGuard,
    ended: std::io::Result<Ended>,
    ground: &Ground,
) -> Result<u8, Fail> {
    let outcome = guard.release().await;
    let ended = ended.map_err(|e| Fail::new(INTERNAL, format!("cannot run it: {e}")))?;
    let late = matches!(outcome, Err(ReleaseError::Lost(_) | ReleaseError::TakenByOther(_)));
    if let Err(why) = outcome {
        ground.say.warn("release", json!({ "why": why.to_string() }), &why.to_string());
    }
    Ok(if late { Ended::Lost.code() } else { ended.code() })
}

/// Returns the environment variables of a command that runs under a lease.
pub(crate) fn environment(name: &str, token: u64, left: Duration) -> Vec<(&'static str, String)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    vec![
        ("PALISADE_NAME", name.to_owned()),
        ("PALISADE_FENCING_TOKEN", token.to_string()),
        ("PALISADE_DEADLINE_MS", (now + left).as_millis().to_string()),
    ]
}

/// Reason for which a lock was not acquired.
pub(crate) enum NotAcquired {
    Taken,
    Error(AcquireError),
}

impl NotAcquired {
    fn refused(self, lock: &Kind, code: Option<u8>) -> Fail {
        match self {
            Self::Taken => Fail::new(code.unwrap_or(NOT_ACQUIRED), lock.taken()),
            Self::Error(e) => refused(&e, code),
        }
    }
}

/// The lock to acquire, and for how long to wait for it.
struct Wanted {
    lock: Kind,
    /// The same lock, with another waiting time: that of `--wait`, or `FOREVER` without `--wait`.
    patient: Kind,
    nonblock: bool,
    waits_forever: bool,
}

impl Wanted {
    /// Acquires the lock. Without `--wait`, waits without a limit while another process holds the
    /// lock. If the nodes do not answer, waits as long as a failover takes; if no node was ever
    /// reached, does not wait.
    ///
    /// The wait for a holder is one call of the library. A call that ends loses its place in the
    /// queues on the nodes. If a writer ended its call and began a new one again and again, readers
    /// would always be ahead of it.
    async fn acquire(&self, say: Say) -> Result<Acquired, NotAcquired> {
        let waiting = match self.lock.try_once().await {
            Ok(TryAcquire::Acquired(acquired)) => return Ok(acquired),
            Ok(TryAcquire::Taken(_)) if self.nonblock => return Err(NotAcquired::Taken),
            Ok(TryAcquire::Taken(_)) => self.lock.held().await,
            Err(AcquireError::NoQuorum(why)) if !self.nonblock => {
                if self.waits_forever && is_nothing_there(&why) {
                    return Err(NotAcquired::Error(AcquireError::NoQuorum(why)));
                }
                format!("{}: {why}; waiting", self.lock.title())
            }
            Err(e) => return Err(NotAcquired::Error(e)),
        };
        say.warn("waiting", json!({ "name": self.lock.name() }), &waiting);
        warnings::show(say);
        loop {
            let acquired = tokio::select! {
                acquired = self.patient.acquire() => acquired,
                tried = self.try_again(), if self.waits_forever => match tried {
                    Some(acquired) => Ok(acquired),
                    None => self.lock.acquire().await,
                },
            };
            match acquired {
                Ok(acquired) => return Ok(acquired),
                Err(AcquireError::TimedOut { .. }) if self.waits_forever => {}
                Err(e) => return Err(NotAcquired::Error(e)),
            }
        }
    }

    /// Makes single attempts while another call waits for the lock. Returns `None` after two failed
    /// attempts in a row: no majority of the nodes can grant.
    async fn try_again(&self) -> Option<Acquired> {
        let mut failed = 0;
        while failed < 2 {
            sleep(TRY_EVERY).await;
            match self.lock.try_once().await {
                Ok(TryAcquire::Acquired(acquired)) => return Some(acquired),
                Ok(TryAcquire::Taken(_)) => failed = 0,
                Err(_) => failed += 1,
            }
        }
        None
    }
}
