//! A semaphore: a lock with several permits. Each permit has one holder at a time
//! (`docs/design/semaphore.md`).

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::guard::contains_guard;
use super::inspect::digest;
use super::run::while_held;
use super::{Built, LockGuard, Mutex, MutexBuilder, TryAcquire, WorkError};
use crate::client::Core;
use crate::error::{
    AcquireError, ConfigError, NodeError, NodeFault, NodeOutcome, ReleaseError, Resource,
};
use crate::name::{LockKeys, check_semaphore};
use crate::op::{LockMode, Reply, SlotGrant, Slots};
use crate::quorum::majority;
use crate::span::operation;
use crate::token::{FencingToken, OwnerToken};

/// A named semaphore with a number of permits. It is cheap to clone and to make, so a program may
/// keep one for each name, or make one for each call. Made by
/// [`Redlock::semaphore`](crate::Redlock::semaphore).
///
/// The permits are numbered *slots*, and a permit is a lock on one of them. At most `permits`
/// holders exist. Each has a [slot](Permit::slot) that no other holder has, and a fencing token
/// that is larger than that of every earlier holder of the same slot. A permit is a lease: if the
/// process of its holder dies, the permit is free after its ttl.
///
/// The number of permits is a setting of the caller, and the nodes do not store it. A caller with a
/// smaller number gets only slots below this number; holders of the slots above keep their permits
/// until they release them. So while callers have different numbers, the limit is the largest of
/// these numbers.
///
/// A semaphore and a mutex of the same name have nothing to do with each other.
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # let redlock = palisade::Redlock::from_urls("memory://")?;
/// let gpus = redlock.semaphore("gpu", 4).build()?;
/// let permit = gpus.acquire().await?;
/// println!("runs on GPU {} under token {}", permit.slot(), permit.fencing_token());
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(super) base: Mutex,
    slots: Slots,
}

/// Settings of a [`Semaphore`], made by [`Redlock::semaphore`](crate::Redlock::semaphore).
pub type SemaphoreBuilder = MutexBuilder<Semaphore>;

impl MutexBuilder<Semaphore> {
    pub(crate) fn of_permits(core: Arc<Core>, name: &str, permits: u16) -> Self {
        let keys = LockKeys::of_semaphore(&core.config.prefix, name);
        let mutex = Mutex { kind: Resource::Semaphore, ..Mutex::new(core, name, keys) };
        Self { mutex, of: Slots::any(permits) }
    }
}

impl Built for Semaphore {
    type Of = Slots;

    fn check(mutex: &Mutex, slots: &Slots) -> Result<(), ConfigError> {
        let refuse = |e: ConfigError| e.of(mutex.resource());
        check_semaphore(&mutex.name, &mutex.keys).map_err(refuse)?;
        if (1..=Slots::MAX).contains(&slots.of) {
            return Ok(());
        }
        let rule = format!("between 1 and {}", Slots::MAX);
        Err(refuse(ConfigError::new("permits", slots.of.to_string(), rule)))
    }

    fn make(base: Mutex, slots: Slots) -> Self {
        Self { base, slots }
    }
}

impl Semaphore {
    /// Returns the name as given to [`Redlock::semaphore`](crate::Redlock::semaphore).
    pub fn name(&self) -> &str {
        self.base.name()
    }

    /// Returns the number of permits.
    pub fn permits(&self) -> u16 {
        self.slots.of
    }

    pub(super) fn mode(&self) -> LockMode {
        LockMode::Slot(self.slots)
    }

