//! What several test programs share. Each uses a part of it.
#![allow(dead_code, unreachable_pub, missing_docs)]
// Helpers keep one shape, whether a test needs all of it or not.
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
