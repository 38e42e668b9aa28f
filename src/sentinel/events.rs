//! Events of Sentinels. One only causes another round, at most once a second for each Sentinel;
//! only those of several make it urgent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::dial::address::Address;
use crate::sync::SyncMutex;

const EACH: Duration = Duration::from_secs(1);
const TOGETHER: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct Events {
    notify: Arc<Notify>,
    /// By any one Sentinel.
    pub(super) promoted: watch::Sender<Option<Address>>,
    by: SyncMutex<BTreeMap<Address, Arc<EventCollector>>>,
}

#[derive(Debug)]
pub(crate) struct EventCollector {
    notify: Arc<Notify>,
    pub(super) promoted: watch::Sender<Option<Address>>,
    state: SyncMutex<EventState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EventState {
    waits: bool,
    last_round: Option<Instant>,
}

impl EventCollector {
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waits
    }

    pub(crate) fn record(&self) {
        if !std::mem::replace(&mut self.state.lock().waits, true) {
            self.notify.notify_one();
        }
    }
}

impl Events {
    pub(crate) fn of(&self, at: &Address) -> Arc<EventCollector> {
        let new = || {
            Arc::new(EventCollector {
                notify: Arc::clone(&self.notify),
                promoted: self.promoted.clone(),
                state: SyncMutex::default(),
            })
        };
        Arc::clone(self.by.lock().entry(at.clone()).or_insert_with(new))
    }

    pub(crate) fn keep(&self, known: &[Address]) {
        self.by.lock().retain(|at, _| known.contains(at));
    }

    /// Number of Sentinels whose events caused a round in the last three seconds. A dropped future
    /// loses no event.
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
        let by = self.by.lock();
        let mut first: Option<Instant> = None;
        let mut any = false;
        for collector in by.values() {
            let mut state = collector.state.lock();
            let from = state.last_round.map_or(now, |at| at + EACH);
            if state.waits && from <= now {
                *state = EventState { waits: false, last_round: Some(now) };
                any = true;
            } else if state.waits {
                first = Some(first.map_or(from, |first| first.min(from)));
            }
        }
        let lately = |collector: &&Arc<EventCollector>| {
            collector.state.lock().last_round.is_some_and(|at| now.duration_since(at) < TOGETHER)
        };
        match (any, first) {
            (true, _) => Due::Now(by.values().filter(lately).count()),
            (false, Some(then)) => Due::At(then),
            (false, None) => Due::Never,
        }
    }
}

enum Due {
    Now(usize),
    At(Instant),
    Never,
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
        let collector = events.of(&at(1));
        for _ in 0..1_000 {
            collector.record();
            advance(Duration::from_millis(9)).await;
            reasons += usize::from(now(&events).await.is_some());
        }
        assert!((9..=11).contains(&reasons), "{reasons} in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn another_sentinel_is_heard_at_once_and_what_waits_is_not_lost() {
        let events = Events::default();
        let (noisy, honest) = (events.of(&at(1)), events.of(&at(2)));
        noisy.record();
        assert_eq!(now(&events).await, Some(1));
        noisy.record();
        assert_eq!(now(&events).await, None);
        honest.record();
        assert_eq!(now(&events).await, Some(2), "and the two together are urgent");
        let begun = Instant::now();
        assert_eq!(events.reason().await, 2, "the event that waited");
        assert!(begun.elapsed() <= EACH);
        advance(TOGETHER).await;
        events.keep(&[at(2)]);
        honest.record();
        assert_eq!(now(&events).await, Some(1));
    }
}
