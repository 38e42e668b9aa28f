//! Errors between a consumer and its server.

use std::error::Error;

use palisade::idempotency::consumer::BrokerError;

/// Returns the error of a failed request; `what` names the request's object.
pub(crate) fn failed(what: &'static str, cause: impl Error + Send + Sync + 'static) -> BrokerError {
    BrokerError::passing(format!("{what}: {cause}")).because(cause)
}

/// Returns the error of a request that was not answered in time; `what` names its object.
pub(crate) fn no_answer(what: &'static str) -> BrokerError {
    BrokerError::passing(format!("{what}: no answer from the server"))
}

/// Returns the error of a stream that does not exist.
pub(crate) fn no_stream(name: &str) -> BrokerError {
    BrokerError::refused(format!(
        "there is no stream {name:?}; create it with the retention and the replicas that its \
         messages need, for example `nats stream add {name}`"
    ))
}

/// Returns the error of a delivery whose message another consumer may have received by now.
pub(crate) fn lost() -> BrokerError {
    BrokerError::passing(
        "the delivery's ack wait is over or nearly so; the server delivers the message to another \
         consumer",
    )
}
