//! A node's connection over its lifetime: found, used, thrown away at the first doubt, found again.
//!
//! [`Link`] holds at most one [`Session`]. Where the server is it asks a [`Resolver`]: a fixed
//! address for `RedisNode`, the Sentinels for `SentinelNode`. Connecting runs in a task of its own,
//! so that a call with a short deadline does not start it over; a failed try is not repeated before
//! a jittered pause, and calls in between are answered at once with the last cause.

use crate::error::NodeError;
use crate::node::BoxFuture;
use crate::node::redis::endpoint::Endpoint;
use crate::node::redis::session::ServerFacts;
use crate::time::Moment;
use std::time::Duration;
use tokio::sync::watch;

/// Where the master is.
pub(crate) trait Resolver: Send + Sync + 'static {
    /// Finds the server to connect to, by `deadline`.
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>>;

    /// Changes its value whenever the present connection shall not be used any longer (another
    /// master was named, or the present one is said to be down). Calls under way on the old
    /// connection end as *maybe executed*.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Looks at what the server says of itself before it may vote: on each new connection, and at
    /// most every ten seconds after with fresh facts. `Err` refuses it.
    fn accept(&self, facts: &ServerFacts) -> Result<(), NodeError> {
        let _ = facts;
        Ok(())
    }

    /// L: for how long a master that was replaced may still accept writes. Added to `max_ttl` for
    /// the quarantine of every batch sent after `accept` (DESIGN §5.5). A lone server has none.
    fn window(&self) -> Duration {
        Duration::ZERO
    }
}
