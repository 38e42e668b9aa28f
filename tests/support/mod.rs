//! Helpers for several test programs. Each program uses a part of these helpers.
#![allow(dead_code, unreachable_pub, missing_docs)]
// A helper has one signature for all tests, even if no helper body needs `self` or `async`.
#![allow(clippy::unused_self, clippy::unused_async)]

/// Implements the methods `events` and `name` of `LockNode` by those of the node in this field.
#[allow(unused_macros)]
macro_rules! forward {
    ($inner:tt) => {
        fn events(&self) -> tokio::sync::broadcast::Receiver<palisade::node::spi::NodeSignal> {
            self.$inner.events()
        }

        fn name(&self) -> std::sync::Arc<str> {
            self.$inner.name()
        }
    };
}
#[allow(unused_imports)]
pub(crate) use forward;

pub mod cluster;
pub mod contract;
pub mod fake;
pub mod group;
pub mod idem;
pub mod logs;
pub mod marker;
pub mod memory;
pub mod ops;
pub mod proxy;
pub mod server;
pub mod tokens;
pub mod wait;
pub mod wrap;
