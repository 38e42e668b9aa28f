//! A session with RabbitMQ: a connection with two channels. One channel delivers and acknowledges
//! messages. The other channel publishes copies of messages, and the broker confirms them. If the
//! connection or a channel breaks, the consumer replaces the whole session. Then the broker
//! delivers the unacknowledged messages again, and no task uses a stale channel.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, Error};
use palisade_consumer::{BrokerError, Terms};
use tokio::time::timeout;

use crate::error::Unconfirmed;
use crate::message::Message;
use crate::queue::Queue;
use crate::topology;

const POLL: Duration = Duration::from_millis(500);
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const CONFIRM: Duration = Duration::from_secs(5);
/// Bytes of an AMQP frame that are reserved for the properties of a message without its headers.
/// These properties are at most nine texts of 255 bytes.
const OTHERS: usize = 2_500;
/// Bytes of an AMQP frame that are reserved for additional headers. The broker adds these headers
/// to a message that waits in a delay queue for its next delivery.
const ADDED: usize = 1 << 10;
const GOODBYE: Duration = Duration::from_secs(2);

/// A session with RabbitMQ: a connection with two channels, and lapin's consumer, which receives
/// the messages.
pub struct Session {
    link: Arc<Link>,
    consumer: lapin::Consumer,
}

pub(crate) struct Link {
    connection: Connection,
    copies: Channel,
    pub(crate) queue: Arc<str>,
    /// Names of the delay queues, in which messages wait for their next delivery, that this session
    /// has declared.
    declared: Mutex<BTreeSet<String>>,
    /// Number of message copies in a row (for a delay queue or the dead letters) that the broker
    /// did not store.
    refused: AtomicU32,
    broken: AtomicBool,
}

impl Session {
    /// Connects, declares the missing queues, and begins to consume.
    ///
    /// Declares the delay queues (for messages that wait for their next delivery) at the start and
    /// not at the first retry. If the broker is killed while it creates a quorum queue, the queue
    /// may exist afterwards but confirm no message.
    pub(crate) async fn open(from: &Queue, terms: &Terms) -> Result<Self, Error> {
        let connection = Connection::connect(&from.uri, from.properties.clone()).await?;
        let copies = connection.create_channel().await?;
        copies.confirm_select(ConfirmSelectOptions::default()).await?;
        topology::ensure_dead(&connection, &from.name).await?;
        topology::ensure(&connection, &from.name).await?;
        let mut declared = BTreeSet::new();
        for delay in topology::delays(terms.lease.max(terms.longest_retry)) {
            declared.insert(topology::declare_retry(&copies, &from.name, delay).await?);
        }
        let channel = connection.create_channel().await?;
        let prefetch = u16::try_from(terms.concurrency).unwrap_or(u16::MAX);
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(
                (&*from.name).into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let link = Link {
            connection,
            copies,
            queue: Arc::clone(&from.name),
            declared: Mutex::new(declared),
            refused: AtomicU32::new(0),
            broken: AtomicBool::new(false),
        };
        Ok(Self { link: Arc::new(link), consumer })
    }
}

impl palisade_consumer::Session for Session {
    type Delivery = Message;

    fn is_broken(&self) -> bool {
        self.link.is_broken()
    }

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, BrokerError> {
        let Self { link, consumer } = self;
        let mut messages = Vec::new();
        let Ok(mut next) = timeout(POLL, consumer.next()).await else { return Ok(messages) };
        loop {
            let Some(Ok(raw)) = next else {
                // No further delivery can arrive: the queue was deleted, the channel was closed, or
                // the connection was lost.
                link.give_up();
                break;
            };
            messages.push(Message::new(raw, link));
            if messages.len() >= room {
                break;
            }
            // Read the messages that have already arrived. Do not wait for more messages.
            let Some(come) = consumer.next().now_or_never() else { break };
            next = come;
        }
        Ok(messages)
    }

    async fn close(self) {
        self.link.close().await;
    }
}

impl Link {
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) || !self.connection.status().connected()
    }

    /// Marks the session as broken. Then the consumer replaces the session before it fetches more
    /// messages.
    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// After about `wait` the broker moves the copy back to the consumed queue.
    pub(crate) async fn retry(
        &self,
        wait: Duration,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), Unconfirmed> {
        let delay = topology::delay(wait);
        let name = topology::retry_queue(&self.queue, delay);
        if !self.knows(&name) {
            topology::declare_retry(&self.copies, &self.queue, delay).await?;
            self.declared.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
        confirmed(&self.copies, &name, properties, body).await
    }

    pub(crate) async fn park(
        &self,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), Unconfirmed> {
        confirmed(&self.copies, &topology::dead_letters(&self.queue), properties, body).await
    }

    pub(crate) fn stored(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Records that the broker did not store a copy of a message. Returns the number of consecutive
    /// copies before this one that the broker did not store.
    pub(crate) fn refused(&self) -> u32 {
        self.refused.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn has_room(&self, properties: &BasicProperties) -> bool {
        self.fits(properties.headers().as_ref().map_or(0, topology::size))
    }

    /// Returns true if `properties` fits in one AMQP frame with the headers that the broker adds in
    /// a delay queue.
    pub(crate) fn has_room_later(&self, properties: &BasicProperties) -> bool {
        let headers = properties.headers().as_ref().map_or(0, topology::size);
        self.fits(headers + ADDED)
    }

    fn fits(&self, headers: usize) -> bool {
        let frame =
            usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX);
        headers + OTHERS <= frame
    }

    fn knows(&self, queue: &str) -> bool {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    /// Closes the connection. The broker then delivers the unacknowledged messages again.
    async fn close(&self) {
        self.give_up();
        let _ = timeout(GOODBYE, self.connection.close(200, "the consumer ended".into())).await;
    }
}

pub(crate) async fn confirmed(
    channel: &Channel,
    queue: &str,
    properties: BasicProperties,
    body: &[u8],
) -> Result<(), Unconfirmed> {
    let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    // Delivery mode 2 makes the message persistent.
    let properties = properties.with_delivery_mode(2);
    let publish = channel.basic_publish("".into(), queue.into(), mandatory, body, properties);
    let confirm = async { publish.await?.await };
    let confirm = timeout(CONFIRM, confirm).await;
    let late = |_| {
        Unconfirmed::not_stored(format!(
            "the broker does not confirm what is published to {queue:?}; if it stays so look at \
             `rabbitmq-queues quorum_status {queue}`: a queue without a leader has to be deleted, \
             and is declared again by the next consumer that connects"
        ))
    };
    let confirm = confirm.map_err(late)??;
    if !confirm.is_ack() {
        return Err(Unconfirmed::not_stored(format!(
            "the broker refused to store a message in {queue:?}; look for a length limit, a full \
             disk or a missing majority of its nodes"
        )));
    }
    if confirm.take_message().is_some() {
        return Err(Unconfirmed::not_stored(format!("there is no queue {queue:?} any more")));
    }
    Ok(())
}
