//! State of a process in an election (following, leading, in jeopardy, lost), as a value that can
//! be watched (election 6).
//!
//! The state is computed from the lease and the clock at each look. It is right even if no timer
//! has fired, also in a process that wakes from a pause.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::{Notify, watch};

use super::Election;
use super::metrics::{ElectionMetrics, Sums};
use crate::client::lease::Lease;
use crate::client::runtime::within;
use crate::client::{Core, WATCH};
use crate::time::{Drift, Moment};
use crate::token::FencingToken;

/// State of this process in an election, by its own clock.
///
/// ```text
/// Following ──▶ Leading ◀──▶ Jeopardy ──▶ Lost ──▶ Following (the next campaign)
///     ▲            │ resigned                │
///     └────────────┘◀──────── dropped ───────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// The process does not lead: it campaigns, has resigned, or never campaigned. **Do** nothing
    /// that only the leader may do.
    Following,
    /// The process leads. **Do** the leader's work, and send the term with each write.
    Leading {
        /// The term.
        term: FencingToken,
    },
    /// The process leads, and the last renewal failed, or none was confirmed for half of the ttl.
    /// No other process leads yet. **Do** finish what ends within
    /// [`remaining`](super::Leadership::remaining), and begin nothing that cannot be stopped at
    /// once: the next state is `Leading` again, or `Lost`.
    Jeopardy {
        /// The term.
        term: FencingToken,
    },
    /// The process led and lost the term: another process may lead. **Stop** all of the leader's
    /// work at once. This state lasts until the next campaign begins. The term never becomes valid
    /// again.
    Lost {
        /// The term that was lost.
        term: FencingToken,
    },
}

impl State {
    /// Returns true if this process leads, in jeopardy or not.
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading { .. } | Self::Jeopardy { .. })
    }
}

impl Election {
    /// Returns the state of this process in the election, by its own suspend-proof clock; sends
    /// nothing. It covers the campaigns of this value and its clones.
    pub fn state(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Returns a watch of the [`state`](Self::state). Its first [`next`](StateWatch::next) returns
    /// at once.
    pub fn watch_state(&self) -> StateWatch {
        let (core, course) = (Arc::clone(&self.core), Arc::clone(&self.course));
        StateWatch { core, course, seen: None, term: None }
    }

    /// Returns the counts of this election and its clones since it was built.
    pub fn metrics(&self) -> ElectionMetrics {
        self.course.metrics(self.core.env.now())
    }
}

/// A watch of the state of one election in this process; see [`Election::watch_state`].
///
/// As with `tokio::sync::watch` a slow reader gets the latest state, with one exception: the loss
/// of a term that it has seen is never skipped.
#[derive(Debug)]
#[must_use = "it says nothing until it is asked"]
pub struct StateWatch {
    core: Arc<Core>,
    course: Arc<Course>,
    seen: Option<State>,
    /// Lease of the term that was returned last, until its end was returned.
    term: Option<Arc<Lease>>,
}

impl StateWatch {
    /// Returns the present state, whether it was returned before or not.
    pub fn get(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Resolves with the state when it differs from the last one that was returned; at once at the
    /// first call. It never ends by itself: after [`Redlock::close`](crate::Redlock::close) it
    /// returns how the last term ended, and then stays pending.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is lost: the next call continues.
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
            // Listening begins before the look, so no change in between is missed.
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

    /// Returns the states as a stream, each as [`next`](Self::next) returns it. The stream never
    /// ends.
    pub fn into_stream(self) -> impl Stream<Item = State> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    /// Returns the state if it was not returned yet.
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

/// Returns how long the state can stay the same if the lease does not change; at most `WATCH`,
/// because tokio's timers do not advance while the machine is suspended.
fn until_change(lease: &Lease, now: Moment) -> Duration {
    let left = lease.until().since(now);
    let next = left.checked_sub(lease.ttl / 2).unwrap_or(left);
    // One nanosecond after `next` the state has changed.
    (next + Duration::from_nanos(1)).clamp(Duration::from_millis(1), WATCH)
}

/// State of the campaigns for one election in this process.
#[derive(Debug)]
pub(super) struct Course {
    drift: Drift,
    inner: Mutex<Inner>,
    /// Notifies watchers that a campaign began or was won.
    news: Notify,
    /// True if this process attempts to lead.
    eligible: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Lease of the term that was won last, until the next campaign.
    lease: Option<Arc<Lease>>,
    sums: Sums,
    /// True if this process was asked to step down, so that its next campaign waits for others.
    resign_requested: bool,
    /// Time until which its campaigns wait for others.
    back_until: Option<Moment>,
}

impl Course {
    pub(super) fn new(drift: Drift, eligible: bool) -> Arc<Self> {
        let eligible = watch::Sender::new(eligible);
        Arc::new(Self { drift, inner: Mutex::default(), news: Notify::new(), eligible })
    }

    pub(super) fn is_eligible(&self) -> bool {
        *self.eligible.borrow()
    }

    pub(super) fn set_eligible(&self, eligible: bool) {
        self.eligible.send_replace(eligible);
    }

    /// Resolves when this process is eligible, or not, as `so` requires.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub(super) async fn eligible_is(&self, so: bool) {
        // `wait_for` fails only without a sender, and `self` holds the sender.
        let _ = self.eligible.subscribe().wait_for(|eligible| *eligible == so).await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.lock().lease.clone()
    }

    fn now(&self, now: Moment) -> State {
        let s = self.lock();
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

    /// Begins a campaign. Returns how long it has to wait if this process has just stepped down.
    pub(super) fn campaigns(&self, now: Moment, hold_back: Duration) -> Duration {
        let mut s = self.lock();
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

    /// Records that the campaign was won.
    pub(super) fn leads(&self, now: Moment, lease: &Arc<Lease>) {
        let mut s = self.lock();
        let before = s.lease.replace(Arc::clone(lease));
        s.sums.begin(now, before.as_deref(), self.drift);
        s.sums.won(now, lease.until());
        drop(s);
        self.news.notify_waiters();
    }

    /// Records that this leader was asked to step down.
    pub(super) fn resign_requested(&self) {
        self.lock().resign_requested = true;
    }

    /// Records for the metrics that a process leads until then, unless it resigns.
    pub(super) fn led(&self, now: Moment, until: Moment) {
        let mut s = self.lock();
        let Inner { lease, sums, .. } = &mut *s;
        sums.absorb(lease.as_deref());
        sums.led(now, until);
    }

    /// Records for the metrics that no process leads.
    pub(super) fn vacant(&self, now: Moment) {
        let mut s = self.lock();
        let Inner { lease, sums, .. } = &mut *s;
        sums.absorb(lease.as_deref());
        sums.vacant(now);
    }

    fn metrics(&self, now: Moment) -> ElectionMetrics {
        let s = self.lock();
        s.sums.with(s.lease.as_deref(), now, self.drift)
    }
}
