//! Outcomes and errors of calls under idempotency keys, as only the library makes them, for tests
//! of what other packages make of them (feature `test-util`).

use std::time::Duration;

use crate::durability::{Achieved, Durability};
use crate::error::{Commands, ConfigError, NoQuorum};
use crate::idempotency::{
    CodecError, Failed, KeyName, NotRecorded, Outcome, Parked, ParkedReason, RunError,
};
use crate::node::Loss;
use crate::token::FencingToken;

fn key() -> KeyName {
    KeyName::new(&"orders".into(), &"536365".into())
}

/// Makes the outcome of a call whose handler ran. All calls here have the key `orders:536365`.
pub fn executed<T>(value: T, kept: bool) -> Outcome<T> {
    let durability = Achieved::at_least(Durability::Primary);
    Outcome::Executed { value, attempt: 1, durability, kept }
}

/// Makes the report of a parked key.
pub fn parked(reason: ParkedReason, losses: &[Loss], undecided: bool) -> Parked {
    Parked {
        key: key(),
        attempt: 1,
        reason,
        forgotten_for: Duration::ZERO,
        losses: losses.to_vec(),
        undecided,
        commands: Commands::default(),
        unheard: Vec::new(),
    }
}

/// Makes the error of a handler that failed.
pub fn failed(attempt: u32, failed: Failed, overtaken: bool) -> RunError {
    RunError::Handler { key: key(), attempt, failed, overtaken }
}

/// Makes the error of an invalid key.
pub fn config(error: ConfigError) -> RunError {
    RunError::Config { key: key(), error }
}

/// Makes the error of a result that cannot be converted.
pub fn codec(cause: &serde_json::Error) -> RunError {
    let error = CodecError::new("the result cannot be stored as JSON", cause);
    RunError::Codec { key: key(), error }
}

/// Makes the error of a call without enough answers.
pub fn no_quorum(error: NoQuorum) -> RunError {
    RunError::NoQuorum { key: key(), error }
}

/// Makes the error of a call on nodes that nobody has initialised.
pub fn not_initialised() -> RunError {
    let (nodes, commands) = (vec!["a".into()], Commands::default());
    RunError::NotInitialised { key: key(), nodes, commands }
}

/// Makes the error of a handler that ran and whose result may not be stored.
pub fn not_recorded(nodes: NoQuorum, overtaken: bool) -> RunError {
    let token = FencingToken::new(7);
    RunError::NotRecorded(Box::new(NotRecorded { key: key(), attempt: 1, token, overtaken, nodes }))
}
