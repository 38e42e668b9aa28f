//! What a process is in an election: following, leading, in jeopardy, lost; as a value that can be
//! watched (election 6).
//!
//! The state is worked out from the lease and the clock at each look. No timer has to have fired
//! for it to be right, also in a process that wakes from a pause.

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

/// What this process is in an election, by its own clock.
///
/// ```text
/// Following ──▶ Leading ◀──▶ Jeopardy ──▶ Lost ──▶ Following (the next campaign)
///     ▲            │ resigned                │
///     └────────────┘◀──────── dropped ───────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It does not lead: it campaigns, has resigned, or never campaigned. **Do** nothing that only
    /// the leader may do.
    Following,
    /// It leads. **Do** the leader's work, and send the term with each write.
    Leading {
        /// The term.
        term: FencingToken,
    },
    /// It leads, and the last renewal failed, or none was confirmed for half of the ttl. Nobody
    /// else leads yet. **Do** finish what ends within
    /// [`remaining`](super::Leadership::remaining), and begin nothing that cannot be stopped at
    /// once: the next state is `Leading` again, or `Lost`.
    Jeopardy {
        /// The term.
        term: FencingToken,
    },
    /// It led and lost the term: somebody else may lead. **Stop** all of the leader's work at once.
    /// It stays so until the next campaign begins. The term never comes back.
    Lost {
        /// The term that was lost.
        term: FencingToken,
    },
}

impl State {
    /// Whether this process leads, in jeopardy or not.
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading { .. } | Self::Jeopardy { .. })
    }
}

impl Election {
    /// What this process is in the election now, by a look at its own suspend-proof clock. It is
    /// about what was campaigned for through this value and its clones.
    pub fn state(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Watches [`state`](Self::state). The first [`next`](StateWatch::next) returns at once.
    pub fn watch_state(&self) -> StateWatch {
        let (core, course) = (Arc::clone(&self.core), Arc::clone(&self.course));
        StateWatch { core, course, seen: None, term: None }
    }

    /// What was counted since this election was built, by it and its clones.
    pub fn metrics(&self) -> ElectionMetrics {
        self.course.metrics(self.core.env.now())
    }
}

/// The states of one election in this process; see [`Election::watch_state`].
///
/// As with `tokio::sync::watch` a slow reader gets the latest state, with one exception: the loss
/// of a term that it has seen is never left out.
#[derive(Debug)]
#[must_use = "it says nothing until it is asked"]
pub struct StateWatch {
    core: Arc<Core>,
    course: Arc<Course>,
    seen: Option<State>,
    /// The term that was seen last, until its end was seen.
    term: Option<Arc<Lease>>,
}

impl StateWatch {
    /// The state now, whether it was seen or not.
    pub fn get(&self) -> State {
        self.course.now(self.core.env.now())
    }

    /// Resolves with the state when it is another than the last one that was returned; at once when
    /// it is called first. It never ends by itself: after [`Redlock::close`](crate::Redlock::close)
    /// it shows how the last term ended, and then stays pending.
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

    /// The states as a stream, each as [`next`](Self::next) returns it. It never ends.
    pub fn into_stream(self) -> impl Stream<Item = State> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    /// The next state that was not returned yet.
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

/// How long the state can stay as it is if nothing is heard of the lease; in slices, as tokio's
/// timers do not advance while the machine is suspended.
fn until_change(lease: &Lease, now: Moment) -> Duration {
    let left = lease.until().since(now);
    let next = left.checked_sub(lease.ttl / 2).unwrap_or(left);
    // One more nanosecond, and it has changed.
    (next + Duration::from_nanos(1)).clamp(Duration::from_millis(1), WATCH)
}

/// What became of the campaigns for one election in this process.
#[derive(Debug)]
pub(super) struct Course {
    drift: Drift,
    inner: Mutex<Inner>,
    /// A campaign began, or was won.
    news: Notify,
    /// Whether it attempts to lead.
    eligible: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The term that was won last, until the next campaign.
    lease: Option<Arc<Lease>>,
    sums: Sums,
    /// This process was asked to step down: it lets others come first.
    asked: bool,
    /// Until when it does.
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

    /// Resolves when it is so.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub(super) async fn eligible_is(&self, so: bool) {
        // The sender is in here: there is always one.
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

    /// A campaign begins. How long it is to wait, where it has just stepped down.
    pub(super) fn campaigns(&self, now: Moment, hold_back: Duration) -> Duration {
        let mut s = self.lock();
        if s.lease.as_ref().is_some_and(|lease| lease.is_valid(now)) {
            return Duration::ZERO;
        }
        if std::mem::take(&mut s.asked) {
            s.back_until = Some(now + hold_back);
        }
        let lease = s.lease.take();
        s.sums.begin(now, lease.as_deref(), self.drift);
        let wait = s.back_until.map_or(Duration::ZERO, |until| until.since(now));
        drop(s);
        self.news.notify_waiters();
        wait
    }

    /// It was won.
    pub(super) fn leads(&self, now: Moment, lease: &Arc<Lease>) {
        let mut s = self.lock();
        let before = s.lease.replace(Arc::clone(lease));
        s.sums.begin(now, before.as_deref(), self.drift);
        s.sums.won(now, lease.until());
        drop(s);
        self.news.notify_waiters();
    }

    /// The leader was asked to step down.
    pub(super) fn asked(&self) {
        self.lock().asked = true;
    }

    /// Somebody certainly leads until then, unless it resigns.
    pub(super) fn led(&self, now: Moment, until: Moment) {
        let mut s = self.lock();
        let Inner { lease, sums, .. } = &mut *s;
        sums.absorb(lease.as_deref());
        sums.led(now, until);
    }

    /// Nobody leads.
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
