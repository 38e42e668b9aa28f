//! The retry loop of all calls that wait for a grant. A call that is dropped while it waits gives
//! up its place in the nodes' queues, and what nodes have reserved for it goes to the next.

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

/// Resolution of the runtime's timers.
const TICK: Duration = Duration::from_millis(1);
const NO_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) trait Attempt: Send + Sync {
    type Granted: Send;
    type Refused: Send;

    /// If the attempt is refused or dropped, the grants of single nodes are given back.
    fn make(
        &mut self,
        terms: AttemptTerms,
    ) -> impl Future<Output = Result<Self::Granted, Self::Refused>> + Send;

    fn prospect(
        &mut self,
        refused: &Self::Refused,
        deadline: &mut Option<Moment>,
    ) -> Option<Prospect>;

    fn hold_back(&self) -> Duration {
        Duration::ZERO
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTerms {
    pub(crate) if_held: Option<IfHeld>,
    /// Also the longest wait of the attempt for its turn in this process, but at least
    /// `node_deadline`.
    pub(crate) left: Duration,
}

impl AttemptTerms {
    pub(crate) const SINGLE: Self = Self { if_held: None, left: Duration::ZERO };
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTerms<'a> {
    pub(crate) key: &'a str,
    pub(crate) wait: Wait,
    pub(crate) policy: RetryPolicy,
    pub(crate) deadline: Option<Moment>,
    pub(crate) since: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Queue(LockMode),
    /// Takes its place with its first attempt, asks at least once a second, and gives it up when it
    /// ends (fair 1, 4, 5).
    Fair,
    Watch,
    /// A name that a node reserved for a call for several nobody could use while it waits for
    /// another (multi_lock 6).
    Pauses,
    /// The hint about a claim's end may have been lost, so a last attempt is made at the deadline.
    Answer,
}

#[derive(Debug)]
pub(crate) struct GivenUp<R> {
    pub(crate) refused: R,
    pub(crate) waited: Duration,
    pub(crate) closed: bool,
}

/// If the future is dropped, the attempt gives back what nodes granted, and the place passes to the
/// next waiter of the handle.
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

enum Next {
    Attempt,
    Exhausted,
    Closed,
}

struct Retry<'a> {
    core: &'a Arc<Core>,
    key: &'a str,
    wait: Wait,
    backoff: Backoff,
    started: Moment,
    deadline: Option<Moment>,
    since: Option<Moment>,
    sent: Moment,
    round_trip: Duration,
    waiting: Option<Waiting>,
    registered: bool,
    attempts: u32,
    /// Created before the attempt is sent, so that no hint about the end is missed.
    ended: Option<OwnedNotified>,
    woken: bool,
    /// The nodes took the handle out of their queues with the wake-up, so if the call ends, it is
    /// for the next waiter.
    owes_wake_up: bool,
    limit: RateLimit,
    expires: Moment,
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

    /// The first attempt is usually granted at once.
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

    fn left(&self) -> Duration {
        self.deadline.map_or(NO_DEADLINE, |end| end.since(self.core.env.now()))
    }

    fn is_exhausted(&self) -> bool {
        self.deadline.is_some_and(|end| self.core.env.now() >= end)
    }

    fn give_up<R>(&self, refused: R, closed: bool) -> GivenUp<R> {
        GivenUp { refused, waited: self.core.env.now().since(self.started), closed }
    }

    /// The next waiter takes the handle's place again.
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
        // A first attempt that was granted usually left no place in any queue.
        self.attempts -= u32::from(self.attempts == 1);
    }

    fn refused(&mut self, prospect: Prospect) {
        let now = self.core.env.now();
        self.round_trip = now.since(self.sent);
        // If it expires later, the wake-up found a change. For a semaphore this shows nothing: the
        // end of the first permit changes with each attempt of another waiter.
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
            // That caller is served first.
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

    fn give_up_places(&self) {
        for node in 0..self.core.n() {
            self.core.pass_on(node, self.key, Line::Fair, LockMode::Exclusive);
        }
    }

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
            // A timer takes a millisecond even for a pause of zero, so only a hint that has arrived
            // already is taken.
            self.woken = self.hint().now_or_never().is_some();
        } else if self.wait == Wait::Fair && prospect == Prospect::NotDurable {
            // The roll-back of its own grants may wake this caller.
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
        // A release wakes all callers that watch the lock, so their attempts may collide.
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

    async fn hint(&mut self) {
        match (self.ended.take(), &self.waiting) {
            (Some(ended), _) => ended.await,
            (None, Some(waiting)) if self.wait != Wait::Answer => {
                waiting.turn(2 * self.round_trip).await;
            }
            (None, _) => std::future::pending().await,
        }
    }

    /// So that forged hints rarely cost the nodes a request. Readers, and callers that wait for the
    /// end of one claim, are woken together, so each has a limit of its own.
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

    async fn part_ways(&mut self) {
        let apart = spread(self.core.env.random(), self.round_trip, self.collisions);
        if apart >= TICK {
            sleep(apart.min(self.left())).await;
        }
        self.take_turn().await;
    }

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

    /// The attempt that follows sees all changes until now.
    async fn take_turn(&mut self) {
        if let Some(waiting) = &self.waiting {
            let took = timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await.is_ok();
            self.owes_wake_up |= took && self.wait != Wait::Answer;
        }
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
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
