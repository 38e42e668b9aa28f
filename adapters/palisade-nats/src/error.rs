//! What can go wrong between a consumer and its server.

use std::error::Error as StdError;
use std::fmt;

/// A request to the server failed, was refused, or was not confirmed. A message whose
/// acknowledgement was not confirmed is delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatsError {
    /// There is no stream with this name.
    NoStream(String),
    /// A durable consumer with this name is there, and cannot be used.
    #[non_exhaustive]
    Durable {
        /// Its name.
        name: String,
        /// What is wrong with it, and what to do.
        rule: String,
    },
    /// A request failed.
    #[non_exhaustive]
    Request {
        /// What was requested.
        what: &'static str,
        /// The client's or the server's answer.
        cause: String,
    },
    /// The delivery's ack wait is over or nearly so: another consumer may have the message.
    Lost,
}

impl NatsError {
    pub(crate) fn request(what: &'static str, cause: &(impl fmt::Display + ?Sized)) -> Self {
        Self::Request { what, cause: cause.to_string() }
    }

    /// Whether trying again can help.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Request { .. } | Self::Lost)
    }
}

impl fmt::Display for NatsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream(name) => write!(
                f,
                "there is no stream {name:?}; create it with the retention and the replicas that \
                 its messages need, for example `nats stream add {name}`"
            ),
            Self::Durable { name, rule } => write!(f, "the durable consumer {name:?}: {rule}"),
            Self::Request { what, cause } => write!(f, "{what}: {cause}"),
            Self::Lost => f.write_str(
                "the delivery's ack wait is over or nearly so; the server gives the message to \
                 somebody else",
            ),
        }
    }
}

// The sentence has all that the server's answer says.
impl StdError for NatsError {}
