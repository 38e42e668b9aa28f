//! The error of a handler, with its report about the effect.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::op::ClaimEnd;

type BoxError = Box<dyn Error + Send + Sync>;

/// The error of a handler, with its meaning for the next call under the key.
///
/// `?` and `into()` make a `Failed` with an [unknown effect](Effect::Unknown) from any error. The
/// policy then decides about the next call. A handler with more information uses one of the
/// constructors:
///
/// ```
/// # use palisade::idempotency::{Context, Failed};
/// # async fn reserve() -> Result<(), std::io::Error> { Ok(()) }
/// # async fn charge(key: &str) -> Result<u32, std::io::Error> { Ok(1) }
/// async fn pay(cx: Context) -> Result<u32, Failed> {
///     // Nothing has happened yet: the next call may try at once.
///     reserve().await.map_err(Failed::no_effect)?;
///     // The request may have arrived although its answer did not.
///     let receipt = charge(&cx.child_key("charge")).await?;
///     Ok(receipt)
/// }
/// ```
#[derive(Debug)]
pub struct Failed {
    effect: Effect,
    permanent: bool,
    retry_after: Option<Duration>,
    error: BoxError,
}

/// Effect of a failed handler, as far as the handler knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// There was no effect. The attempt does not count, and the key is in the same state as before
    /// the attempt.
    None,
    /// There may have been an effect, and a repeat is harmless. The attempt does not count, so the
    /// next call runs the handler under any policy. The key keeps the fingerprint of the request.
    Repeatable,
    /// There may have been an effect. The attempt counts as one without a result. It ends at once,
    /// so the next call applies its policy for such attempts, or its probe.
    Unknown,
}

impl Failed {
    fn new(effect: Effect, error: BoxError) -> Self {
        Self { effect, permanent: false, retry_after: None, error }
    }

    /// Makes the error of a handler that had no effect. The claim is released, and the next call
    /// runs the handler.
    pub fn no_effect(error: impl Into<BoxError>) -> Self {
        Self::new(Effect::None, error.into())
    }

    /// Makes the error of a handler that had no effect and would fail at every try, because the
    /// request is invalid. The claim is released. A consumer (package `palisade-consumer`) moves
    /// the message to the dead letters.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self { permanent: true, ..Self::no_effect(error) }
    }

    /// Makes the error of a handler that may safely run again, with or without an effect. The next
    /// call runs the handler.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::new(Effect::Repeatable, error.into())
    }

    /// Makes the error of a handler that may have taken effect. The next call applies its policy,
    /// or its probe, which looks for the effect. `?` converts any error in this way.
    pub fn unknown(error: impl Into<BoxError>) -> Self {
        Self::new(Effect::Unknown, error.into())
    }

    /// Sets the shortest pause before the next call, for example a server's `Retry-After`.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Returns the effect of the handler.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Returns true if the error was made by [`permanent`](Self::permanent), so every further try
    /// would fail.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Returns the shortest pause before the next call, if the handler has set one by
    /// [`after`](Self::after).
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the error that the handler passed in.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }

    /// Returns the error that the handler passed in, if the error has the type `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// Converts this value into the error that the handler passed in.
    pub fn into_error(self) -> BoxError {
        self.error
    }

    pub(super) fn end(&self) -> ClaimEnd {
        match self.effect {
            Effect::None => ClaimEnd::Undone,
            Effect::Repeatable => ClaimEnd::Repeatable,
            Effect::Unknown => ClaimEnd::Lapsed,
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// If `Failed` were an `Error`, this would overlap with the conversion of `Failed` to itself.
impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn any_error_is_of_unknown_effect_and_keeps_its_type() {
        let io = || io::Error::other("broken pipe");
        let from = |failed: Failed| (failed.effect(), failed.to_string());
        assert_eq!(from(io().into()), (Effect::Unknown, "broken pipe".into()));
        assert_eq!(from("no".into()), (Effect::Unknown, "no".into()));
        assert_eq!(from(String::from("no").into()), (Effect::Unknown, "no".into()));
        let boxed: BoxError = "boxed".into();
        assert_eq!(from(boxed.into()), (Effect::Unknown, "boxed".into()));
        assert_eq!(from(Failed::no_effect("x")), (Effect::None, "x".into()));
        assert_eq!(from(Failed::retry(io())), (Effect::Repeatable, "broken pipe".into()));
        let failed = Failed::retry(io());
        assert!(failed.downcast_ref::<io::Error>().is_some());
        assert!(failed.downcast_ref::<fmt::Error>().is_none());
        assert_eq!(failed.into_error().to_string(), "broken pipe");
    }
}
