//! One connection to the broker: a channel on which messages come and are acknowledged, and one on
//! which copies are published with confirms. When anything breaks the whole session is replaced:
//! the broker then returns what was not acknowledged, and no stale channel can be used.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Error, ErrorKind};
use tokio::time::timeout;

use crate::message::{KeyOf, SettleError};
use crate::topology;

/// How long the broker may take to answer a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to confirm a message.
const CONFIRM: Duration = Duration::from_secs(5);
/// Room for a message's properties besides its headers: at most nine texts of 255 bytes.
const OTHERS: usize = 2_500;
/// Room for the headers that the broker adds to a message that was in a queue of delays.
const ADDED: usize = 1 << 10;
/// How long the end of a connection may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// What a session is made for.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) uri: String,
    pub(crate) properties: ConnectionProperties,
    pub(crate) queue: Arc<str>,
    pub(crate) key_of: Option<KeyOf>,
    pub(crate) prefetch: u16,
    /// The longest delay that is to be expected.
    pub(crate) longest: Duration,
}

/// A connection with its two channels.
pub(crate) struct Session {
    connection: Connection,
    copies: Channel,
    queue: Arc<str>,
    /// Queues that this session has declared.
    declared: Mutex<BTreeSet<String>>,
    /// How many copies in a row were not stored.
    refused: AtomicU32,
    broken: AtomicBool,
}

impl Session {
    /// Connects, declares the queues that are not there, and begins to consume.
    ///
    /// The queues for copies are declared before any is needed: a broker that is killed while it
    /// makes a quorum queue can leave one that confirms nothing.
    pub(crate) async fn open(plan: &Plan) -> Result<(Self, lapin::Consumer), Error> {
        let connection = Connection::connect(&plan.uri, plan.properties.clone()).await?;
        let copies = connection.create_channel().await?;
        copies.confirm_select(ConfirmSelectOptions::default()).await?;
        topology::ensure_dead(&connection, &plan.queue).await?;
        topology::ensure(&connection, &plan.queue).await?;
        let mut declared = BTreeSet::new();
        for delay in topology::delays(plan.longest) {
            declared.insert(topology::declare_retry(&copies, &plan.queue, delay).await?);
        }
        let channel = connection.create_channel().await?;
        channel.basic_qos(plan.prefetch, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(
                (&*plan.queue).into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let (declared, broken) = (Mutex::new(declared), AtomicBool::new(false));
        let queue = Arc::clone(&plan.queue);
        let refused = AtomicU32::new(0);
        Ok((Self { connection, copies, queue, declared, refused, broken }, consumer))
    }

    /// Whether something happened after which it has to be replaced.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) || !self.connection.status().connected()
    }

    /// It will be replaced with the next fetch.
    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Puts a copy of a message where it waits for this long and then comes back.
    pub(crate) async fn retry(
        &self,
        wait: Duration,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), SettleError> {
        let delay = topology::delay(wait);
        let name = topology::retry_queue(&self.queue, delay);
        if !self.knows(&name) {
            topology::declare_retry(&self.copies, &self.queue, delay).await?;
            self.declared.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
        confirmed(&self.copies, &name, properties, body).await
    }

    /// Puts a copy of a message with the dead letters.
    pub(crate) async fn park(
        &self,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), SettleError> {
        confirmed(&self.copies, &topology::dead_letters(&self.queue), properties, body).await
    }

    /// A copy was stored.
    pub(crate) fn stored(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// A copy was not stored; how many were not before, in a row.
    pub(crate) fn refused(&self) -> u32 {
        self.refused.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether properties with these headers, and no others of size, fit into a frame.
    pub(crate) fn has_room(&self, properties: &BasicProperties) -> bool {
        self.fits(properties.headers().as_ref().map_or(0, topology::size))
    }

    /// As [`has_room`](Self::has_room), for a copy that comes back from a queue of delays: the
    /// broker adds headers of its own to it.
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

    /// Closes the connection: the broker returns what was not acknowledged.
    pub(crate) async fn close(&self) {
        self.give_up();
        let _ = timeout(GOODBYE, self.connection.close(200, "the consumer ended".into())).await;
    }
}

/// Publishes to a queue; returns when the broker has confirmed that the message is there.
pub(crate) async fn confirmed(
    channel: &Channel,
    queue: &str,
    properties: BasicProperties,
    body: &[u8],
) -> Result<(), SettleError> {
    let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    // 2: on disk.
    let properties = properties.with_delivery_mode(2);
    let publish = channel.basic_publish("".into(), queue.into(), mandatory, body, properties);
    let confirm = async { publish.await?.await };
    let confirm = timeout(CONFIRM, confirm).await;
    let confirm = confirm.map_err(|_| SettleError::NotConfirmed(queue.to_owned()))??;
    if !confirm.is_ack() {
        return Err(SettleError::Refused(queue.to_owned()));
    }
    if confirm.take_message().is_some() {
        return Err(SettleError::NoQueue(queue.to_owned()));
    }
    Ok(())
}

/// Whether connecting again can help: not if the broker refuses the login or the request.
pub(crate) fn is_passing(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::ProtocolError(e) => matches!(
            e.kind(),
            // The broker goes down, or is not up yet.
            AMQPErrorKind::Hard(
                lapin::protocol::AMQPHardError::CONNECTIONFORCED
                    | lapin::protocol::AMQPHardError::INTERNALERROR
            ) | AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED | AMQPSoftError::NOTFOUND)
        ),
        ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::AuthProviderError(_)
        | ErrorKind::NoDefaultRuntime => false,
        _ => true,
    }
}
