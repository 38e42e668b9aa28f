#![doc = include_str!("../README.md")]

mod error;
pub mod fence;
pub mod inbox;
#[cfg(feature = "mysql")]
pub mod mysql;
mod pooled;
mod schema;

pub use error::{Changed, InboxError, Stale};
pub use schema::{MIGRATION, migrate};
