//! The state of this process in an election (election 6). Each read computes it from the lease and
//! the clock, so it is right even before a timer has fired.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::{Notify, watch};

use super::Election;
use super::metrics::{ElectionMetrics, Sums};
use crate::client::lease::Lease;
use crate::client::runtime::within;
use crate::client::{Core, WATCH};
use crate::sync::SyncMutex;
use crate::time::{Drift, Moment};
use crate::token::FencingToken;

/// State of this process in an election, by this process's own clock.
///
/// ```text
/// Following ──▶ Leading ◀──▶ Jeopardy ──▶ Lost ──▶ Following (the next campaign)
///     ▲            │ resigned                │
///     └────────────┘◀──────── dropped ───────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// The process does not lead: it campaigns, has resigned, or has never campaigned. **Do**
    /// nothing that only the leader may do.
    Following,
    /// The process leads. **Do** the leader's work, and send the term with each write.
    Leading {
        /// Term in which the process leads.
        term: FencingToken,
    },
    /// The process leads, but the last renewal failed, or none was confirmed for half of the ttl.
    /// No other process leads yet. **Do** finish work that ends within
    /// [`remaining`](super::Leadership::remaining), and begin no work that you cannot stop at once.
    /// The next state is `Leading` again, or `Lost`.
    Jeopardy {
        /// Term in which the process leads.
        term: FencingToken,
    },
    /// The process has lost its term, and another process may lead. **Stop** all of the leader's
    /// work at once. This state lasts until the next campaign begins. The term never becomes valid
    /// again.
    Lost {
        /// The term that was lost.
        term: FencingToken,
    },
}

impl State {
    /// Returns true if this process leads: the state is `Leading` or `Jeopardy`.
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading { .. } | Self::Jeopardy { .. })
    }
}

impl Election {
    /// Returns the state of this process in the election, by its own clock, which also counts while
    /// the machine is suspended. Sends nothing. Only campaigns of this `Election` and its clones
    /// count.
    pub fn state(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Returns a watch of the [`state`](Self::state). The first call of its
    /// [`next`](StateWatch::next) returns at once.
    pub fn watch_state(&self) -> StateWatch {
        let (core, course) = (Arc::clone(&self.core), Arc::clone(&self.course));
        StateWatch { core, course, seen: None, term: None }
    }

    /// Returns the counts of this election and its clones since this election was built.
    pub fn metrics(&self) -> ElectionMetrics {
        self.course.metrics(self.core.env.now())
    }
}

/// A watch of the state of one election in this process, made by [`Election::watch_state`].
///
/// As with `tokio::sync::watch`, a slow reader gets only the latest state. There is one exception:
/// a reader that has received a term always receives the loss of this term.
#[derive(Debug)]
#[must_use = "it says nothing until it is asked"]
pub struct StateWatch {
    core: Arc<Core>,
    course: Arc<Course>,
    seen: Option<State>,
    term: Option<Arc<Lease>>,
}

impl StateWatch {
    /// Returns the present state, even if [`next`](Self::next) has already returned this state.
    pub fn get(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Resolves when the state differs from the last returned state; the first call resolves at
    /// once. The watch never ends by itself. After [`Redlock::close`](crate::Redlock::close) it
    /// returns the state after the last term, and then stays pending.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no state is lost: the next call continues.
    pub async fn next(&mut self) -> State {
        let (core, course) = (Arc::clone(&self.core), Arc::clone(&self.course));
        loop {
            let changed = course.news.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let lease = course.lease();
            let news = async {
                match &lease {
                    Some(lease) => lease.news().await,
                    None => std::future::pending().await,
                }
            };
            tokio::pin!(news);
            // Before the state is read, so that no change is missed.
            let _ = futures_util::poll!(news.as_mut());
            let now = core.env.now();
            if let Some(state) = self.look(now) {
                return state;
            }
            let pause = lease.as_ref().map_or(WATCH, |lease| until_change(lease, now));
            let either = async {
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = news => {}
                }
            };
            within(pause, either).await;
        }
    }

