//! Servers and Sentinel groups, shared with the tests of the library.
#![allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]

#[path = "../../tests/support/group.rs"]
pub mod group;
#[path = "../../tests/support/proxy.rs"]
pub mod proxy;
#[path = "../../tests/support/server.rs"]
pub mod server;
