//! The retry loop of all calls that wait for a grant: acquire, take-over, campaign and claim.
//!
//! [`retry`] makes attempts until one is granted, until a further attempt cannot succeed, until the
//! deadline passes, or until the handle is closed. An [`Attempt`] defines what one attempt is, and
//! what its refusal means for the next one. After its first refusal the call is registered for the
//! nodes' hints. Between two attempts the call has up to four waits:
//! - the wait for a hint, at most for the pause that [`Backoff`] returns;
//! - after a hint, the time by which the rate limit separates wake-ups;
//! - after a collision with the attempts of other callers, a random time;
//! - the time by which the attempt is delayed so that preferred callers go first.
//!
//! Cancellation: a call that is dropped while it waits gives up its place in the nodes' queues. If
//! nodes have reserved the lock for the call, they give it to the next handle in the queue.

mod backoff;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{sleep, timeout};

use self::backoff::{Backoff, HINT_MAX, spread};
use crate::client::Core;
use crate::client::hints::{Line, RateLimit, Waiting};
use crate::error::Taken;
use crate::op::{IfHeld, LockMode};
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::RetryPolicy;
use crate::time::Moment;

pub(crate) use self::backoff::is_crowded;

/// Resolution of the runtime's timers. The loop does not sleep for shorter pauses.
const TICK: Duration = Duration::from_millis(1);
/// Time that is assumed to be left if the call has no deadline. It limits the wait of an attempt
/// for its permit ([`Core`] allows a limited number of attempts at once), and each pause.
const NO_DEADLINE: Duration = Duration::from_secs(60);

/// Kind of attempt that [`retry`] repeats, for example to acquire a lock or to claim a key.
pub(crate) trait Attempt: Send + Sync {
    /// Value that an attempt returns if it was granted.
    type Granted: Send;
    /// Reason for which an attempt was refused.
    type Refused: Send;

    /// Makes one attempt at the nodes. If the attempt is refused or its future is dropped, the
    /// grants of single nodes are given back.
    fn make(
        &mut self,
        terms: AttemptTerms,
    ) -> impl Future<Output = Result<Self::Granted, Self::Refused>> + Send;

    /// Returns the prospect of a further attempt after this refusal; `None` if no attempt can
    /// succeed. Can change the deadline of the call.
    fn prospect(
        &mut self,
        refused: &Self::Refused,
        deadline: &mut Option<Moment>,
    ) -> Option<Prospect>;

    /// Returns the time for which the next attempt is delayed, so that preferred callers go first.
    fn hold_back(&self) -> Duration {
        Duration::ZERO
    }
}

/// Parameters of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTerms {
    /// Action of a node if another owner has the name: the node registers this handle for a hint,
    /// or transfers the lock to the caller. With `None` the node only refuses, for example in the
    /// first attempt of a call, which is not registered for hints yet.
    pub(crate) if_held: Option<IfHeld>,
    /// Time that is left until the deadline of the call. It is the longest wait of an attempt for
    /// its permit; a value below `node_deadline` counts as `node_deadline`.
    pub(crate) left: Duration,
}

impl AttemptTerms {
    /// Parameters of a call that makes one attempt and does not wait.
    pub(crate) const SINGLE: Self = Self { if_held: None, left: Duration::ZERO };
}

/// Parameters of a call that waits for a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTerms<'a> {
    /// Key about which the nodes send hints.
    pub(crate) key: &'a str,
    pub(crate) wait: Wait,
    pub(crate) policy: RetryPolicy,
    /// Time after which no attempt begins; `None`: no limit.
    pub(crate) deadline: Option<Moment>,
    /// Time at which the caller began to wait, if it was before these attempts. Its place in the
    /// queues is ahead of callers that came later. `None` if the wait begins with these attempts.
    pub(crate) since: Option<Moment>,
}

/// Event that a call waits for between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call waits for its turn in the nodes' queues for a grant of this mode; a release wakes
    /// the first waiter.
    Queue(LockMode),
    /// The call waits in the nodes' queues for an exclusive grant, like `Queue`, but in the order
    /// of tickets, which the nodes give to fair callers. It takes its place with its first attempt,
    /// sends a request at least once a second, and gives up the place when it ends (fair 1, 4, 5).
    Fair,
    /// The call waits for any release of the lock, outside of the nodes' queues; a release wakes
    /// all callers that watch the lock.
    Watch,
    /// The call only makes pauses, and no node registers it for a hint. A call for several names or
    /// permits waits like this. If a node reserved one name for the call, nobody could use that
    /// name while the call waits for another name (multi_lock 6).
    Pauses,
    /// The call waits for the end of a claim, after which all callers that wait get the same
    /// answer. Because the hint may have been lost, a last attempt is made at the deadline.
    Answer,
}

