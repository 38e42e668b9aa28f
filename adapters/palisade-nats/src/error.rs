//! Errors of requests to the NATS server.

use std::error::Error;

use palisade::idempotency::consumer::BrokerError;

/// Converts the error of a failed request. The text of the result begins with `what`, for example
/// `a dead letter`.
pub(crate) fn failed(what: &'static str, cause: impl Error + Send + Sync + 'static) -> BrokerError {
    BrokerError::passing(format!("{what}: {cause}")).because(cause)
}

/// Returns the error for a request that the server did not answer in time. The text of the error
/// begins with `what`, for example `messages`.
pub(crate) fn no_answer(what: &'static str) -> BrokerError {
    BrokerError::passing(format!("{what}: no answer from the server"))
}

/// Returns the error for a stream that the server does not have.
pub(crate) fn no_stream(name: &str) -> BrokerError {
    BrokerError::refused(format!(
        "there is no stream {name:?}; create it with the retention and the replicas that its \
         messages need, for example `nats stream add {name}`"
    ))
}

/// Returns the error for a delivery that cannot be acknowledged any more, because another consumer
/// may have received its message by now.
pub(crate) fn lost() -> BrokerError {
    BrokerError::passing(
        "the delivery's ack wait is over or nearly so; the server delivers the message to another \
         consumer",
    )
}
