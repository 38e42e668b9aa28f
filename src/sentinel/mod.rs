//! Finds the present master of a Sentinel group.
//!
//! [`discovery`] decides by the answers and is pure; `ask` sends the requests; `watch` repeats
//! them, and reacts to events.

pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod watch;
