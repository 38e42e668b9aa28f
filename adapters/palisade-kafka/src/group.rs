//! The state of a member of a Kafka consumer group. One thread of the session reads the messages
//! and stores the offsets; any thread can finish a delivery or have it delivered again.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade_consumer::BrokerError;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::commit_window::Window;
use crate::delayed::Delayed;
use crate::error::{is_passing, revoked};

/// A record that was read from Kafka. `term` is the number of the assignment that gave the record's
/// partition to this consumer.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) raw: Arc<OwnedMessage>,
    pub(crate) headers: Arc<[Header]>,
    pub(crate) term: u64,
    /// Number of failures of the handler for this record in this process.
    pub(crate) failures: u32,
    /// Number of consecutive deliveries of this record that were dropped before the consumer had
    /// finished or delayed them.
    pub(crate) unsettled: u32,
}

pub(crate) type Header = (String, Option<Vec<u8>>);

/// Skips headers whose names are not UTF-8. rdkafka panics at such a name, and has no function
/// without this panic. Uncaught, it would end the session's thread each time it reads the record.
fn readable(raw: &OwnedMessage) -> Arc<[Header]> {
    let Some(all) = raw.headers() else { return Arc::default() };
    let read = |at| {
        let header = catch_unwind(AssertUnwindSafe(|| all.try_get(at))).ok()??;
        Some((header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
    };
    (0..all.count()).filter_map(read).collect()
}

#[derive(Debug, Default)]
struct State {
    /// The partitions that are assigned to this consumer, by number. Each partition has the number
    /// of its assignment, and the offsets of its messages.
    windows: BTreeMap<i32, (u64, Window)>,
    terms: u64,
    fresh: VecDeque<Read>,
    /// Messages that are to be delivered to the handler again, some time after a failure.
    delayed: Delayed,
    broken: Option<KafkaError>,
}

impl State {
    fn open(&self) -> usize {
        self.windows.values().map(|(_, window)| window.open()).sum()
    }

    /// Returns the window (the offsets) of the message's partition. Fails if this consumer has lost
    /// the partition since the message was read.
    fn ours(&mut self, read: &Read) -> Result<&mut Window, BrokerError> {
        match self.windows.get_mut(&read.raw.partition()) {
            Some((term, window)) if *term == read.term => Ok(window),
            _ => Err(revoked()),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    topic: String,
    state: Mutex<State>,
    pub(crate) come: Notify,
    /// Notified when a message is finished. The session's thread may then read another message.
    room: Condvar,
    ended: AtomicBool,
}

impl Group {
    pub(crate) fn new(topic: &str) -> Self {
        Self { topic: topic.to_owned(), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn fail(&self, error: KafkaError) {
        self.state().broken.get_or_insert(error);
        self.come.notify_one();
    }

    pub(crate) fn failed(&self) -> Option<KafkaError> {
        self.state().broken.clone()
    }

    /// Adds a record that was read. Ignores the record if its partition is no longer assigned to
    /// this consumer.
    pub(crate) fn read(&self, raw: OwnedMessage) {
        let headers = readable(&raw);
        let mut state = self.state();
        let Some((term, window)) = state.windows.get_mut(&raw.partition()) else { return };
        window.begin(raw.offset());
        let (term, raw) = (*term, Arc::new(raw));
        let read = Read { raw, headers, term, failures: 0, unsettled: 0 };
        state.fresh.push_back(read);
        self.come.notify_one();
    }

    /// Messages that are due for another delivery come first, then new ones.
    pub(crate) fn due(&self, room: usize) -> Vec<Read> {
        let mut state = self.state();
        let mut due = state.delayed.due(room);
        let fresh = (room - due.len()).min(state.fresh.len());
        due.extend(state.fresh.drain(..fresh));
        due
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.state().delayed.next_due()
    }

    /// Fails if another consumer got the message's partition.
    pub(crate) fn has(&self, read: &Read) -> Result<(), BrokerError> {
        self.state().ours(read).map(|_| ())
    }

    /// Marks a message as finished, so that its offset can be committed. Fails if another consumer
    /// got the message's partition.
    pub(crate) fn finish(&self, read: &Read) -> Result<(), BrokerError> {
        self.state().ours(read)?.finish(read.raw.offset());
        self.room.notify_one();
        Ok(())
    }

    /// Delivers a message again after `wait`. Fails if another consumer got the message's
    /// partition.
    pub(crate) fn hold(&self, read: Read, wait: Duration) -> Result<(), BrokerError> {
        let mut state = self.state();
        state.ours(&read)?;
        state.delayed.hold(read, wait);
        self.come.notify_one();
        Ok(())
    }

    pub(crate) fn load(&self) -> (usize, u64) {
        let state = self.state();
        (state.open(), state.terms)
    }

    /// Returns false after `wait` if there are still more.
    pub(crate) fn has_room(&self, ahead: usize, wait: Duration) -> bool {
        let full = |state: &mut State| state.open() >= ahead;
        let waited = self.room.wait_timeout_while(self.state(), wait, full);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn assigned(&self, list: &TopicPartitionList) {
        let mut state = self.state();
        for partition in list.elements_for_topic(&self.topic) {
            state.terms += 1;
            let new = (state.terms, Window::default());
            state.windows.insert(partition.partition(), new);
        }
    }

    fn revoked(&self, list: &TopicPartitionList) {
        let mut state = self.state();
        for partition in list.elements_for_topic(&self.topic) {
            let gone = partition.partition();
            state.windows.remove(&gone);
            state.fresh.retain(|read| read.raw.partition() != gone);
            state.delayed.drop_partition(gone);
        }
    }

    /// librdkafka commits the stored offsets (`topic.rs`), again if a commit failed or an older one
    /// reached the broker later. This function does not commit by itself, because it could not see
    /// such a failure: librdkafka 2 reports it only to a C callback. librdkafka never commits a
    /// lower offset, so this function does, once, if the offset may be below the committed one.
    pub(crate) fn store(&self, consumer: &BaseConsumer<Callbacks>) {
        let (mut list, mut back) = (TopicPartitionList::new(), TopicPartitionList::new());
        for (partition, (_, window)) in &mut self.state().windows {
            let Some(offset) = window.unstored() else { continue };
            let at = Offset::Offset(offset);
            if list.add_partition_offset(&self.topic, *partition, at).is_err() {
                continue;
            }
            if window.stored(offset) {
                let _ = back.add_partition_offset(&self.topic, *partition, at);
            }
        }
        if list.count() > 0
            && let Err(error) = consumer.store_offsets(&list)
        {
            // The consumer group has given one of these partitions to another consumer. librdkafka
            // will report that by a callback.
            tracing::debug!(target: "palisade::consumer", %error, "offsets are not stored");
        }
        if back.count() > 0
            && let Err(error) = consumer.commit(&back, CommitMode::Async)
        {
            tracing::debug!(target: "palisade::consumer", %error, "offsets are not committed");
        }
    }
}

/// Run on the session's thread when it polls.
#[derive(Clone, Debug)]
pub(crate) struct Callbacks(pub(crate) Arc<Group>);

impl ClientContext for Callbacks {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "palisade::consumer", %error, reason, "librdkafka reports");
        if !is_passing(&error) {
            self.0.fail(error);
        }
    }
}

impl ConsumerContext for Callbacks {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => self.0.assigned(list),
            Rebalance::Revoke(list) => {
                // librdkafka commits the stored offsets before the partitions go to another
                // consumer. The next consumer then begins after the finished messages. Do not wait
                // for running handlers, because the whole group waits for this callback. The next
                // consumer reads the messages of running handlers again, and finds that their keys
                // are claimed.
                self.0.store(consumer);
                self.0.revoked(list);
            }
            Rebalance::Error(error) => {
                tracing::warn!(target: "palisade::consumer", %error, "no partitions for now");
            }
        }
    }
}
