//! What can go wrong between a consumer and its brokers.

use std::error::Error as StdError;
use std::fmt;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// A request to the brokers failed, was refused, or was not confirmed. A message that was not
/// confirmed is read again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BrokerError {
    /// A request failed.
    #[non_exhaustive]
    Kafka {
        /// What was requested.
        what: &'static str,
        /// The client's or the broker's answer.
        cause: KafkaError,
    },
    /// The partition was given to another consumer, which reads the message again.
    Revoked,
}

impl BrokerError {
    pub(crate) fn new(what: &'static str, cause: KafkaError) -> Self {
        Self::Kafka { what, cause }
    }

    /// Whether trying again can help: not if the brokers refuse the login or the request.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Kafka { cause: KafkaError::ClientConfig(..), .. } => false,
            Self::Kafka { cause, .. } => !cause.rdkafka_error_code().is_some_and(is_refusal),
            Self::Revoked => true,
        }
    }
}

fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
    )
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka { what, cause } => write!(f, "{what}: {cause}")?,
            Self::Revoked => {
                f.write_str("the partition was given to another consumer, which reads it again")?;
            }
        }
        if self.is_passing() {
            return Ok(());
        }
        f.write_str("; check the settings, the login, and its rights on the topic and the group")
    }
}

// The sentence has all that the broker's answer says.
impl StdError for BrokerError {}
