//! Locks that many clients want. A client holds a lock for a short time or over several renewals,
//! and writes with the lock's token. Then the client releases or drops the lock. Some attempts are
//! dropped while they wait.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade::error::{AcquireError, ExtendError};
use palisade::{LockGuard, MutexBuilder};
use rand::RngExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::{TTL, Task};
use crate::event::{Answer, EventKind, Verb, now};
use crate::wire::LedgerRequest;

/// Number of lock names that all clients use often. [`COOL`] is the number of lock names that they
/// use rarely.
pub(super) const HOT: u32 = 3;
pub(super) const COOL: u32 = 24;
/// Maximum time of an attempt, a release or an extension. Each of these needs a few replies of the
/// nodes.
pub(super) const ROUND: Duration = Duration::from_secs(3);

pub(super) async fn work(mut task: Task) -> io::Result<()> {
    loop {
        task.pause(10..120).await;
        let n = if task.chance(60) {
            task.dice.random_range(0..HOT)
        } else {
            HOT + task.dice.random_range(0..COOL)
        };
        let name = Arc::from(format!("lock-{n}"));
        let renew = task.chance(80);
        let ttl = if task.chance(30) { Duration::from_secs(2) } else { TTL };
        let mutex = task.redlock.mutex(&*name).ttl(ttl).auto_renew(renew);
        if let Some(guard) = task.acquire(mutex, &name).await? {
            task.hold(guard, &name, renew).await?;
        }
    }
}

impl Task {
    async fn acquire(
        &mut self,
        mutex: MutexBuilder,
        name: &Arc<str>,
    ) -> io::Result<Option<LockGuard>> {
        let since = now();
        let guard = if self.chance(20) {
            let mutex = mutex.build().expect("settings fit together");
            let call = async move { mutex.try_acquire().await.map(palisade::TryAcquire::acquired) };
            let answer = |r: &Result<Option<LockGuard>, AcquireError>| match r {
                Ok(Some(_)) => Answer::Done,
                Ok(None) => Answer::Taken,
                Err(e) => refusal(e),
            };
            self.verb(Verb::TryAcquire, name, ROUND, call, answer).await?.ok().flatten()
        } else {
            let wait = self.millis(300..3_000);
            // Some calls are dropped before their timeout ends, so that they end in the middle of
            // an attempt.
            let patience = if self.chance(10) { self.millis(1..300) } else { wait + ROUND * 10 };
            let mutex = mutex.acquire_timeout(wait).build().expect("settings fit together");
            let call = async move { timeout(patience, mutex.acquire()).await };
            let answer = |r: &Result<Result<LockGuard, AcquireError>, _>| match r {
                Ok(Ok(_)) => Answer::Done,
                Ok(Err(e)) => refusal(e),
                Err(_) => Answer::Dropped,
            };
            let got = self.verb(Verb::Acquire, name, wait + ROUND, call, answer).await?;
            got.ok().and_then(Result::ok)
        };
        if let Some(guard) = &guard {
            let (at, token) = (now(), guard.fencing_token().get());
            let until = guard.valid_until().as_nanos();
            let name = Arc::clone(name);
            self.ledger.report_at(at, EventKind::Held { name, token, since, until }).await?;
        }
        Ok(guard)
    }

    pub(super) async fn hold(
        &mut self,
        guard: LockGuard,
        name: &Arc<str>,
        renew: bool,
    ) -> io::Result<()> {
        let token = guard.fencing_token().get();
        let length = match self.dice.random_range(0..100) {
            0..70 => self.millis(2..40),
            70..95 => self.millis(200..1_500),
            _ => self.millis(2_000..5_000),
        };
        let begun = Instant::now();
        loop {
            let step = self.millis(20..120).min(length.saturating_sub(begun.elapsed()));
            let lost = tokio::select! {
                biased;
                () = guard.lost() => true,
                () = sleep(step) => false,
            };
            // Read the clock first, then the state of the guard, then its deadline. A renewal in
            // between only makes the deadline later. So if the guard is valid at a time after this
            // deadline, the guard is wrong.
            let at = now();
            let valid = guard.is_valid();
            let until = guard.valid_until().as_nanos();
            if lost || !valid {
                let over = EventKind::Over { name: Arc::clone(name), token, lost: true };
                return self.ledger.report_at(at, over).await;
            }
            let valid = EventKind::Valid { name: Arc::clone(name), token, until };
            self.ledger.report_at(at, valid).await?;
            if self.dice.random_ratio(1, 300) {
                self.stall(300..2_600).await?;
            }
            self.ledger.accepts(LedgerRequest::Write { name: Arc::clone(name), token }).await?;
            if begun.elapsed() >= length {
                break;
            }
            if !renew && self.chance(30) {
                self.extend(&guard, name).await?;
            }
        }
        self.ledger.report(EventKind::Over { name: Arc::clone(name), token, lost: false }).await?;
        if self.chance(20) {
            drop(guard);
            return Ok(());
        }
        let _ = self
            .verb(Verb::Release, name, ROUND, guard.release(), |outcome| match outcome {
                Ok(()) => Answer::Done,
                Err(palisade::ReleaseError::Unconfirmed(_)) => Answer::Refused,
                Err(_) => Answer::Lost,
            })
            .await?;
        Ok(())
    }

    async fn extend(&mut self, guard: &LockGuard, name: &Arc<str>) -> io::Result<()> {
        let answer = |r: &Result<_, ExtendError>| match r {
            Ok(_) => Answer::Done,
            Err(ExtendError::Lost(_)) => Answer::Lost,
            Err(_) => Answer::Refused,
        };
        let _ = self.verb(Verb::Extend, name, ROUND, guard.extend(), answer).await?;
        Ok(())
    }
}

pub(super) fn refusal(error: &AcquireError) -> Answer {
    match error {
        AcquireError::TimedOut { .. } => Answer::Taken,
        AcquireError::NoQuorum(_) => Answer::Refused,
        other => panic!("{other}"),
    }
}
