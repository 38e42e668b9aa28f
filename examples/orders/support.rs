//! Clusters on this machine, shared with the tests of the library.
#![allow(dead_code, reason = "shared with tests that use all of it")]

#[path = "../../tests/support/cluster.rs"]
pub mod cluster;
#[path = "../../tests/support/server.rs"]
pub mod server;
