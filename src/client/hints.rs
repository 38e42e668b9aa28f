//! Wake-up hints: messages of nodes that a lock may be free or a claim may be over. This module
//! stores, for each key, the callers of this client (its `Redlock` handle) that wait for the key
//! and the nodes that have sent a hint about the key.
//!
//! Each node has a queue of the handles that wait for a lock. A release wakes the first handle of
//! the queue. Candidates of an election are not in the queue: they watch the lock, and a release
//! wakes all handles that watch.
//!
//! A release reaches the nodes one after the other. At the first hint, the other nodes may still
//! have the old lock. So the handle wakes one waiter or candidate after the hints of a *majority*
//! of nodes. The nodes may have woken different handles, so a waiter is also woken a short time
//! after the first hint. Observers of an election only read, so each hint wakes them. A majority of
//! hints wakes all callers that wait for the end of a claim, because all of them get the same
//! answer.
//!
//! Hints may be lost, so every waiter also has a timer. Hints may be forged, so a [`RateLimit`]
//! limits the rate of wake-ups.

mod rate_limit;
mod turns;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::{Notified, OwnedNotified};

pub(crate) use self::rate_limit::RateLimit;
use self::turns::{Order, Turns};
use crate::op::{IfHeld, LockMode, Place, Slots};
use crate::quorum::majority;
use crate::sync::SyncMutex;
use crate::time::Moment;
use crate::token::OwnerToken;

/// Time that is added to the requested length of a reservation (the time for which a released lock
/// is kept free for a waiter), because timers have a limited precision.
const SPARE: Duration = Duration::from_millis(2);
/// Largest number of attempts that the waiters of a `Redlock` handle for one key, except the first
/// waiter, make together during one pause of the first waiter.
const CROWD: f64 = 64.0;
/// Kind of waiters of a `Redlock` handle. The waiters of one kind for one key share a place in the
/// nodes' queues. Callers that only watch the key, and have no place, count as exclusive waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Exclusive,
    Shared,
    /// Waiters for any permit of a semaphore.
    Permits,
    /// One fair caller. Other fair callers of the `Redlock` handle wait in the process until this
    /// caller has the lock.
    Fair,
}

const LINES: [Line; 4] = [Line::Exclusive, Line::Shared, Line::Permits, Line::Fair];

impl Line {
    /// Returns the lock mode that waiters of this kind request.
    pub(crate) fn mode(self) -> LockMode {
        match self {
            Self::Exclusive | Self::Fair => LockMode::Exclusive,
            Self::Shared => LockMode::Shared,
            Self::Permits => LockMode::Slot(Slots::any(1)),
        }
    }
}

