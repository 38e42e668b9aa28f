//! The mutex: one holder at a time.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::close::Operation;
use crate::client::hints::Waiting;
use crate::client::lease::{Lease, Subject};
use crate::durability::Durability;
use crate::error::{AcquireError, Advice, NoQuorum, Resource, Taken};
use crate::lock::LockGuard;
use crate::lock::acquiring::Acquiring;
use crate::lock::pauses::{Pauses, is_split, spread};
use crate::lock::take_over::TakeOver;
use crate::name::LockKeys;
use crate::op::IfHeld;
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::RetryPolicy;
use crate::span::{Call, operation};
use crate::time::Moment;

/// Default of the longest wait.
const WAIT: Duration = Duration::from_secs(30);
/// Timers are about as fine; what is shorter is not slept for.
const TICK: Duration = Duration::from_millis(1);
/// … and so long after the end of a quarantine: for two attempts, and the clocks' rounding.
const AFTER: Duration = Duration::from_secs(1);

/// A named lock, not yet held. Cheap to clone and to make; use one per name or per call. Begun by
/// [`Redlock::mutex`](crate::Redlock::mutex).
///
/// On one Redis key it excludes, and is excluded by, the classic `SET NX PX` clients of other
/// languages (redlock-py, redsync, node-redlock, rslock, redislock). Those clients do not wait in
/// the lock's queue: as long as somebody does, a lock that is released is reserved for the first of
/// the queue, and a classic client, like [`try_acquire`](Self::try_acquire), hardly ever gets it.
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

/// Result of [`Mutex::try_acquire`].
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

    /// One attempt. A lock that was just released and is reserved for one who waits is taken, too:
    /// where somebody always waits, a single attempt hardly ever gets the lock. Then use
    /// [`acquire`](Self::acquire), which has a place in the queue.
    ///
    /// # Errors
    /// [`AcquireError::NoQuorum`] or [`AcquireError::Closed`]. "Taken" is not an error.
    ///
    /// # Cancellation safety
    /// Dropped at any await it holds nothing: what nodes granted is released in the background, at
    /// the latest the ttl ends it.
    pub async fn try_acquire(&self) -> Result<TryAcquire, AcquireError> {
        let operation = operation!("try_acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let tried = self.try_it(&operation).instrument(operation.span()).await;
        call.over(
            operation,
            tried.as_ref().map(|tried| match tried {
                TryAcquire::Acquired(guard) => Some(guard),
                TryAcquire::Taken(_) => None,
            }),
        );
        tried
    }

    async fn try_it(&self, operation: &Call) -> Result<TryAcquire, AcquireError> {
        let _operation = self.begin()?;
        operation.attempt();
        let (keys, ttl, level) = (&self.keys, self.ttl, self.level);
        let within = Duration::ZERO;
        let ask = AcquireRequest { keys, ttl, level, if_held: None, within, taker: None };
        match self.core.attempt(ask).await {
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
        let operation = operation!("acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let acquired = self.wait_for_it(&operation).instrument(operation.span()).await;
        call.over(operation, acquired.as_ref().map(Some));
        acquired
    }

    async fn wait_for_it(&self, operation: &Call) -> Result<LockGuard, AcquireError> {
        let _operation = self.begin()?;
        let of = self.resource();
        let (keys, ttl, level) = (&self.keys, self.ttl, self.level);
        let bid =
            Bid { of: &of, keys, ttl, level, lost: &|_| {}, manner: Manner::Queue, operation };
        let won = acquire_within(&self.core, bid, self.acquire_timeout, self.retry).await?;
        Ok(self.guard(won))
    }

    pub(super) fn resource(&self) -> Resource {
        Resource::Lock(Arc::clone(&self.name))
    }

    /// Begins an operation.
    pub(super) fn begin(&self) -> Result<Operation<'_>, AcquireError> {
        self.core.closing.enter().ok_or_else(|| AcquireError::Closed(self.resource()))
    }

    fn guard(&self, won: Acquired) -> LockGuard {
        self.guard_of(self.lease(won))
    }

    pub(super) fn lease(&self, won: Acquired) -> Lease {
        let renew_until = self.max_hold.map(|limit| self.core.env.now() + limit);
        let subject = Subject::Lock { of: self.resource(), keys: self.keys.clone() };
        let (id, times) = ((won.owner, won.token), (won.ttl, won.until));
        let meters = Arc::clone(&self.core.meters.lock(&self.name).leases);
        Lease::new(subject, id, times, renew_until, won.replies, None, meters)
    }

    pub(super) fn guard_of(&self, lease: Lease) -> LockGuard {
        lease.count();
        LockGuard::new(Arc::clone(&self.core), Arc::new(lease), Arc::clone(&self.name), self.renew)
    }
}

/// Request for a lock, made again until it is granted or given up.
pub(crate) struct Bid<'a> {
    pub(crate) of: &'a Resource,
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// Is called with each attempt that was lost.
    pub(crate) lost: &'a (dyn Fn(&Loss) + Sync),
    pub(crate) manner: Manner<'a>,
    /// Span and metrics of the calling operation.
    pub(crate) operation: &'a Call,
}