/// Prospect of a further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// Another owner has the name, for at most this time unless it renews; `None`: there is no
    /// known end.
    Held(Option<Duration>),
    /// No owner has a majority, because several callers made attempts at once. All of them give
    /// back what they were granted.
    Collided,
    /// The name is expected to become free or decided within this time, or within an unknown time
    /// if it is zero. No hint will announce it, so the next attempt follows after a short delay.
    Settling(Duration),
    /// The fair call has got its ticket (its number in the order of fair callers), so it makes the
    /// next attempt with the ticket at once (fair 2).
    Ticketed,
    /// Too few nodes gave an answer that counts. `crowded` is true if some requests were not sent,
    /// because too many requests wait in a node queue.
    NoQuorum { crowded: bool },
}

impl Prospect {
    /// Returns the prospect of a further attempt after a lost attempt to acquire.
    pub(crate) fn after(loss: &Loss) -> Self {
        match loss {
            Loss::Taken(taken) => Self::of_taken(taken),
            Loss::NoQuorum(outcomes) => Self::NoQuorum { crowded: outcomes.iter().any(is_crowded) },
        }
    }

    /// Returns the prospect of a further attempt after a majority of the nodes answered that the
    /// name is taken.
    pub(crate) fn of_taken(taken: &Taken) -> Self {
        match taken.retry_after {
            Some(Duration::ZERO) => Self::Collided,
            left => Self::Held(left),
        }
    }

    /// Returns the earliest time at which the name can become free without a release. The remaining
    /// time in the refusal is counted from `at`.
    fn expires(&self, at: Moment) -> Moment {
        match self {
            Self::Held(Some(left)) => at + *left,
            _ => at,
        }
    }
}

/// Last refusal of a call that makes no further attempt, and the reason for that.
#[derive(Debug)]
pub(crate) struct GivenUp<R> {
    pub(crate) refused: R,
    /// Time since the first attempt was sent.
    pub(crate) waited: Duration,
    /// True if the call ended because the handle is being closed.
    pub(crate) closed: bool,
}

/// Makes attempts until one is granted, or until a further attempt cannot succeed or may not be
/// made.
///
/// # Cancellation safety
/// If the future is dropped, the attempt under way gives back what nodes granted, and the call's
/// place in the queue passes to the next waiter of the handle.
pub(crate) async fn retry<A: Attempt>(
    core: &Arc<Core>,
    attempt: &mut A,
    terms: RetryTerms<'_>,
) -> Result<A::Granted, GivenUp<A::Refused>> {
    let mut retry = Retry::new(core, terms);
    loop {
        let refused = match attempt.make(retry.begin()).await {
            Ok(granted) => {
                retry.granted();
                return Ok(granted);
            }
            Err(refused) => refused,
        };
        let prospect = attempt.prospect(&refused, &mut retry.deadline);
        let Some(prospect) = prospect.filter(|_| !retry.is_exhausted()) else {
            return Err(retry.give_up(refused, !core.closing.is_open()));
        };
        retry.refused(prospect);
        match retry.wait(prospect, || attempt.hold_back()).await {
            Next::Attempt => {}
            Next::Exhausted => return Err(retry.give_up(refused, false)),
            Next::Closed => return Err(retry.give_up(refused, true)),
        }
    }
}

/// Step after a pause between two attempts.
enum Next {
    Attempt,
    /// The deadline has passed.
    Exhausted,
    /// The handle is being closed.
    Closed,
}

/// State of one call that waits for a grant.
struct Retry<'a> {
    core: &'a Arc<Core>,
    key: &'a str,
    wait: Wait,
    backoff: Backoff,
    started: Moment,
    deadline: Option<Moment>,
    since: Option<Moment>,
    /// Time at which the last attempt was sent.
    sent: Moment,
    /// Time from sending the last attempt until its refusal.
    round_trip: Duration,
    /// Registration for hints, which is made at the first refusal after which a hint can help.
    waiting: Option<Waiting>,
    /// True if the nodes have registered this handle for a hint.
    registered: bool,
    /// Number of attempts, needed at the end of a fair call: after an attempt, each node may have a
    /// place of the call. Set back to zero if the first attempt was granted, because such an
    /// attempt usually leaves no place.
    attempts: u32,
    /// Future that resolves when a claim ends. It is created before the attempt is sent, so that no
    /// hint is missed.
    ended: Option<OwnedNotified>,
    /// True if a hint ended the last pause.
    woken: bool,
    /// Limit on the rate of wake-ups that find no change; used only with [`Wait::Answer`].
    limit: RateLimit,
    /// Earliest time at which the name can become free without a release, by the answer to the last
    /// attempt.
    expires: Moment,
    /// Number of attempts in a row that probably collided with those of other callers.
    collisions: u32,
}

