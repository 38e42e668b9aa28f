//! The retry loop of all calls that wait for a grant: acquire, take-over, campaign and claim.
//!
//! [`retry`] makes attempts until one is granted, until a further attempt cannot succeed, until the
//! deadline passes, or until the `Redlock` handle is closed. An [`Attempt`] defines one attempt and
//! what its refusal means for the next one. After its first refusal the call is registered for the
//! nodes' hints (wake-up messages). Between two attempts it waits up to four times: for a hint, at
//! most for the pause that [`Backoff`] returns; after a hint, for the distance to other wake-ups
//! that the rate limit requires; after a collision with other callers, for a random time; and for
//! the time for which preferred callers (candidates with a higher priority) go first.
//!
//! Cancellation: a call that is dropped while it waits gives up its place in the nodes' queues. If
//! nodes have reserved the lock for the call, they give it to the next client in the queue.

mod backoff;
mod prospect;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{sleep, timeout};

use self::backoff::{Backoff, HINT_MAX, spread};
use crate::client::Core;
use crate::client::hints::{Line, RateLimit, Waiting};
use crate::op::{IfHeld, LockMode};
use crate::retry_policy::RetryPolicy;
use crate::time::Moment;

pub(crate) use self::prospect::{Prospect, is_crowded};

/// Resolution of the runtime's timers. The loop does not sleep for shorter pauses.
const TICK: Duration = Duration::from_millis(1);
/// Time that is assumed to be left if the call has no deadline. It limits the wait of an attempt
/// for its permit ([`Core`] allows a limited number of attempts at once), and each pause.
const NO_DEADLINE: Duration = Duration::from_secs(60);

/// Kind of attempt that [`retry`] repeats, for example to acquire a lock or to claim a key.
pub(crate) trait Attempt: Send + Sync {
    /// Value that an attempt returns if it was granted, for example a lease.
    type Granted: Send;
    /// Reason for which an attempt was refused, for example another owner.
    type Refused: Send;

    /// Makes one attempt at the nodes. If the attempt is refused or its future is dropped, the
    /// grants of single nodes are given back.
    fn make(
        &mut self,
        terms: AttemptTerms,
    ) -> impl Future<Output = Result<Self::Granted, Self::Refused>> + Send;

    /// Returns the prospect of a further attempt after this refusal: the time and way in which it
    /// may succeed. `None` if no attempt can succeed. Can change the deadline of the call.
    fn prospect(
        &mut self,
        refused: &Self::Refused,
        deadline: &mut Option<Moment>,
    ) -> Option<Prospect>;

    /// Returns the time for which the next attempt is delayed, so that preferred callers (such as
    /// candidates with a higher priority) go first.
    fn hold_back(&self) -> Duration {
        Duration::ZERO
    }
}

/// Parameters of one attempt to acquire a lock or to claim a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTerms {
    /// Action of a node if another owner has the lock or key: the node registers this `Redlock`
    /// handle for a hint (a wake-up message), or transfers the lock to the caller. With `None` the
    /// node only refuses, for example in the first attempt of a call, which needs no hint yet.
    pub(crate) if_held: Option<IfHeld>,
    /// Time until the deadline of the call. It is also the longest time for which the attempt waits
    /// for its turn among the attempts of this process, but at least `node_deadline`.
    pub(crate) left: Duration,
}

impl AttemptTerms {
    /// Parameters of a call that makes one attempt and does not wait.
    pub(crate) const SINGLE: Self = Self { if_held: None, left: Duration::ZERO };
}

/// Parameters of a call that waits for a lock or a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTerms<'a> {
    /// Key of the lock or record about which the nodes send hints (wake-up messages).
    pub(crate) key: &'a str,
    pub(crate) wait: Wait,
    pub(crate) policy: RetryPolicy,
    /// Time after which no attempt begins; `None`: no limit.
    pub(crate) deadline: Option<Moment>,
    /// Time at which the caller began to wait, if it was before these attempts; else `None`. Its
    /// place in the nodes' queues is ahead of callers that came later.
    pub(crate) since: Option<Moment>,
}

/// Event for which a call waits between two attempts to get a lock or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call waits for its turn in the nodes' queues to get the lock in this mode; a release
    /// wakes the first waiter.
    Queue(LockMode),
    /// The call waits in the nodes' queues for an exclusive grant, like `Queue`, but in the order
    /// of tickets, which the nodes give to fair callers. It takes its place with its first attempt,
    /// sends a request at least once a second, and gives up the place when it ends
    /// (rules fair 1, 4, 5 in docs/design).
    Fair,
    /// The call waits for any release of the lock, outside of the nodes' queues; a release wakes
    /// all callers that watch the lock.
    Watch,
    /// The call only makes pauses, and no node registers it for a hint (wake-up message). A call
    /// for several names or permits waits like this. If a node reserved one name for the call,
    /// no caller could use that name while the call waits for another name
    /// (rule multi_lock 6 in docs/design).
    Pauses,
    /// The call waits for the end of a claim, after which all callers that wait get the same
    /// answer. The node's message about this end may have been lost, so a last attempt is made at
    /// the deadline.
    Answer,
}

