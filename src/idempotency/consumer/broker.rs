//! The traits that a broker's adapter implements.

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

/// A broker and the queue, topic or stream that is consumed: its address, its name, and the
/// settings that only this kind of broker has.
pub trait Broker: fmt::Debug + Send + Sync + 'static {
    /// A connection to the broker.
    type Session: Session<Delivery = Self::Delivery>;
    /// A message that the broker delivers.
    type Delivery: Delivery;

    /// Checks the settings together with those of the consumer. Sends nothing.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    fn check(&self, terms: &Terms) -> Result<(), ConfigError>;

    /// Connects, and declares the queues, topics or streams that are needed.
    fn open(
        &self,
        terms: &Terms,
    ) -> impl Future<Output = Result<Self::Session, BrokerError>> + Send;
}

/// A connection to a broker with all that belongs to it. When anything on it breaks, the consumer
/// replaces it as a whole: messages that were not settled on it come again.
pub trait Session: Send {
    /// A message that the session delivers.
    type Delivery: Delivery;

    /// Returns true if the session has to be replaced.
    fn is_broken(&self) -> bool {
        false
    }

    /// Returns at most `room` deliveries. Waits for the first one for about a second at most, so
    /// that a stop is noticed; empty if none arrived. After an error the session is replaced.
    ///
    /// The consumer polls the future to its end. If it is dropped together with the consumer, the
    /// messages that it took come again.
    fn next(
        &mut self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<Self::Delivery>, BrokerError>> + Send;

    /// Ends the session: the broker delivers again what was delivered and not settled.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// One delivery of a message. If it is dropped without being settled, the message must come again
/// by itself.
pub trait Delivery: Send + Sync + 'static {
    /// Returns the name of the request: an id that the *producer* gave the message, the same in
    /// every copy of it. The error is the text of the dead letter.
    fn key(&self) -> Result<Cow<'_, str>, String>;

    /// Returns the time at which the producer made the request, the same in every copy of it, if
    /// the message has it.
    fn created_at(&self) -> Option<SystemTime>;

    /// Returns the body of the message.
    fn body(&self) -> &[u8];

    /// Returns the number of earlier failures of its handler, as far as the broker knows.
    fn failures(&self) -> u32;

    /// Settles the delivery at the broker. `failures` is the number that the next delivery has to
    /// report. [`Retry`](Disposition::Retry) and [`Park`](Disposition::Park) first make sure that
    /// the broker has the message in its new place, and then acknowledge it: a crash in between
    /// makes a duplicate, never a loss.
    fn settle(
        &self,
        how: &Disposition,
        failures: u32,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Returns the interval of [`extend`](Self::extend) while the handler runs; `None`: never.
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    /// Reports to the broker that the message is still being handled.
    fn extend(&self) -> impl Future<Output = Result<(), BrokerError>> + Send {
        ready(Ok(()))
    }
}

/// Settings of a consumer that the adapter of its broker needs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// The lease of the namespace: another consumer may take over a message when it has ended.
    pub lease: Duration,
    /// Number of messages that are handled at once.
    pub concurrency: usize,
    /// Longest time before a message whose handler failed is delivered again.
    pub longest_retry: Duration,
    /// A name that no other process has, nor this one after a restart.
    pub name: Arc<str>,
}

impl Terms {
    /// Returns the time without a heartbeat after which the broker delivers a message to another
    /// consumer: `asked`, or by default one and a half leases. `field` names the setting.
    ///
    /// # Errors
    /// [`ConfigError`] if it is shorter than the lease.
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
/// A message whose settlement was not confirmed is delivered again, and answered by its record.
#[derive(Clone, Debug)]
pub struct BrokerError {
    sentence: String,
    passing: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BrokerError {
    /// Makes an error after which trying again can help.
    pub fn passing(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), passing: true, source: None }
    }

    /// Makes an error that stays until a person changes something.
    pub fn refused(sentence: impl Into<String>) -> Self {
        Self { passing: false, ..Self::passing(sentence) }
    }

    /// Adds the error of the broker's client.
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
    /// Returns what to do about it.
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

/// Reads the body of a message as JSON. A body that cannot be parsed can never be parsed, so the
/// error makes the message a dead letter.
///
/// # Errors
/// [`Failed::permanent`] with the parser's message.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(body)
        .map_err(|e| Failed::permanent(format!("the body cannot be parsed as JSON: {e}")))
}
