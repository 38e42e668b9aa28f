//! Errors of the idempotency verbs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Advice, ConfigError, NoQuorum};
use crate::token::FencingToken;

/// A value could not be turned into bytes or back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct CodecError {
    what: &'static str,
    detail: Arc<str>,
}

impl CodecError {
    pub(super) fn new(what: &'static str, cause: &serde_json::Error) -> Self {
        // The words quote what they cannot read, and a result may be as long as it likes.
        Self { what, detail: cause.to_string().chars().take(200).collect::<String>().into() }
    }

    /// Always [`Advice::GiveUp`]: the types have to change.
    pub fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}

/// The handler ran, and its result is not known to be stored.
///
/// It may yet become the key's result, or another attempt's result may. Call again with the same
/// key: it answers what stands there, or parks the key. Do not use the handler's own value, and do
/// not undo its effect, before that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRecorded {
    /// Which attempt ran.
    pub attempt: u32,
    /// The token its effects carry.
    pub token: FencingToken,
    /// A higher ballot was promised to somebody: this attempt was taken for dead and overtaken.
    pub overtaken: bool,
    /// What the nodes said.
    pub nodes: NoQuorum,
}

impl fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the handler ran (attempt {}, token {}) but its result is not known to be stored{}; \
             call again with the same key to learn what stands there: {}",
            self.attempt,
            self.token,
            if self.overtaken { ", another attempt took over" } else { "" },
            self.nodes
        )
    }
}

impl std::error::Error for NotRecorded {}

/// Why a run gave no outcome. `E` is the handler's own error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The key or a setting is out of range. Nothing was run.
    Config(ConfigError),
    /// Too few nodes answered. Nothing was run.
    NoQuorum(NoQuorum),
    /// The handler failed. Its claim is left to lapse, for the effect may have happened, unless it
    /// called [`Context::no_effect`](crate::idempotency::Context::no_effect).
    Handler(E),
    /// The handler ran, and its result is not known to be stored.
    NotRecorded(NotRecorded),
    /// The fingerprint could not be made (nothing was run), the result could not be turned into
    /// JSON (the handler ran; its claim lapses), or what is stored does not read as `T`.
    Codec(CodecError),
}

impl<E> RunError<E> {
    /// What to do about it. For the handler's own error: try again when the lease has ended, for
    /// then the policy decides.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(e) => e.advice(),
            Self::NoQuorum(e) => e.advice(),
            Self::Handler(_) => Advice::RetryAfter(Duration::from_secs(1)),
            Self::NotRecorded(e) => match e.nodes.advice() {
                Advice::RetryAfter(wait) => {
                    Advice::RetryAfter(wait.max(Duration::from_millis(100)))
                }
                other => other,
            },
            Self::Codec(e) => e.advice(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(e) => write!(f, "nothing was run: {e}"),
            Self::NoQuorum(e) => write!(f, "nothing was run: {e}"),
            Self::Handler(e) => write!(f, "the handler failed: {e}"),
            Self::NotRecorded(e) => e.fmt(f),
            Self::Codec(e) => e.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(e) => Some(e),
            Self::NoQuorum(e) => Some(e),
            Self::NotRecorded(e) => Some(&e.nodes),
            // Display says it all; `E` need not be an `Error` (an `anyhow::Error` is none).
            Self::Handler(_) | Self::Codec(_) => None,
        }
    }
}

impl<E> From<ConfigError> for RunError<E> {
    fn from(e: ConfigError) -> Self {
        Self::Config(e)
    }
}

impl<E> From<NoQuorum> for RunError<E> {
    fn from(e: NoQuorum) -> Self {
        Self::NoQuorum(e)
    }
}

impl<E> From<CodecError> for RunError<E> {
    fn from(e: CodecError) -> Self {
        Self::Codec(e)
    }
}
