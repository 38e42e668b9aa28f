//! The retry loop of all calls that wait for a grant: acquire, take-over, campaign and claim.
//!
//! [`retry`] makes attempts until one is granted, until a further one has no prospect, until the
//! deadline, or until the handle is closed. What one attempt is, and what its refusal means for
//! the next one, is said by its [`Attempt`]. From its first refusal on the call is registered for
//! the nodes' hints. Between two attempts it waits, in this order: for a hint, for as long as
//! [`Backoff`] says at most; apart from other wake-ups, if a hint came; apart from the callers
//! with which it collided; and for as long as the attempt is to be left to others.
//!
//! Cancellation: dropped, a waiting call gives up its place, and what nodes reserved for it goes
//! to the next in their queues.

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

/// Resolution of timers: no shorter pause is slept for.
const TICK: Duration = Duration::from_millis(1);
/// Time that an attempt may wait for its permit if the call has no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(60);

/// One way to ask the nodes for a grant.
pub(crate) trait Attempt: Send + Sync {
    /// Result of an attempt that was granted.
    type Granted: Send;
    /// Cause of an attempt that was not.
    type Refused: Send;

    /// Asks the nodes once. What they granted is given back if the future is dropped, and before it
    /// returns a refusal.
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
    /// Request to nodes where another owner has the name; none before the call is registered for
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
    /// No attempt begins after this; none: no limit.
    pub(crate) deadline: Option<Moment>,
}

/// Way to wait for a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// In the nodes' queues for a lock, whose first waiter a release wakes.
    Queue,
    /// Outside of the queues: each release of the lock wakes all who watch it.
    Watch,
    /// For the end of a claim, which is the same answer for all who wait. The last attempt is made
    /// at the deadline, because the hint may have been lost.
    Answer,
}

/// Prospect of a further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// Another owner has the name, for this time unless it renews or releases it.
    Held(Option<Duration>),
    /// No owner has a majority: several callers met, and all give back what they were granted.
    Collided,
    /// It is decided soon, at the latest after this time (zero: not known), without a hint.
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

    /// Returns the prospect where a majority of the nodes could answer.
    pub(crate) fn of_taken(taken: &Taken) -> Self {
        match taken.retry_after {
            Some(Duration::ZERO) => Self::Collided,
            left => Self::Held(left),
        }
    }

    /// Returns the time at which the name could be free without a release, by an answer of `at`.
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
    /// It ended because the handle is being closed.
    pub(crate) closed: bool,
}

/// Makes attempts until one is granted, or until there is no point in a further one.
///
/// # Cancellation safety
/// As [`Attempt::make`]; a place in the queue passes to the next waiter.
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
            return Err(retry.give_up(refused, false));
        };
        retry.refused(prospect);
        match retry.wait(prospect, || attempt.hold_back()).await {
            Next::Attempt => {}
            Next::Exhausted => return Err(retry.give_up(refused, false)),
            Next::Closed => return Err(retry.give_up(refused, true)),
        }
    }
}

/// What follows a pause.
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
    /// When the last attempt was sent.
    sent: Moment,
    /// Time from there to its refusal.
    round_trip: Duration,
    /// Registration for hints, from the first refusal on that makes a hint useful.
    waiting: Option<Waiting>,
    /// The nodes know that a hint is waited for.
    registered: bool,
    /// The end of a claim, armed before the attempt so that no hint is missed.
    ended: Option<OwnedNotified>,
    /// A hint ended the last pause.
    woken: bool,
    /// Holds wake-ups apart that bring nothing.
    floor: Floor,
    /// When the name could be free without a release, as of the last attempt.
    expires: Moment,
    /// Attempts in a row that may have met those of others.
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

    /// Begins an attempt. The common case is granted at once, so the first one asks for no hint.
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

    /// The name is held, perhaps because of a hint: the next waiter of the handle takes its place
    /// at the nodes, and what they reserve for this one is over.
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
        // It certainly expires later than what was there before: another owner was faster.
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
            // Where others of the handle wait it has its place, and they come first.
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
            // A timer takes a millisecond, also for no time at all.
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
        // All who watch are woken at once.
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

    /// Holds wake-ups apart, so that forged ones cost the nodes a request only now and then. Those
    /// who wait for the same answer are woken together, and each is held apart for itself.
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

    /// Waits for a random time, so that those who collided meet no more; over more round trips the
    /// more often they did.
    async fn part_ways(&self) {
        let apart = spread(self.core.env.random(), self.round_trip, self.collisions);
        if apart >= TICK {
            sleep(apart.min(self.left())).await;
        }
        self.take_turn().await;
    }

    /// Leaves the attempt to others for this time; where a hint had come, the next waiter of the
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

    /// Takes a hint that has come by now: the attempt itself finds what changed until then.
    async fn take_turn(&self) {
        if let Some(waiting) = &self.waiting {
            let _ = timeout(Duration::ZERO, waiting.turn(Duration::ZERO)).await;
        }
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        // What nodes reserved for this call goes to the next in their queues.
        for node in self.waiting.iter().flat_map(Waiting::unused) {
            self.core.pass_on(node, self.key);
        }
    }
}
