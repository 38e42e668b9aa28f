//! Converts errors of lapin into the consumer's error type, [`BrokerError`].

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use palisade_consumer::BrokerError;

/// Converts lapin's error of a session that broke or could not be opened to a [`BrokerError`].
pub(crate) fn refused(e: Error) -> BrokerError {
    let sentence = e.to_string();
    let error = if is_passing(&e) {
        BrokerError::passing(sentence)
    } else {
        BrokerError::refused(sentence)
    };
    error.because(e)
}

/// Returns true if another connection can succeed. No connection can succeed if the broker refuses
/// the login or the request.
fn is_passing(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::ProtocolError(e) => matches!(
            e.kind(),
            // A broker replies with these errors while it shuts down, or before it has started
            // completely.
            AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED | AMQPHardError::INTERNALERROR)
                | AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED | AMQPSoftError::NOTFOUND)
        ),
        ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::AuthProviderError(_)
        | ErrorKind::NoDefaultRuntime => false,
        _ => true,
    }
}

/// The error of an acknowledgement or of a published message that the broker did not confirm.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// The channel or the connection can no longer be used.
    Gone(BrokerError),
    /// The broker did not store the published copy of a message. The channel can still be used.
    NotStored(BrokerError),
}

impl Unconfirmed {
    /// Returns the error for a published copy of a message. The broker refused the copy or did not
    /// confirm it.
    pub(crate) fn not_stored(sentence: String) -> Self {
        Self::NotStored(BrokerError::passing(sentence))
    }

    pub(crate) fn gone(sentence: impl Into<String>) -> Self {
        Self::Gone(BrokerError::passing(sentence))
    }

    pub(crate) fn into_error(self) -> BrokerError {
        match self {
            Self::Gone(e) | Self::NotStored(e) => e,
        }
    }
}

impl From<Error> for Unconfirmed {
    fn from(e: Error) -> Self {
        Self::Gone(BrokerError::passing(format!("the broker: {e}")).because(e))
    }
}
