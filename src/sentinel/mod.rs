//! The present master of a Sentinel group, and the strength of its min-replicas check.
//!
//! [`discovery`] decides by the Sentinels' answers (pure), `ask` fetches the answers, `watch` asks
//! regularly and listens for events, [`min_replicas`] judges the min-replicas settings (pure).

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod min_replicas;
pub(crate) mod watch;
