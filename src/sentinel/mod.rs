//! Finds the present master of a Sentinel group.
//!
//! [`discovery`] decides by the Sentinels' answers which server is the master; it is pure. `ask`
//! fetches the answers, and `watch` asks regularly and listens for events.

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod watch;
