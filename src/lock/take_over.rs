//! Takes a lock from a holder that does not come back (locks 13).
//!
//! The holder may assume that it has the lock for what is left of its lease. So its lock is taken
//! for at least as long, and nothing that was taken is released before: not by an attempt that was
//! given up, and not by the guard.

use std::time::Duration;

use tracing::Instrument as _;

use super::acquire::{LockAttempt, not_acquired};
use super::acquiring::Acquiring;
use super::inspect::{LockHolder, look, note};
use super::{LockGuard, Mutex};
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::retry::{Attempt, AttemptTerms, Prospect, Wait, retry};
use crate::error::AcquireError;
use crate::op::IfHeld;
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;
use crate::token::OwnerToken;

/// A lock that [`Mutex::take_over`] has taken.
#[derive(Debug)]
#[non_exhaustive]
pub struct TakenOver {
    /// The holder from whom it was taken, as last seen before an attempt. `None` if it was never
    /// seen, for example because its lock was gone by then.
    pub from: Option<LockHolder>,
    /// The lock, under a higher token.
    ///
    /// The guard is not released until `closed_for` has passed: if `release` or its drop ends it
    /// before, it is not renewed any more, and the nodes keep the lock until it lapses.
    pub guard: LockGuard,
    /// Longest time, from now on, for which the previous holder may assume that it has the lock.
    /// Until then no other owner can have the lock, whatever happens to the guard and to this
    /// process. After that the guard is released as any other.
    pub closed_for: Duration,
}

/// The attempts of one call to take a lock from its holder.
struct TakeOver<'a> {
    acquire: LockAttempt<'a>,
    from: OwnerToken,
    /// Owner token of all attempts, so that none is refused because of an earlier one whose answer
    /// was lost.
    taker: OwnerToken,
    /// The holder as last seen.
    seen: Option<LockHolder>,
}

impl Attempt for TakeOver<'_> {
    type Granted = Acquired;
    type Refused = Loss;

    /// Takes the lock for at least as long as any node has it for the holder. The lease length only
    /// grows, so no attempt shortens what an earlier one has taken.
    async fn make(&mut self, terms: AttemptTerms) -> Result<Acquired, Loss> {
        let LockAttempt { core, keys, operation, .. } = self.acquire;
        operation.attempt();
        let seen = look(core, keys).await;
        let left = seen.longest_of(&[self.from, self.taker]);
        self.acquire.ttl = self.acquire.ttl.max(left).min(core.config.max_ttl);
        self.seen = seen.holder().filter(|seen| seen.token == self.from).or(self.seen.take());
        let if_held = Some(IfHeld::TakeFrom(self.from));
        let taker = Some(self.taker);
        core.attempt(AcquireRequest { if_held, taker, ..self.acquire.ask(terms) }).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        self.acquire.prospect(loss, deadline)
    }
}

