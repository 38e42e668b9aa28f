//! Finds the present master of a Sentinel group, and judges how strong its min-replicas check is.
//!
//! [`discovery`] decides by the Sentinels' answers which server is the master, and [`min_replicas`]
//! judges the min-replicas settings; both are pure functions. `ask` fetches the answers, and
//! `watch` asks regularly and listens for events.

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod min_replicas;
pub(crate) mod watch;
