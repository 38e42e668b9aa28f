//! Helpers shared by several test programs, each of which uses a part of them.
#![allow(dead_code, unreachable_pub, missing_docs)]
// Helpers keep one signature, even if a test does not need all of it.
#![allow(clippy::unused_self, clippy::unused_async)]

pub mod contract;
pub mod fake;
pub mod group;
pub mod hostile;
pub mod idem;
pub mod logs;
pub mod memory;
pub mod proxy;
pub mod server;
