//! Conversion of Redis errors into the consumer's errors.

use palisade::error::ConfigError;
use palisade::idempotency::consumer::BrokerError;
use palisade::internal::{Secrets, sentence};
use redis::{ErrorKind, RedisError};

/// Error codes of a server that refuses a login, or a command on this key.
const REFUSALS: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];

/// Returns the error of a request about a stream.
pub(crate) fn failed(stream: &str, cause: &RedisError, secrets: &Secrets) -> BrokerError {
    let is_refused = cause.code().is_some_and(|code| REFUSALS.contains(&code))
        || cause.kind() == ErrorKind::AuthenticationFailed;
    let sentence = format!("stream {stream:?}: {}", sentence(cause, secrets));
    // The cause is not attached as the source, because a server may repeat the login in it.
    if is_refused {
        BrokerError::refused(format!(
            "{sentence}; check the login, its rights on the stream, and the kind of the key"
        ))
    } else {
        BrokerError::passing(sentence)
    }
}

/// Returns the error of an address that cannot be used.
pub(crate) fn address(stream: &str, cause: &ConfigError) -> BrokerError {
    BrokerError::refused(format!("stream {stream:?}: {cause}")).because(cause.clone())
}

/// Returns the error of an entry that another consumer has taken over.
pub(crate) fn lost(stream: &str) -> BrokerError {
    BrokerError::passing(format!("stream {stream:?}: another consumer has taken the entry over"))
}
