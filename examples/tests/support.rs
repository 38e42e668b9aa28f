//! Servers and groups, as in the library's own tests.
#![allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]

#[path = "../../tests/support/group.rs"]
pub mod group;
#[path = "../../tests/support/server.rs"]
pub mod server;
