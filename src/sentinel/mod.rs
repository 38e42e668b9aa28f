//! Finds the present master of a Sentinel group.
//!
//! [`discovery`] decides on the master by the Sentinels' answers; this module is pure. `ask` sends
//! the requests and collects the answers. `watch` repeats the requests regularly, and reacts to
//! events.

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod watch;
