//! Server-sent events. One collector sends each event once, as text, and all streams share it. A
//! stream that is too slow receives the event `lagged`, and then the newest pages: never a silent
//! gap.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use crate::history::now_ms;
use crate::listen::Busy;

/// Number of events that a stream may be behind.
const BEHIND: usize = 128;
/// Maximum number of streams.
const STREAMS: usize = 64;
/// Interval of the comments that keep a stream open.
const KEEP: Duration = Duration::from_secs(10);
/// Time for which one request for a page counts as a look at it.
const LOOK: Duration = Duration::from_secs(5);

/// A page, as a topic of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Overview,
    Locks,
    Elections,
    Cron,
    Keys,
    Nodes,
    Failovers,
}

impl Topic {
    pub(crate) const ALL: [Self; 7] = [
        Self::Overview,
        Self::Locks,
        Self::Elections,
        Self::Cron,
        Self::Keys,
        Self::Nodes,
        Self::Failovers,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Locks => "locks",
            Self::Elections => "elections",
            Self::Cron => "cron",
            Self::Keys => "keys",
            Self::Nodes => "nodes",
            Self::Failovers => "failovers",
        }
    }

    /// Returns the topic of this name.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.word() == word)
    }
}

/// One event for all streams.
#[derive(Clone, Debug)]
enum Message {
    Page(Topic, Arc<str>),
    Other(&'static str, Arc<str>),
}

/// Who looks at a topic.
#[derive(Debug, Default)]
struct Looking {
    streams: usize,
    /// End of the last look by a single request.
    until: Option<Instant>,
    /// The newest page, and its text without the parts that always change.
    newest: Option<(Arc<str>, String)>,
}

/// The streams of one console.
pub(crate) struct Hub {
    sender: broadcast::Sender<Message>,
    topics: Mutex<BTreeMap<Topic, Looking>>,
    streams: AtomicUsize,
    /// Wakes the collector.
    pub(crate) wake: Notify,
    /// Number of complete readings of the collector, and the time of the last one.
    pub(crate) readings: watch::Sender<(u64, Option<Instant>)>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(BEHIND),
            topics: Mutex::default(),
            streams: AtomicUsize::new(0),
            wake: Notify::new(),
            readings: watch::Sender::new((0, None)),
        }
    }

    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, Looking>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a page or a program looks at this topic.
    pub(crate) fn is_watched(&self, topic: Topic) -> bool {
        let now = Instant::now();
        self.topics().get(&topic).is_some_and(|looking| {
            looking.streams > 0 || looking.until.is_some_and(|until| until > now)
        })
    }

    /// Returns true if any topic is watched.
    pub(crate) fn is_any_watched(&self) -> bool {
        Topic::ALL.into_iter().any(|topic| self.is_watched(topic))
    }

    /// Returns the number of open streams.
    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Notes that a program looks at a topic, and waits until the data are fresh.
    pub(crate) async fn look(&self, topic: Topic, fresh: Duration) {
        let was_watched = self.is_watched(topic);
        self.topics().entry(topic).or_default().until = Some(Instant::now() + LOOK);
        let mut readings = self.readings.subscribe();
        let (number, at) = *readings.borrow_and_update();
        if was_watched && at.is_some_and(|at| at.elapsed() < fresh) {
            return;
        }
        self.wake.notify_one();
        // A reading that was under way may have begun before the look, so the one after it counts.
        let enough = if was_watched { number + 1 } else { number + 2 };
        let wait = readings.wait_for(|(number, _)| *number >= enough);
        drop(tokio::time::timeout(2 * fresh, wait).await);
    }

    /// Sends a page to its streams, if `shown` differs from the last one. `shown` is the page
    /// without the parts that always change.
    pub(crate) fn page(&self, topic: Topic, page: &str, shown: String) {
        let mut topics = self.topics();
        let looking = topics.entry(topic).or_default();
        let page: Arc<str> = page.into();
        let is_new = looking.newest.as_ref().is_none_or(|(_, last)| *last != shown);
        looking.newest = Some((Arc::clone(&page), shown));
        drop(topics);
        if is_new {
            // Without a stream there is no receiver.
            let _ = self.sender.send(Message::Page(topic, page));
        }
    }

    /// Sends an event to all streams.
    pub(crate) fn send(&self, event: &'static str, data: &serde_json::Value) {
        if self.streams() > 0 {
            let _ = self.sender.send(Message::Other(event, data.to_string().into()));
        }
    }

    fn newest(&self, topic: Topic) -> Option<Arc<str>> {
        self.topics().get(&topic)?.newest.as_ref().map(|(page, _)| Arc::clone(page))
    }
}

/// A stream's part in the hub.
struct Subscription {
    hub: Arc<Hub>,
    topics: Vec<Topic>,
    events: broadcast::Receiver<Message>,
    /// Events that are sent before the next received one.
    first: VecDeque<Message>,
    _busy: Option<Busy>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.streams.fetch_sub(1, Ordering::Relaxed);
        let mut topics = self.hub.topics();
        for topic in &self.topics {
            if let Some(looking) = topics.get_mut(topic) {
                looking.streams -= 1;
                if looking.streams == 0 {
                    // The next stream receives a fresh page and not this old one.
                    looking.newest = None;
                }
            }
        }
    }
}

