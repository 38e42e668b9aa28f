//! Server-sent events for browsers. All streams share the text of an event, and only the newest
//! text of each page is kept. A stream that is too slow receives `lagged`, and then the newest
//! pages.

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

/// Number of events that a stream may be behind before events are missing and it receives `lagged`.
const BEHIND: usize = 128;
/// Maximum number of streams of server-sent events.
const STREAMS: usize = 64;
/// Maximum number of streams of one visitor, so that the others can have streams, too.
const OF_ONE: usize = 24;
/// Interval of the SSE comments that keep a quiet stream open.
const KEEP: Duration = Duration::from_secs(10);
/// Age from which the stored page is too old: no event stream begins with it, and a request for the
/// page waits for a newer one.
pub(crate) const FRESH: Duration = Duration::from_millis(2_500);
/// Time for which a topic counts as watched after one request for its page.
const LOOK: Duration = Duration::from_secs(5);

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

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.word() == word)
    }
}

#[derive(Clone, Debug)]
enum Message {
    /// The page of this topic has changed. The message does not contain the page, so that event
    /// streams to slow browsers keep no old pages in memory.
    Changed(Topic),
    Other(&'static str, Arc<str>),
}

#[derive(Clone, Debug)]
struct Page {
    /// Version of the page: the number of changes until this text.
    number: u64,
    text: Arc<str>,
    /// The text without the fields that change each time the nodes are read. A new version of the
    /// page counts as a change only if this text is different.
    shown: String,
    at: Instant,
}

#[derive(Debug, Default)]
struct Looking {
    streams: usize,
    /// Time until which the topic (a kind of page, such as `locks`) counts as watched because of a
    /// request without a stream; `None` before the first such request.
    until: Option<Instant>,
    /// Number of times that the console's page of this topic has changed.
    changes: u64,
    newest: Option<Page>,
}

pub(crate) struct Hub {
    sender: broadcast::Sender<Message>,
    topics: Mutex<BTreeMap<Topic, Looking>>,
    streams: AtomicUsize,
    /// Number of open event streams of each visitor.
    visitors: Mutex<BTreeMap<String, usize>>,
    /// Wakes the collector, the task that reads the nodes.
    pub(crate) wake: Notify,
    /// Number of times that the collector has read all nodes, and the time of the last reading.
    pub(crate) readings: watch::Sender<(u64, Option<Instant>)>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(BEHIND),
            topics: Mutex::default(),
            streams: AtomicUsize::new(0),
            visitors: Mutex::default(),
            wake: Notify::new(),
            readings: watch::Sender::new((0, None)),
        }
    }

    /// Counts a new stream. Returns false if there are too many streams, of all visitors or of this
    /// one.
    fn begin(&self, visitor: &str) -> bool {
        let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        let own = visitors.get(visitor).copied().unwrap_or_default();
        if own >= OF_ONE || self.streams() >= STREAMS {
            return false;
        }
        visitors.insert(visitor.to_owned(), own + 1);
        self.streams.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn end(&self, visitor: &str) {
        let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = visitors.get_mut(visitor) {
            *own -= 1;
            if *own == 0 {
                visitors.remove(visitor);
            }
        }
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, Looking>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_watched(&self, topic: Topic) -> bool {
        let now = Instant::now();
        self.topics().get(&topic).is_some_and(|looking| {
            looking.streams > 0 || looking.until.is_some_and(|until| until > now)
        })
    }

    pub(crate) fn is_any_watched(&self) -> bool {
        Topic::ALL.into_iter().any(|topic| self.is_watched(topic))
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Counts the topic as watched because a program requests the page of this topic, and waits
    /// until the console has read the nodes at most `fresh` ago.
    pub(crate) async fn look(&self, topic: Topic, fresh: Duration) {
        let was_watched = self.is_watched(topic);
        self.topics().entry(topic).or_default().until = Some(Instant::now() + LOOK);
        let mut readings = self.readings.subscribe();
        let (number, at) = *readings.borrow_and_update();
        if was_watched && at.is_some_and(|at| at.elapsed() < fresh) {
            return;
        }
        self.wake.notify_one();
        // If the topic was not watched, the collector may have begun its present reading of the
        // nodes before this request. So the complete reading after that is awaited.
        let enough = if was_watched { number + 1 } else { number + 2 };
        let wait = readings.wait_for(|(number, _)| *number >= enough);
        drop(tokio::time::timeout(2 * fresh, wait).await);
    }

    /// Stores a page, and sends it to the streams of its topic if it has changed. `shown` is the
    /// page without the fields that always change; it is compared with that of the last page.
    pub(crate) fn page(&self, topic: Topic, page: &str, shown: String) {
        let mut topics = self.topics();
        let looking = topics.entry(topic).or_default();
        let last = looking.newest.as_ref();
        let is_new = last.is_none_or(|last| last.shown != shown);
        looking.changes += u64::from(is_new);
        let (number, text) = (looking.changes, page.into());
        looking.newest = Some(Page { number, text, shown, at: Instant::now() });
        drop(topics);
        if is_new {
            // An error only means that no stream is open.
            let _ = self.sender.send(Message::Changed(topic));
        }
    }

    pub(crate) fn send(&self, event: &'static str, data: &serde_json::Value) {
        if self.streams() > 0 {
            let _ = self.sender.send(Message::Other(event, data.to_string().into()));
        }
    }

    /// Returns the newest page and its number. `sent` is the number of the page that a stream sent
    /// last. `None` if the stream has already sent the newest page.
    fn newer(&self, topic: Topic, sent: Option<u64>) -> Option<(u64, Arc<str>)> {
        let topics = self.topics();
        let page = topics.get(&topic)?.newest.as_ref()?;
        sent.is_none_or(|sent| sent < page.number).then(|| (page.number, Arc::clone(&page.text)))
    }
}

/// Check that returns true if the visitor of a stream is still allowed to see the stream.
pub(crate) type IsAllowed = Box<dyn Fn() -> bool + Send + Sync>;

/// One stream: its visitor, its topics, and the events that it receives from the hub.
struct Subscription {
    hub: Arc<Hub>,
    visitor: String,
    /// The topics of the stream, each with the number of the version of its page that was sent
    /// last.
    topics: BTreeMap<Topic, Option<u64>>,
    events: broadcast::Receiver<Message>,
    /// Events that are sent before those that `events` receives.
    first: VecDeque<Message>,
    is_allowed: IsAllowed,
    _busy: Option<Busy>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.end(&self.visitor);
        let mut topics = self.hub.topics();
        for topic in self.topics.keys() {
            if let Some(looking) = topics.get_mut(topic) {
                looking.streams -= 1;
                if looking.streams == 0 {
                    // No stream of the topic is left, so the newest page of the topic will be out
                    // of date. The next stream must receive a fresh page.
                    looking.newest = None;
                }
            }
        }
    }
}

impl Subscription {
    /// Creates the subscription of a stream; `None` if there are too many streams.
    fn new(
        hub: &Arc<Hub>,
        visitor: String,
        topics: Vec<Topic>,
        hello: Arc<str>,
        (is_allowed, busy): (IsAllowed, Option<Busy>),
    ) -> Option<Self> {
        if !hub.begin(&visitor) {
            return None;
        }
        let events = hub.sender.subscribe();
        {
            let mut known = hub.topics();
            for topic in &topics {
                let looking = known.entry(*topic).or_default();
                looking.streams += 1;
                // A stream must not begin with an old page, so an old page is removed. The next
                // reading brings a new one.
                looking.newest.take_if(|page| page.at.elapsed() >= FRESH);
            }
        }
        hub.wake.notify_one();
        let mut first = VecDeque::from([Message::Other("hello", hello)]);
        first.extend(topics.iter().copied().map(Message::Changed));
        let topics = topics.into_iter().map(|topic| (topic, None)).collect();
        let hub = Arc::clone(hub);
        Some(Self { hub, visitor, topics, events, first, is_allowed, _busy: busy })
    }

    /// Returns the name and the data of the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(&'static str, Arc<str>)> {
        loop {
            let message = match self.first.pop_front() {
                Some(message) => Ok(message),
                None => self.events.recv().await,
            };
            match message {
                Ok(Message::Changed(topic)) => {
                    let Some(sent) = self.topics.get_mut(&topic) else { continue };
                    let Some((number, page)) = self.hub.newer(topic, *sent) else { continue };
                    *sent = Some(number);
                    return Some((topic.word(), page));
                }
                // A session ends when it expires or when its visitor signs out. The stream then
                // ends. The browser connects again, and the console replies that the visitor must
                // sign in.
                Ok(Message::Other("tick", _)) if !(self.is_allowed)() => return None,
                Ok(Message::Other(name, data)) => return Some((name, data)),
                Err(RecvError::Closed) => return None,
                Err(RecvError::Lagged(missed)) => {
                    let text = format!(
                        "this page was too slow, and {missed} events are missing; the newest \
                         state follows"
                    );
                    let data = json!({ "now_ms": now_ms(), "missed": missed, "text": text });
                    let data: Arc<str> = data.to_string().into();
                    // The events that are left in the channel are older than the newest pages, so
                    // they are skipped.
                    self.events = self.events.resubscribe();
                    self.first.extend(self.topics.keys().copied().map(Message::Changed));
                    return Some(("lagged", data));
                }
            }
        }
    }
}