/// Way to wait for a lock that another owner has.
pub(crate) enum Manner<'a> {
    /// In the queue: whose turn it is is woken.
    Queue,
    /// As a candidate, which has no place in the queue: each release wakes all candidates, and they
    /// decide who is the first by how long each leaves the next attempt to others.
    Candidate(&'a (dyn Fn() -> Duration + Sync)),
    /// It is taken from its owner.
    TakeOver(&'a mut TakeOver),
}

impl Bid<'_> {
    async fn attempt(
        &mut self,
        core: &Core,
        (if_held, within): (Option<IfHeld>, Duration),
    ) -> Result<Acquired, Loss> {
        self.operation.attempt();
        let &mut Self { keys, ttl, level, .. } = self;
        let ask = AcquireRequest { keys, ttl, level, if_held, within, taker: None };
        core.attempt(match &mut self.manner {
            Manner::TakeOver(from) => from.ask(core, ask).await,
            Manner::Queue | Manner::Candidate(_) => ask,
        })
        .await
    }
}

/// Attempts until won or until `wait` has passed; without one as
/// [`MutexBuilder::acquire_timeout`](super::MutexBuilder::acquire_timeout) says.
pub(crate) async fn acquire_within(
    core: &Arc<Core>,
    mut bid: Bid<'_>,
    wait: Option<Duration>,
    retry: RetryPolicy,
) -> Result<Acquired, AcquireError> {
    // The common case is free and needs no place in the queue.
    let sent = core.env.now();
    match bid.attempt(core, (None, wait.unwrap_or(WAIT))).await {
        Ok(won) => Ok(won),
        Err(loss) => wait_within(core, bid, (loss, sent), wait, retry).await,
    }
}

/// Goes on after a first attempt, which was sent then, and lost.
async fn wait_within(
    core: &Arc<Core>,
    mut bid: Bid<'_>,
    (mut loss, mut sent): (Loss, Moment),
    wait: Option<Duration>,
    retry: RetryPolicy,
) -> Result<Acquired, AcquireError> {
    let Bid { of, keys, lost, .. } = bid;
    lost(&loss);
    core.listen();
    let started = core.env.now();
    let since = matches!(bid.manner, Manner::Queue).then_some(started);
    let queued = Queued { core, keys, waiting: core.hints.wait(keys.lock(), since) };
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
        if now >= deadline || why.is_some_and(|why| is_hopeless(&why)) {
            return Err(given_up(core, of, loss, now.since(started)));
        }
        let round_trip = now.since(sent);
        let pause = pauses.next(&loss, asked, core.env.random());
        let pause = waiting.pause(pause, core.env.random()).min(deadline.since(now));
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
        // Nobody has it, or all candidates are woken at once.
        crowd = if split || woken && !waiting.is_queued() { crowd + 1 } else { 0 };
        if split || crowd > 1 {
            part_ways(core, waiting, (round_trip, crowd), deadline).await;
        }
        leave(core, &bid.manner, (waiting, woken), deadline).await;
        if core.env.now() >= deadline && !pause.is_zero() {
            continue;
        }
        sent = core.env.now();
        let hint = Some(waiting.request(sent, round_trip));
        match bid.attempt(core, (hint, deadline.since(sent))).await {
            Ok(won) => {
                queued.end(woken);
                return Ok(won);
            }
            Err(l) => loss = l,
        }
        lost(&loss);
        // It certainly expires later than what was there before: another owner was faster.
        if woken && expiry(&loss, sent) > ends + TICK {
            waiting.was_right();
        }
        ends = expiry(&loss, core.env.now());
        asked = true;
    }
}

/// Returns true if only a person can mend the cause: a wrong password stays wrong.
fn is_hopeless(why: &NoQuorum) -> bool {
    matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild)
}

fn given_up(core: &Core, of: &Resource, loss: Loss, waited: Duration) -> AcquireError {
    let of = of.clone();
    match loss {
        Loss::Taken(taken) => AcquireError::TimedOut { of, waited, taken },
        Loss::NoQuorum(outcomes) => {
            let why = core.no_quorum(outcomes).of(of);
            AcquireError::NoQuorum(NoQuorum { waited: Some(waited), ..why })
        }
    }
}

/// Those who collide try again after random pauses, over more round trips the more often they did.
async fn part_ways(
    core: &Core,
    waiting: &Waiting,
    (round_trip, crowd): (Duration, u32),
    deadline: Moment,
) {
    let apart = spread(core.env.random(), round_trip, crowd);
    if apart >= TICK {
        tokio::time::sleep(apart.min(deadline.since(core.env.now()))).await;
    }
    // The attempt itself sees what changed until now.
    let _ = tokio::time::timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
}

/// Waits for the lock. Dropped without it, it gives back what nodes reserved for it.
struct Queued<'a> {
    core: &'a Core,
    keys: &'a LockKeys,
    waiting: Waiting,
}

impl Queued<'_> {
    /// It has the lock, perhaps woken by a hint: the next waiter of the handle takes its place at
    /// the nodes, and what they reserve for it is over.
    fn end(&self, woken: bool) {
        if woken {
            self.waiting.was_right();
        }
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

/// Returns the time at which a majority could be free without a release, by an answer of `at`.
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

/// A candidate leaves the attempt to others while it holds back, and a turn to the next candidate
/// of this handle.
async fn leave(
    core: &Core,
    manner: &Manner<'_>,
    (waiting, called): (&Waiting, bool),
    deadline: Moment,
) {
    let Manner::Candidate(hold_back) = manner else { return };
    let span = hold_back();
    if span.is_zero() {
        return;
    }
    if called {
        waiting.pass_on();
    }
    tokio::select! {
        biased;
        () = core.closing.begun() => {}
        () = tokio::time::sleep(span.min(deadline.since(core.env.now()))) => {}
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
