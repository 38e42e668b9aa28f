//! Consumers of Redis Streams whose messages take effect once (feature `streams`).
//!
//! ```no_run
//! use std::sync::Arc;
//! use palisade::idempotency::Context;
//! use palisade::streams::{Consumer, Message};
//! use palisade::{Failed, RedisNode, Redlock};
//!
//! # async fn book(body: &[u8], fence: u64) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn shutdown() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redlock = Redlock::builder().node(RedisNode::new("redis://127.0.0.1")?).build()?;
//! let orders = redlock.idempotency("orders").at_most_once().build()?;
//! let consumer = Consumer::builder("redis://127.0.0.1", "orders", "billing", orders).build()?;
//! let handler = |cx: Context, message: Arc<Message>| async move {
//!     book(message.body(), cx.fencing_token().get()).await?;
//!     Ok::<_, Failed>(())
//! };
//! let ended = consumer.run(handler, shutdown()).await?;
//! # let _ = ended; Ok(()) }
//! ```
//!
//! The stream may be on another server than the nodes. An entry has these fields, set by its
//! producer and the same in every copy: `key`, what names the request; `body`; and `created`, when
//! the request was made, in milliseconds since 1970 (an entry's id is no such time: it differs from
//! copy to copy). [`Producer::add`] sets them.
//!
//! An entry is acknowledged (`XACK`) when its result is stored on a majority of
//! the nodes. An entry that is handled elsewhere, or failed, stays pending; when it is due, the
//! first consumer that asks takes it over (`XAUTOCLAIM`). So does an entry that servers which lost
//! data do not know, until an operator decides about the loss; its pauses are no longer than
//! `min_idle`. An entry that needs a person's decision
//! moves to the stream `{stream}:dead` with the fields `reason` and `detail`, in one step with its
//! acknowledgement. Acknowledged entries stay in the stream: trim it (`XTRIM … MINID`) behind what
//! is pending.
//!
//! Names and values of fields are bytes; a field whose name is not text cannot be read by name, and
//! changes nothing else. An entry of more than 16 MiB (each name and value counted with 64 bytes
//! more) is not handled: it becomes a dead letter that has its `key`, `created` and `id`, and
//! `left_out` in place of the rest. An answer of more than 64 MiB ends the connection; what it
//! brought is taken over in smaller parts when `min_idle` has passed.
//!
//! Each process is a consumer with a unique name. Entries that a dead process left pending go to
//! other consumers; its name is removed when no entry is pending under it.

mod consumer;
mod message;
mod producer;
mod redrive;
mod session;

pub use consumer::{Consumer, ConsumerBuilder};
pub use message::Message;
pub use producer::Producer;
pub use redrive::{Redriven, redrive};
pub use session::{StreamError, dead_letters};
