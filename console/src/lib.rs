#![doc = include_str!("../README.md")]
#![warn(
    clippy::allow_attributes,
    clippy::dbg_macro,
    clippy::iter_over_hash_type,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::todo,
    clippy::unimplemented,
    clippy::unwrap_used
)]

mod access;
mod actions;
mod assets;
mod audit;
mod collect;
mod ended;
mod events;
mod exposure;
mod history;
mod listen;
mod model;
mod pages;
mod recent;
mod refusal;
mod server;
mod stall;
mod start;
mod visitor;

pub mod demo;

pub use self::access::{Listen, Proxy, Tokens};
pub use self::audit::{AuditLine, Sink};
pub use self::start::{Console, Options, StartError};
