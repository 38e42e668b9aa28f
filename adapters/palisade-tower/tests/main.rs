//! Tests of the idempotency layer in an axum server, with a real HTTP client over loopback.

mod cost;
mod dropped;
mod duplicates;
mod example;
mod hangups;
mod lab;
mod redis;
mod repeated;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]
mod server;
mod service;
mod statuses;
