//! A member of a Kafka consumer group, and its thread, which always polls librdkafka
//! (`max.poll.interval.ms`). Without room for more messages it pauses the partitions, but only
//! after some time: librdkafka discards what it has fetched from a paused partition.

use std::sync::Arc;
use std::time::Duration;

use palisade_consumer::{BrokerError, Terms};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use crate::dead::DeadLetters;
use crate::error::{failed, is_passing};
use crate::group::{Callbacks, Group};
use crate::message::Message;
use crate::topic::Topic;

/// Maximum number of unfinished messages for each message that may be handled at the same time. A
/// message is unfinished from the moment it is read until it is handled or a dead letter. In that
/// time the message may wait for a handler or for its next delivery.
const AHEAD: usize = 16;
/// Maximum time that a fetch (`Session::next`) waits for a message.
const POLL: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_secs(1);
const STORE: Duration = Duration::from_millis(200);
/// Maximum time for a member to leave the consumer group, including its last commit.
const GOODBYE: Duration = Duration::from_secs(10);

/// A member of a Kafka consumer group. Dropping the session ends its thread.
pub struct Session {
    group: Arc<Group>,
    dead: Arc<DeadLetters>,
    thread: Option<oneshot::Receiver<()>>,
}

impl Session {
    pub(crate) fn open(topic: &Topic, terms: &Terms) -> Result<Self, BrokerError> {
        let error = |e| failed("a consumer of the group", e);
        let group = Arc::new(Group::new(&topic.name));
        let dead = Arc::new(DeadLetters::new(topic).map_err(error)?);
        let callbacks = Callbacks(Arc::clone(&group));
        let consumer: BaseConsumer<_> =
            topic.consumer().create_with_context(callbacks).map_err(error)?;
        consumer.subscribe(&[&topic.name]).map_err(error)?;
        let (ended, thread) = oneshot::channel();
        let (shared, ahead) = (Arc::clone(&group), AHEAD * terms.concurrency);
        let spawned = std::thread::Builder::new().name("palisade-kafka".into()).spawn(move || {
            pump(&consumer, &shared, ahead);
            // A dropped consumer leaves the group. Then librdkafka revokes the consumer's
            // partitions. The callback for the revoked partitions stores the offsets of the
            // finished messages, and librdkafka commits them.
            drop(consumer);
            let _ = ended.send(());
        });
        spawned.map_err(|e| error(KafkaError::ClientCreation(e.to_string())))?;
        Ok(Self { group, dead, thread: Some(thread) })
    }
}

impl palisade_consumer::Session for Session {
    type Delivery = Message;

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, BrokerError> {
        let end = Instant::now() + POLL;
        loop {
            let due = self.group.due(room);
            if !due.is_empty() {
                let message = |read| Message::new(read, &self.group, &self.dead);
                return Ok(due.into_iter().map(message).collect());
            }
            if let Some(e) = self.group.failed() {
                return Err(failed("messages", e));
            }
            if Instant::now() >= end {
                return Ok(Vec::new());
            }
            let wake = self.group.next_due().map_or(end, |due| due.min(end));
            tokio::select! {
                () = self.group.come.notified() => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    async fn close(mut self) {
        self.group.end();
        if let Some(thread) = self.thread.take()
            && timeout(GOODBYE, thread).await.is_err()
        {
            tracing::debug!(target: "palisade::consumer", "the brokers do not confirm the leave");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.group.end();
    }
}

fn pump(consumer: &BaseConsumer<Callbacks>, group: &Group, ahead: usize) {
    let (mut stored, mut requested_at) = (Instant::now(), Instant::now());
    // The number of the last assignment whose partitions were paused; `None` if no partitions are
    // paused.
    let mut paused = None;
    while !group.has_ended() {
        if stored.elapsed() >= STORE {
            group.store(consumer);
            stored = Instant::now();
        }
        if paused.is_none() && !group.has_room(ahead, TICK) && requested_at.elapsed() < PAUSE {
            continue;
        }
        if let Err(e) = throttle(consumer, group, ahead, &mut paused) {
            tracing::debug!(target: "palisade::consumer", error = %e, "not paused or resumed");
        }
        requested_at = Instant::now();
        match consumer.poll(TICK) {
            None => {}
            Some(Ok(message)) => group.read(message.detach()),
            Some(Err(e)) => {
                report(&e);
                let refused = !is_passing(&e);
                if refused || matches!(e, KafkaError::MessageConsumptionFatal(_)) {
                    group.fail(e);
                }
            }
        }
    }
}

/// A broken connection to one broker is ordinary.
fn report(error: &KafkaError) {
    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::BrokerTransportFailure) {
        tracing::debug!(target: "palisade::consumer", %error, "nothing was read");
    } else {
        tracing::warn!(target: "palisade::consumer", %error, "nothing was read; trying again");
    }
}

/// Pauses all partitions when `ahead` messages are unfinished. Resumes the partitions when only
/// half of `ahead` are unfinished. `paused` is the number of the paused assignment.
fn throttle(
    consumer: &BaseConsumer<Callbacks>,
    group: &Group,
    ahead: usize,
    paused: &mut Option<u64>,
) -> Result<(), KafkaError> {
    let (open, term) = group.load();
    if open >= ahead && *paused != Some(term) {
        consumer.pause(&consumer.assignment()?)?;
        *paused = Some(term);
    } else if open <= ahead / 2 && paused.is_some() {
        consumer.resume(&consumer.assignment()?)?;
        *paused = None;
    }
    Ok(())
}
