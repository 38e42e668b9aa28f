//! Who is the master of a Sentinel group right now, and how strong is its guard?
//!
//! [`discovery`] decides from the Sentinels' answers (pure), `ask` fetches the answers, `watch`
//! keeps asking and listens for events, [`guard`] judges the min-replicas facts (pure).

pub mod address;
pub(crate) mod ask;
pub(crate) mod conn;
pub mod discovery;
pub(crate) mod events;
pub mod min_replicas;
pub(crate) mod watch;