impl From<LockMode> for Line {
    fn from(mode: LockMode) -> Self {
        match mode {
            LockMode::Exclusive => Self::Exclusive,
            LockMode::Shared => Self::Shared,
            LockMode::Slot(_) => Self::Permits,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hints {
    n: usize,
    /// Number that identifies this `Redlock` handle in the nodes' queues. Each kind of waiters
    /// (`Line`) waits there under its own number, which is made from this one
    /// ([`line_id`](Self::line_id)).
    id: u64,
    /// For each kind of waiters (`Line`), the entries of the keys for which waiters of this kind
    /// wait.
    lines: [SyncMutex<HashMap<Arc<str>, Entry>>; LINES.len()],
}

#[derive(Debug, Default)]
struct Entry {
    /// For each node, true if the node has sent a hint (a wake-up message) since a waiter's last
    /// request.
    hinted: Vec<bool>,
    /// The callers of this client that wait in the nodes' queues, each with the beginning of its
    /// wait and its number. The caller with the longest wait is first.
    since: BTreeSet<(Moment, u64)>,
    /// Number of the caller that was registered last; the next caller gets the next number.
    next: u64,
    turn: Arc<Turns>,
    first: Arc<Turns>,
    news: Arc<Notify>,
    /// Wakes all callers that wait for the end of the claim of this key.
    all: Arc<Notify>,
    observers: usize,
    limit: RateLimit,
}

impl Hints {
    pub(crate) fn new(n: usize, id: u64) -> Self {
        Self { n, id, lines: Default::default() }
    }

    fn keys(&self, line: Line) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.lines[line as usize].lock()
    }

    /// Returns the identifier under which this kind of waiters of the `Redlock` handle waits in the
    /// nodes' queues.
    fn line_id(&self, line: Line) -> u64 {
        self.id ^ line as u64
    }

    /// Handles a node's hint (a message) that the lock or record of the key changed.
    pub(crate) fn changed(&self, node: usize, key: &str) {
        for line in LINES {
            if let Some(entry) = self.keys(line).get_mut(key) {
                entry.news.notify_waiters();
                entry.hint_from(node, self.n, line);
            }
        }
    }

    /// Handles a node's hint (a message) that a lock is free and that the handle `waiter` is the
    /// first in the node's queue of waiters for the lock. If `waiter` is this handle and none of
    /// its callers waits for the lock, returns the line (kind of waiters) for which the lock is
    /// reserved. The caller of this function has to give that lock back.
    pub(crate) fn turn(&self, node: usize, key: &str, waiter: u64) -> Option<Line> {
        let line = LINES.into_iter().find(|line| waiter == self.line_id(*line))?;
        let mut keys = self.keys(line);
        let Some(entry) = keys.get_mut(key).filter(|e| !e.since.is_empty()) else {
            return Some(line);
        };
        entry.hint_from(node, self.n, line);
        None
    }

    /// Returns the value that a node stores in place of an owner token while it reserves a lock or
    /// a slot for this line (kind of waiters, not readers) of the `Redlock` handle.
    pub(crate) fn reservation(&self, line: Line) -> OwnerToken {
        OwnerToken::reserved_for(self.line_id(line))
    }

    /// Registers a caller for hints (wake-up messages) about the key. If `queued` is `Some`, it
    /// contains the kind of waiter and the time since which the caller has waited in the nodes'
    /// queues. If `queued` is `None`, the caller only watches the key.
    pub(crate) fn wait(self: &Arc<Self>, key: &str, queued: Option<(Line, Moment)>) -> Waiting {
        let line = queued.map_or(Line::Exclusive, |(line, _)| line);
        let mut keys = self.keys(line);
        let key: Arc<str> = match keys.get_key_value(key) {
            Some((k, _)) => Arc::clone(k),
            None => Arc::from(key),
        };
        let entry = keys.entry(Arc::clone(&key)).or_default();
        entry.next += 1;
        let since = queued.map(|(_, since)| (since, entry.next));
        let began = queued.map_or(Moment::from_nanos(u64::MAX), |(_, since)| since);
        let order = Order { is_back: false, since: began, number: entry.next };
        entry.since.extend(since);
        entry.observers += usize::from(since.is_none());
        let [turn, first] = [&entry.turn, &entry.first].map(Arc::clone);
        let [news, all] = [&entry.news, &entry.all].map(Arc::clone);
        drop(keys);
        let (hints, has_first_hint) = (Arc::clone(self), AtomicBool::default());
        Waiting { hints, key, line, since, order, turn, first, news, all, has_first_hint }
    }
}

impl Entry {
    fn hint_from(&mut self, node: usize, n: usize, line: Line) {
        self.hinted.resize(n, false);
        if std::mem::replace(&mut self.hinted[node], true) {
            return;
        }
        let hinted = self.hinted.iter().filter(|hinted| **hinted).count();
        if hinted == majority(n) {
            wake(&self.turn, line);
            self.all.notify_waiters();
        } else if hinted == 1 {
            wake(&self.first, line);
        }
    }
}

/// Wakes the next caller. Readers can hold a lock together, so all readers that wait now are woken,
/// and also the next reader that begins to wait.
fn wake(callers: &Turns, line: Line) {
    if line == Line::Shared {
        callers.wake_all();
    }
    callers.wake();
}

/// Registration of a caller that waits for a key or watches a key. The drop ends the registration.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    line: Line,
    since: Option<(Moment, u64)>,
    /// Position of this caller in the order in which callers are woken. Callers that only watch the
    /// key, and have no place in the nodes' queues, are woken last.
    order: Order,
    turn: Arc<Turns>,
    first: Arc<Turns>,
    news: Arc<Notify>,
    all: Arc<Notify>,
    /// True if this caller was woken by the first hint (a wake-up message of a node) and has sent
    /// no request since. If this caller is dropped before its request, the hint wakes the next
    /// caller instead.
    has_first_hint: AtomicBool,
}

impl Waiting {
    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.hints.keys(self.line)
    }

    /// Resolves at the time of this caller's next attempt: after hints (wake-up messages) from a
    /// majority of nodes or, if the caller is in the queue, the time `soon` after the first hint.
    ///
    /// A caller of a fair lock always waits for the majority, for two reasons. All nodes serve
    /// these callers in the same order, so they wake the same caller. And a single hint may be
    /// false: when the caller's own failed attempt is rolled back on a node, this node sends a hint
    /// to the caller, although the lock is not free on the other nodes. Callers of one `Redlock`
    /// handle are woken one by one, the one that has waited longest first. Readers are woken
    /// together.
    ///
    /// # Cancellation safety
    /// If the future is dropped after this caller was woken, the next waiter of the handle is woken
    /// instead.
    pub(crate) async fn turn(&self, soon: Duration) {
        tokio::select! {
            biased;
            () = self.turn.turn(self.order) => {}
            () = async {
                self.first.turn(self.order).await;
                self.has_first_hint.store(true, Ordering::Relaxed);
                tokio::time::sleep(soon).await;
            }, if self.is_queued() && self.line != Line::Fair => {}
        }
    }

