//! Builder of a node in memory, with the settings of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::broadcast;

use super::{EVENTS, MemoryNode, Shared, State};
use crate::env::{Env, SystemEnv};
use crate::error::ConfigError;
use crate::node::builder::check_window;
use crate::sync::SyncMutex;

/// Settings of a [`MemoryNode`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct MemoryNodeBuilder {
    name: Option<Arc<str>>,
    window: Duration,
    env: Arc<dyn Env>,
    quarantined: bool,
    named: Option<(u64, u64)>,
}

impl MemoryNodeBuilder {
    pub(super) fn new() -> Self {
        let env = Arc::new(SystemEnv);
        Self { name: None, window: Duration::ZERO, env, quarantined: false, named: None }
    }

    /// Sets the name of the node in errors and logs. Default `memory-<n>`, unique in the process.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the failover window (L): the time for which, after a restart or failover, another
    /// master of this node might still accept writes. The quarantine is longer by this time.
    /// Default zero, because a node in memory has no other master; at most one day.
    ///
    /// # Errors
    /// The window is longer than one day.
    pub fn failover_window(mut self, window: Duration) -> Result<Self, ConfigError> {
        check_window(window)?;
        self.window = window;
        Ok(self)
    }

    /// Sets clocks and randomness other than the machine's, for tests and simulators. The handle
    /// that uses the node must have the same `env`.
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Starts the node in quarantine, like a server that may have lost its data. Needs the feature
    /// `test-util`.
    #[cfg(feature = "test-util")]
    pub fn quarantined(mut self) -> Self {
        self.quarantined = true;
        self
    }

    /// Ids of a node that begins without a quarantine, as `palisade init` gives them to a server.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn named(mut self, deployment: u64, vote: u64) -> Self {
        self.named = Some((deployment, vote));
        self
    }

    /// Makes the node.
    pub fn build(self) -> MemoryNode {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let name = self.name.unwrap_or_else(|| {
            Arc::from(format!("memory-{}", MADE.fetch_add(1, Ordering::Relaxed)))
        });
        let mut state = State::new(self.env.random() as u64, self.window);
        if !self.quarantined {
            let ids = self.named.unwrap_or((0, state.seed));
            state.mark(ids, self.env.random() as u64);
        }
        MemoryNode(Arc::new(Shared {
            name,
            env: self.env,
            events: broadcast::Sender::new(EVENTS),
            state: SyncMutex::new(state),
        }))
    }
}
