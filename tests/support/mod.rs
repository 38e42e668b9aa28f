//! Helpers for several test programs. Each program uses a part of these helpers.
#![allow(dead_code, unreachable_pub, missing_docs)]
// A helper has one signature for all tests, even if no helper body needs `self` or `async`.
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
