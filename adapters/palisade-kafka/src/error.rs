//! Converts errors of librdkafka into the consumer's error type, [`BrokerError`].

use palisade_consumer::BrokerError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Converts librdkafka's error of a failed request. `what` is the name of the request, for example
/// `a dead letter`. The text of the result begins with this name.
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

/// Returns the error for a message that this consumer can neither finish nor deliver again, because
/// another consumer got the message's partition.
pub(crate) fn revoked() -> BrokerError {
    BrokerError::passing("the partition was given to another consumer, which reads it again")
}

/// Returns true if the error may pass. Then another try can succeed. Returns false if a setting is
/// wrong, or if the brokers refuse the login or the user's rights.
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
