//! Converts errors of Redis into errors of the consumer.

use palisade::error::ConfigError;
use palisade::idempotency::consumer::BrokerError;
use palisade::internal::{Secrets, sentence};
use redis::{ErrorKind, RedisError};

/// Error codes with which a Redis server refuses a login, or a command because of the user's rights
/// or the type of the key.
const REFUSALS: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];

/// Converts the error of a command on a stream. The text of the result does not contain `secrets`.
pub(crate) fn failed(stream: &str, cause: &RedisError, secrets: &Secrets) -> BrokerError {
    let is_refused = cause.code().is_some_and(|code| REFUSALS.contains(&code))
        || cause.kind() == ErrorKind::AuthenticationFailed;
    let sentence = format!("stream {stream:?}: {}", sentence(cause, secrets));
    // The cause is not attached as the source of the error, because its text may contain the
    // password, if the server repeats the login in it.
    if is_refused {
        BrokerError::refused(format!(
            "{sentence}; check the login, its rights on the stream, and the kind of the key"
        ))
    } else {
        BrokerError::passing(sentence)
    }
}

/// Returns the error for a server address that cannot be used.
pub(crate) fn address(stream: &str, cause: &ConfigError) -> BrokerError {
    BrokerError::refused(format!("stream {stream:?}: {cause}")).because(cause.clone())
}

/// Returns the error for an entry that cannot be settled here any more, because another consumer
/// has taken it over.
pub(crate) fn lost(stream: &str) -> BrokerError {
    BrokerError::passing(format!("stream {stream:?}: another consumer has taken the entry over"))
}
