//! The traits that the adapter of a broker implements, and the types that they use.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;

use super::Disposition;
use crate::error::{Advice, ConfigError, advise};
use crate::idempotency::Failed;

/// A broker together with the queue, topic or stream that is consumed. The type that implements
/// this trait has the broker's address, the name of what is consumed, and the settings that only
/// this kind of broker has.
pub trait Broker: fmt::Debug + Send + Sync + 'static {
    /// A connection to the broker.
    type Session: Session<Delivery = Self::Delivery>;
    /// A message that the broker delivers.
    type Delivery: Delivery;

    /// Checks the settings of the broker together with those of the consumer (`terms`). Sends
    /// nothing.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    fn check(&self, terms: &Terms) -> Result<(), ConfigError>;

    /// Connects to the broker, and declares the queues, topics or streams that are needed.
    fn open(
        &self,
        terms: &Terms,
    ) -> impl Future<Output = Result<Self::Session, BrokerError>> + Send;
}

/// A connection to a broker, with the channels and subscriptions on it. When any part of it breaks,
/// the consumer replaces the whole session, and the broker delivers the messages again that were
/// not settled on it.
pub trait Session: Send {
    /// A message that the session delivers.
    type Delivery: Delivery;

    /// Returns true if the session is known to be broken, so that the consumer has to replace it.
    fn is_broken(&self) -> bool {
        false
    }

    /// Returns at most `room` deliveries. Waits for the first delivery for about a second at most,
    /// so that the consumer notices soon when it has to stop. Returns an empty list if none
    /// arrived. After an error the consumer replaces the session.
    ///
    /// The consumer polls the future to its end. If the future is dropped together with the
    /// consumer, the broker must deliver the messages again that the future took.
    fn next(
        &mut self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<Self::Delivery>, BrokerError>> + Send;

    /// Ends the session. The broker then delivers the messages again that were delivered on it and
    /// not settled.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// One delivery of a message. If it is dropped without being settled, the broker must deliver the
/// message again.
pub trait Delivery: Send + Sync + 'static {
    /// Returns the key of the request, which is an id that the *producer* gave the message, the
    /// same in every copy of it. If the message has none, returns an error, which becomes the text
    /// of the dead letter.
    fn key(&self) -> Result<Cow<'_, str>, String>;

    /// Returns the time at which the producer made the request, if the message has it. It is the
    /// same in every copy of the message.
    fn created_at(&self) -> Option<SystemTime>;

    /// Returns the body of the message.
    fn body(&self) -> &[u8];

    /// Returns how often the handler failed in earlier deliveries of this message, as far as the
    /// broker counts failures.
    fn failures(&self) -> u32;

    /// Settles the delivery at the broker as `how` requires. `failures` is the number that
    /// [`failures`](Self::failures) has to return for the next delivery. For
    /// [`Retry`](Disposition::Retry) and [`Park`](Disposition::Park) the adapter first makes sure
    /// that the broker has the message in its new place, and then acknowledges it, so that a crash
    /// in between makes a duplicate but loses no message.
    fn settle(
        &self,
        how: &Disposition,
        failures: u32,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Returns the interval at which [`extend`](Self::extend) is called while the handler runs;
    /// `None` if it is never called.
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    /// Reports to the broker that the message is still being handled.
    fn extend(&self) -> impl Future<Output = Result<(), BrokerError>> + Send {
        ready(Ok(()))
    }
}

/// Settings of a consumer that are passed to the adapter of its broker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// Lease of a claim. When it has ended after a consumer died, another consumer may handle the
    /// message.
    pub lease: Duration,
    /// Number of messages that are handled at once.
    pub concurrency: usize,
    /// Longest time before a message whose handler failed is delivered again.
    pub longest_retry: Duration,
    /// Random name of the consumer, which no other process ever has, nor this process after a
    /// restart.
    pub name: Arc<str>,
}

impl Terms {
    /// Returns the time without a heartbeat after which the broker delivers a message to another
    /// consumer: `asked`, or by default one and a half leases. `field` is the name of the setting,
    /// for the error.
    ///
    /// # Errors
    /// [`ConfigError`] if `asked` is shorter than the lease.
    pub fn taken_over_after(
        &self,
        field: &'static str,
        asked: Option<Duration>,
    ) -> Result<Duration, ConfigError> {
        let lease = self.lease;
        let after = asked.unwrap_or(lease + lease / 2);
        if after < lease {
            let rule = format!(
                "at least the lease ({lease:?}): a message that is taken over earlier finds the \
                 claim of the consumer that died, and waits for it"
            );
            return Err(ConfigError::new(field, format!("{after:?}"), rule));
        }
        Ok(after)
    }
}

/// The error of a request to a broker that failed, was refused, or was not confirmed. Its message
/// contains the broker's answer; its [`source`](Error::source) is the error of the broker's client,
/// if there is one.
///
/// If the broker did not confirm the settlement of a message, it delivers the message again, and
/// the result that is stored under the message's key answers it.
#[derive(Clone, Debug)]
pub struct BrokerError {
    sentence: String,
    passing: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BrokerError {
    /// Makes an error that may pass by itself, so that trying again can help.
    pub fn passing(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), passing: true, source: None }
    }

    /// Makes an error that stays until a person changes a setting here or at the broker.
    pub fn refused(sentence: impl Into<String>) -> Self {
        Self { passing: false, ..Self::passing(sentence) }
    }

    /// Adds the error of the broker's client, as the [`source`](Error::source).
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns true if trying again can help.
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

advise!(BrokerError);

impl BrokerError {
    /// Returns what to do about the error.
    pub fn advice(&self) -> Advice {
        if self.passing {
            Advice::RetryAfter(Duration::from_secs(1))
        } else {
            Advice::Misconfigured
        }
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Error for BrokerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

impl From<ConfigError> for BrokerError {
    fn from(e: ConfigError) -> Self {
        Self::refused(e.to_string()).because(e)
    }
}

/// Reads the body of a message as JSON. If it cannot be parsed, trying again cannot help, so the
/// error makes the message a dead letter.
///
/// # Errors
/// [`Failed::permanent`] with the parser's message.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(body)
        .map_err(|e| Failed::permanent(format!("the body cannot be parsed as JSON: {e}")))
}
