//! What several test programs share. Each uses a part of it.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod candidate;
pub mod group;
pub mod idem;
pub mod server;