    /// Acquires a permit: makes attempts until one succeeds or the
    /// [`acquire_timeout`](MutexBuilder::acquire_timeout) has passed. A permit that is released is
    /// reserved, for at most 50 ms, for a handle that waits: usually the one that has waited
    /// longest, but there is no strict order.
    ///
    /// # Errors
    /// The same errors as [`Mutex::acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, no permit is held: grants of nodes are released in the background,
    /// and end with the ttl at the latest. If the call is dropped while it waits, its turn in the
    /// queue passes to the next waiter.
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        let operation = operation!("acquire", of = %self.base.resource());
        self.base.acquire_in(self.mode(), operation, &mut |_| ()).await.map(Permit::of)
    }

    /// Makes one attempt to acquire a permit, and does not wait for one. A permit that was just
    /// released and is reserved for a waiting `Redlock` handle counts as taken, too.
    ///
    /// # Errors
    /// The same errors as [`Mutex::try_acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, no permit is held: grants of nodes are released in the background,
    /// and end with the ttl at the latest.
    pub async fn try_acquire(&self) -> Result<TryAcquire<Permit>, AcquireError> {
        let operation = operation!("try_acquire", of = %self.base.resource());
        Ok(self.base.try_in(self.mode(), operation).await?.map(Permit::of))
    }

    /// Acquires a permit, runs `work` while it is held, and releases it, as [`Mutex::run`].
    ///
    /// # Errors
    /// The same errors as [`Mutex::run`].
    ///
    /// # Cancellation safety
    /// If dropped, the work is dropped at its current await, and the permit is released in the
    /// background. If dropped before the permit is acquired, no permit is held, and the work does
    /// not start.
    pub async fn run<T, F, Fut>(&self, work: F) -> Result<T, WorkError<T>>
    where
        F: FnOnce(Arc<Permit>) -> Fut,
        Fut: Future<Output = T>,
    {
        let permit = Arc::new(self.acquire().await.map_err(WorkError::NotStarted)?);
        while_held(&permit, work(Arc::clone(&permit)), pending()).await
    }

    /// Asks every node for the holders of the permits, and waits for all answers. Changes nothing.
    ///
    /// # Errors
    /// [`AcquireError::Closed`] if the `Redlock` handle was closed.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub async fn inspect(&self) -> Result<SemaphoreInspection, AcquireError> {
        let _operation = self.base.begin()?;
        Ok(self.look(self.base.core.n()).await)
    }

    pub(super) async fn look(&self, enough: usize) -> SemaphoreInspection {
        let answers = self.base.core.inspect_each(&self.base.keys, enough).await;
        let silent = || NodeError::not_executed(NodeFault::Timeout, "");
        let nodes =
            answers.into_iter().map(|(node, reply)| (node, view(reply.unwrap_or(Err(silent())))));
        SemaphoreInspection { permits: self.slots.of, nodes: nodes.collect() }
    }
}

/// A permit of a semaphore that is held. It has all methods of [`LockGuard`] that take `&self`.
/// Dropping it releases the permit in the background.
///
/// Its [`fencing_token`](LockGuard::fencing_token) is larger than that of every earlier holder of
/// the same [slot](Self::slot). Tokens of different slots are not in any order.
#[derive(Debug)]
#[must_use = "a dropped permit is released at once"]
pub struct Permit {
    guard: LockGuard,
    slot: u16,
}

impl Permit {
    pub(super) fn of(guard: LockGuard) -> Self {
        let slot =
            guard.lease().grant.lock().mode.slots().and_then(Slots::slot).unwrap_or_default();
        Self { guard, slot }
    }

    /// Returns the slot of the permit: a number from 0 to one less than the number of permits,
    /// which no other holder has at the same time. It can number workers, shards or devices.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Releases the permit, as [`LockGuard::release`].
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

contains_guard! {
    /// Returns the inner guard, for code that takes a guard of any kind. A hand-over of this guard
    /// ([`LockGuard::hand_over`]) returns an error.
    Permit, guard
}

/// Holder of a permit, as one node or a majority of the nodes reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitHolder {
    /// Slot of the permit.
    pub slot: u16,
    /// Identifier of the attempt that holds the permit, as [`LockHolder::owner`].
    ///
    /// [`LockHolder::owner`]: super::LockHolder::owner
    pub owner: String,
    /// Largest fencing token that the node has given for the slot.
    pub fence: FencingToken,
    /// Time until the holder's lease ends, unless the holder renews it.
    pub remaining: Duration,
    token: OwnerToken,
}