impl<'a> Retry<'a> {
    fn new(core: &'a Arc<Core>, terms: RetryTerms<'a>) -> Self {
        let RetryTerms { key, wait, policy, deadline, since } = terms;
        let started = core.env.now();
        let waiting = (wait == Wait::Fair).then(|| {
            core.listen();
            core.hints.wait(key, Some((Line::Fair, started)))
        });
        Self {
            core,
            key,
            wait,
            backoff: Backoff::new(policy),
            started,
            deadline,
            since,
            sent: started,
            round_trip: Duration::ZERO,
            waiting,
            registered: false,
            attempts: 0,
            ended: None,
            woken: false,
            limit: RateLimit::default(),
            expires: Moment::default(),
            collisions: 0,
        }
    }

    /// Begins an attempt. The first attempt requests no hint, because it is usually granted at
    /// once. An exception is the first attempt of a fair call, which requests a place in the queue.
    fn begin(&mut self) -> AttemptTerms {
        self.attempts += 1;
        self.sent = self.core.env.now();
        let if_held = self.waiting.as_ref().map(|waiting| {
            self.registered = true;
            waiting.request(self.sent, self.round_trip)
        });
        self.ended = match (&self.waiting, self.wait) {
            (Some(waiting), Wait::Answer) => Some(waiting.ended()),
            _ => None,
        };
        AttemptTerms { if_held, left: self.left() }
    }

    /// Returns the time until the deadline, or `NO_DEADLINE` if there is none.
    fn left(&self) -> Duration {
        self.deadline.map_or(NO_DEADLINE, |end| end.since(self.core.env.now()))
    }

    fn is_exhausted(&self) -> bool {
        self.deadline.is_some_and(|end| self.core.env.now() >= end)
    }

    fn give_up<R>(&self, refused: R, closed: bool) -> GivenUp<R> {
        GivenUp { refused, waited: self.core.env.now().since(self.started), closed }
    }

    /// Wakes the next waiter of the handle, so that it takes the handle's place at the nodes again.
    /// Also clears the received hints: this call has the lock, so what nodes have reserved for it
    /// need not be given back.
    fn granted(&mut self) {
        let Some(waiting) = self.waiting.as_ref().filter(|_| self.wait != Wait::Answer) else {
            return;
        };
        if self.woken {
            waiting.was_right();
        }
        waiting.wake_next();
        waiting.unused();
        // A first attempt that was granted usually left no place on any node, so the drop of this
        // value need not remove places.
        self.attempts -= u32::from(self.attempts == 1);
    }

