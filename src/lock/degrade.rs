//! A mutex whose callers continue without the lock while no majority of the nodes answers.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::{LockGuard, Mutex};
use crate::client::Core;
use crate::client::acquire::{LockAttempt, not_acquired};
use crate::client::fair::Fair;
use crate::client::lease::Lease;
use crate::client::local_locks::LocalGuard;
use crate::client::outage::Finding;
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect, retry};
use crate::error::{AcquireError, ConfigError, NoQuorum, ReleaseError};
use crate::op::LockMode;
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;

/// Policy of a [`DegradingMutex`]: the callers that continue without the lock while no majority of
/// the nodes answers. With a plain [`Mutex`] no caller continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// One caller at a time for each name continues. The callers that use the same `Redlock` handle
    /// and this policy take turns, in the order of their calls. They do so even while the nodes
    /// answer, so that a caller that acquired the lock before an outage excludes a caller that
    /// comes during the outage.
    Local,
    /// All callers continue without the lock at the same time.
    Proceed,
}

impl OnUnavailable {
    fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Proceed => "proceed",
        }
    }
}

/// A mutex whose callers continue without the lock while no majority of the nodes answers. Made by
/// [`Mutex::on_unavailable`].
///
/// **Two processes may then both be inside.** Use it only for work that is idempotent, or where the
/// lock merely saves work, such as filling a cache. While the nodes answer it is an ordinary
/// [`Mutex`] of the same name, which it excludes.
///
/// A degraded guard with [`OnUnavailable::Local`] excludes no caller with
/// [`OnUnavailable::Proceed`] and no plain [`Mutex`], which may be acquired as soon as the nodes
/// answer again. If a `Local` caller hangs, all other `Local` callers of the same handle and name
/// wait until their timeouts, even after the outage: [`max_hold`](super::MutexBuilder::max_hold)
/// ends the caller's lock, but does not let the next caller in.
///
/// There is no `try_acquire`, because one attempt does not show an outage; set a short
/// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) instead. There is no `run`, because it
/// stops its work when the lock is lost, and degraded work has no lock.
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # use palisade::{MemoryNode, Redlock};
/// use palisade::OnUnavailable;
/// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
/// let mutex = redlock.mutex("cache:prices").build()?.on_unavailable(OnUnavailable::Local);
/// let guard = mutex.acquire().await?;
/// if let Some(why) = guard.degraded() {
///     println!("fills the cache without the lock: {why}");
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DegradingMutex {
    mutex: Mutex,
    policy: OnUnavailable,
    after: Duration,
}

impl Mutex {
    /// Returns a mutex with the same name and settings whose callers continue without the lock
    /// while no majority of the nodes answers.
    pub fn on_unavailable(self, policy: OnUnavailable) -> DegradingMutex {
        let after = self.core.config.node_deadline.saturating_mul(2);
        DegradingMutex { mutex: self, policy, after }
    }
}

