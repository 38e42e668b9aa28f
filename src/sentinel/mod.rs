//! Finds the present master of a Sentinel group.

pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod watch;
