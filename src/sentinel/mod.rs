//! Who is the master of a Sentinel group right now, and how strong is its guard?
//!
//! [`discovery`] decides from the Sentinels' answers (pure), `ask` fetches the answers, `watch`
//! keeps asking and listens for events, [`guard`] judges the min-replicas facts (pure).

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod guard;
pub(crate) mod watch;