impl DegradingMutex {
    /// Returns the name as given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        self.mutex.name()
    }

    /// Sets the time for which attempts must have failed before a call continues without the lock.
    /// Default: twice the `node_deadline`. If the
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) of a call ends before this time,
    /// the call fails in the same way as a call of a [`Mutex`].
    ///
    /// The time is measured from the start of the first failed attempt to the end of the last one.
    /// The attempts of all degrading mutexes of the `Redlock` handle count. The time starts at zero
    /// again after an attempt that a majority answers or that a node refuses, and after a pause of
    /// 5 s without an attempt. So if calls are rarer than that, each call waits for the whole time.
    ///
    /// # Errors
    /// [`ConfigError`] if the time is below the `node_deadline`, because a healthy node may still
    /// answer in this time.
    pub fn degrade_after(self, after: Duration) -> Result<Self, ConfigError> {
        let least = self.mutex.core.config.node_deadline;
        if after < least {
            let rule = format!("at least node_deadline ({least:?})");
            let error = ConfigError::new("degrade_after", format!("{after:?}"), rule);
            return Err(error.of(self.mutex.resource()));
        }
        Ok(Self { after, ..self })
    }

    /// Acquires the lock as [`Mutex::acquire`] does, or returns a degraded guard, which does not
    /// hold the lock. The guard is degraded if attempts of this handle have failed for
    /// [`degrade_after`](Self::degrade_after) because no majority answered. From then on calls
    /// return degraded guards at once, except for one call a second, which sends requests to the
    /// nodes. If no node served the failed attempt, this applies to all names of the handle; if a
    /// node did, it applies only to the name of that attempt. As soon as a majority answers the
    /// requests, all calls acquire their locks again. Guards that are degraded stay degraded.
    ///
    /// If no node answers at all, the call cannot find out if the lock is held: a holder from
    /// before the outage may still have a valid guard, for up to one ttl.
    ///
    /// With [`OnUnavailable::Local`] a call first waits until no other `Local` caller of this
    /// handle and name has a guard.
    ///
    /// # Errors
    /// The errors of [`Mutex::acquire`]. The call returns an error and no degraded guard if an
    /// answer shows that the lock may be held, or if the cause is not an outage:
    /// - another owner has the lock, or one of the nodes that answer reports another owner, or a
    ///   majority reported one to an earlier call of the handle, whose lease may not be over
    /// - a node is in quarantine, closed for a handover, or answers and refuses in another way, for
    ///   example because replicas are missing ([`Reach`](crate::error::Reach))
    /// - the settings of a node, of its user or of this program are wrong, for example a password
    /// - requests were not sent, because too many requests of this process wait for the nodes
    /// - the handle is [closed](crate::Redlock::close)
    ///
    /// # Cancellation safety
    /// If dropped at any await, there is no guard: grants of nodes are released in the background.
    /// If the call is dropped while it waits for another caller of this process, the next caller
    /// gets its turn.
    pub async fn acquire(&self) -> Result<DegradableGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.mutex.resource());
        let call = Acquiring::begin(&self.mutex.core, &self.mutex.name);
        let acquired = self.enter(&operation).instrument(operation.span()).await;
        match &acquired {
            Ok(DegradableGuard { state: State::Degraded(_), .. }) => call.degraded(operation),
            Ok(DegradableGuard { state: State::Held(guard), .. }) => {
                call.over(operation, Ok(Some(guard)));
            }
            Err(e) => call.over(operation, Err(e)),
        }
        acquired
    }

    async fn enter(&self, operation: &Call) -> Result<DegradableGuard, AcquireError> {
        let Mutex { core, .. } = &self.mutex;
        let _operation = self.mutex.begin()?;
        let wait = self.mutex.wait(LockMode::Exclusive);
        let (began, mut terms) = (core.env.now(), self.mutex.retry_terms(wait));
        let local = match self.policy {
            OnUnavailable::Local => {
                Some(self.mutex.wait_locally(&core.local_locks, terms.deadline).await?)
            }
            OnUnavailable::Proceed => None,
        };
        let line = self.mutex.line_up(&mut terms).await?;
        let (mut acquire, mut ignore) =
            (self.mutex.attempt(LockMode::Exclusive, operation), |_| ());
        acquire.fair = line.as_ref().map(|line| Fair::new(&mut ignore, line));
        acquire.awaits_all = true;
        let (held_until, degrades) = (Moment::default(), false);
        let mut attempt = DegradingAttempt { acquire, after: self.after, held_until, degrades };
        let state = match retry(core, &mut attempt, terms).await {
            Ok(won) => State::Held(self.mutex.guard(won)),
            Err(GivenUp { refused: Loss::NoQuorum(outcomes), waited, closed: false })
                if attempt.degrades =>
            {
                let why = core.no_quorum(outcomes).of(self.mutex.resource());
                let why = NoQuorum { waited: Some(waited), ..why };
                State::Degraded(Degraded::begin(core, self.policy, why))
            }
            Err(given_up) => {
                let waited = core.env.now().since(began);
                let given_up = GivenUp { waited, ..given_up };
                return Err(not_acquired(core, self.mutex.resource(), given_up));
            }
        };
        Ok(DegradableGuard { state, _local: local })
    }
}

struct DegradingAttempt<'a> {
    acquire: LockAttempt<'a>,
    after: Duration,
    held_until: Moment,
    degrades: bool,
}

impl DegradingAttempt<'_> {
    fn report(&self, began: Moment, lost: Option<&Loss>) {
        let LockAttempt { core, keys, .. } = self.acquire;
        let now = core.env.now();
        if let Some(Loss::NoQuorum(outcomes)) = lost {
            // The requests were sent at most `patience` ago.
            let sent = began.max(now - core.patience());
            let finding = Finding::of(&core.no_quorum(outcomes.clone()));
            core.outage().failed(keys, (sent, now), outcomes, finding);
            return;
        }
        let period = {
            let mut outage = core.outage();
            outage.taken(keys, now, lost.map(|loss| held_until(loss, now)));
            outage.answered(now)
        };
        if let Some(period) = period {
            let (for_secs, guards) = (now.since(period.since).as_secs(), period.guards);
            tracing::info!(
                target: TARGET, for_secs, guards, event = "degrading_ended",
                "a majority answers again: calls acquire locks; degraded guards stay degraded"
            );
        }
    }
}