    /// Returns an endless stream of the states that [`next`](Self::next) returns.
    pub fn into_stream(self) -> impl Stream<Item = State> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    fn look(&mut self, now: Moment) -> Option<State> {
        if let Some(lease) = self.term.take_if(|lease| !lease.is_valid(now)) {
            let lost = State::Lost { term: lease.token };
            if lease.over_since().is_none_or(|over| over.lost) {
                self.seen = Some(lost);
                return Some(lost);
            }
        }
        let state = self.course.now(now);
        if state.leads() {
            self.term = self.course.lease();
        }
        (self.seen.replace(state) != Some(state)).then_some(state)
    }
}

/// By the clock alone, and at most `WATCH`: tokio's timers stop while the computer is suspended.
fn until_change(lease: &Lease, now: Moment) -> Duration {
    let left = lease.until().since(now);
    let next = left.checked_sub(lease.ttl / 2).unwrap_or(left);
    (next + Duration::from_nanos(1)).clamp(Duration::from_millis(1), WATCH)
}

#[derive(Debug)]
pub(super) struct Course {
    drift: Drift,
    inner: SyncMutex<Inner>,
    news: Notify,
    eligible: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    lease: Option<Arc<Lease>>,
    sums: Sums,
    /// Other candidates attempt first.
    resign_requested: bool,
    back_until: Option<Moment>,
}

impl Course {
    pub(super) fn new(drift: Drift, eligible: bool) -> Arc<Self> {
        let eligible = watch::Sender::new(eligible);
        Arc::new(Self { drift, inner: SyncMutex::default(), news: Notify::new(), eligible })
    }

    pub(super) fn is_eligible(&self) -> bool {
        *self.eligible.borrow()
    }

    pub(super) fn set_eligible(&self, eligible: bool) {
        self.eligible.send_replace(eligible);
    }

    pub(super) async fn eligible_is(&self, so: bool) {
        let _ = self.eligible.subscribe().wait_for(|eligible| *eligible == so).await;
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.inner.lock().lease.clone()
    }

    fn now(&self, now: Moment) -> State {
        let s = self.inner.lock();
        let Some(lease) = &s.lease else { return State::Following };
        let term = lease.token;
        if lease.is_valid(now) {
            return if lease.is_in_jeopardy(now) {
                State::Jeopardy { term }
            } else {
                State::Leading { term }
            };
        }
        match lease.over_since() {
            Some(over) if !over.lost => State::Following,
            _ => State::Lost { term },
        }
    }

    pub(super) fn campaigns(&self, now: Moment, hold_back: Duration) -> Duration {
        let mut s = self.inner.lock();
        if s.lease.as_ref().is_some_and(|lease| lease.is_valid(now)) {
            return Duration::ZERO;
        }
        if std::mem::take(&mut s.resign_requested) {
            s.back_until = Some(now + hold_back);
        }
        let lease = s.lease.take();
        s.sums.begin(now, lease.as_deref(), self.drift);
        let wait = s.back_until.map_or(Duration::ZERO, |until| until.since(now));
        drop(s);
        self.news.notify_waiters();
        wait
    }

    pub(super) fn leads(&self, now: Moment, lease: &Arc<Lease>) {
        let mut s = self.inner.lock();
        let before = s.lease.replace(Arc::clone(lease));
        s.sums.begin(now, before.as_deref(), self.drift);
        s.sums.won(now, lease.until());
        drop(s);
        self.news.notify_waiters();
    }

    pub(super) fn resign_requested(&self) {
        self.inner.lock().resign_requested = true;
    }

    pub(super) fn led(&self, now: Moment, until: Moment) {
        let mut s = self.inner.lock();
        let Inner { lease, sums, .. } = &mut *s;
        sums.absorb(lease.as_deref());
        sums.led(now, until);
    }

    pub(super) fn vacant(&self, now: Moment) {
        let mut s = self.inner.lock();
        let Inner { lease, sums, .. } = &mut *s;
        sums.absorb(lease.as_deref());
        sums.vacant(now);
    }

    fn metrics(&self, now: Moment) -> ElectionMetrics {
        let s = self.inner.lock();
        s.sums.with(s.lease.as_deref(), now, self.drift)
    }
}
