//! Errors of the hand-over of a lock to another process.

use super::{Advice, ConfigError, ExtendError, NoQuorum, Resource};

/// Error of [`LockGuard::hand_over`](crate::LockGuard::hand_over). No ticket was made, and the lock
/// is released in the background.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The lock is lost.
    #[error("{0}: not handed over, it is lost; stop the work, a new holder may exist")]
    Lost(Resource),
    /// Too few nodes confirmed the last extension of the lock. The guard was consumed by the call,
    /// so the call cannot be repeated.
    #[error("not handed over, the lock is released: {0}")]
    Unconfirmed(NoQuorum),
    /// The guard cannot be handed over: it is for reading, or a permit of a semaphore, or for
    /// several names. A ticket is only for one name that one owner holds exclusively.
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
    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Lost(_) | Self::NotExclusive(_) => Advice::GiveUp,
            Self::Unconfirmed(e) => final_advice(e),
        }
    }
}

/// If a person has to remove the cause first, the next acquire would fail for it.
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
    /// On the nodes, the holder that handed the lock over no longer has it. Either the ticket was
    /// redeemed before, perhaps by another delivery of the same message, or its lease has ended.
    #[error(
        "{0}: the ticket was redeemed before, or came too late; acquire the lock, and look what \
         others have done meanwhile"
    )]
    Gone(Resource),
    /// Too few nodes gave an answer that counts before the lease of the ticket ended. If some nodes
    /// had already transferred the lock, it is released in the background, so the ticket may no
    /// longer be valid. Normally neither a wait nor another `resume` helps: the call has tried
    /// until the ticket expired, and a ticket expires before the end of a quarantine. If
    /// [`advice`](Self::advice) returns `Misconfigured` or `Rebuild`, the call ended earlier. Then
    /// a handle without that fault may still redeem the ticket at once.
    #[error("not resumed, acquire the lock anew: {}", .0.without_wait())]
    NoQuorum(NoQuorum),
    /// [`Redlock::close`](crate::Redlock::close) was called.
    #[error("{0}: not resumed, the handle was closed; build a new one")]
    Closed(Resource),
    /// The ticket does not fit this handle: it has another prefix, or its ttl is above the
    /// `max_ttl` of this handle. Nothing was sent to the nodes, so another handle may still redeem
    /// the ticket.
    #[error("not resumed: {0}")]
    Config(ConfigError),
}

impl ResumeError {
    /// Returns the next step after the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Gone(_) => Advice::GiveUp,
            Self::NoQuorum(e) => final_advice(e),
            Self::Closed(_) => Advice::Rebuild,
            Self::Config(e) => e.advice(),
        }
    }
}
