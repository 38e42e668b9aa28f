//! Several permits of a semaphore, which are acquired together (semaphore 10).

use std::time::Duration;

use futures_util::future::{join_all, select_all, try_join_all};
use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::{LockGuard, Permit, Semaphore, TryAcquire};
use crate::client::acquire::{LockAttempt, not_acquired};
use crate::client::retry::{Attempt, AttemptTerms, Prospect, Wait, retry};
use crate::error::{AcquireError, ConfigError, ExtendError, ReleaseError, Taken};
use crate::quorum::acquire::Loss;
use crate::quorum::majority;
use crate::span::{Call, operation};
use crate::time::Moment;
use crate::token::FencingToken;

struct PermitsAttempt<'a> {
    semaphore: &'a Semaphore,
    n: u16,
    each: LockAttempt<'a>,
}

fn taken(retry_after: Duration) -> Loss {
    Loss::Taken(Taken { retry_after: Some(retry_after), foreign: false, queued: None })
}

impl Attempt for PermitsAttempt<'_> {
    type Granted = Vec<Permit>;
    type Refused = Loss;

    /// As soon as one is refused, the others are dropped, and what they got is released.
    async fn make(&mut self, terms: AttemptTerms) -> Result<Vec<Permit>, Loss> {
        let LockAttempt { core, operation, .. } = self.each;
        operation.attempt();
        let (semaphore, each) = (self.semaphore, &self.each);
        // A failed attempt makes the nodes write the key twice for each permit, and wakes all
        // callers that wait.
        if let Some(left) = semaphore.look(majority(core.n())).await.lacks(self.n) {
            return Err(taken(left));
        }
        let permit = || async move {
            let won = each.once(terms).await?;
            Ok(Permit::of(semaphore.base.guard(won)))
        };
        // They begin together, so where the last permit is won in time, the first ones have not
        // ended.
        try_join_all((0..self.n).map(|_| permit())).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        self.each.prospect(loss, deadline)
    }
}

impl Semaphore {
    /// Acquires `n` permits, or none: makes attempts until one attempt gets all `n` permits or the
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) has passed. Between two
    /// attempts the call keeps no permit, so callers that want several permits never wait for each
    /// other in a ring. It makes growing, random pauses between the attempts. An attempt first
    /// reads the number of free permits, which is a second round trip. The call has no place in the
    /// queues of the nodes. So if other callers take each permit as soon as it is free, the call
    /// may wait until its timeout.
    ///
    /// # Errors
    /// [`AcquireError::Config`] unless `n` is at least 1 and at most the number of permits. The
    /// other errors are those of [`Mutex::acquire`](super::Mutex::acquire).
    ///
    /// # Cancellation safety
    /// If dropped at any await, no permit is held: grants of nodes are released in the background,
    /// and end with the ttl at the latest.
    pub async fn acquire_many(&self, n: u16) -> Result<Permits, AcquireError> {
        let base = &self.base;
        self.check_number(n)?;
        let operation = operation!("acquire", of = %base.resource());
        let call = Acquiring::begin(&base.core, &base.name);
        let acquired = self.wait_for(n, &operation).instrument(operation.span()).await;
        call.over(operation, acquired.as_ref().map(Permits::first));
        acquired
    }

    /// Makes one attempt to acquire `n` permits, or none, and does not wait. A permit that was just
    /// released and is reserved for a waiting `Redlock` handle counts as taken, too. If several
    /// calls are made at the same time, each may find permits taken that another call releases
    /// soon. An attempt first reads the number of free permits, which is a second round trip.
    ///
    /// # Errors
    /// [`AcquireError::Config`] unless `n` is at least 1 and at most the number of permits. The
    /// other errors are those of [`Mutex::try_acquire`](super::Mutex::try_acquire).
    ///
    /// # Cancellation safety
    /// If dropped at any await, there is no guard, as with [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_many(&self, n: u16) -> Result<TryAcquire<Permits>, AcquireError> {
        let base = &self.base;
        self.check_number(n)?;
        let operation = operation!("try_acquire", of = %base.resource());
        let call = Acquiring::begin(&base.core, &base.name);
        let tried = self.try_for(n, &operation).instrument(operation.span()).await;
        call.over(
            operation,
            tried.as_ref().map(|tried| match tried {
                TryAcquire::Acquired(permits) => permits.first(),
                TryAcquire::Taken(_) => None,
            }),
        );
        tried
    }

    fn check_number(&self, n: u16) -> Result<(), AcquireError> {
        if (1..=self.permits()).contains(&n) {
            return Ok(());
        }
        let rule = format!("between 1 and {}, the number of permits", self.permits());
        let error = ConfigError::new("n", n.to_string(), rule);
        Err(AcquireError::Config(error.of(self.base.resource())))
    }

    async fn try_for(&self, n: u16, operation: &Call) -> Result<TryAcquire<Permits>, AcquireError> {
        let _operation = self.base.begin()?;
        let won = self.many(n, operation).make(AttemptTerms::SINGLE).await;
        self.base.tried(won.map(Permits::of))
    }

    fn many<'a>(&'a self, n: u16, operation: &'a Call) -> PermitsAttempt<'a> {
        PermitsAttempt { semaphore: self, n, each: self.base.attempt(self.mode(), operation) }
    }

    async fn wait_for(&self, n: u16, operation: &Call) -> Result<Permits, AcquireError> {
        let base = &self.base;
        let _operation = base.begin()?;
        let mut attempt = self.many(n, operation);
        let won = retry(&base.core, &mut attempt, base.retry_terms(Wait::Pauses)).await;
        won.map(Permits::of).map_err(|given_up| not_acquired(&base.core, base.resource(), given_up))
    }
}

