//! The mutex: one holder at a time.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::driver::Core;
use crate::driver::attempt::Won;
use crate::driver::close::Verb;
use crate::driver::hints::Waiting;
use crate::driver::lease::{Lease, Subject};
use crate::durability::Durability;
use crate::error::{AcquireError, Advice, NoQuorum, Resource, Taken};
use crate::lock::LockGuard;
use crate::lock::acquiring::Acquiring;
use crate::lock::pauses::{Pauses, is_split, spread};
use crate::name::LockKeys;
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::RetryPolicy;
use crate::span::{Call, verb};
use crate::time::Moment;

/// How long is waited where the user does not say.
const WAIT: Duration = Duration::from_secs(30);
/// Timers are about as fine; what is shorter is not slept for.
const TICK: Duration = Duration::from_millis(1);
/// … and so long after the end of a quarantine: for two attempts, and the clocks' rounding.
const AFTER: Duration = Duration::from_secs(1);

/// A named lock, not yet held. Cheap to clone and to make; use one per name or per call. Begun by
/// [`Redlock::mutex`](crate::Redlock::mutex).
///
/// On one Redis key it excludes, and is excluded by, the classic `SET NX PX` clients of other
/// languages (redlock-py, redsync, node-redlock, rslock, redislock).
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    pub(super) keys: LockKeys,
    pub(super) ttl: Duration,
    pub(super) acquire_timeout: Option<Duration>,
    pub(super) renew: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) retry: RetryPolicy,
    pub(super) level: Durability,
}

/// What [`Mutex::try_acquire`] found.
#[derive(Debug)]
#[must_use]
pub enum TryAcquire {
    /// The lock is held by the guard.
    Acquired(LockGuard),
    /// Somebody else holds it.
    Taken(Taken),
}

impl TryAcquire {
    /// The guard, if the lock was acquired.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Taken(_) => None,
        }
    }
}

