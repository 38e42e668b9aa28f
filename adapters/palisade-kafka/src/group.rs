//! The state of a member of a Kafka consumer group: its partitions, the messages read from them,
//! and the messages that wait to be delivered to the handler again.
//!
//! One thread of the session reads the messages and commits the offsets. Deliveries can be settled
//! from any thread.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::idempotency::consumer::BrokerError;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::commit_window::Window;
use crate::delayed::Delayed;
use crate::error::{is_passing, revoked};

/// A record that was read from Kafka. `term` is the number of the assignment by which this consumer
/// has the record's partition.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) raw: Arc<OwnedMessage>,
    pub(crate) headers: Arc<[Header]>,
    pub(crate) term: u64,
    /// Number of times that the handler has failed for this record in this process.
    pub(crate) failures: u32,
    /// Number of deliveries of this record in a row that were dropped without being settled.
    pub(crate) unsettled: u32,
}

/// A header's name and value.
pub(crate) type Header = (String, Option<Vec<u8>>);

/// Returns those headers of a record whose names are UTF-8. rdkafka panics at any other name, and
/// has no function that reads headers without that panic. Uncaught, the panic would end the
/// session's thread each time it reads the record.
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
    /// The partitions assigned to this consumer, by number. Each has the number of its assignment,
    /// and the offsets of its messages.
    windows: BTreeMap<i32, (u64, Window)>,
    terms: u64,
    /// Messages that were read and not delivered yet.
    fresh: VecDeque<Read>,
    /// Messages to be delivered again.
    delayed: Delayed,
    broken: Option<KafkaError>,
}

impl State {
    fn open(&self) -> usize {
        self.windows.values().map(|(_, window)| window.open()).sum()
    }

    /// Returns the window of the message's partition, unless the partition was given away since.
    fn ours(&mut self, read: &Read) -> Result<&mut Window, BrokerError> {
        match self.windows.get_mut(&read.raw.partition()) {
            Some((term, window)) if *term == read.term => Ok(window),
            _ => Err(revoked()),
        }
    }
}

/// The state of a group member, shared by the session's thread, the deliveries, and librdkafka's
/// callbacks.
#[derive(Debug, Default)]
pub(crate) struct Group {
    topic: String,
    state: Mutex<State>,
    pub(crate) come: Notify,
    /// Notified when a message is finished, because the thread may then read another one.
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

    /// Tells the session's thread to end.
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

    /// Adds a record that was read, unless its partition is no longer assigned to this consumer.
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

    /// Returns at most `room` messages to deliver now: first those that are due to be delivered
    /// again, then new ones.
    pub(crate) fn due(&self, room: usize) -> Vec<Read> {
        let mut state = self.state();
        let mut due = state.delayed.due(room);
        let fresh = (room - due.len()).min(state.fresh.len());
        due.extend(state.fresh.drain(..fresh));
        due
    }

    /// Returns the earliest time at which a message is due to be delivered again, if any is
    /// waiting.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.state().delayed.next_due()
    }

    /// Marks a message as finished, so that its offset can be committed. Fails if its partition was
    /// given to another consumer.
    pub(crate) fn finish(&self, read: &Read) -> Result<(), BrokerError> {
        self.state().ours(read)?.finish(read.raw.offset());
        self.room.notify_one();
        Ok(())
    }

    /// Delivers a message again after `wait`. Fails if its partition was given to another consumer.
    pub(crate) fn hold(&self, read: Read, wait: Duration) -> Result<(), BrokerError> {
        let mut state = self.state();
        state.ours(&read)?;
        state.delayed.hold(read, wait);
        self.come.notify_one();
        Ok(())
    }

    /// Returns the number of unfinished messages, and the number of the last assignment.
    pub(crate) fn load(&self) -> (usize, u64) {
        let state = self.state();
        (state.open(), state.terms)
    }

    /// Waits until fewer than `ahead` messages are unfinished. Returns false if that takes longer
    /// than `wait`.
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

    /// Drops the state of partitions that were taken from this consumer, with all their messages.
    fn revoked(&self, list: &TopicPartitionList) {
        let mut state = self.state();
        for partition in list.elements_for_topic(&self.topic) {
            let gone = partition.partition();
            state.windows.remove(&gone);
            state.fresh.retain(|read| read.raw.partition() != gone);
            state.delayed.drop_partition(gone);
        }
    }

    /// Commits for each partition the offset up to which all messages are finished, unless that
    /// offset was sent to the brokers before.
    pub(crate) fn commit(&self, consumer: &BaseConsumer<Callbacks>, mode: CommitMode) {
        let mut list = TopicPartitionList::new();
        for (partition, (_, window)) in &mut self.state().windows {
            let Some(offset) = window.unsent() else { continue };
            if list.add_partition_offset(&self.topic, *partition, Offset::Offset(offset)).is_ok() {
                window.sent(offset);
            }
        }
        // The lock on the state is released by now, because a synchronous commit runs
        // `commit_callback`, which takes the lock, before it returns.
        if list.count() > 0
            && let Err(e) = consumer.commit(&list, mode)
        {
            self.not_committed(&e, &list);
        }
    }

    /// Marks the offsets of a failed commit to be committed again. If another consumer takes a
    /// partition over before that, it reads again messages that are already finished.
    fn not_committed(&self, error: &KafkaError, list: &TopicPartitionList) {
        tracing::debug!(target: "palisade::consumer", %error, "offsets are not committed yet");
        let mut state = self.state();
        for partition in list.elements_for_topic(&self.topic) {
            if let Some((_, window)) = state.windows.get_mut(&partition.partition()) {
                window.refused();
            }
        }
    }
}

/// The callbacks that librdkafka runs on the session's thread while that thread polls.
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
                // Commit before the partitions are given up, so that their next consumer begins
                // behind the finished messages. Do not wait for running handlers, because the whole
                // group stands still meanwhile. The next consumer reads their messages again, and
                // finds their keys in flight.
                if !consumer.assignment_lost() {
                    self.0.commit(consumer, CommitMode::Sync);
                }
                self.0.revoked(list);
            }
            Rebalance::Error(error) => {
                tracing::warn!(target: "palisade::consumer", %error, "no partitions for now");
            }
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        if let Err(e) = result {
            self.0.not_committed(&e, offsets);
        }
    }
}
