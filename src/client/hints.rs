//! Wake-up hints. A release reaches the nodes one after the other, so the handle wakes one waiter
//! or candidate after the hints of a *majority*, and a waiter also a short time after the first,
//! because the nodes may have woken different handles. Observers of an election only read, so each
//! hint wakes them.
//!
//! Hints may be lost, so every waiter also has a timer. They may be forged, so a [`RateLimit`]
//! limits the wake-ups.

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

/// Added to the requested length of a reservation, because timers have a limited precision.
const SPARE: Duration = Duration::from_millis(2);
/// Largest number of attempts that the waiters for one key, except the first, make together during
/// one pause of the first.
const CROWD: f64 = 64.0;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Exclusive,
    Shared,
    Permits,
    Fair,
}

const LINES: [Line; 4] = [Line::Exclusive, Line::Shared, Line::Permits, Line::Fair];

impl Line {
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
    /// Each [`Line`] waits in the nodes' queues under its own number, made from this one
    /// ([`line_id`](Self::line_id)).
    id: u64,
    lines: [SyncMutex<HashMap<Arc<str>, Entry>>; LINES.len()],
}

#[derive(Debug, Default)]
struct Entry {
    hinted: Vec<bool>,
    /// By the beginning of the wait.
    since: BTreeSet<(Moment, u64)>,
    next: u64,
    turn: Arc<Turns>,
    first: Arc<Turns>,
    news: Arc<Notify>,
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

    fn line_id(&self, line: Line) -> u64 {
        self.id ^ line as u64
    }

    pub(crate) fn changed(&self, node: usize, key: &str) {
        for line in LINES {
            if let Some(entry) = self.keys(line).get_mut(key) {
                entry.news.notify_waiters();
                entry.hint_from(node, self.n, line);
            }
        }
    }

    /// If `waiter` is this handle and none of its callers waits, returns the line for which the
    /// lock is reserved; the caller has to give it back.
    pub(crate) fn turn(&self, node: usize, key: &str, waiter: u64) -> Option<Line> {
        let line = LINES.into_iter().find(|line| waiter == self.line_id(*line))?;
        let mut keys = self.keys(line);
        let Some(entry) = keys.get_mut(key).filter(|e| !e.since.is_empty()) else {
            return Some(line);
        };
        entry.hint_from(node, self.n, line);
        None
    }

    pub(crate) fn reservation(&self, line: Line) -> OwnerToken {
        OwnerToken::reserved_for(self.line_id(line))
    }

    /// With `None` the caller only watches the key.
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

fn wake(callers: &Turns, line: Line) {
    if line == Line::Shared {
        callers.wake_all();
    }
    callers.wake();
}

#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    key: Arc<str>,
    line: Line,
    since: Option<(Moment, u64)>,
    order: Order,
    turn: Arc<Turns>,
    first: Arc<Turns>,
    news: Arc<Notify>,
    all: Arc<Notify>,
    has_first_hint: AtomicBool,
}

impl Waiting {
    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.hints.keys(self.line)
    }

    /// Resolves after hints from a majority or, in the queue, `soon` after the first. A caller of a
    /// fair lock always waits for the majority: all nodes wake the same caller, and the roll-back
    /// of its own attempt sends a hint too. If the future is dropped after this caller was woken,
    /// the next waiter is woken instead.
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

    pub(crate) fn is_queued(&self) -> bool {
        self.since.is_some()
    }

    /// Clears the hints that were received so far. A handle has one place in the queue, with the
    /// longest wait of its callers; a reader's request has the reader's own wait (readers 9).
    pub(crate) fn request(&self, now: Moment, round_trip: Duration) -> IfHeld {
        let mut keys = self.keys();
        let entry = keys.get_mut(&self.key);
        let first = entry.and_then(|entry| {
            entry.hinted.clear();
            entry.since.first().copied()
        });
        let own = if self.is_shared() { self.since } else { first };
        let Some((since, _)) = own.filter(|_| self.is_queued()) else { return IfHeld::Watch };
        // Half until the hint arrives, two if only a minority has sent hints, half for the request;
        // the rest is safety.
        let needs = (4 * round_trip).saturating_add(SPARE).min(Place::RESERVED_MAX);
        let waiter = self.hints.line_id(self.line);
        IfHeld::Queue(Place { waiter, waited: now.since(since), needs })
    }

    /// The first waiter makes attempts for all, one after each `pause`. The others' are needed
    /// because the future of the first may not be polled.
    pub(crate) fn pause(&self, pause: Duration, random: u128) -> Duration {
        let keys = self.keys();
        let Some(entry) = keys.get(&self.key) else { return pause };
        if self.since.is_none() || entry.since.first() == self.since.as_ref() {
            return pause;
        }
        let times = entry.since.len() as f64 / CROWD;
        let share = f64::from(random as u32) / f64::from(u32::MAX);
        // On average `pause` + `times` × `pause`.
        pause.saturating_add(
            Duration::try_from_secs_f64(pause.as_secs_f64() * 2.0 * share * times)
                .unwrap_or(Duration::MAX),
        )
    }

    /// `is_back` is true after an attempt for whose durability the nodes lack replicas: a caller
    /// that cannot succeed would get every hint.
    pub(crate) fn step_back(&mut self, is_back: bool, now: Moment) {
        self.order.is_back = is_back;
        if is_back {
            self.order.since = self.order.since.max(now);
        }
    }

    pub(crate) fn takes_first_hint(&self) -> bool {
        self.has_first_hint.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn forget_wake_ups(&self) {
        self.turn.forget();
        self.first.forget();
    }

    pub(crate) fn pass_wake_up(&self) {
        if !self.is_shared() {
            self.turn.pass();
        }
    }

    pub(crate) fn leave_wake_up(&self) {
        self.takes_first_hint();
        if !self.is_shared() {
            self.turn.wake();
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        let first = self.keys().get(&self.key).and_then(|e| e.since.first().copied());
        self.since.is_some_and(|since| first.is_some_and(|first| first != since))
    }

    /// The nodes that may have reserved the lock for the handle, if no other caller of it is in the
    /// queue. Clears their hints.
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

    pub(crate) fn line(&self) -> Line {
        self.line
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.line == Line::Shared
    }

    pub(crate) fn limit(&self, now: Moment) -> Duration {
        self.keys().get_mut(&self.key).map_or(Duration::ZERO, |e| e.limit.wake(now))
    }

    pub(crate) fn was_right(&self) {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.limit.forgive();
        }
    }

    pub(crate) fn any(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Earlier hints do not count: a late hint about one claim does not mean the end of the next.
    pub(crate) fn ended(&self) -> OwnedNotified {
        if let Some(entry) = self.keys().get_mut(&self.key) {
            entry.hinted.clear();
        }
        Arc::clone(&self.all).notified_owned()
    }

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