impl Mutex {
    /// The name as given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One attempt. A lock that was just released and is reserved for one who waits is taken, too.
    ///
    /// # Errors
    /// [`AcquireError::NoQuorum`] or [`AcquireError::Closed`]. "Taken" is not an error.
    ///
    /// # Cancellation safety
    /// Dropped at any await it holds nothing: what nodes granted is released in the background, at
    /// the latest the ttl ends it.
    pub async fn try_acquire(&self) -> Result<TryAcquire, AcquireError> {
        let verb = verb!("try_acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let tried = self.try_it(&verb).instrument(verb.span()).await;
        call.over(
            verb,
            tried.as_ref().map(|tried| match tried {
                TryAcquire::Acquired(guard) => Some(guard),
                TryAcquire::Taken(_) => None,
            }),
        );
        tried
    }

    async fn try_it(&self, verb: &Call) -> Result<TryAcquire, AcquireError> {
        let _verb = self.begin()?;
        verb.attempt();
        match self.core.attempt(&self.keys, self.ttl, (None, Duration::ZERO), self.level).await {
            Ok(won) => Ok(TryAcquire::Acquired(self.guard(won))),
            Err(Loss::Taken(taken)) => Ok(TryAcquire::Taken(taken)),
            Err(Loss::NoQuorum(outcomes)) => {
                Err(self.core.no_quorum(outcomes).of(self.resource()).into())
            }
        }
    }

    /// Attempts until the lock is held or [`acquire_timeout`](super::MutexBuilder::acquire_timeout)
    /// has passed. Woken by the nodes when the lock is released; polls with growing, jittered
    /// pauses where there are no hints. A fresh owner token and a roll-back for each attempt. Of
    /// several handles that wait, the one that has waited longest is the next, as a rule.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] if it stayed taken, [`AcquireError::NoQuorum`] if too few nodes
    /// could be asked until the end (at once if a person has to change a setting),
    /// [`AcquireError::Closed`] as soon as the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// As [`try_acquire`](Self::try_acquire); a waiting place that is dropped passes its turn on.
    pub async fn acquire(&self) -> Result<LockGuard, AcquireError> {
        let verb = verb!("acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let acquired = self.wait_for_it(&verb).instrument(verb.span()).await;
        call.over(verb, acquired.as_ref().map(Some));
        acquired
    }

    async fn wait_for_it(&self, verb: &Call) -> Result<LockGuard, AcquireError> {
        let _verb = self.begin()?;
        let of = self.resource();
        let (keys, ttl, level) = (&self.keys, self.ttl, self.level);
        let bid = Bid { of: &of, keys, ttl, level, lost: &|_| {}, hold_back: None, verb };
        let won = acquire_within(&self.core, bid, self.acquire_timeout, self.retry).await?;
        Ok(self.guard(won))
    }

    pub(super) fn resource(&self) -> Resource {
        Resource::Lock(Arc::clone(&self.name))
    }

    /// Begins a verb.
    pub(super) fn begin(&self) -> Result<Verb<'_>, AcquireError> {
        self.core.closing.enter().ok_or_else(|| AcquireError::Closed(self.resource()))
    }

    pub(super) fn guard(&self, won: Won) -> LockGuard {
        let renew_until = self.max_hold.map(|limit| self.core.env.now() + limit);
        let subject = Subject::Lock { of: self.resource(), keys: self.keys.clone() };
        let (id, times) = ((won.owner, won.token), (self.ttl, won.until));
        let meters = Arc::clone(&self.core.meters.lock(&self.name).leases);
        let lease = Lease::new(subject, id, times, renew_until, won.mailbox, None, meters);
        lease.count();
        LockGuard::new(Arc::clone(&self.core), Arc::new(lease), Arc::clone(&self.name), self.renew)
    }
}

/// What is asked of the nodes.
#[derive(Clone, Copy)]
pub(crate) struct Bid<'a> {
    pub(crate) of: &'a Resource,
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// Hears of each attempt that was lost.
    pub(crate) lost: &'a (dyn Fn(&Loss) + Sync),
    /// A candidate's: for how long the next attempt is left to others. It has no place in the
    /// queue: each release wakes all candidates, and they decide by this who is the first.
    pub(crate) hold_back: Option<&'a (dyn Fn() -> Duration + Sync)>,
    /// On whose behalf.
    pub(crate) verb: &'a Call,
}

