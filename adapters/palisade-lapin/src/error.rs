//! lapin's errors in the consumer's words.

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use palisade::idempotency::consumer::BrokerError;

/// Returns the error of a session that broke or cannot be opened.
pub(crate) fn refused(e: Error) -> BrokerError {
    let sentence = e.to_string();
    let error = if is_passing(&e) {
        BrokerError::passing(sentence)
    } else {
        BrokerError::refused(sentence)
    };
    error.because(e)
}

/// Returns true if connecting again can help: not if the broker refuses the login or the request.
fn is_passing(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::ProtocolError(e) => matches!(
            e.kind(),
            // The broker goes down, or is not up yet.
            AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED | AMQPHardError::INTERNALERROR)
                | AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED | AMQPSoftError::NOTFOUND)
        ),
        ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::AuthProviderError(_)
        | ErrorKind::NoDefaultRuntime => false,
        _ => true,
    }
}

/// Why a message, or a copy of one, is not where it was sent.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// The channel or the connection is of no use any more.
    Gone(BrokerError),
    /// The broker did not store the copy; the channel stands.
    NotStored(BrokerError),
}

impl Unconfirmed {
    /// The broker refused a copy, or does not confirm it.
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
