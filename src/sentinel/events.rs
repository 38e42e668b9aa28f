//! Collects the events that Sentinels send. An event is only a reason to ask all Sentinels again,
//! at most once a second for each Sentinel that sends events. Only events of several Sentinels make
//! it urgent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::address::Address;

/// Shortest time between two rounds of questions that events of the same Sentinel cause.
const EACH: Duration = Duration::from_secs(1);
/// Events of several Sentinels within this time belong to the same incident.
const TOGETHER: Duration = Duration::from_secs(3);

/// The events of all Sentinels of a group.
#[derive(Debug, Default)]
pub(crate) struct Events {
    notify: Arc<Notify>,
    by: Mutex<BTreeMap<Address, Arc<Ear>>>,
}

/// Collector of the events of one Sentinel, from all connections to it.
#[derive(Debug)]
pub(crate) struct Ear {
    notify: Arc<Notify>,
    heard: Mutex<Heard>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// True if the Sentinel has sent an event, and no round of questions was started since.
    waits: bool,
    /// Time at which an event of the Sentinel last caused a round.
    asked: Option<Instant>,
}

impl Ear {
    /// Returns true if an event waits already, so that another one would change nothing.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.heard).waits
    }

    /// Records an event of the Sentinel.
    pub(crate) fn tell(&self) {
        if !std::mem::replace(&mut lock(&self.heard).waits, true) {
            self.notify.notify_one();
        }
    }
}

impl Events {
    /// Returns the collector for the Sentinel at this address.
    pub(crate) fn of(&self, at: &Address) -> Arc<Ear> {
        let new = || Arc::new(Ear { notify: Arc::clone(&self.notify), heard: Mutex::default() });
        Arc::clone(lock(&self.by).entry(at.clone()).or_insert_with(new))
    }

    /// Drops the collectors of all Sentinels that are not in `known`.
    pub(crate) fn keep(&self, known: &[Address]) {
        lock(&self.by).retain(|at, _| known.contains(at));
    }

    /// Resolves when events are a reason to ask the Sentinels; returns how many of them caused a
    /// round within the last three seconds.
    ///
    /// # Cancellation safety
    /// May be dropped; no event is lost.
    pub(crate) async fn reason(&self) -> usize {
        loop {
            let now = Instant::now();
            match self.due(now) {
                Due::Now(by) => return by,
                Due::At(then) => tokio::select! {
                    biased;
                    () = sleep_until(then) => {}
                    () = self.notify.notified() => {}
                },
                Due::Never => self.notify.notified().await,
            }
        }
    }

    fn due(&self, now: Instant) -> Due {
        let by = lock(&self.by);
        let mut first: Option<Instant> = None;
        let mut any = false;
        for ear in by.values() {
            let mut heard = lock(&ear.heard);
            let from = heard.asked.map_or(now, |asked| asked + EACH);
            if heard.waits && from <= now {
                *heard = Heard { waits: false, asked: Some(now) };
                any = true;
            } else if heard.waits {
                first = Some(first.map_or(from, |first| first.min(from)));
            }
        }
        let lately = |ear: &&Arc<Ear>| {
            lock(&ear.heard).asked.is_some_and(|asked| now.duration_since(asked) < TOGETHER)
        };
        match (any, first) {
            (true, _) => Due::Now(by.values().filter(lately).count()),
            (false, Some(then)) => Due::At(then),
            (false, None) => Due::Never,
        }
    }
}

enum Due {
    /// Ask now; this many Sentinels sent events lately.
    Now(usize),
    At(Instant),
    Never,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds one of these mutexes panics, and their values are always complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    fn at(port: u16) -> Address {
        Address::new("10.0.0.1", port).expect("an address")
    }

    async fn now(events: &Events) -> Option<usize> {
        timeout(Duration::from_millis(1), events.reason()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_sentinel_is_a_reason_once_a_second() {
        let (events, mut reasons) = (Events::default(), 0);
        let ear = events.of(&at(1));
        for _ in 0..1_000 {
            ear.tell();
            advance(Duration::from_millis(9)).await;
            reasons += usize::from(now(&events).await.is_some());
        }
        assert!((9..=11).contains(&reasons), "{reasons} in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn another_sentinel_is_heard_at_once_and_what_waits_is_not_lost() {
        let events = Events::default();
        let (noisy, honest) = (events.of(&at(1)), events.of(&at(2)));
        noisy.tell();
        assert_eq!(now(&events).await, Some(1));
        noisy.tell();
        assert_eq!(now(&events).await, None);
        honest.tell();
        assert_eq!(now(&events).await, Some(2), "and the two together are urgent");
        let begun = Instant::now();
        assert_eq!(events.reason().await, 2, "the event that waited");
        assert!(begun.elapsed() <= EACH);
        advance(TOGETHER).await;
        events.keep(&[at(2)]);
        honest.tell();
        assert_eq!(now(&events).await, Some(1));
    }
}