/// Attempts until won or until `wait` has passed; without one as
/// [`MutexBuilder::acquire_timeout`](super::MutexBuilder::acquire_timeout) says.
pub(crate) async fn acquire_within(
    core: &Arc<Core>,
    Bid { of, keys, ttl, level, lost, hold_back, verb }: Bid<'_>,
    wait: Option<Duration>,
    retry: RetryPolicy,
) -> Result<Won, AcquireError> {
    // The common case is free and needs no place in the queue.
    let mut sent = core.env.now();
    verb.attempt();
    let mut loss = match core.attempt(keys, ttl, (None, wait.unwrap_or(WAIT)), level).await {
        Ok(won) => return Ok(won),
        Err(loss) => loss,
    };
    lost(&loss);
    core.listen();
    let started = core.env.now();
    let waiting = core.hints.wait(keys.lock(), hold_back.is_none().then_some(started));
    let queued = Queued { core, keys, waiting };
    let waiting = &queued.waiting;
    let mut deadline = started + wait.unwrap_or(WAIT);
    let mut pauses = Pauses::new(retry.delays(core.env.random() as u64));
    // Where others of the handle wait it has its place, and they come first.
    let (mut asked, mut crowd) = (waiting.is_behind(), 0);
    let mut ends = expiry(&loss, started);
    loop {
        let now = core.env.now();
        let why = no_quorum(core, &loss);
        if wait.is_none()
            && let Some(left) = why.as_ref().and_then(NoQuorum::quarantine)
        {
            deadline = deadline.max(now + left + AFTER);
        }
        // What needs a person is not waited for: a wrong password stays wrong.
        let hopeless = why
            .as_ref()
            .is_some_and(|why| matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild));
        if now >= deadline || hopeless {
            let (of, waited) = (of.clone(), now.since(started));
            return Err(match loss {
                Loss::Taken(taken) => AcquireError::TimedOut { of, waited, taken },
                Loss::NoQuorum(outcomes) => {
                    let why = core.no_quorum(outcomes).of(of);
                    AcquireError::NoQuorum(NoQuorum { waited: Some(waited), ..why })
                }
            });
        }
        let round_trip = now.since(sent);
        let pause = pauses.next(&loss, asked, core.env.random()).min(deadline.since(now));
        let split = is_split(&loss);
        let woken = !split
            && tokio::select! {
                biased;
                () = core.closing.begun() => return Err(AcquireError::Closed(of.clone())),
                woken = tokio::time::timeout(pause, waiting.turn(2 * round_trip)) => woken.is_ok(),
            };
        if woken {
            keep_apart(core, waiting, deadline).await;
        }
        // Nobody has it, or all candidates are woken at once: those who collide try again after
        // random pauses, over more round trips the more often they did.
        crowd = if split || woken && !waiting.is_queued() { crowd + 1 } else { 0 };
        if split || crowd > 1 {
            let apart = spread(core.env.random(), round_trip, crowd);
            if apart >= TICK {
                tokio::time::sleep(apart.min(deadline.since(core.env.now()))).await;
            }
            // The attempt itself sees what changed until now.
            let _ = tokio::time::timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
        }
        let span = hold_back.map_or(Duration::ZERO, |span| span());
        if !span.is_zero() {
            leave(core, span.min(deadline.since(core.env.now())), (waiting, woken)).await;
        }
        if core.env.now() >= deadline && !pause.is_zero() {
            continue;
        }
        sent = core.env.now();
        let within = deadline.since(sent);
        verb.attempt();
        let hint = Some(waiting.request(sent, round_trip));
        match core.attempt(keys, ttl, (hint, within), level).await {
            Ok(won) => {
                if woken {
                    waiting.was_right();
                }
                queued.end();
                return Ok(won);
            }
            Err(l) => loss = l,
        }
        lost(&loss);
        // It certainly expires later than what was there before: somebody was faster.
        if woken && expiry(&loss, sent) > ends + TICK {
            waiting.was_right();
        }
        ends = expiry(&loss, core.env.now());
        asked = true;
    }
}

/// Waits for the lock. Dropped without it, it gives back what nodes reserved for it.
struct Queued<'a> {
    core: &'a Core,
    keys: &'a LockKeys,
    waiting: Waiting,
}

impl Queued<'_> {
    /// It has the lock: the next waiter of the handle takes its place at the nodes, and what they
    /// reserve for it is over.
    fn end(&self) {
        self.waiting.pass_on();
        self.waiting.unused();
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // It goes to the next in their queues.
        for node in self.waiting.unused() {
            self.core.pass_on(node, self.keys.lock());
        }
    }
}

/// When a majority could be free if nobody gives it back, by an answer that is of `at`.
fn expiry(loss: &Loss, at: Moment) -> Moment {
    match loss {
        Loss::Taken(Taken { retry_after: Some(left), .. }) => at + *left,
        _ => at,
    }
}

fn no_quorum(core: &Core, loss: &Loss) -> Option<NoQuorum> {
    match loss {
        Loss::NoQuorum(outcomes) => Some(core.no_quorum(outcomes.clone())),
        Loss::Taken(_) => None,
    }
}

/// Leaves the attempt to others for so long, and a turn to the next candidate of this handle.
async fn leave(core: &Core, span: Duration, (waiting, called): (&Waiting, bool)) {
    if called {
        waiting.pass_on();
    }
    tokio::select! {
        biased;
        () = core.closing.begun() => {}
        () = tokio::time::sleep(span) => {}
    }
    // The attempt itself sees what changed until now.
    let _ = tokio::time::timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
}

/// A wake-up that may have been forged does not cost the nodes more than now and then a request.
async fn keep_apart(core: &Core, waiting: &Waiting, deadline: Moment) {
    let now = core.env.now();
    let rest = waiting.floor(now).min(deadline.since(now));
    if !rest.is_zero() {
        tokio::time::sleep(rest).await;
    }
}
