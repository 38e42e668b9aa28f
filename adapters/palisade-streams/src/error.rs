//! Converts errors of Redis into the consumer's error type, [`BrokerError`].

use palisade::error::ConfigError;
use palisade::internal::{Secrets, sentence};
use palisade_consumer::BrokerError;
use redis::{ErrorKind, RedisError};

/// Error codes of a Redis server that refuses a login or a command. The user may not run the
/// command, or the key has a different type.
const REFUSALS: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];

/// Converts the error of a command on a stream. The text of the result does not contain the
/// `secrets`.
pub(crate) fn failed(stream: &str, cause: &RedisError, secrets: &Secrets) -> BrokerError {
    let is_refused = cause.code().is_some_and(|code| REFUSALS.contains(&code))
        || cause.kind() == ErrorKind::AuthenticationFailed;
    let sentence = format!("stream {stream:?}: {}", sentence(cause, secrets));
    // The error has no source. The text of the cause may contain the password, because the server
    // may repeat the login in its error.
    if is_refused {
        BrokerError::refused(format!(
            "{sentence}; check the login, its rights on the stream, and the kind of the key"
        ))
    } else {
        BrokerError::passing(sentence)
    }
}

/// Returns the error for an invalid server address.
pub(crate) fn address(stream: &str, cause: &ConfigError) -> BrokerError {
    BrokerError::refused(format!("stream {stream:?}: {cause}")).because(cause.clone())
}

/// Returns the error for an entry that this delivery can no longer acknowledge or delay.
pub(crate) fn lost(stream: &str) -> BrokerError {
    BrokerError::passing(format!(
        "stream {stream:?}: the entry is not pending for this delivery any more; another one has \
         taken it over, or someone acknowledged it or removed the consumer's name (`XGROUP \
         DELCONSUMER`), and then nobody gets it again"
    ))
}