    /// Records a refusal, and registers the call for hints if they can help.
    fn refused(&mut self, prospect: Prospect) {
        let now = self.core.env.now();
        self.round_trip = now.since(self.sent);
        // The name expires later than it did before the hint, so the wake-up found a change: the
        // name was released and another owner was faster, or its owner renewed. For a semaphore,
        // the end of the first permit changes with every attempt of another waiter, so it shows
        // nothing.
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken)
            && waiting.line() != Line::Permits
            && prospect.expires(self.sent) > self.expires + TICK
        {
            waiting.was_right();
        }
        self.expires = prospect.expires(now);
        if let (Some(waiting), Prospect::NoQuorum { .. }) = (&mut self.waiting, prospect) {
            waiting.step_back(now);
        }
        let registers = self.wait != Wait::Pauses && !matches!(prospect, Prospect::Settling(_));
        if self.waiting.is_none() && registers {
            self.core.listen();
            let queued = match self.wait {
                Wait::Queue(mode) => Some((Line::from(mode), self.since.unwrap_or(now))),
                Wait::Fair | Wait::Watch | Wait::Pauses | Wait::Answer => None,
            };
            let waiting = self.core.hints.wait(self.key, queued);
            // If another caller of the handle has waited longer, the handle already has a place in
            // the nodes' queues, and that caller is served first.
            self.registered = waiting.is_behind();
            self.waiting = Some(waiting);
        }
    }

    /// Waits until the next attempt may be made. Returns the next step: the attempt, or the end of
    /// the call.
    async fn wait(&mut self, prospect: Prospect, hold_back: impl Fn() -> Duration) -> Next {
        let (env, registered) = (&*self.core.env, self.registered);
        let mut pause = match (self.wait, prospect) {
            (Wait::Pauses, Prospect::Held(_)) => {
                self.backoff.pause(Prospect::Held(None), true, env)
            }
            _ => self.backoff.pause(prospect, registered, env),
        };
        if let Some(waiting) = &self.waiting {
            pause = waiting.pause(pause, self.core.env.random());
        }
        if self.wait == Wait::Fair {
            pause = pause.min(HINT_MAX);
        }
        let pause = pause.min(self.left());
        let collided = prospect == Prospect::Collided;
        self.woken = false;
        if pause.is_zero() {
            // A timer takes a millisecond even for a pause of zero. So without a pause only a hint
            // that has arrived already is taken.
            self.woken = self.hint().now_or_never().is_some();
        } else if !collided {
            let core = Arc::clone(self.core);
            tokio::select! {
                biased;
                () = core.closing.begun() => return Next::Closed,
                woken = timeout(pause, self.hint()) => self.woken = woken.is_ok(),
            }
        }
        if self.woken {
            self.keep_apart().await;
        }
        // A release wakes all callers that watch at once, so this attempt may collide with theirs.
        let meets = collided || self.woken && self.wait == Wait::Watch;
        self.collisions = if meets { self.collisions + 1 } else { 0 };
        if collided || self.collisions > 1 {
            self.part_ways().await;
        }
        self.leave(hold_back()).await;
        if !self.core.closing.is_open() {
            Next::Closed
        } else if self.is_exhausted() && !pause.is_zero() && self.wait != Wait::Answer {
            Next::Exhausted
        } else {
            Next::Attempt
        }
    }

    /// Resolves when the nodes have hinted that it is time for an attempt.
    async fn hint(&mut self) {
        match (self.ended.take(), &self.waiting) {
            (Some(ended), _) => ended.await,
            (None, Some(waiting)) if self.wait != Wait::Answer => {
                waiting.turn(2 * self.round_trip).await;
            }
            (None, _) => std::future::pending().await,
        }
    }

    /// Waits if wake-ups follow each other too fast, so that forged hints rarely cost the nodes a
    /// request. The waiters of a lock share one limit. Readers, and callers that wait for the end
    /// of the same claim, are woken together. So each of these calls has its own limit.
    async fn keep_apart(&mut self) {
        let now = self.core.env.now();
        let apart = match &self.waiting {
            Some(waiting) if self.wait != Wait::Answer && !waiting.is_shared() => {
                waiting.limit(now)
            }
            _ => self.limit.wake(now),
        };
        let apart = apart.min(self.left());
        if !apart.is_zero() {
            sleep(apart).await;
        }
    }

    /// Waits for a random time, so that callers whose attempts collided do not collide again. The
    /// longest possible time grows with the number of collisions in a row.
    async fn part_ways(&self) {
        let apart = spread(self.core.env.random(), self.round_trip, self.collisions);
        if apart >= TICK {
            sleep(apart.min(self.left())).await;
        }
        self.take_turn().await;
    }

    /// Delays the attempt by `span`, so that preferred callers can get the name first. If a hint
    /// woke this call, wakes the next waiter of the handle, which may make an attempt instead.
    async fn leave(&self, span: Duration) {
        if span.is_zero() {
            return;
        }
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken) {
            waiting.wake_next();
        }
        tokio::select! {
            biased;
            () = self.core.closing.begun() => {}
            () = sleep(span.min(self.left())) => {}
        }
        self.take_turn().await;
    }

    /// Consumes a hint that has arrived by now. The attempt that follows does not need the hint,
    /// because it sees all changes until now.
    async fn take_turn(&self) {
        if let Some(waiting) = &self.waiting {
            let _ = timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
        }
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        // Locks that nodes have reserved for this call go to the next handle in the nodes' queues.
        let Some(waiting) = &self.waiting else { return };
        let nodes = match self.wait {
            // After an attempt of a fair call, each node may have a place of the call, which the
            // release removes.
            Wait::Fair if self.attempts > 0 => (0..self.core.n()).collect(),
            _ => waiting.unused(),
        };
        let mode = match self.wait {
            Wait::Queue(mode) => mode,
            _ => LockMode::Exclusive,
        };
        for node in nodes {
            self.core.pass_on(node, self.key, waiting.line(), mode);
        }
    }
}
