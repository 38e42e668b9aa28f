//! Errors of the idempotency operations.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Effect, Failed, KeyName};
use crate::error::{Advice, ConfigError, NoQuorum, advise};
use crate::token::FencingToken;

/// Advised pause before a call is made again on nodes that no operator has initialised.
const NOT_INITIALISED: Duration = Duration::from_secs(5);

advise!(CodecError, NotRecorded, RunError);

/// The error of a value that could not be converted to JSON or back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct CodecError {
    what: &'static str,
    detail: Arc<str>,
}

impl CodecError {
    pub(super) fn new(what: &'static str, cause: &serde_json::Error) -> Self {
        // The detail is cut, because the message of `serde_json` quotes the input, and a result may
        // be long.
        Self { what, detail: cause.to_string().chars().take(200).collect::<String>().into() }
    }

    /// Returns [`Advice::GiveUp`] always, because only a change of the program's types can help.
    pub fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}

/// The error of a call whose handler ran and whose result is not known to be stored.
///
/// The handler's value may still become the key's result, or the value of another attempt may. Call
/// again with the same key: the call returns the stored result, or, if none is stored, decides by
/// its policy or probe as after any attempt without a result. Until then, do not use the handler's
/// own value, and do not undo its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRecorded {
    /// The key of the call.
    pub key: KeyName,
    /// Number of the attempt that ran.
    pub attempt: u32,
    /// Fencing token of the attempt, with which its handler made its effects.
    pub token: FencingToken,
    /// True if nodes promised a higher ballot to another attempt, which took this one for dead.
    pub overtaken: bool,
    /// Answer of each node to the request to store the result.
    pub nodes: NoQuorum,
}

impl NotRecorded {
    /// Returns what to do about the error: call again with the same key, as soon as nodes may
    /// answer.
    pub fn advice(&self) -> Advice {
        match self.nodes.advice() {
            Advice::RetryAfter(wait) => Advice::RetryAfter(wait.max(Duration::from_millis(100))),
            other => other,
        }
    }
}

impl fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the handler of {} ran (attempt {}, token {}), but it is not confirmed that its \
             result is stored{}; call again with the same key to read what is stored: {}",
            self.key,
            self.attempt,
            self.token,
            if self.overtaken { ", another attempt took over" } else { "" },
            self.nodes
        )
    }
}

impl Error for NotRecorded {}

/// The error of a call without an outcome.
///
/// Its message is one sentence with the key, the cause, and what to do next. The handler's error is
/// not part of the sentence, but is the [`source`](Error::source).
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The key or a setting is out of range. Nothing was run.
    #[non_exhaustive]
    Config {
        /// The key of the call.
        key: KeyName,
        /// The field, its value and the rule.
        error: ConfigError,
    },
    /// Too few nodes answered. Nothing was run.
    #[non_exhaustive]
    NoQuorum {
        /// The key of the call.
        key: KeyName,
        /// Answer of each node.
        error: NoQuorum,
    },
    /// Too few nodes know whether the key was used before, because the data of some nodes began
    /// empty and no operator has marked these nodes as new. Nothing was run, and no attempt is
    /// counted. The cause is the deployment, not the key: if the deployment is new, mark it by
    /// `palisade init --new` (in a program: [`palisade_ops::init`]), and calls go on.
    ///
    /// [`palisade_ops::init`]: https://docs.rs/palisade-ops/latest/palisade_ops/fn.init.html
    #[non_exhaustive]
    NotInitialised {
        /// The key of the call.
        key: KeyName,
        /// Names of the nodes that were never initialised.
        nodes: Vec<Arc<str>>,
    },
    /// The handler failed. What its error reports about the effect decides whether the attempt
    /// counts.
    #[non_exhaustive]
    Handler {
        /// The key of the call.
        key: KeyName,
        /// Number of the attempt.
        attempt: u32,
        /// The handler's error, and what is known of its effect.
        failed: Failed,
    },
    /// The handler ran, and its result is not known to be stored on a majority of nodes.
    NotRecorded(NotRecorded),
    /// The request of the fingerprint could not be written as JSON (nothing was run), the result
    /// could not be written as JSON (the handler ran, and its attempt counts as one without a
    /// result), or the stored result could not be read as the type `T` of the call.
    #[non_exhaustive]
    Codec {
        /// The key of the call.
        key: KeyName,
        /// The value that could not be converted, and the cause.
        error: CodecError,
    },
}

impl RunError {
    /// Returns what to do about the error. If the handler failed, call again: the policy or the
    /// probe then decides if the handler may have taken effect. Give up only if the handler's error
    /// is [permanent](Failed::permanent).
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config { error, .. } => error.advice(),
            Self::NoQuorum { error, .. } => error.advice(),
            Self::NotInitialised { .. } => Advice::RetryAfter(NOT_INITIALISED),
            Self::Handler { failed, .. } if failed.is_permanent() => Advice::GiveUp,
            Self::Handler { failed, .. } => {
                Advice::RetryAfter(failed.retry_after().unwrap_or(Duration::from_secs(1)))
            }
            Self::NotRecorded(e) => e.advice(),
            Self::Codec { error, .. } => error.advice(),
        }
    }

    /// Returns the key of the call.
    pub fn key(&self) -> &KeyName {
        match self {
            Self::Config { key, .. }
            | Self::NoQuorum { key, .. }
            | Self::NotInitialised { key, .. }
            | Self::Handler { key, .. }
            | Self::Codec { key, .. } => key,
            Self::NotRecorded(e) => &e.key,
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The message about a key that is refused contains the key already.
            Self::Config { error, .. } if error.field() == "key" => {
                write!(f, "handler not run: {error}")
            }
            Self::Config { key, error } => write!(f, "handler of {key} not run: {error}"),
            Self::NoQuorum { key, error } => write!(f, "handler of {key} not run: {error}"),
            Self::NotInitialised { key, nodes } => write!(
                f,
                "handler of {key} not run: too few nodes know whether this key was used before, \
                 for nobody has said whether {} is new; if this deployment is new: `palisade \
                 init …` with these servers; if it had data before, do not: see `palisade idem \
                 incidents`",
                nodes.join(", ")
            ),
            Self::Handler { key, failed, .. } if failed.is_permanent() => {
                write!(f, "the handler of {key} refused it for good, without effect")
            }
            Self::Handler { key, attempt, failed } => match failed.effect() {
                Effect::None => {
                    write!(f, "the handler of {key} failed without effect, call again")
                }
                Effect::Repeatable => {
                    write!(f, "the handler of {key} failed and may be repeated, call again")
                }
                Effect::Unknown => write!(
                    f,
                    "the handler of {key} failed (attempt {attempt}) and may have taken effect; \
                     the next call decides by its policy or probe"
                ),
            },
            Self::NotRecorded(e) => e.fmt(f),
            Self::Codec { key, error } => write!(f, "{key}: {error}"),
        }
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Handler { failed, .. } => Some(failed.error()),
            // The message of the `RunError` already contains the messages of these causes.
            Self::Config { .. }
            | Self::NoQuorum { .. }
            | Self::NotInitialised { .. }
            | Self::NotRecorded(_)
            | Self::Codec { .. } => None,
        }
    }
}