const TARGET: &str = "palisade::lease";

impl Attempt for DegradingAttempt<'_> {
    type Granted = Lease;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Lease, Loss> {
        let LockAttempt { core, keys, operation, .. } = self.acquire;
        let began = core.env.now();
        let known = core.outage().known(keys, began, self.after);
        if let Some(outcomes) = known {
            let lost = Err(Loss::NoQuorum(outcomes));
            if let Some(fair) = &self.acquire.fair {
                fair.attempted(&lost, self.acquire.level, began);
            }
            return lost;
        }
        operation.attempt();
        let made = self.acquire.once(terms).await;
        self.report(began, made.as_ref().err());
        made
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        let core = self.acquire.core;
        let now = core.env.now();
        self.held_until = self.held_until.max(held_until(loss, now));
        let prospect = self.acquire.prospect(loss, deadline)?;
        if let Loss::NoQuorum(outcomes) = loss {
            let permits = Finding::of(&core.no_quorum(outcomes.clone())).permits();
            let outage = core.outage();
            let held_until = self.held_until.max(outage.held_until(self.acquire.keys));
            self.degrades = permits && now >= held_until && outage.lasts(self.after);
        }
        (!self.degrades).then_some(prospect)
    }
}

fn held_until(loss: &Loss, now: Moment) -> Moment {
    let held = match loss {
        Loss::Taken(taken) => taken.retry_after,
        // An owner on a minority may be an attempt that is rolled back soon; the `Finding` already
        // prevents that the call goes on without the lock.
        Loss::NoQuorum(_) => Some(Duration::ZERO),
    };
    now + held.unwrap_or(Duration::MAX)
}

/// The guard of a [`DegradingMutex`]. It holds the lock, or it is *degraded* and its work runs
/// without the lock. A held guard never becomes degraded, and a degraded guard never gets the lock:
/// work that needs the lock drops the degraded guard and acquires again.
#[derive(Debug)]
#[must_use = "a dropped guard lets the next caller in at once"]
pub struct DegradableGuard {
    // Before `_local`, so that the release is sent before the next caller of this process asks.
    state: State,
    _local: Option<LocalGuard>,
}

#[derive(Debug)]
enum State {
    Held(LockGuard),
    Degraded(Degraded),
}

#[derive(Debug)]
struct Degraded {
    core: Arc<Core>,
    why: NoQuorum,
    since: Moment,
}

impl Degraded {
    fn begin(core: &Arc<Core>, policy: OnUnavailable, why: NoQuorum) -> Self {
        let period = core.outage().degrade(core.env.now());
        let policy = policy.label();
        core.meters.degraded.begun(policy);
        if period.guards == 1 {
            let of = why.of.as_ref().map(tracing::field::display);
            tracing::warn!(
                target: TARGET, of, policy, %why, event = "degraded",
                "no majority answers: until one does, calls go on without their locks"
            );
        }
        Self { core: Arc::clone(core), why, since: period.since }
    }
}

impl Drop for Degraded {
    fn drop(&mut self) {
        self.core.outage().ended();
        self.core.meters.degraded.ended();
    }
}

impl DegradableGuard {
    /// Returns the guard of the lock, with its fencing token; `None` if this guard is degraded.
    pub fn lock(&self) -> Option<&LockGuard> {
        match &self.state {
            State::Held(guard) => Some(guard),
            State::Degraded(_) => None,
        }
    }

    /// Returns the failure of each node that made this guard degraded; `None` if the lock is held.
    /// The failures may be from the attempt of another call, up to a few seconds earlier.
    pub fn degraded(&self) -> Option<&NoQuorum> {
        match &self.state {
            State::Held(_) => None,
            State::Degraded(degraded) => Some(&degraded.why),
        }
    }

    /// Returns true if this guard does not hold the lock, so that its work runs without the lock.
    pub fn is_degraded(&self) -> bool {
        self.degraded().is_some()
    }

    /// Returns the beginning of the outage because of which this guard is degraded: the time since
    /// which no majority had answered. `None` if the lock is held. Compare the time with
    /// [`Redlock::now`](crate::Redlock::now).
    pub fn since(&self) -> Option<Moment> {
        match &self.state {
            State::Held(_) => None,
            State::Degraded(degraded) => Some(degraded.since),
        }
    }

    /// Releases the lock as [`LockGuard::release`] does, and lets the next caller of this process
    /// in. A degraded guard has nothing to release.
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`]. A degraded guard returns no error.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Self { state, _local } = self;
        match state {
            State::Held(guard) => guard.release().await,
            State::Degraded(_) => Ok(()),
        }
    }
}
