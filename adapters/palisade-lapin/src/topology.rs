//! The queues for each delay, and that of the dead letters. The messages of a delay queue expire
//! after the delay, and the broker moves them back; in a shared queue a long delay would block all
//! messages behind it. With `at-least-once` no message is lost if the broker is killed meanwhile.

use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Error, ErrorKind};

/// The delay of the first delay queue, in milliseconds. Each further queue doubles the delay.
const FIRST: u64 = 250;
/// Maximum number of delay queues. The longest delay is 17 minutes.
const DELAYS: u32 = 13;

/// Returns the delays for waits of at most `longest`, in milliseconds. Each delay has a delay
/// queue.
pub(crate) fn delays(longest: Duration) -> impl Iterator<Item = u64> {
    let longest = delay(longest);
    (0..DELAYS).map(|n| FIRST << n).filter(move |delay| *delay <= longest)
}

/// Returns the delay of the delay queue for `wait`, in milliseconds. The wait is rounded up to the
/// next delay that has a queue. A longer wait gets the longest delay.
pub(crate) fn delay(wait: Duration) -> u64 {
    let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let mut delays = (0..DELAYS).map(|n| FIRST << n);
    delays.find(|delay| *delay >= wait).unwrap_or(FIRST << (DELAYS - 1))
}

/// Returns the name of the delay queue in which messages of `queue` wait for `delay` milliseconds.
pub fn retry_queue(queue: &str, delay: u64) -> String {
    format!("{queue}.retry.{delay}")
}

/// Returns the name of the queue that holds the dead letters of `queue`.
pub fn dead_letters(queue: &str) -> String {
    format!("{queue}.dead")
}

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() }
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Returns the arguments of a new queue. The broker moves the expired and rejected messages of the
/// new queue to `queue` and loses none of them.
fn moving_to(queue: &str) -> FieldTable {
    let mut arguments = quorum();
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(queue));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments
}

/// Declares the consumed queue, unless the queue exists. The queue gets an argument by which each
/// message that the broker removes from it becomes a dead letter. Without this argument the broker
/// would drop a message after `delivery-limit` deliveries. For example, a message may end the
/// connection at each delivery. Then the broker would also drop the messages that it delivered at
/// the same time.
pub(crate) async fn ensure(connection: &Connection, queue: &str) -> Result<(), Error> {
    declare(connection, queue, moving_to(&dead_letters(queue))).await
}

pub(crate) async fn ensure_dead(connection: &Connection, queue: &str) -> Result<(), Error> {
    declare(connection, &dead_letters(queue), quorum()).await
}

/// Declares a durable quorum queue, unless a queue of any kind has this name.
///
/// If the queue is missing, the broker closes the channel of the check, and lapin logs an error. So
/// the check uses its own channel. This function then logs that it has declared the queue, so that
/// a reader of the log understands lapin's error.
async fn declare(connection: &Connection, queue: &str, arguments: FieldTable) -> Result<(), Error> {
    let look = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..durable() };
    match look.queue_declare(queue.into(), passive, FieldTable::default()).await {
        Ok(_) => drop(look.close(200, "looked".into()).await),
        Err(e) if is_not_found(&e) => {
            let channel = connection.create_channel().await?;
            channel.queue_declare(queue.into(), durable(), arguments).await?;
            tracing::info!(target: "palisade::lapin", queue, "declared, for it was not there");
            drop(channel.close(200, "declared".into()).await);
        }
        Err(e) => return Err(e),
    }
    Ok(())
}

fn is_not_found(e: &Error) -> bool {
    let not_found = AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND);
    matches!(e.kind(), ErrorKind::ProtocolError(e) if *e.kind() == not_found)
}

/// Declares the delay queue of `queue` for this delay in milliseconds, and returns the name of the
/// delay queue.
pub(crate) async fn declare_retry(
    channel: &Channel,
    queue: &str,
    delay: u64,
) -> Result<String, Error> {
    let name = retry_queue(queue, delay);
    let mut arguments = moving_to(queue);
    let ttl = i64::try_from(delay).unwrap_or(i64::MAX);
    arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
    channel.queue_declare(name.as_str().into(), durable(), arguments).await?;
    Ok(name)
}

pub(crate) fn size(table: &FieldTable) -> usize {
    table.inner().iter().map(|(name, value)| name.as_str().len() + 1 + size_of(value)).sum()
}

fn size_of(value: &AMQPValue) -> usize {
    // Maximum number of bytes of an encoded value without its text. These bytes are the type of the
    // value, and either its length or its number.
    const FRAME: usize = 9;
    FRAME
        + match value {
            AMQPValue::ShortString(text) => text.as_str().len(),
            AMQPValue::LongString(text) => text.as_bytes().len(),
            AMQPValue::ByteArray(bytes) => bytes.as_slice().len(),
            AMQPValue::FieldArray(all) => all.as_slice().iter().map(size_of).sum(),
            AMQPValue::FieldTable(table) => size(table),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_shorter_than_asked_but_for_the_longest() {
        let of = |ms| delay(Duration::from_millis(ms));
        assert_eq!([0, 1, 250, 251, 500, 9_000].map(of), [250, 250, 250, 500, 500, 16_000]);
        assert_eq!([1_024_000, 1_024_001, u64::MAX].map(of), [1_024_000; 3]);
        assert_eq!(delay(Duration::MAX), 1_024_000);
        let all: Vec<_> = delays(Duration::from_millis(1_500)).collect();
        assert_eq!(all, [250, 500, 1_000, 2_000]);
        assert_eq!(retry_queue("orders", 500), "orders.retry.500");
    }
}
