//! What a broker's adapter provides.

use std::borrow::Cow;
use std::error::Error;
use std::future::{Future, ready};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;

use super::Disposition;
use crate::idempotency::Failed;

/// The body of a message, from JSON. A body that cannot be parsed never can be, so the error makes
/// the message a dead letter.
///
/// # Errors
/// [`Failed::permanent`] with what the body has wrong.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(body)
        .map_err(|e| Failed::permanent(format!("the body cannot be parsed as JSON: {e}")))
}

/// One delivery of a message. Dropped without being settled it must come again by itself.
pub trait Delivery: Send + Sync + 'static {
    /// Why a broker could not be asked.
    type Error: Error + Send + Sync + 'static;

    /// The name of the request: an id that the *producer* gave the message, the same in every copy
    /// of it. An error is the sentence of the dead letter.
    fn key(&self) -> Result<Cow<'_, str>, String>;

    /// When the producer made the request, the same in every copy of it, if the message says so.
    fn created_at(&self) -> Option<SystemTime>;

    /// The body of the message.
    fn body(&self) -> &[u8];

    /// How often its handler has failed before, as far as the broker knows.
    fn failures(&self) -> u32;

    /// Settles the delivery at the broker. `failures` is the number that the next
    /// delivery has to report. [`Retry`](Disposition::Retry) and [`Park`](Disposition::Park) first
    /// make sure that the broker has the message in its new place, and then acknowledge it: a crash
    /// in between makes a duplicate, never a loss.
    fn settle(
        &self,
        how: &Disposition,
        failures: u32,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// How often [`extend`](Self::extend) has to be called while the handler runs; `None`: never.
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    /// Reports to the broker that the message is still being handled.
    fn extend(&self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        ready(Ok(()))
    }
}

/// Where deliveries come from.
pub trait Source: Send {
    /// What comes.
    type Delivery: Delivery;
    /// Why nothing can come any more.
    type Error: Error + Send + Sync + 'static;

    /// At most `room` deliveries. Waits for the first one for about a second at most, so that a
    /// stop is noticed; empty if none came. Connects again by itself where that can help; an error
    /// ends the consumer.
    ///
    /// The worker polls it to its end. Dropped with the worker, what it took comes again.
    fn fetch(
        &mut self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<Self::Delivery>, Self::Error>> + Send;

    /// The end: whatever the broker handed over and nobody settled is returned.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}
