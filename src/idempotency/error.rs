//! Errors of calls under idempotency keys.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Effect, Failed, KeyName};
use crate::error::{Advice, Commands, ConfigError, NoQuorum, advise};
use crate::token::FencingToken;

/// While the nodes are not initialised.
const NOT_INITIALISED: Duration = Duration::from_secs(5);

advise!(CodecError, NotRecorded, RunError);

/// The error of a value that could not be converted to or from JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct CodecError {
    what: &'static str,
    detail: Arc<str>,
}

impl CodecError {
    pub(crate) fn new(what: &'static str, cause: &serde_json::Error) -> Self {
        // Cut, because the message of `serde_json` contains the input, and a result may be long.
        Self { what, detail: cause.to_string().chars().take(200).collect::<String>().into() }
    }

    /// Always returns [`Advice::GiveUp`], because only a change of the program's types can remove
    /// the error.
    pub fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}

/// The error of a call whose handler ran but whose result may not be stored.
///
/// The handler's value may still become the key's result. So may the value of another attempt. Call
/// again with the same key. The second call returns the stored result. If no result is stored, it
/// applies the policy or the probe for an attempt without a result. Before the second call, do not
/// use the handler's value, and do not undo the handler's effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the handler of {key} ran (attempt {attempt}, token {token}), but it is not confirmed that its \
     result is stored{}; call again with the same key to read what is stored: {nodes}",
    if self.overtaken { ", another attempt took over" } else { "" }
)]
#[non_exhaustive]
pub struct NotRecorded {
    /// The key of the call.
    pub key: KeyName,
    /// Number of the attempt of this call.
    pub attempt: u32,
    /// Fencing token of the attempt. The handler's effects have this token.
    pub token: FencingToken,
    /// True if another attempt has claimed the key with a higher ballot. It treats this attempt as
    /// ended.
    pub overtaken: bool,
    /// Reply of each node to the request to store the result.
    pub nodes: NoQuorum,
}

impl NotRecorded {
    /// Returns the next step after the error: call again with the same key, after a pause of at
    /// least 100 ms in which nodes may recover.
    pub fn advice(&self) -> Advice {
        match self.nodes.advice() {
            Advice::RetryAfter(wait) => Advice::RetryAfter(wait.max(Duration::from_millis(100))),
            other => other,
        }
    }
}

/// The error of a call without an outcome.
///
/// The message is one sentence with the key, the cause and the next step. The handler's error is
/// not in the message; the [`source`](Error::source) returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The key or a setting is invalid. The handler did not run.
    #[non_exhaustive]
    Config {
        /// The key of the call.
        key: KeyName,
        /// The setting, its value and the rule.
        error: ConfigError,
    },
    /// Too few nodes answered. The handler did not run.
    #[non_exhaustive]
    NoQuorum {
        /// The key of the call.
        key: KeyName,
        /// Reply of each node to the request that failed.
        error: NoQuorum,
    },
    /// Too few nodes can exclude an earlier use of the key. The data of some nodes began empty, and
    /// no operator has marked these nodes as new. The handler did not run, and no attempt is
    /// counted. The cause is the deployment and not the key. If the deployment is new, mark it by
    /// `palisade init --new` (in a program: [`palisade_ops::init`]). After that, calls succeed.
    ///
    /// [`palisade_ops::init`]: https://docs.rs/palisade-ops/latest/palisade_ops/fn.init.html
    #[non_exhaustive]
    NotInitialised {
        /// The key of the call.
        key: KeyName,
        /// Names of the nodes that no operator has initialised by `palisade init`.
        nodes: Vec<Arc<str>>,
        /// The commands with which an operator acts on these nodes.
        commands: Commands,
    },
    /// The handler failed. The attempt counts or does not count, depending on the
    /// [`Effect`] in the error.
    #[non_exhaustive]
    Handler {
        /// The key of the call.
        key: KeyName,
        /// Number of the attempt.
        attempt: u32,
        /// The handler's error, with its report about the effect.
        failed: Failed,
        /// True if another attempt may have claimed the key before the handler failed: the claim
        /// was lost. The handler's error then says nothing about the key, which may have a result.
        overtaken: bool,
    },
    /// The handler ran, but its result may not be stored on a majority of the nodes.
    NotRecorded(Box<NotRecorded>),
    /// A value could not be converted. Either the request for the fingerprint could not be
    /// converted to JSON (the handler did not run), or the result could not be converted to JSON
    /// (the handler ran, and its attempt counts as one without a result), or the stored result
    /// could not be converted to the type `T` of the call.
    #[non_exhaustive]
    Codec {
        /// The key of the call.
        key: KeyName,
        /// The value that could not be converted, and the cause.
        error: CodecError,
    },
}

impl RunError {
    /// Returns the next step after the error. After a failure of the handler, call again. If the
    /// handler may have taken effect, the next call applies its policy for such keys, or its probe.
    /// Give up only if the handler's error is [permanent](Failed::permanent) and no other attempt
    /// may have taken over.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config { error, .. } => error.advice(),
            Self::NoQuorum { error, .. } => error.advice(),
            Self::NotInitialised { .. } => Advice::RetryAfter(NOT_INITIALISED),
            Self::Handler { failed, overtaken: false, .. } if failed.is_permanent() => {
                Advice::GiveUp
            }
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
            // The message about an invalid key already contains the key.
            Self::Config { error, .. } if error.field() == "key" => {
                write!(f, "handler not run: {error}")
            }
            Self::Config { key, error } => write!(f, "handler of {key} not run: {error}"),
            Self::NoQuorum { key, error } => write!(f, "handler of {key} not run: {error}"),
            Self::NotInitialised { key, nodes, commands } => write!(
                f,
                "handler of {key} not run: too few nodes know whether this key was used before, \
                 because no operator has said whether {} is new; {}",
                nodes.join(", "),
                commands.first_step()
            ),
            Self::Handler { key, attempt, overtaken: true, .. } => write!(
                f,
                "the handler of {key} failed (attempt {attempt}) after its claim was lost, and \
                 another attempt may have taken over; call again with the same key to read what \
                 is stored"
            ),
            Self::Handler { key, failed, .. } if failed.is_permanent() => {
                write!(f, "the handler of {key} refused it for good, without effect")
            }
            Self::Handler { key, attempt, failed, .. } => match failed.effect() {
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
            // `RunError`'s message already has the messages of these causes, so they are no source.
            Self::Config { .. }
            | Self::NoQuorum { .. }
            | Self::NotInitialised { .. }
            | Self::NotRecorded(_)
            | Self::Codec { .. } => None,
        }
    }
}
