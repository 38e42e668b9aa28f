//! The traits that a broker's adapter implements, and the types in these traits.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use palisade::error::{Advice, Advise, ConfigError};
use palisade::idempotency::Failed;
use serde::de::DeserializeOwned;

use super::Disposition;

/// A broker, with one queue, topic or stream of it. The implementing type contains the address of
/// the broker, the name of the queue, topic or stream, and the settings that only this kind of
/// broker has.
pub trait Broker: fmt::Debug + Send + Sync + 'static {
    /// A connection to the broker.
    type Session: Session<Delivery = Self::Delivery>;
    /// A message that the broker delivers.
    type Delivery: Delivery;

    /// Checks the settings of this broker and of the consumer (`terms`). Sends nothing.
    ///
    /// # Errors
    /// [`ConfigError`] with the field, the value and the rule.
    fn check(&self, terms: &Terms) -> Result<(), ConfigError>;

    /// Connects to the broker, and declares the queues, topics or streams of the consumer.
    fn open(
        &self,
        terms: &Terms,
    ) -> impl Future<Output = Result<Self::Session, BrokerError>> + Send;
}

/// A connection to a broker, with its channels and subscriptions. If any part of it breaks, the
/// consumer replaces the whole session. The broker then delivers the unsettled messages of this
/// session again.
pub trait Session: Send {
    /// A message that the session delivers.
    type Delivery: Delivery;

    /// Returns true if the session is broken, so that the consumer has to replace it.
    fn is_broken(&self) -> bool {
        false
    }

    /// Returns at most `room` deliveries. The wait for the first delivery is at most about a
    /// second, so that the consumer can stop soon. Returns an empty list if no delivery arrived.
    /// After an error the consumer replaces the session.
    ///
    /// The consumer polls the future to its end. If the consumer is dropped, the future is dropped,
    /// too. The broker must then deliver the received messages of the future again.
    fn next(
        &mut self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<Self::Delivery>, BrokerError>> + Send;

    /// Ends the session. The broker then delivers the unsettled messages of this session again.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// One delivery of a message. If a delivery is dropped before it is settled, the broker must
/// deliver the message again.
pub trait Delivery: Send + Sync + 'static {
    /// Returns the key of the request: an id that the *producer* gave to the message, the same in
    /// every copy of the message. Returns an error if the message has no such id. The error becomes
    /// the text of the dead letter.
    fn key(&self) -> Result<Cow<'_, str>, String>;

    /// Returns the time at which the producer made the request, if the message contains this time.
    /// The time is the same in every copy of the message.
    fn created_at(&self) -> Option<SystemTime>;

    /// Returns the body of the message.
    fn body(&self) -> &[u8];

    /// Returns the number of earlier deliveries of this message in which the handler failed, if the
    /// broker counts failures.
    fn failures(&self) -> u32;

    /// Settles the delivery at the broker as `how` requires. At the next delivery
    /// [`failures`](Self::failures) has to return `failures`. For [`Retry`](Disposition::Retry) and
    /// [`Park`](Disposition::Park) the adapter first stores a copy of the message at the broker,
    /// for a later delivery or as a dead letter, and then acknowledges the delivery. A crash
    /// between these two steps makes a duplicate, but loses no message.
    fn settle(
        &self,
        how: &Disposition,
        failures: u32,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Returns the interval of the calls of [`extend`](Self::extend) during a handler; `None` if
    /// `extend` is never called.
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    /// Reports to the broker that a handler still works on the message.
    fn extend(&self) -> impl Future<Output = Result<(), BrokerError>> + Send {
        ready(Ok(()))
    }
}

/// Settings of a consumer for the adapter of its broker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// Lease of a claim. If a consumer dies, another consumer may handle its message after this
    /// time.
    pub lease: Duration,
    /// Largest number of messages that are handled at the same time.
    pub concurrency: usize,
    /// Longest time between a failure of a handler and the next delivery of its message.
    pub longest_retry: Duration,
    /// Random name of the consumer. No other process and no later run of this process has the same
    /// name.
    pub name: Arc<str>,
}

impl Terms {
    /// Returns the time without a heartbeat after which the broker delivers a message to another
    /// consumer. This time is `asked`, or one and a half leases by default. `field` is the name of
    /// the setting in the error.
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

/// The error of a request to a broker: the request failed, the broker refused it, or the broker did
/// not confirm it. The message of the error contains the broker's answer. The
/// [`source`](Error::source) is the error of the broker's client library, if there is one.
///
/// If the broker did not confirm the settlement of a message, it delivers the message again. The
/// consumer then uses the stored result of the message's key.
#[derive(Clone, Debug)]
pub struct BrokerError {
    sentence: String,
    passing: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BrokerError {
    /// Makes an error that may end by itself, so another try can succeed.
    pub fn passing(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), passing: true, source: None }
    }

    /// Makes an error that lasts until a person changes a setting of this program or of the broker.
    pub fn refused(sentence: impl Into<String>) -> Self {
        Self { passing: false, ..Self::passing(sentence) }
    }

    /// Sets the error of the broker's client library as the [`source`](Error::source).
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns true if the failed operation can succeed at another try.
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

impl Advise for BrokerError {
    fn advice(&self) -> Advice {
        Self::advice(self)
    }
}

impl BrokerError {
    /// Returns the advised next step after the error.
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

/// Reads the body of a message as JSON. A body that cannot be parsed will fail at every try, so the
/// error makes the message a dead letter.
///
/// # Errors
/// [`Failed::permanent`] with the parser's message.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(body)
        .map_err(|e| Failed::permanent(format!("the body cannot be parsed as JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_taken_over_after_one_and_a_half_leases_and_never_within_one() {
        let lease = Duration::from_secs(30);
        let name = Arc::from("one");
        let terms = Terms { lease, concurrency: 1, longest_retry: Duration::ZERO, name };
        let after = |asked| terms.taken_over_after("ack_wait", asked);
        assert_eq!(after(None).unwrap(), Duration::from_secs(45));
        assert_eq!(after(Some(lease)).unwrap(), lease);
        assert_eq!(after(Some(2 * lease)).unwrap(), 2 * lease);
        let refused = after(Some(Duration::from_nanos(29_999_999_999))).unwrap_err();
        assert_eq!(refused.field(), "ack_wait");
        assert!(refused.to_string().contains("at least the lease (30s)"), "{refused}");
    }
}
