//! Which server is the master of a Sentinel group now, and how strong its min-replicas check is.
//!
//! [`discovery`] decides from the Sentinels' answers (pure), `ask` fetches the answers, `watch`
//! keeps asking and listens for events, [`min_replicas`] judges the min-replicas settings (pure).

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod min_replicas;
pub(crate) mod watch;