/// Permits of a semaphore that are held on one node, or the reason why they are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodePermits {
    /// The node reports these holders, in the order of their slots.
    Held(Vec<PermitHolder>),
    /// The node did not report the permits, for this reason.
    Unknown(NodeOutcome),
}

impl NodePermits {
    fn holders(&self) -> &[PermitHolder] {
        match self {
            Self::Held(holders) => holders,
            Self::Unknown(_) => &[],
        }
    }
}

/// Result of [`Semaphore::inspect`]: the holders of the permits on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SemaphoreInspection {
    /// Number of permits that the semaphore was made with.
    pub permits: u16,
    /// Name of each node, with the permits that are held on it.
    pub nodes: Vec<(Arc<str>, NodePermits)>,
}

impl SemaphoreInspection {
    /// Returns the permits that a majority of the nodes reports, in the order of their slots.
    pub fn held(&self) -> Vec<PermitHolder> {
        let mut all: Vec<_> = self.nodes.iter().flat_map(|(_, seen)| seen.holders()).collect();
        all.sort_by_key(|holder| (holder.slot, holder.token, std::cmp::Reverse(holder.remaining)));
        let needed = majority(self.nodes.len());
        let of_one = all.chunk_by(|a, b| (a.slot, a.token) == (b.slot, b.token));
        // A majority has the permit until the one at `needed - 1` ends.
        of_one.filter_map(|views| views.get(needed - 1)).map(|holder| (*holder).clone()).collect()
    }

    /// If no holder renews or releases.
    pub(super) fn lacks(&self, n: u16) -> Option<Duration> {
        let held = self.held().into_iter().filter(|holder| holder.slot < self.permits);
        let mut ends: Vec<_> = held.map(|holder| holder.remaining).collect();
        ends.sort_unstable();
        let too_many = ends.len().checked_sub(usize::from(self.permits.saturating_sub(n)))?;
        too_many.checked_sub(1).map(|last| ends[last])
    }

    /// Returns the number of free permits. A permit is free if no owner can have it on a majority
    /// of the nodes, even if the owner has it on all nodes that did not answer. So zero may also
    /// mean that too few nodes answered: see [`nodes`](Self::nodes). A slot that is reserved for a
    /// waiting `Redlock` handle counts as free.
    pub fn available(&self) -> usize {
        let needed = majority(self.nodes.len());
        let unknown =
            self.nodes.iter().filter(|(_, seen)| matches!(seen, NodePermits::Unknown(_))).count();
        let seen = || self.nodes.iter().flat_map(|(_, seen)| seen.holders());
        let may_have = |slot: u16, token| {
            seen().filter(|holder| (holder.slot, holder.token) == (slot, token)).count() + unknown
        };
        let is_free = |slot: &u16| {
            let mut owners = seen().filter(|holder| holder.slot == *slot);
            unknown < needed && owners.all(|holder| may_have(*slot, holder.token) < needed)
        };
        (0..self.permits).filter(is_free).count()
    }
}

fn view(reply: Result<Reply, NodeError>) -> NodePermits {
    let failed = |e| NodePermits::Unknown(NodeOutcome::Failed(e));
    let holder = |grant: &SlotGrant| PermitHolder {
        slot: grant.slot,
        owner: digest(grant.owner),
        fence: FencingToken::new(grant.fence),
        remaining: grant.remaining,
        token: grant.owner,
    };
    match reply {
        Ok(Reply::Permits(all)) => NodePermits::Held(all.iter().map(holder).collect()),
        Ok(Reply::Holder(None)) => NodePermits::Held(Vec::new()),
        Ok(Reply::Quarantined { remaining, began, .. }) => {
            NodePermits::Unknown(NodeOutcome::quarantined(remaining, began))
        }
        Ok(Reply::Holder(Some(_)) | Reply::Readers(_)) => {
            failed(NodeError::not_executed(NodeFault::ForeignKey, "WRONGTYPE"))
        }
        Ok(_) => failed(NodeError::not_executed(NodeFault::Protocol, "not an answer to this")),
        Err(e) => failed(e),
    }
}
