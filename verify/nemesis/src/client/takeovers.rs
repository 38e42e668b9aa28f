//! Takeovers: an operator takes locks from holders that work or hang. Then the operator holds the
//! lock, gives it up at once, or releases it as `palisade force-release` does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade::{AcquireError, ReleaseError, TakenOver};
use rand::RngExt as _;
use tokio::time::{sleep, timeout};

use super::locks::{COOL, HOT, ROUND, refusal};
use super::{TTL, Task};
use crate::event::{Answer, EventKind, Verb, now};

/// Repeatedly takes over locks.
pub(super) async fn work(mut task: Task) -> io::Result<()> {
    loop {
        task.pause(200..900).await;
        let n = if task.chance(70) { 0..HOT } else { HOT..HOT + COOL };
        let name = Arc::from(format!("lock-{}", task.dice.random_range(n)));
        let forced = task.chance(50);
        let wait = task.millis(300..2_000);
        // A forced takeover does not renew its lease. So its own lease may end before the lease of
        // the old holder.
        let ttl = if forced { TTL / 2 } else { TTL };
        let mutex = task.redlock.mutex(&*name).ttl(ttl).auto_renew(!forced).acquire_timeout(wait);
        let mutex = mutex.build().expect("settings fit together");
        let Some(holder) = mutex.inspect().await.ok().and_then(|seen| seen.holder()) else {
            continue;
        };
        let since = now();
        // Some calls are dropped before their own timeout ends, so in the middle of the takeover.
        let patience = if task.chance(20) { task.millis(1..60) } else { wait + ROUND * 10 };
        let call = async { timeout(patience, mutex.take_over(&holder, "nemesis")).await };
        let answer = |r: &Result<Result<TakenOver, AcquireError>, _>| match r {
            Ok(Ok(_)) => Answer::Done,
            Ok(Err(e)) => refusal(e),
            Err(_) => Answer::Dropped,
        };
        let won = task.verb(Verb::TakeOver, &name, wait + ROUND, call, answer).await?;
        let Some(won) = won.ok().and_then(Result::ok) else { continue };
        let (at, token) = (now(), won.guard.fencing_token().get());
        let until = won.guard.valid_until().as_nanos();
        let held = EventKind::Held { name: Arc::clone(&name), token, since, until };
        task.ledger.report_at(at, held).await?;
        let closed = at + won.closed_for.as_nanos() as u64;
        // If the reply names no old holder, the old holder's token is assumed to be the next
        // smaller one.
        let fence = won.from.as_ref().map_or(token - 1, |from| from.fence.get());
        let took = EventKind::Took { name: Arc::clone(&name), token, fence, closed };
        task.ledger.report_at(at, took).await?;
        if forced {
            task.open(won, &name).await?;
        } else {
            task.hold(won.guard, &name, true).await?;
        }
    }
}

impl Task {
    /// Waits until the old holder's lease has ended, and then releases the lock, as `palisade
    /// force-release` does.
    async fn open(&mut self, won: TakenOver, name: &Arc<str>) -> io::Result<()> {
        let token = won.guard.fencing_token().get();
        self.ledger.report(EventKind::Over { name: Arc::clone(name), token, lost: false }).await?;
        let (guard, closed_for): (_, Duration) = (won.guard, won.closed_for);
        let call = async move {
            sleep(closed_for).await;
            guard.release().await
        };
        // Any error except `Unconfirmed` means that the lease of the operator, who took the lock
        // over, has ended, too. So nothing is left to release.
        let answer = |outcome: &Result<(), ReleaseError>| match outcome {
            Err(ReleaseError::Unconfirmed(_)) => Answer::Refused,
            _ => Answer::Done,
        };
        let _ = self.verb(Verb::ForceRelease, name, closed_for + ROUND, call, answer).await?;
        Ok(())
    }
}
