//! Conversion of librdkafka's errors into the consumer's errors.

use palisade::idempotency::consumer::BrokerError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Returns the error of a failed request; `what` names the request's object.
pub(crate) fn failed(what: &'static str, cause: KafkaError) -> BrokerError {
    let error = if is_passing(&cause) {
        BrokerError::passing(format!("{what}: {cause}"))
    } else {
        BrokerError::refused(format!(
            "{what}: {cause}; check the settings, the login, and its rights on the topic and the \
             group"
        ))
    };
    error.because(cause)
}

/// Returns the error of a message whose partition was given to another consumer.
pub(crate) fn revoked() -> BrokerError {
    BrokerError::passing("the partition was given to another consumer, which reads it again")
}

/// Returns true if trying again can help. It cannot if the brokers refuse the login or the request.
pub(crate) fn is_passing(error: &KafkaError) -> bool {
    let is_refusal = |code: Code| {
        matches!(
            code,
            Code::Authentication
                | Code::SaslAuthenticationFailed
                | Code::UnsupportedSASLMechanism
                | Code::TopicAuthorizationFailed
                | Code::GroupAuthorizationFailed
                | Code::ClusterAuthorizationFailed
        )
    };
    match error {
        KafkaError::ClientConfig(..) => false,
        _ => !error.rdkafka_error_code().is_some_and(is_refusal),
    }
}
