//! Tests of the public interface: invalid settings, the texts of errors, secrets that must stay
//! hidden, and malformed input from outside.

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
