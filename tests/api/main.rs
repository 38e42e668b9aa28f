//! The public interface: settings that are refused, the texts of errors, values that are never
//! shown, and malformed input from outside.

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