/// Several permits of a semaphore that are held together. Each permit is a lease with its own
/// fencing token. The guard is lost as soon as one permit is lost; the other permits are held and
/// renewed until the guard is released. Dropping it releases all permits in the background. Made by
/// [`Semaphore::acquire_many`].
#[derive(Debug)]
#[must_use = "dropped permits are released at once"]
pub struct Permits {
    /// In the order of their slots; at least one.
    permits: Vec<Permit>,
    slots: Box<[(u16, FencingToken)]>,
}

impl Permits {
    fn of(mut permits: Vec<Permit>) -> Self {
        permits.sort_unstable_by_key(Permit::slot);
        let slots = permits.iter().map(|permit| (permit.slot(), permit.fencing_token())).collect();
        Self { permits, slots }
    }

    fn first(&self) -> Option<&LockGuard> {
        self.permits.first().map(|permit| &**permit)
    }

    /// Returns the slots of the permits in ascending order, each with its fencing token. The token
    /// of a slot is larger than that of every earlier holder of the same slot.
    pub fn slots(&self) -> &[(u16, FencingToken)] {
        &self.slots
    }

    /// Returns the deadline of the permit that ends first, unless it is renewed.
    pub fn valid_until(&self) -> Moment {
        self.permits.iter().map(|permit| permit.valid_until()).min().unwrap_or_default()
    }

    /// Returns true while all permits are held, as [`LockGuard::is_valid`] does for one lock. After
    /// this method has returned false, it never returns true again.
    pub fn is_valid(&self) -> bool {
        self.permits.iter().all(|permit| permit.is_valid())
    }

    /// Resolves when one of the permits is lost, as [`LockGuard::lost`] does for one lock.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        select_all(self.permits.iter().map(|permit| Box::pin(permit.lost()))).await;
    }

    /// Extends all permits by their ttl, and returns the deadline of the permit that ends first.
    /// With automatic renewal this is not needed.
    ///
    /// # Errors
    /// The error of [`LockGuard::extend`] for the first permit that was not extended.
    ///
    /// # Cancellation safety
    /// If dropped, the permits are held until their old deadlines, as with [`LockGuard::extend`].
    pub async fn extend(&self) -> Result<Moment, ExtendError> {
        let extended = join_all(self.permits.iter().map(|permit| permit.extend())).await;
        let extended: Result<Vec<_>, _> = extended.into_iter().collect();
        Ok(extended?.into_iter().min().unwrap_or_default())
    }

    /// Releases all permits. `Ok` means that all permits were held until this release.
    ///
    /// # Errors
    /// The error of [`LockGuard::release`] for the first permit whose release was not confirmed.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let released = join_all(self.permits.into_iter().map(Permit::release)).await;
        released.into_iter().collect()
    }
}
