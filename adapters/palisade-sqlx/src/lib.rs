#![doc = include_str!("../README.md")]

mod error;
pub mod fence;
pub mod inbox;
mod schema;

pub use error::{InboxError, Stale};
pub use schema::{MIGRATION, migrate};
