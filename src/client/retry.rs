//! The retry loop of all calls that wait for a grant: acquire, take-over, campaign and claim.
//!
//! [`retry`] makes attempts until one is granted, until a further one has no prospect, until the
//! deadline, or until the handle is closed. An [`Attempt`] defines what one attempt is, and what
//! its refusal means for the next one. After its first refusal the call is registered for the
//! nodes' hints. Between two attempts it waits, in this order: for a hint, at most for the pause
//! that [`Backoff`] returns; if a hint came, to keep a distance from other wake-ups; to part from
//! the callers with which it collided; and for as long as the attempt is left to others.
//!
//! Cancellation: a call that is dropped while it waits gives up its place, and what nodes reserved
//! for it goes to the next in their queues.

mod backoff;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{sleep, timeout};

use self::backoff::{Backoff, spread};
use crate::client::Core;
use crate::client::hints::{Floor, Waiting};
use crate::error::Taken;
use crate::op::IfHeld;
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::RetryPolicy;
use crate::time::Moment;

pub(crate) use self::backoff::is_crowded;

/// Resolution of timers: shorter pauses are not slept.
const TICK: Duration = Duration::from_millis(1);
/// Time that an attempt may wait for its permit if the call has no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(60);

/// One way to ask the nodes for a grant.
pub(crate) trait Attempt: Send + Sync {
    /// Result of an attempt that was granted.
    type Granted: Send;
    /// Reason for which an attempt was refused.
    type Refused: Send;

    /// Asks the nodes once. What they granted is given back if the future is dropped, and before
    /// the future returns a refusal.
    fn make(
        &mut self,
        terms: AttemptTerms,
    ) -> impl Future<Output = Result<Self::Granted, Self::Refused>> + Send;

    /// Returns the prospect of a further attempt; `None`: no attempt can succeed. May move the
    /// deadline of the call.
    fn prospect(
        &mut self,
        refused: &Self::Refused,
        deadline: &mut Option<Moment>,
    ) -> Option<Prospect>;

    /// Returns the time for which the next attempt is left to others.
    fn hold_back(&self) -> Duration {
        Duration::ZERO
    }
}

/// Terms of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTerms {
    /// Request to nodes where another owner has the name; `None` before the call is registered for
    /// hints.
    pub(crate) if_held: Option<IfHeld>,
    /// Time until the deadline of the call.
    pub(crate) left: Duration,
}

/// Terms of a call that waits for a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTerms<'a> {
    /// Key about which the nodes send hints.
    pub(crate) key: &'a str,
    pub(crate) wait: Wait,
    pub(crate) policy: RetryPolicy,
    /// No attempt begins after this; `None`: no limit.
    pub(crate) deadline: Option<Moment>,
}

/// Way to wait for a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// In the nodes' queues for a lock; a release wakes the first waiter.
    Queue,
    /// Outside of the queues; each release of the lock wakes all who watch it.
    Watch,
    /// For the end of a claim, which has the same answer for all who wait. The last attempt is made
    /// at the deadline, because the hint may have been lost.
    Answer,
}

/// Prospect of a further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// Another owner has the name, for this time at most unless it renews.
    Held(Option<Duration>),
    /// No owner has a majority: several callers met, and all of them give back what they were
    /// granted.
    Collided,
    /// The name is decided soon, at the latest after this time (zero: not known), without a hint.
    Settling(Duration),
    /// Too few answers that count; `crowded`: requests were not sent because too many wait.
    NoQuorum { crowded: bool },
}

impl Prospect {
    /// Returns the prospect after a lost attempt to acquire.
    pub(crate) fn after(loss: &Loss) -> Self {
        match loss {
            Loss::Taken(taken) => Self::of_taken(taken),
            Loss::NoQuorum(outcomes) => Self::NoQuorum { crowded: outcomes.iter().any(is_crowded) },
        }
    }

    /// Returns the prospect if a majority of the nodes answered.
    pub(crate) fn of_taken(taken: &Taken) -> Self {
        match taken.retry_after {
            Some(Duration::ZERO) => Self::Collided,
            left => Self::Held(left),
        }
    }

    /// Returns the time at which the name could be free without a release, by an answer received at
    /// `at`.
    fn expires(&self, at: Moment) -> Moment {
        match self {
            Self::Held(Some(left)) => at + *left,
            _ => at,
        }
    }
}

/// Last refusal of a call that makes no further attempt.
#[derive(Debug)]
pub(crate) struct GivenUp<R> {
    pub(crate) refused: R,
    /// Time since the first attempt was sent.
    pub(crate) waited: Duration,
    /// The call ended because the handle is being closed.
    pub(crate) closed: bool,
}

/// Makes attempts until one is granted, or until there is no point in a further one.
///
/// # Cancellation safety
/// As [`Attempt::make`]; a place in the queue passes to the next waiter of the handle.
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

/// Result of a pause.
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
    /// Time at which the last attempt was sent.
    sent: Moment,
    /// Time from `sent` to the refusal.
    round_trip: Duration,
    /// Registration for hints, from the first refusal on that makes a hint useful.
    waiting: Option<Waiting>,
    /// The nodes know that this handle waits for a hint.
    registered: bool,
    /// Resolves at the end of a claim; armed before the attempt so that no hint is missed.
    ended: Option<OwnedNotified>,
    /// The last pause was ended by a hint.
    woken: bool,
    /// Limit to the rate of wake-ups that find no change.
    floor: Floor,
    /// Time at which the name could be free without a release, as of the last attempt.
    expires: Moment,
    /// Number of attempts in a row that may have met those of others.
    collisions: u32,
}

