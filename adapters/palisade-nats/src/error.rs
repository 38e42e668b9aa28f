//! Errors of requests to the NATS server.

use std::error::Error;

use palisade_consumer::BrokerError;

/// Converts the error of a failed request. `what` is the name of the request, for example `a dead
/// letter`. The text of the result begins with this name.
pub(crate) fn failed(what: &'static str, cause: impl Error + Send + Sync + 'static) -> BrokerError {
    BrokerError::passing(format!("{what}: {cause}")).because(cause)
}

/// Returns the error for a request without a reply from the server. `what` is the name of the
/// request, for example `messages`. The text of the error begins with this name.
pub(crate) fn no_answer(what: &'static str) -> BrokerError {
    BrokerError::passing(format!("{what}: no answer from the server"))
}

/// Returns the error for a stream that does not exist on the server.
pub(crate) fn no_stream(name: &str) -> BrokerError {
    BrokerError::refused(format!(
        "there is no stream {name:?}; create it with the retention and the replicas that its \
         messages need, for example `nats stream add {name}`"
    ))
}

/// Returns the error for a delivery that cannot be acknowledged any more. Another consumer may have
/// received the same message by now.
pub(crate) fn lost() -> BrokerError {
    BrokerError::passing(
        "the delivery's ack wait is over or nearly so; the server delivers the message to another \
         consumer",
    )
}