    /// Returns true if this caller waits in the nodes' queues for a lock, false if this caller only
    /// watches the key.
    pub(crate) fn is_queued(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the part of the next request that applies if another owner has the lock: the node
    /// sends a hint (a wake-up message) and, if this caller is in the queue, gives the `Redlock`
    /// handle a place in the queue. A handle has one place. Its time in the queue is the longest
    /// wait of its callers. A reader's request contains the reader's own wait, because the nodes
    /// compare it with the waits of the writers (rule readers 9 in docs/design). This function also
    /// clears the hints that were received so far.
    pub(crate) fn request(&self, now: Moment, round_trip: Duration) -> IfHeld {
        let mut keys = self.keys();
        let entry = keys.get_mut(&self.key);
        let first = entry.and_then(|entry| {
            entry.hinted.clear();
            entry.since.first().copied()
        });
        let own = if self.is_shared() { self.since } else { first };
        let Some((since, _)) = own.filter(|_| self.is_queued()) else { return IfHeld::Watch };
        // A released lock has to stay reserved for the caller for three round trips: half a round
        // trip until the hint (the node's message) arrives, two if only a minority of nodes has
        // sent hints, and half a round trip for the request. A fourth round trip is added for
        // safety.
        let needs = (4 * round_trip).saturating_add(SPARE).min(Place::RESERVED_MAX);
        let waiter = self.hints.line_id(self.line);
        IfHeld::Queue(Place { waiter, waited: now.since(since), needs })
    }

    /// Returns the length of this caller's pause if no hint (wake-up message) arrives. The first
    /// waiter in the queue makes attempts for all waiters of the `Redlock` handle, one after each
    /// `pause`. The other waiters pause longer: all of them together make at most `CROWD` attempts
    /// in one `pause`. Their attempts are needed because the future of the first waiter may not be
    /// polled.
    pub(crate) fn pause(&self, pause: Duration, random: u128) -> Duration {
        let keys = self.keys();
        let Some(entry) = keys.get(&self.key) else { return pause };
        if self.since.is_none() || entry.since.first() == self.since.as_ref() {
            return pause;
        }
        let times = entry.since.len() as f64 / CROWD;
        let share = f64::from(random as u32) / f64::from(u32::MAX);
        // The average result is `pause` + `times` × `pause`.
        pause.saturating_add(
            Duration::try_from_secs_f64(pause.as_secs_f64() * 2.0 * share * times)
                .unwrap_or(Duration::MAX),
        )
    }

    /// Sets the caller back: the other callers of the `Redlock` handle go first at the next hints
    /// (wake-up messages). `is_back` is true after an attempt for whose durability the nodes lack
    /// replicas, and false after every other attempt. Without this rule a caller that cannot
    /// succeed would get every hint of the handle.
    pub(crate) fn step_back(&mut self, is_back: bool, now: Moment) {
        self.order.is_back = is_back;
        if is_back {
            self.order.since = self.order.since.max(now);
        }
    }

    /// Returns true if this caller took a first hint and has sent no request since.
    pub(crate) fn takes_first_hint(&self) -> bool {
        self.has_first_hint.swap(false, Ordering::Relaxed)
    }

    /// Drops wake-ups that have come and that no caller has taken.
    pub(crate) fn forget_wake_ups(&self) {
        self.turn.forget();
        self.first.forget();
    }

    /// Gives the wake-up of this caller to the next waiter of the `Redlock` handle that has not
    /// stepped back. Readers have all been woken already.
    pub(crate) fn pass_wake_up(&self) {
        if !self.is_shared() {
            self.turn.pass();
        }
    }

    /// Gives the wake-up of this caller, whose call ends, to the next waiter of the `Redlock`
    /// handle. Readers have all been woken already.
    pub(crate) fn leave_wake_up(&self) {
        self.takes_first_hint();
        if !self.is_shared() {
            self.turn.wake();
        }
    }

    /// Returns true if another caller of the `Redlock` handle has waited longer for the lock. In
    /// the nodes' queues, the wait of that caller then decides the position of the handle.
    pub(crate) fn is_behind(&self) -> bool {
        let first = self.keys().get(&self.key).and_then(|e| e.since.first().copied());
        self.since.is_some_and(|since| first.is_some_and(|first| first != since))
    }

    /// Returns the nodes that have sent a hint (a wake-up message) since the last request, if no
    /// other caller of the `Redlock` handle is in the queue, and clears these hints. These nodes
    /// may have reserved the lock for the handle. The handle does not need the reservations, and
    /// can give them back.
    pub(crate) fn unused(&self) -> Vec<usize> {
        if !self.is_queued() {
            return Vec::new();
        }
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(&self.key).filter(|entry| entry.since.len() == 1) else {
            return Vec::new();
        };
        let hinted = std::mem::take(&mut entry.hinted);
        hinted.iter().enumerate().filter_map(|(node, hinted)| hinted.then_some(node)).collect()
    }

    /// Returns the kind of waiters (line) to which this caller belongs.
    pub(crate) fn line(&self) -> Line {
        self.line
    }

    /// Returns true if several callers of this `Redlock` handle can hold the lock together.
    pub(crate) fn is_shared(&self) -> bool {
        self.line == Line::Shared
    }

    /// Counts a wake-up of this caller at `now`. Returns the time to wait before the attempt. All
    /// waiters for the same key share one limit.
    pub(crate) fn limit(&self, now: Moment) -> Duration {
        self.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.limit.wake(now))
    }

