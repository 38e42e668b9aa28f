//! Takes a lock away from a holder that hangs (locks 13).

use std::time::Duration;

use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::inspect::{LockHolder, look, note};
use super::{LockGuard, Mutex};
use crate::client::acquire::{LockAttempt, not_acquired};
use crate::client::lease::Lease;
use crate::client::retry::{Attempt, AttemptTerms, Prospect, Wait, retry};
use crate::error::AcquireError;
use crate::op::{IfHeld, LockMode};
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;
use crate::token::OwnerToken;

/// A lock that [`Mutex::take_over`] has taken from its holder.
#[derive(Debug)]
#[non_exhaustive]
pub struct TakenOver {
    /// The previous holder, as a majority of the nodes last reported it before an attempt. `None`
    /// if no majority reported the holder, for example because its lease had ended already.
    pub from: Option<LockHolder>,
    /// Guard of the lock, with a higher fencing token than the previous holder's.
    ///
    /// If the guard is released or dropped before `closed_for` has passed, its renewals end, and
    /// the nodes keep the lock until the lease ends.
    pub guard: LockGuard,
    /// Longest time, from the return of [`Mutex::take_over`] on, for which the previous holder may
    /// assume that it has the lock. During this time no third owner can have the lock, whatever
    /// happens to the guard and to this process. Afterwards the guard is released like any other.
    pub closed_for: Duration,
}

struct TakeOver<'a> {
    acquire: LockAttempt<'a>,
    from: OwnerToken,
    /// Of all attempts, so a node whose answer was lost does not refuse the next one.
    taker: OwnerToken,
    seen: Option<LockHolder>,
}

impl Attempt for TakeOver<'_> {
    type Granted = Lease;
    type Refused = Loss;

    /// The length only grows, so no attempt shortens what an earlier one has taken.
    async fn make(&mut self, terms: AttemptTerms) -> Result<Lease, Loss> {
        let LockAttempt { core, keys, operation, .. } = self.acquire;
        operation.attempt();
        let seen = look(core, keys).await;
        let left = seen.longest_of(&[self.from, self.taker]);
        self.acquire.ttl = self.acquire.ttl.max(left).min(core.config.max_ttl);
        self.seen = seen.holder().filter(|seen| seen.token == self.from).or(self.seen.take());
        let if_held = Some(IfHeld::TakeFrom(self.from));
        self.acquire.once(AttemptTerms { if_held, ..terms }).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        self.acquire.prospect(loss, deadline)
    }
}

impl Mutex {
    /// Takes the lock away from `holder`, a value that [`inspect`](Self::inspect) returned. It is
    /// meant for an operator who knows that the holder hangs. If a different owner has got the lock
    /// since the inspection, that owner keeps it. Each node transfers the lock in one step, so no
    /// caller that waits for the lock gets it in between. Waits for the lock for at most
    /// `acquire_timeout`, as [`acquire`](Self::acquire) does.
    ///
    /// The lock cannot be taken from a reader, which [`readers`](super::Inspection::readers)
    /// returns: the call then waits for the end of all readers. To end a reader that hangs, end its
    /// process; its grant ends within its ttl.
    ///
    /// The new fencing token is higher, so a resource that checks fencing tokens refuses the old
    /// holder as soon as it has seen the new token. The old holder itself notices its loss at its
    /// next renewal, at the latest when its lease ends. Until then no third owner can have the
    /// lock, whatever happens to the guard, to this future or to this process. The lease of the
    /// takeover is as long as the mutex's ttl or as the rest of the old holder's lease, whichever
    /// is longer, but at most this `Redlock` handle's `max_ttl`. So if the old holder's lease is
    /// longer than that, only a handle with a larger `max_ttl` can take the lock. `reason` is
    /// stored with the lock as its [`note`](LockHolder::note), cut to one kibibyte.
    ///
    /// A node may lose the takeover again, by a failover or a restart without its last write, and
    /// then confirm the old holder once more. Together with a node that the takeover did not reach,
    /// this may be a majority. Then both holders may assume that they have the lock for a part of
    /// that lease, until one of them loses it, and only fencing tokens tell their writes apart.
    ///
    /// # Errors
    /// The errors of [`Mutex::acquire`]. The error is [`AcquireError::TimedOut`] if a different
    /// owner has the lock and keeps it, or if another program's value is under its key. Even then
    /// some nodes may have transferred the lock; they keep it until the lease of the takeover ends.
    ///
    /// # Cancellation safety
    /// If dropped, the old holder may have lost the lock nevertheless. Nodes that have transferred
    /// it keep it until the lease of the takeover ends.
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
        let acquire =
            LockAttempt { taker: Some(taker), ..self.attempt(LockMode::Exclusive, operation) };
        let mut takeover = TakeOver { acquire, from: holder.token, taker, seen: None };
        let won = retry(core, &mut takeover, self.retry_terms(Wait::Watch)).await;
        let won = won.map_err(|given_up| not_acquired(core, self.resource(), given_up))?;
        // Each node of the majority had at most `won.ttl` left when it transferred the lock, and
        // that was before now.
        let over = core.env.now() + won.ttl + core.config.drift.of(won.ttl);
        let guard = self.guard(won.lapsing_before(over));
        guard.lease().set_meta(note(reason).into());
        // If it fails, the next renewal stores the reason.
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