/// Last refusal of a call that makes no further attempt, with the time for which the call waited
/// and the reason for its end.
#[derive(Debug)]
pub(crate) struct GivenUp<R> {
    pub(crate) refused: R,
    /// Time since the first attempt was sent.
    pub(crate) waited: Duration,
    /// True if the call ended because the `Redlock` handle is being closed.
    pub(crate) closed: bool,
}

/// Makes attempts until one is granted, or until a further attempt cannot succeed or may not be
/// made.
///
/// # Cancellation safety
/// If the future is dropped, the attempt under way gives back what nodes granted, and the call's
/// place in the queue passes to the next waiter of the `Redlock` handle.
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
        // A majority that refused the attempt has put the handle into its queues again.
        retry.owes_wake_up &= !prospect.is_some_and(|prospect| prospect.is_answer());
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

/// Next step of a call after the pause between two attempts.
enum Next {
    Attempt,
    /// The deadline of the call has passed.
    Exhausted,
    /// The `Redlock` handle is being closed.
    Closed,
}

/// State of one call that waits for a lock or a claim.
struct Retry<'a> {
    core: &'a Arc<Core>,
    key: &'a str,
    wait: Wait,
    backoff: Backoff,
    started: Moment,
    deadline: Option<Moment>,
    since: Option<Moment>,
    /// Time at which the requests of the last attempt were sent.
    sent: Moment,
    /// Time from sending the last attempt until its refusal.
    round_trip: Duration,
    /// Registration for hints (wake-up messages from nodes), which is made at the first refusal
    /// after which a hint can help.
    waiting: Option<Waiting>,
    /// True if the nodes have registered this `Redlock` handle for a hint (a wake-up message).
    registered: bool,
    /// Number of attempts, needed at the end of a fair call: after an attempt, each node may have a
    /// place for the call in its queue of waiters. Set back to zero if the first attempt was
    /// granted, because such an attempt usually leaves no place.
    attempts: u32,
    /// Future that resolves when a claim ends. It is created before the attempt is sent, so that no
    /// message about the end is missed.
    ended: Option<OwnedNotified>,
    /// True if a hint (a wake-up message from a node) ended the last pause.
    woken: bool,
    /// True if this call took a wake-up, and no majority has answered since. The nodes took the
    /// handle out of their queues with the wake-up. So if the call ends, the wake-up is for the
    /// next waiter of the handle.
    owes_wake_up: bool,
    /// Limit on the rate of wake-ups that find no change; used only with [`Wait::Answer`].
    limit: RateLimit,
    /// Earliest time at which the lock or key can become free without a release, by the answer to
    /// the last attempt.
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
            owes_wake_up: false,
            limit: RateLimit::default(),
            expires: Moment::default(),
            collisions: 0,
        }
    }

    /// Begins an attempt. The first attempt requests no wake-up message, because it is usually
    /// granted at once. An exception is the first attempt of a fair call, which requests a place in
    /// the queue.
    fn begin(&mut self) -> AttemptTerms {
        self.attempts += 1;
        self.sent = self.core.env.now();
        let if_held = self.waiting.as_ref().map(|waiting| {
            self.registered = true;
            self.owes_wake_up |= waiting.takes_first_hint();
            waiting.request(self.sent, self.round_trip)
        });
        self.ended = match (&self.waiting, self.wait) {
            (Some(waiting), Wait::Answer) => Some(waiting.ended()),
            _ => None,
        };
        AttemptTerms { if_held, left: self.left() }
    }

    /// Returns the time until the deadline of the call, or `NO_DEADLINE` if it has none.
    fn left(&self) -> Duration {
        self.deadline.map_or(NO_DEADLINE, |end| end.since(self.core.env.now()))
    }

    fn is_exhausted(&self) -> bool {
        self.deadline.is_some_and(|end| self.core.env.now() >= end)
    }

    fn give_up<R>(&self, refused: R, closed: bool) -> GivenUp<R> {
        GivenUp { refused, waited: self.core.env.now().since(self.started), closed }
    }

    /// Wakes the next waiter of the `Redlock` handle, so that it takes the handle's place in the
    /// nodes' queues again. Also clears the received hints: this call has the lock, so what nodes
    /// have reserved for it need not be given back.
    fn granted(&mut self) {
        let Some(waiting) = self.waiting.as_ref().filter(|_| self.wait != Wait::Answer) else {
            return;
        };
        if self.woken {
            waiting.was_right();
        }
        waiting.wake_next();
        self.owes_wake_up = false;
        waiting.unused();
        // A first attempt that was granted usually left no place in the queue of any node, so the
        // drop of this `Retry` need not remove places.
        self.attempts -= u32::from(self.attempts == 1);
    }

    /// Records a refusal, and registers the call for hints (wake-up messages) if they can help.
    fn refused(&mut self, prospect: Prospect) {
        let now = self.core.env.now();
        self.round_trip = now.since(self.sent);
        // The lock or key expires later than it did before the hint, so the wake-up found a change:
        // it was released and another owner was faster, or its owner renewed. For a semaphore this
        // shows nothing: the end of the first permit changes with each attempt of another waiter.
        let is_answer = prospect.is_answer();
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken && is_answer)
            && waiting.line() != Line::Permits
            && prospect.expires(self.sent) > self.expires + TICK
        {
            waiting.was_right();
        }
        self.expires = prospect.expires(now);
        let registers = self.wait != Wait::Pauses && !matches!(prospect, Prospect::Settling(_));
        if self.waiting.is_none() && registers {
            self.core.listen();
            let queued = match self.wait {
                Wait::Queue(mode) => Some((Line::from(mode), self.since.unwrap_or(now))),
                Wait::Fair | Wait::Watch | Wait::Pauses | Wait::Answer => None,
            };
            let waiting = self.core.hints.wait(self.key, queued);
            // If another caller of the `Redlock` handle has waited longer, the handle already has a
            // place in the nodes' queues, and that caller is served first.
            self.registered = waiting.is_behind();
            self.waiting = Some(waiting);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.step_back(prospect == Prospect::NotDurable, now);
            if prospect == Prospect::NotDurable && std::mem::take(&mut self.owes_wake_up) {
                waiting.pass_wake_up();
            }
        }
        if prospect == Prospect::NotDurable && self.wait == Wait::Fair {
            self.give_up_places();
        }
    }

    /// Removes the places of this fair call from the nodes' queues.
    fn give_up_places(&self) {
        for node in 0..self.core.n() {
            self.core.pass_on(node, self.key, Line::Fair, LockMode::Exclusive);
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
            // (a wake-up message) that has arrived already is taken.
            self.woken = self.hint().now_or_never().is_some();
        } else if self.wait == Wait::Fair && prospect == Prospect::NotDurable {
            // The roll-back of its own grants may wake this caller. It makes a pause without hints,
            // and drops those that came.
            self.leave(pause).await;
            if let Some(waiting) = &self.waiting {
                waiting.forget_wake_ups();
            }
        } else if !collided {
            let core = Arc::clone(self.core);
            tokio::select! {
                biased;
                () = core.closing.begun() => return Next::Closed,
                woken = timeout(pause, self.hint()) => self.woken = woken.is_ok(),
            }
        }
        self.owes_wake_up |= self.woken && self.wait != Wait::Answer;
        if self.woken {
            self.keep_apart().await;
        }
        // A release wakes all callers that watch the lock, so their attempts may collide with this
        // caller's attempt.
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

    /// Resolves when the nodes have sent messages that it is time for an attempt.
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
    async fn part_ways(&mut self) {
        let apart = spread(self.core.env.random(), self.round_trip, self.collisions);
        if apart >= TICK {
            sleep(apart.min(self.left())).await;
        }
        self.take_turn().await;
    }

    /// Delays the attempt by `span`, so that preferred callers (such as candidates with a higher
    /// priority) can get the lock first. If a hint woke this call, wakes the next waiter of the
    /// `Redlock` handle, which may make an attempt instead.
    async fn leave(&mut self, span: Duration) {
        if span.is_zero() {
            return;
        }
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken) {
            waiting.wake_next();
            self.owes_wake_up = false;
        }
        tokio::select! {
            biased;
            () = self.core.closing.begun() => {}
            () = sleep(span.min(self.left())) => {}
        }
        self.take_turn().await;
    }

    /// Consumes a hint (wake-up message) that has arrived. The attempt that follows does not need
    /// the hint, because it sees all changes until now.
    async fn take_turn(&mut self) {
        if let Some(waiting) = &self.waiting {
            let took = timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await.is_ok();
            self.owes_wake_up |= took && self.wait != Wait::Answer;
        }
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        // Locks that nodes have reserved for this call go to the next client in the nodes' queues.
        let Some(waiting) = &self.waiting else { return };
        if self.owes_wake_up {
            waiting.leave_wake_up();
        }
        if self.wait == Wait::Fair && self.attempts > 0 {
            return self.give_up_places();
        }
        let mode = match self.wait {
            Wait::Queue(mode) => mode,
            _ => LockMode::Exclusive,
        };
        for node in waiting.unused() {
            self.core.pass_on(node, self.key, waiting.line(), mode);
        }
    }
}