impl<'a> Retry<'a> {
    fn new(core: &'a Arc<Core>, terms: RetryTerms<'a>) -> Self {
        let RetryTerms { key, wait, policy, deadline } = terms;
        let started = core.env.now();
        Self {
            core,
            key,
            wait,
            backoff: Backoff::new(policy),
            started,
            deadline,
            sent: started,
            round_trip: Duration::ZERO,
            waiting: None,
            registered: false,
            ended: None,
            woken: false,
            floor: Floor::default(),
            expires: Moment::default(),
            collisions: 0,
        }
    }

    /// Begins an attempt. The first one asks for no hint, because in the common case it is granted
    /// at once.
    fn begin(&mut self) -> AttemptTerms {
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

    /// Returns the time until the deadline.
    fn left(&self) -> Duration {
        self.deadline.map_or(NO_DEADLINE, |end| end.since(self.core.env.now()))
    }

    fn is_exhausted(&self) -> bool {
        self.deadline.is_some_and(|end| self.core.env.now() >= end)
    }

    fn give_up<R>(&self, refused: R, closed: bool) -> GivenUp<R> {
        GivenUp { refused, waited: self.core.env.now().since(self.started), closed }
    }

    /// Lets the next waiter of the handle take its place at the nodes: the name is held, perhaps
    /// because of a hint, and what the nodes reserve for this call is not needed any more.
    fn granted(&self) {
        let Some(waiting) = self.waiting.as_ref().filter(|_| self.wait != Wait::Answer) else {
            return;
        };
        if self.woken {
            waiting.was_right();
        }
        waiting.pass_on();
        waiting.unused();
    }

    /// Records a refusal, and registers the call for hints.
    fn refused(&mut self, prospect: Prospect) {
        let now = self.core.env.now();
        self.round_trip = now.since(self.sent);
        // The name certainly expires later than before the hint: it was released, and another owner
        // was faster.
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken)
            && prospect.expires(self.sent) > self.expires + TICK
        {
            waiting.was_right();
        }
        self.expires = prospect.expires(now);
        if self.waiting.is_none() && !matches!(prospect, Prospect::Settling(_)) {
            self.core.listen();
            let since = (self.wait == Wait::Queue).then_some(now);
            let waiting = self.core.hints.wait(self.key, since);
            // If other callers of the handle wait, the handle has its place already, and they come
            // first.
            self.registered = waiting.is_behind();
            self.waiting = Some(waiting);
        }
    }

    /// Waits for the time of the next attempt.
    async fn wait(&mut self, prospect: Prospect, hold_back: impl Fn() -> Duration) -> Next {
        let mut pause = self.backoff.pause(prospect, self.registered, &*self.core.env);
        if let Some(waiting) = &self.waiting {
            pause = waiting.pause(pause, self.core.env.random());
        }
        let pause = pause.min(self.left());
        let collided = prospect == Prospect::Collided;
        self.woken = false;
        if pause.is_zero() {
            // A timer takes a millisecond even for a pause of zero, so none is used.
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
        // All callers that watch are woken at once, so this attempt may meet theirs.
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

    /// Resolves when the nodes hint that it is time to try.
    async fn hint(&mut self) {
        match (self.ended.take(), &self.waiting) {
            (Some(ended), _) => ended.await,
            (None, Some(waiting)) if self.wait != Wait::Answer => {
                waiting.turn(2 * self.round_trip).await;
            }
            (None, _) => std::future::pending().await,
        }
    }

    /// Limits the rate of wake-ups, so that forged hints seldom cost the nodes a request. Callers
    /// that wait for the same answer are woken together, so each of them has a limit of its own.
    async fn keep_apart(&mut self) {
        let now = self.core.env.now();
        let apart = match &self.waiting {
            Some(waiting) if self.wait != Wait::Answer => waiting.floor(now),
            _ => self.floor.wake(now),
        };
        let apart = apart.min(self.left());
        if !apart.is_zero() {
            sleep(apart).await;
        }
    }

    /// Waits for a random time, so that callers that collided do not meet again; over more round
    /// trips the more often they did.
    async fn part_ways(&self) {
        let apart = spread(self.core.env.random(), self.round_trip, self.collisions);
        if apart >= TICK {
            sleep(apart.min(self.left())).await;
        }
        self.take_turn().await;
    }

    /// Leaves the attempt to others for this time; if a hint had come, the next waiter of the
    /// handle may try.
    async fn leave(&self, span: Duration) {
        if span.is_zero() {
            return;
        }
        if let Some(waiting) = self.waiting.as_ref().filter(|_| self.woken) {
            waiting.pass_on();
        }
        tokio::select! {
            biased;
            () = self.core.closing.begun() => {}
            () = sleep(span.min(self.left())) => {}
        }
        self.take_turn().await;
    }

    /// Consumes a hint that has come by now: the attempt itself finds what has changed until now.
    async fn take_turn(&self) {
        if let Some(waiting) = &self.waiting {
            let _ = timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
        }
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        // What nodes reserved for this call goes to the next handle in their queues.
        for node in self.waiting.iter().flat_map(Waiting::unused) {
            self.core.pass_on(node, self.key);
        }
    }
}
