//! The interface as a user meets it: settings that are refused, sentences of errors, what is never
//! shown, and garbage from outside.

mod conventions;
mod errors;
mod fuzz;
mod health;
mod outside;
mod secrets;
mod sentences;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "tls")]
mod tls_provider;