impl Mutex {
    /// Takes the lock from this holder, as [`inspect`](Self::inspect) returned it: for an operator,
    /// where the holder is known to hang. Takes it only from this holder; a different owner that
    /// got it first keeps it. Each node transfers it in one step, so callers that wait for the lock
    /// go on waiting. Waits as [`acquire`](Self::acquire) does.
    ///
    /// The fence rises at once, so every resource that checks fencing tokens refuses the holder
    /// from now on. The holder itself notices its loss at its next renewal, at the latest when its
    /// lease ends. Until then no other owner can have the lock, whatever happens to the guard, to
    /// this future or to this process. The lease of the takeover is the mutex's ttl, or the rest of
    /// the holder's lease if that is longer, at most `max_ttl`: from a holder with longer leases
    /// the lock can be taken only by a handle with its `max_ttl`. `reason` is stored with the lock
    /// as its [`note`](LockHolder::note), cut to one kibibyte.
    ///
    /// A node that loses the takeover again, by a failover or a restart without its last write, may
    /// confirm the old holder once more; with a node that the takeover did not reach, that may be a
    /// majority. Then both holders may assume that they have the lock for some of that lease, and
    /// one of them keeps it: only fencing tokens tell them apart.
    ///
    /// # Errors
    /// As [`Mutex::acquire`]; [`AcquireError::TimedOut`] if a different owner has the lock by now
    /// and keeps it, or another program's value is under its key. Some nodes may have transferred
    /// the lock all the same; they keep it closed for that lease at most.
    ///
    /// # Cancellation safety
    /// If dropped, the holder may have lost the lock all the same. What was taken is not released;
    /// it lapses, after that lease at most.
    pub async fn take_over(
        &self,
        holder: &LockHolder,
        reason: &str,
    ) -> Result<TakenOver, AcquireError> {
        let operation = operation!("take_over", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let taken = self.take_from(holder, reason, &operation).instrument(operation.span()).await;
        call.over(operation, taken.as_ref().map(|taken| Some(&taken.guard)));
        taken
    }

    async fn take_from(
        &self,
        holder: &LockHolder,
        reason: &str,
        operation: &Call,
    ) -> Result<TakenOver, AcquireError> {
        let _operation = self.begin()?;
        let core = &self.core;
        let taker = OwnerToken::from_random(core.env.random());
        let acquire = self.attempt(operation);
        let mut takeover = TakeOver { acquire, from: holder.token, taker, seen: None };
        let won = retry(core, &mut takeover, self.retry_terms(Wait::Watch)).await;
        let won = won.map_err(|given_up| not_acquired(core, self.resource(), given_up))?;
        // No node had the lock for the holder for longer than `won.ttl`, and all these leases have
        // begun by now.
        let over = core.env.now() + won.ttl + core.config.drift.of(won.ttl);
        let guard = self.guard_of(self.lease(won).lapsing_before(over));
        guard.lease().set_meta(note(reason).into());
        // If this call fails, the next renewal writes the reason.
        drop(guard.extend().await);
        let closed_for = over.since(core.env.now());
        Ok(TakenOver { from: takeover.seen, guard, closed_for })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryNode, Redlock, TryAcquire};

    const TTL: Duration = Duration::from_secs(2);

    fn three() -> Redlock {
        let nodes = (0..3).fold(Redlock::builder(), |b, i| {
            b.node(MemoryNode::builder().name(format!("m{i}")).build())
        });
        nodes.ttl(TTL).build().unwrap()
    }

    #[tokio::test]
    async fn a_takeover_raises_the_fence_and_the_holder_learns_of_it() {
        let redlock = three();
        let mutex = redlock.mutex("job").build().unwrap();
        let old = mutex.acquire().await.unwrap();
        let hangs = mutex.inspect().await.unwrap().holder().unwrap();
        let taken = mutex.take_over(&hangs, "it hangs").await.unwrap();
        assert!(taken.guard.fencing_token() > old.fencing_token());
        assert!(taken.from.unwrap().fence >= old.fencing_token());
        let holder = mutex.inspect().await.unwrap().holder().unwrap();
        assert_eq!(holder.note.as_deref(), Some("it hangs"));
        assert!(old.extend().await.is_err());
        assert!(!old.is_valid());
        // The old holder's release takes nothing from the new one.
        assert!(old.release().await.is_err());
        assert!(taken.guard.is_valid());
        assert!(matches!(mutex.try_acquire().await.unwrap(), TryAcquire::Taken(_)));
        taken.guard.release().await.unwrap();
        let still = mutex.try_acquire().await.unwrap();
        assert!(matches!(still, TryAcquire::Taken(_)), "it opened before it was to");
        let taken = mutex.take_over(&hangs, "it is gone").await.unwrap();
        assert!(taken.from.is_none());
    }

    #[tokio::test]
    async fn a_takeover_leaves_the_lock_to_another_who_came_first() {
        let redlock = three();
        let mutex = redlock.mutex("job");
        let mutex = mutex.acquire_timeout(Duration::from_millis(200)).build().unwrap();
        let old = mutex.acquire().await.unwrap();
        let hangs = mutex.inspect().await.unwrap().holder().unwrap();
        old.release().await.unwrap();
        let well = mutex.acquire().await.unwrap();
        let refused = mutex.take_over(&hangs, "it hangs").await;
        assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
        assert!(well.extend().await.is_ok(), "a healthy holder lost its lock");
    }

    #[tokio::test]
    async fn a_guard_that_is_given_up_keeps_the_name_closed_for_its_lease_and_no_longer() {
        let redlock = three();
        let mutex = redlock.mutex("job").ttl(TTL / 4).auto_renew(false).build().unwrap();
        let _old = redlock.mutex("job").auto_renew(false).build().unwrap().acquire().await.unwrap();
        let hangs = mutex.inspect().await.unwrap().holder().unwrap();
        let taken = mutex.take_over(&hangs, "it hangs").await.unwrap();
        assert!(taken.closed_for >= hangs.remaining / 2, "{:?}", taken.closed_for);
        let (closed, answered_at) = (taken.guard.remaining(), std::time::Instant::now());
        drop(taken);
        let _next = mutex.acquire().await.unwrap();
        assert!(answered_at.elapsed() >= closed, "{:?} of {closed:?}", answered_at.elapsed());
    }
}
