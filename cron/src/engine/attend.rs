//! One run of a job. This module calls the handler of the job, and waits until the handler ends, is
//! cancelled, or may not continue because a lease was lost.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use palisade::idempotency::{Effect, Failed};
use palisade::{LockGuard, Moment};

use super::Engine;
use crate::WATCH;
use crate::job::Overlap;
use crate::missed::millis;
use crate::tick::{Cancelled, End, Tick};

impl<F, Fut, E> Engine<'_, F>
where
    F: Fn(Tick) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<Failed>,
{
    /// A run that is to be cancelled is first notified, and may continue for the `grace` of the
    /// job.
    pub(super) async fn attend(
        &self,
        tick: Tick,
        guard: Option<&LockGuard>,
    ) -> Result<End, Failed> {
        let (cx, cancel) = (tick.cx.clone(), tick.cancel.clone());
        // A requested run is no tick of the schedule.
        let at = if tick.requested { self.cron.now() } else { tick.at };
        let run = (self.handler)(tick);
        let lost = async {
            match guard {
                Some(guard) => guard.lost().await,
                None => std::future::pending().await,
            }
        };
        let stopped = async {
            let why = self.to_be_cancelled(at).await;
            cancel.send_replace(Some(why));
            self.passed(Some(self.job.grace)).await;
            why
        };
        let ended = tokio::select! {
            biased;
            () = cx.lost() => return Err(Failed::unknown("the claim of the tick was lost")),
            () = lost => return Err(Failed::unknown("the lock of the job was lost")),
            // `stopped` is polled before `run`: without a `grace`, a run that ends at that moment
            // is cancelled.
            why = stopped => return Ok(End::Cancelled(why)),
            ended = run => ended.map_err(Into::into),
        };
        let why = *cancel.borrow();
        match (ended, why) {
            (Ok(()), _) => Ok(End::Done),
            (Err(_), Some(why)) => Ok(End::Cancelled(why)),
            (Err(failed), None) => match failed.effect() {
                Effect::None | Effect::Repeatable => Err(failed),
                _ => Ok(End::Failed(failed.to_string())),
            },
        }
    }

    async fn to_be_cancelled(&self, tick: i64) -> Cancelled {
        let next = self.schedule.after(tick).map(millis);
        let next = next.filter(|_| self.job.overlap == Overlap::CancelPrevious);
        let next = next.map(|at| Duration::from_millis(at.saturating_sub(self.now())));
        tokio::select! {
            biased;
            () = self.passed(next) => Cancelled::NextTick,
            () = self.passed(self.job.at_most) => Cancelled::TooLong,
        }
    }

    /// Until `at_least` of the job has passed since the beginning of the run.
    pub(super) async fn hold(&self, began: &OnceLock<Moment>, guard: &LockGuard) {
        let ran = began.get().map_or(Duration::MAX, |began| self.moment().since(*began));
        tokio::select! {
            biased;
            () = self.passed(Some(self.job.at_least.saturating_sub(ran))) => {}
            () = guard.lost() => {}
        }
    }

    /// Never resolves for `None`. The monotonic clock also counts while the computer is suspended,
    /// and is never set.
    async fn passed(&self, span: Option<Duration>) {
        let Some(span) = span else { return std::future::pending().await };
        let began = self.moment();
        loop {
            let rest = span.saturating_sub(self.moment().since(began));
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest.min(WATCH).max(Duration::from_millis(1))).await;
        }
    }
}
