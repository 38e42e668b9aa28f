//! The lock, election or key in an error or a log line.

use std::fmt;
use std::sync::Arc;

use crate::safe_text::Quoted;

/// The lock, election or key of an error, by the name that the user chose. Shown as `lock
/// "invoice:42"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Resource {
    /// A [`Mutex`](crate::Mutex), by its name.
    Lock(Arc<str>),
    /// An [`Election`](crate::Election), by its name.
    Election(Arc<str>),
    /// A [`Semaphore`](crate::Semaphore), by its name.
    Semaphore(Arc<str>),
    /// An idempotency key, by its name on the servers.
    Key(Arc<str>),
}

impl Resource {
    /// Returns the name without the kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Lock(name) | Self::Election(name) | Self::Semaphore(name) | Self::Key(name) => {
                name
            }
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Lock(_) => "lock",
            Self::Election(_) => "election",
            Self::Semaphore(_) => "semaphore",
            Self::Key(_) => "key",
        };
        write!(f, "{kind} {}", Quoted(self.name()))
    }
}
