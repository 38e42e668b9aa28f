//! The command `palisade lock`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use palisade::error::AcquireError;
use palisade::{Inspection, LockGuard, Mutex, ReleaseError, RwLock, TryAcquire};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::inspect::{line, number};
use super::{CommandArgs, Ground, GroundArgs, is_nothing_there, refused};
use crate::child::{self, Ended};
use crate::codes::{Fail, INTERNAL, NOT_ACQUIRED};
use crate::metrics::MetricsArgs;
use crate::say::Say;
use crate::span::Span;
use crate::warnings;

/// Time for which a call waits for a holder if `--wait` is not given.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Interval of the attempts by which a command that waits learns if a majority can still grant.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// Runs a command while no other process holds the lock NAME, or with --read while no process holds
/// it without --read.
/// The lock is renewed while the command runs and released when it ends. If it cannot be renewed,
/// the command gets TERM, and KILL before the lease ends: no process that it excludes can hold the
/// lock while the command still runs. Processes that the command leaves in its process group are
/// killed with it.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Name of the lock
    name: String,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for at most this long [default: until the lock is free]
    #[arg(short = 'w', long, value_name = "SPAN")]
    wait: Option<Span>,
    /// Hold the lock for reading: other processes with this option may hold it at the same time,
    /// processes without it may not
    #[arg(long)]
    read: bool,
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
        let mutex = ground.mutex(&self.name, wait)?;
        let patient = ground.mutex(&self.name, wait.or(Some(FOREVER)))?;
        let (read, nonblock, waits_forever) = (self.read, self.nonblock, wait.is_none());
        let wanted = Wanted { mutex, patient, read, nonblock, waits_forever };
        let (began, say) = (Instant::now(), ground.say);
        let acquired = tokio::select! {
            biased;
            signal = ground.signals.next() => {
                ground.close().await;
                return Ok(128 + signal as u8);
            }
            acquired = wanted.acquire(say) => acquired,
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(e) => {
                ground.close().await;
                return Err(e.refused(&self.name, self.conflict_exit_code));
            }
        };
        let token = guard.fencing_token();
        let fields = json!({ "name": self.name, "token": token.get(),
                             "waited_ms": began.elapsed().as_millis() });
        ground.say.progress("acquired", fields, &format!("lock {:?}, token {token}", self.name));
        let env = environment(&self.name, token.get(), guard.remaining());
        let began = Instant::now();
        let ended = child::run(&command, &env, &guard, (&ground.signals, ground.say), None).await;
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
    pub(crate) fn refused(self, name: &str, code: Option<u8>) -> Fail {
        match self {
            Self::Taken => {
                let why = format!("lock {name:?} is held by another owner");
                Fail::new(code.unwrap_or(NOT_ACQUIRED), why)
            }
            Self::Error(e) => refused(&e, code),
        }
    }
}

/// The lock to acquire, and for how long to wait for it.
struct Wanted {
    mutex: Mutex,
    /// The same lock, whose calls wait for as long as the command does.
    patient: Mutex,
    read: bool,
    nonblock: bool,
    waits_forever: bool,
}

impl Wanted {
    /// Acquires the lock. Without `--wait`, waits for another holder without a limit, and for nodes
    /// as long as a failover takes. Does not wait if no node was ever reached.
    ///
    /// The wait for a holder is one call, because a call that gives up loses its place in the
    /// nodes' queues: a writer that began again and again would never get past readers.
    async fn acquire(&self, say: Say) -> Result<LockGuard, NotAcquired> {
        let mutex = &self.mutex;
        let waiting = match self.try_once().await {
            Ok(TryAcquire::Acquired(guard)) => return Ok(guard),
            Ok(TryAcquire::Taken(_)) if self.nonblock => return Err(NotAcquired::Taken),
            Ok(TryAcquire::Taken(_)) => held(mutex).await,
            Err(AcquireError::NoQuorum(why)) if !self.nonblock => {
                if self.waits_forever && is_nothing_there(&why) {
                    return Err(NotAcquired::Error(AcquireError::NoQuorum(why)));
                }
                format!("lock {:?}: {why}; waiting", mutex.name())
            }
            Err(e) => return Err(NotAcquired::Error(e)),
        };
        say.warn("waiting", json!({ "name": mutex.name() }), &waiting);
        warnings::show(say);
        loop {
            let acquired = tokio::select! {
                acquired = self.wait_for(&self.patient) => acquired,
                tried = self.try_again(), if self.waits_forever => match tried {
                    Some(guard) => Ok(guard),
                    None => self.wait_for(mutex).await,
                },
            };
            match acquired {
                Ok(guard) => return Ok(guard),
                Err(AcquireError::TimedOut { .. }) if self.waits_forever => {}
                Err(e) => return Err(NotAcquired::Error(e)),
            }
        }
    }

    /// Makes one attempt.
    async fn try_once(&self) -> Result<TryAcquire, AcquireError> {
        if !self.read {
            return self.mutex.try_acquire().await;
        }
        Ok(match RwLock::from(self.mutex.clone()).try_read().await? {
            TryAcquire::Acquired(guard) => TryAcquire::Acquired(guard.into()),
            TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
        })
    }

    /// Makes single attempts beside the call that waits. Returns `None` when two in a row have
    /// failed because no majority of the nodes can grant.
    async fn try_again(&self) -> Option<LockGuard> {
        let mut failed = 0;
        while failed < 2 {
            sleep(TRY_EVERY).await;
            match self.try_once().await {
                Ok(TryAcquire::Acquired(guard)) => return Some(guard),
                Ok(TryAcquire::Taken(_)) => failed = 0,
                Err(_) => failed += 1,
            }
        }
        None
    }

    /// Acquires the lock by one call.
    async fn wait_for(&self, mutex: &Mutex) -> Result<LockGuard, AcquireError> {
        if self.read {
            RwLock::from(mutex.clone()).read().await.map(Into::into)
        } else {
            mutex.acquire().await
        }
    }
}

/// Returns the message that names the holder while this program waits for the lock.
async fn held(mutex: &Mutex) -> String {
    let seen = mutex.inspect().await.ok();
    let readers = seen.as_ref().map_or(0, Inspection::reader_count);
    let by = match seen.and_then(|seen| seen.holder()) {
        Some(holder) => line(&holder),
        None if readers > 0 => number(readers),
        None => "another process".to_owned(),
    };
    format!("lock {:?} is held by {by}; waiting", mutex.name())
}