    /// Records that the last hint (a node's message that the lock is free) was right: the lock had
    /// been released, even if another owner has the lock now. The wake-up does not count as useless
    /// then.
    pub(crate) fn was_right(&self) {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.limit.forgive();
        }
    }

    /// Returns a future that resolves at the next hint (a node's message) about the key after this
    /// call. So the caller may read the key between this call and the first poll.
    ///
    /// # Cancellation safety
    /// A dropped future loses only the hint.
    pub(crate) fn any(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Returns a future that resolves after hints (messages that a claim is over) from a majority
    /// of nodes. Hints count from this call on, also before the first poll. Earlier hints do not
    /// count, because a late hint about one claim does not mean the end of the next claim. All
    /// callers that wait are woken together, because all of them wait for the end of the same
    /// claim.
    ///
    /// # Cancellation safety
    /// A dropped future loses only the hint.
    pub(crate) fn ended(&self) -> OwnedNotified {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.hinted.clear();
        }
        Arc::clone(&self.all).notified_owned()
    }

    /// Wakes the next waiter of this `Redlock` handle, so that the waiter makes an attempt. The
    /// nodes removed the handle from their queues when they woke it. Even if the nodes refuse the
    /// lock, this attempt puts the handle into the queues again.
    pub(crate) fn wake_next(&self) {
        wake(&self.turn, self.line);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if *self.has_first_hint.get_mut() {
            wake(&self.first, self.line);
        }
        let mut keys = self.keys();
        let Some(entry) = keys.get_mut(&self.key) else { return };
        match self.since {
            Some(place) => {
                entry.since.remove(&place);
            }
            None => entry.observers -= 1,
        }
        if entry.since.is_empty() && entry.observers == 0 {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_first_hint_is_for_the_next_waiter_if_the_first_one_is_dropped() {
        let hints = Arc::new(Hints::new(3, 0));
        let at = |nanos| Some((Line::Exclusive, Moment::from_nanos(nanos)));
        let (one, two) = (hints.wait("a", at(1)), hints.wait("a", at(2)));
        let mut first = Box::pin(one.turn(Duration::from_secs(60)));
        let mut second = Box::pin(two.turn(Duration::from_micros(1)));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        assert_eq!(hints.turn(0, "a", hints.line_id(Line::Exclusive)), None);
        assert!((&mut first).now_or_never().is_none(), "it sleeps");
        assert!((&mut second).now_or_never().is_none(), "the hint was for the first one");
        drop(first);
        assert!((&mut second).now_or_never().is_none(), "the first one may make an attempt");
        drop(one);
        second.await;
        let one = hints.wait("a", at(1));
        // Hints from a majority of nodes wake one caller only.
        let mut first = Box::pin(one.turn(Duration::from_secs(60)));
        let mut second = Box::pin(two.turn(Duration::from_micros(1)));
        one.request(Moment::from_nanos(3), Duration::ZERO);
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        for node in 0..2 {
            hints.turn(node, "a", hints.line_id(Line::Exclusive));
            let _ = (&mut first).now_or_never();
        }
        drop(first);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!((&mut second).now_or_never().is_none(), "the first one makes the attempt");
    }
}