/// Returns a visitor's stream of the events of these topics, beginning with `hello`; `None` if
/// there are too many streams. The stream ends when the visitor is no longer allowed to see it.
pub(crate) fn stream(
    hub: &Arc<Hub>,
    visitor: String,
    topics: Vec<Topic>,
    hello: &serde_json::Value,
    of: (IsAllowed, Option<Busy>),
) -> Option<Response> {
    let subscription = Subscription::new(hub, visitor, topics, hello.to_string().into(), of)?;
    let events = unfold(subscription, |mut subscription| async move {
        let (name, data) = subscription.next().await?;
        Some((Ok::<_, Infallible>(Event::default().event(name).data(&*data)), subscription))
    });
    Some(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP)).into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn subscribe(hub: &Arc<Hub>, topic: Topic) -> Option<Subscription> {
        of(hub, "alice", topic)
    }

    fn of(hub: &Arc<Hub>, visitor: &str, topic: Topic) -> Option<Subscription> {
        let is_allowed: IsAllowed = Box::new(|| true);
        Subscription::new(hub, visitor.to_owned(), vec![topic], "{}".into(), (is_allowed, None))
    }

    async fn next(stream: &mut Subscription) -> (&'static str, String) {
        let (name, data) = stream.next().await.unwrap();
        (name, data.to_string())
    }

    #[tokio::test]
    async fn a_slow_stream_is_told_what_it_missed_and_receives_the_newest_page() {
        let hub = Arc::new(Hub::new());
        let mut slow = subscribe(&hub, Topic::Locks).unwrap();
        assert_eq!(next(&mut slow).await.0, "hello");
        for n in 0..BEHIND + 7 {
            hub.page(Topic::Locks, &n.to_string(), n.to_string());
        }
        let pinned = hub.newer(Topic::Locks, None).unwrap().1;
        assert_eq!(Arc::strong_count(&pinned), 2, "no other page is kept");
        // Each stream begins with an event about its page, which was queued before the stream
        // missed events. That first event is skipped here.
        let (name, data) = loop {
            let event = next(&mut slow).await;
            if event.0 != "locks" {
                break event;
            }
        };
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!((name, &data["missed"]), ("lagged", &json!(7)));
        hub.page(Topic::Locks, "newest", "newest".to_owned());
        assert_eq!(next(&mut slow).await, ("locks", "newest".to_owned()));
        hub.send("tick", &json!({}));
        assert_eq!(next(&mut slow).await.0, "tick", "no page is sent twice");
    }

    #[tokio::test]
    async fn a_page_without_a_change_is_not_sent_again() {
        let hub = Arc::new(Hub::new());
        let mut stream = subscribe(&hub, Topic::Locks).unwrap();
        assert_eq!(next(&mut stream).await.0, "hello");
        hub.page(Topic::Locks, "1", "same".to_owned());
        assert_eq!(next(&mut stream).await.1, "1");
        hub.page(Topic::Locks, "2", "same".to_owned());
        hub.page(Topic::Keys, "3", "another topic".to_owned());
        hub.page(Topic::Locks, "4", "new".to_owned());
        assert_eq!(next(&mut stream).await.1, "4");
    }

    #[tokio::test]
    async fn a_stream_begins_with_a_fresh_page_alone() {
        let hub = Arc::new(Hub::new());
        hub.page(Topic::Locks, "fresh", "same".to_owned());
        let mut stream = subscribe(&hub, Topic::Locks).unwrap();
        assert_eq!(next(&mut stream).await.0, "hello");
        assert_eq!(next(&mut stream).await.1, "fresh");
        drop(stream);
        hub.page(Topic::Locks, "old", "same".to_owned());
        let old = Instant::now().checked_sub(FRESH).unwrap();
        hub.topics().get_mut(&Topic::Locks).unwrap().newest.as_mut().unwrap().at = old;
        let mut stream = subscribe(&hub, Topic::Locks).unwrap();
        assert_eq!(next(&mut stream).await.0, "hello");
        // The old version of the page was not sent. So the new version is sent, although both have
        // the same text.
        hub.page(Topic::Locks, "new", "same".to_owned());
        assert_eq!(next(&mut stream).await.1, "new");
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_session() {
        let hub = Arc::new(Hub::new());
        let signed_in = Arc::new(AtomicBool::new(true));
        let is_allowed = Arc::clone(&signed_in);
        let is_allowed: IsAllowed = Box::new(move || is_allowed.load(Ordering::Relaxed));
        let topics = vec![Topic::Locks];
        let stream =
            Subscription::new(&hub, "a".to_owned(), topics, "{}".into(), (is_allowed, None));
        let mut stream = stream.unwrap();
        hub.send("tick", &json!({}));
        assert_eq!(next(&mut stream).await.0, "hello");
        assert_eq!(next(&mut stream).await.0, "tick");
        signed_in.store(false, Ordering::Relaxed);
        hub.send("tick", &json!({}));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn streams_are_limited_and_counted() {
        let hub = Arc::new(Hub::new());
        let mut all: Vec<_> = (0..OF_ONE).map(|_| subscribe(&hub, Topic::Keys).unwrap()).collect();
        assert!(subscribe(&hub, Topic::Keys).is_none(), "one visitor does not take all of them");
        let others = (OF_ONE..STREAMS).map(|n| of(&hub, &n.to_string(), Topic::Keys).unwrap());
        all.extend(others);
        assert!(of(&hub, "late", Topic::Keys).is_none());
        assert!(hub.is_watched(Topic::Keys) && !hub.is_watched(Topic::Locks));
        drop(all);
        assert_eq!((hub.streams(), hub.visitors.lock().unwrap().len()), (0, 0));
        assert!(!hub.is_any_watched());
    }
}
