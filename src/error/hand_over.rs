//! Errors of the hand-over of a lock to another process.

use super::{Advice, ConfigError, ExtendError, NoQuorum, Resource};

/// Error of [`LockGuard::hand_over`](crate::LockGuard::hand_over). There is no ticket, and the lock
/// is released in the background.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The lock is lost.
    #[error("{0}: not handed over, it is lost; stop the work, a new holder may exist")]
    Lost(Resource),
    /// Too few nodes confirmed the last extension. The guard is gone, so the call cannot be
    /// repeated.
    #[error("not handed over, the lock is released: {0}")]
    Unconfirmed(NoQuorum),
    /// The lock is held for reading, the guard is a permit of a semaphore, or it has several names.
    /// A ticket is for one name that one owner has.
    #[error("{0}: not one exclusive lock, so not handed over; let the other process acquire it")]
    NotExclusive(Resource),
}

impl From<ExtendError> for HandOverError {
    fn from(error: ExtendError) -> Self {
        match error {
            ExtendError::Lost(of) => Self::Lost(of),
            ExtendError::Unknown(why) => Self::Unconfirmed(why),
        }
    }
}

impl HandOverError {
    /// Returns what to do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Lost(_) | Self::NotExclusive(_) => Advice::GiveUp,
            Self::Unconfirmed(e) => final_advice(e),
        }
    }
}

/// Returns the advice for an error after which the same call cannot succeed, however long it waits.
/// A cause that a person has to remove is named, because the next acquire meets it, too.
fn final_advice(why: &NoQuorum) -> Advice {
    match why.advice() {
        Advice::RetryAfter(_) => Advice::GiveUp,
        cause => cause,
    }
}

/// Error of [`Redlock::resume`](crate::Redlock::resume). The lock is not held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The nodes do not have the lock for the holder that handed it over any more: the ticket was
    /// redeemed before, perhaps by another delivery of the same message, or its lease has ended.
    #[error(
        "{0}: the ticket was redeemed before, or came too late; acquire the lock, and look what \
         others have done meanwhile"
    )]
    Gone(Resource),
    /// Too few nodes gave an answer that counts before the lease of the ticket ended. What nodes
    /// had transferred is released in the background, so the ticket may be used up. Neither waiting
    /// nor another `resume` helps: the call has tried until the ticket had expired, which is before
    /// the end of a quarantine. Only if the advice is `Misconfigured` or `Rebuild`, the call ended
    /// earlier: then a handle without that fault may still redeem the ticket at once.
    #[error("not resumed, acquire the lock anew: {}", .0.without_wait())]
    NoQuorum(NoQuorum),
    /// [`Redlock::close`](crate::Redlock::close) was called.
    #[error("{0}: not resumed, the handle was closed; build a new one")]
    Closed(Resource),
    /// The ticket does not fit this handle: another prefix, or a ttl above its `max_ttl`. Nothing
    /// was sent to the nodes, so another handle may still redeem it.
    #[error("not resumed: {0}")]
    Config(ConfigError),
}

impl ResumeError {
    /// Returns what to do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Gone(_) => Advice::GiveUp,
            Self::NoQuorum(e) => final_advice(e),
            Self::Closed(_) => Advice::Rebuild,
            Self::Config(e) => e.advice(),
        }
    }
}