impl Subscription {
    /// Creates a stream's part; `None` if there are too many streams.
    fn new(
        hub: &Arc<Hub>,
        topics: Vec<Topic>,
        hello: Arc<str>,
        busy: Option<Busy>,
    ) -> Option<Self> {
        let limit = |n: usize| (n < STREAMS).then_some(n + 1);
        hub.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, limit).ok()?;
        let events = hub.sender.subscribe();
        {
            let mut known = hub.topics();
            for topic in &topics {
                known.entry(*topic).or_default().streams += 1;
            }
        }
        hub.wake.notify_one();
        let mut first = VecDeque::from([Message::Other("hello", hello)]);
        first.extend(newest(hub, &topics));
        Some(Self { hub: Arc::clone(hub), topics, events, first, _busy: busy })
    }

    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.first.pop_front() {
                return Some(message);
            }
            match self.events.recv().await {
                Ok(Message::Page(topic, _)) if !self.topics.contains(&topic) => {}
                Ok(message) => return Some(message),
                Err(RecvError::Closed) => return None,
                Err(RecvError::Lagged(missed)) => {
                    let text = format!(
                        "this page was too slow, and {missed} events are missing; the newest \
                         state follows"
                    );
                    let data = json!({ "now_ms": now_ms(), "missed": missed, "text": text });
                    let data: Arc<str> = data.to_string().into();
                    self.first.push_back(Message::Other("lagged", data));
                    // The events that are left are older than the newest pages.
                    self.events = self.events.resubscribe();
                    self.first.extend(newest(&self.hub, &self.topics));
                }
            }
        }
    }
}

fn newest(hub: &Hub, topics: &[Topic]) -> Vec<Message> {
    let page = |topic: &Topic| Some(Message::Page(*topic, hub.newest(*topic)?));
    topics.iter().filter_map(page).collect()
}

/// Returns a stream of the events of these topics, beginning with `hello`; `None` if there are too
/// many streams.
pub(crate) fn stream(
    hub: &Arc<Hub>,
    topics: Vec<Topic>,
    hello: &serde_json::Value,
    busy: Option<Busy>,
) -> Option<Response> {
    let subscription = Subscription::new(hub, topics, hello.to_string().into(), busy)?;
    let events = unfold(subscription, |mut subscription| async move {
        let message = subscription.next().await?;
        let event = match message {
            Message::Page(topic, data) => Event::default().event(topic.word()).data(&*data),
            Message::Other(name, data) => Event::default().event(name).data(&*data),
        };
        Some((Ok::<_, Infallible>(event), subscription))
    });
    Some(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribe(hub: &Arc<Hub>, topic: Topic) -> Option<Subscription> {
        Subscription::new(hub, vec![topic], "{}".into(), None)
    }

    fn name(message: &Message) -> &'static str {
        match message {
            Message::Page(topic, _) => topic.word(),
            Message::Other(name, _) => name,
        }
    }

    #[tokio::test]
    async fn a_slow_stream_is_told_what_it_missed_and_receives_the_newest_page() {
        let hub = Arc::new(Hub::new());
        let mut slow = subscribe(&hub, Topic::Locks).unwrap();
        assert_eq!(name(&slow.next().await.unwrap()), "hello");
        for n in 0..BEHIND + 7 {
            hub.page(Topic::Locks, &n.to_string(), n.to_string());
        }
        let Message::Other("lagged", data) = slow.next().await.unwrap() else { panic!("no lag") };
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["missed"], 7);
        let Message::Page(Topic::Locks, page) = slow.next().await.unwrap() else { panic!() };
        assert_eq!(*page, (BEHIND + 6).to_string());
        hub.send("tick", &json!({}));
        assert_eq!(name(&slow.next().await.unwrap()), "tick");
    }

    #[tokio::test]
    async fn a_page_without_a_change_is_not_sent_again() {
        let hub = Arc::new(Hub::new());
        let mut stream = subscribe(&hub, Topic::Locks).unwrap();
        stream.next().await;
        hub.page(Topic::Locks, "1", "same".to_owned());
        hub.page(Topic::Locks, "2", "same".to_owned());
        hub.page(Topic::Keys, "3", "another topic".to_owned());
        hub.page(Topic::Locks, "4", "new".to_owned());
        for expected in ["1", "4"] {
            let Message::Page(_, page) = stream.next().await.unwrap() else { panic!() };
            assert_eq!(&*page, expected);
        }
    }

    #[tokio::test]
    async fn streams_are_limited_and_counted() {
        let hub = Arc::new(Hub::new());
        let all: Vec<_> = (0..STREAMS).map(|_| subscribe(&hub, Topic::Keys).unwrap()).collect();
        assert!(subscribe(&hub, Topic::Keys).is_none());
        assert!(hub.is_watched(Topic::Keys) && !hub.is_watched(Topic::Locks));
        drop(all);
        assert_eq!(hub.streams(), 0);
        assert!(!hub.is_any_watched());
    }
}
