//! [`Redlock`]: the handle over N nodes from which everything else is made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
pub use crate::client::close::CloseReport;
use crate::config::{Config, default_clock_error};
use crate::env::{Env, SystemEnv};
use crate::error::ConfigError;
use crate::lock::MutexBuilder;
use crate::metrics::Meters;
use crate::node::{LockNode, NodeEvents, NodeMetrics};
use crate::shown::{Quoted, is_plain};
use crate::time::{Drift, Moment};

/// A handle over N independent nodes. Cheap to clone; clones share connections, the renewer and
/// everything held.
///
/// **Runtimes.** Each operation keeps its own deadlines on the tokio runtime that polls it, which
/// needs time and IO enabled; polled elsewhere it answers [`NodeFault::Closed`]. The tasks behind
/// the handle (one for each node's requests and one for its connection, one that renews, one that
/// receives of releases) run on the runtime on which an operation first needed them, and start
/// again on another when that one has ended. While it exists but is not driven (`block_on` of a
/// current-thread runtime has returned) nothing is sent and nothing is renewed: operations
/// elsewhere then answer that the nodes are silent. So make the first call on a runtime that is
/// driven for as long as locks are held.
///
/// [`NodeFault::Closed`]: crate::error::NodeFault::Closed
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// use palisade::{MemoryNode, Redlock};
/// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
/// let guard = redlock.mutex("invoice:42").build()?.acquire().await?;
/// println!("write with token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redlock {
    pub(crate) core: Arc<Core>,
}

impl Redlock {
    /// Begins a handle: add nodes, then [`build`](RedlockBuilder::build).
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder {
            nodes: Vec::new(),
            config: Config::default(),
            max_ttl: None,
            clock_error: None,
            env: Arc::new(SystemEnv),
            metrics_by_lock: false,
        }
    }

    /// Settings of a mutex of this name: the key on the nodes is the handle's prefix followed by
    /// the name exactly as given. [`build`](MutexBuilder::build) checks them; nothing is sent
    /// before it is acquired.
    pub fn mutex(&self, name: impl AsRef<str>) -> MutexBuilder {
        MutexBuilder::new(Arc::clone(&self.core), name.as_ref())
    }

    /// The settings that hold for this handle.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Ends this handle and all its clones, at the end of a program or before a reload.
    ///
    /// From the call on nothing new is begun: acquiring and campaigning answer *closed* (those that
    /// wait, at once), observers end, and idempotency keys are not claimed any more. What is held
    /// is left to its holders, who may still renew, complete and release: a lock is never taken
    /// away from running work. Guards and leaderships that are dropped or released are released on
    /// the nodes, and each release is sent until its node has confirmed it.
    ///
    /// Returns as soon as nothing is held, no request is under way and every release is confirmed,
    /// at the latest after `within`. What is still held then is not renewed any more: its guard is
    /// lost at its deadline, which is before anybody else can have it. So drop or release your own
    /// guards before.
    ///
    /// Without this the guard that `main` drops last is often still locked when the runtime ends,
    /// until its ttl has passed: what `Drop` does it does in the background.
    ///
    /// ```
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::{MemoryNode, Redlock};
    /// # use std::time::Duration;
    /// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let guard = redlock.mutex("invoice:42").build()?.acquire().await?;
    /// // …
    /// drop(guard);
    /// let closed = redlock.close(Duration::from_secs(5)).await;
    /// assert!(closed.is_clean(), "{closed}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation safety
    /// Dropped, the handle still begins nothing new; what is held goes on to be renewed, and what
    /// is owed to be sent. It may be called again.
    pub async fn close(&self, within: Duration) -> CloseReport {
        self.core.close(within).await
    }

    /// The present moment on the clock that this handle's deadlines are on, as
    /// [`LockGuard::valid_until`](crate::LockGuard::valid_until): monotonic, and going on while the
    /// machine is suspended, which an `Instant` does not do everywhere.
    pub fn now(&self) -> Moment {
        self.core.env.now()
    }

    /// How many leases (locks, leaderships, claims) this handle keeps alive now.
    pub fn held(&self) -> usize {
        self.core.renewer.len()
    }

    /// Returns what happens on the nodes from now on, each event with its node's name: connections
    /// lost and made, new data histories, quarantines, min-replicas checks, settings that disagree.
    /// For operators and tests: events may be lost (a subscriber that lags by more than 1024 misses
    /// the oldest), and nothing in this library depends on them. What the nodes themselves report
    /// (`Up`, `Down`, min-replicas) comes only while a tokio runtime drives the handle; call this
    /// within one.
    ///
    /// ```
    /// # async fn demo(redlock: palisade::Redlock) {
    /// use palisade::node::NodeEvent;
    /// let mut events = redlock.events();
    /// while let Some(named) = events.next().await {
    ///     if let NodeEvent::MinReplicasMissing { why, .. } = named.event {
    ///         eprintln!("{} does not vote: {why}", named.node);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn events(&self) -> NodeEvents {
        self.core.events()
    }

    /// What this handle has counted since it was made, one entry per node in the order in which
    /// they were added. Cheap: plain numbers, kept once per batch.
    pub fn metrics(&self) -> Vec<NodeMetrics> {
        self.core.metrics()
    }
}

/// Collects nodes and settings; every relation between them is checked in
/// [`build`](Self::build).
#[derive(Clone)]
#[must_use]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn LockNode>>,
    config: Config,
    /// As given; else it follows `ttl`.
    max_ttl: Option<Duration>,
    /// As given; else it follows `max_ttl`.
    clock_error: Option<Duration>,
    env: Arc<dyn Env>,
    /// Names of locks are labels of metrics.
    metrics_by_lock: bool,
}

impl std::fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(|n| n.name()).collect();
        f.debug_struct("RedlockBuilder")
            .field("nodes", &nodes)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl RedlockBuilder {
    /// Adds a node: one vote.
    pub fn node(self, node: impl LockNode) -> Self {
        self.node_arc(Arc::new(node))
    }

    /// Adds a shared node: one vote.
    pub fn node_arc(mut self, node: Arc<dyn LockNode>) -> Self {
        self.nodes.push(node);
        self
    }

    /// Lease length where a lock names none. 10 ms to `max_ttl`, default 15 s. Long enough for two
    /// renewals to fail and for a failover of a Sentinel group to pass, short enough to wait for
    /// after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// The longest lease that any client of these nodes uses, at most one day, default the
    /// [`ttl`](Self::ttl). It is how long a restarted or promoted node grants nothing, so all
    /// clients must agree on it; the nodes keep the largest that somebody asked for lately.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// Bound on the rate error of the nodes' clocks, at most 10 %, default 1 %.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.config.drift = drift;
        self
    }

    /// How long one node may take to answer, at least 1 ms, default 250 ms.
    pub fn node_deadline(mut self, deadline: Duration) -> Self {
        self.config.node_deadline = deadline;
        self
    }

    /// E: bound on the error of any clock against true time: of this machine, of the nodes, of who
    /// makes a request. Less than half of `max_ttl`; default 2 s, at most a quarter of `max_ttl`.
    /// The order of tokens after a node lost its data depends on it, and whether such a node may
    /// say of an idempotency key that it was never used. All clients must agree on it.
    pub fn clock_error(mut self, bound: Duration) -> Self {
        self.clock_error = Some(bound);
        self
    }

    /// Put before every name of this handle. Default empty. At most 512 bytes, no control
    /// characters, and no `election:` or `idem:`, which begin the names of elections and
    /// idempotency keys. It ends with a separator, as `billing:`, and not with a letter or a digit.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Allows an even number of nodes, which costs one more yes and tolerates no more faults.
    pub fn allow_even_nodes(mut self) -> Self {
        self.config.allow_even = true;
        self
    }

    /// Gives the metrics of locks the lock's name as the label `name`, which is empty otherwise.
    /// For programs with few locks: of more than 256 names the others are called `(other)`. See the
    /// manual's page [metrics](crate::manual::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_by_lock_name(mut self) -> Self {
        self.metrics_by_lock = true;
        self
    }

    /// Uses other clocks and randomness, as a simulator does.
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Checks all relations and makes the handle. Connects to nothing: a node that is down is
    /// reported by the first operation, within its deadline.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(mut self) -> Result<Redlock, ConfigError> {
        self.config.max_ttl = self.max_ttl.unwrap_or(self.config.ttl);
        let by_default = || default_clock_error(self.config.max_ttl);
        self.config.clock_error = self.clock_error.unwrap_or_else(by_default);
        self.config.check()?;
        self.config.check_nodes(self.nodes.len())?;
        let mut names = BTreeSet::new();
        for node in &self.nodes {
            let name = node.name();
            if !is_plain(&name) {
                let rule = "a node's name is shown in errors and logs: no control characters, and \
                            nothing that is invisible or changes the direction of text";
                return Err(ConfigError::new("node", Quoted(&name).to_string(), rule));
            }
            if !names.insert(Arc::clone(&name)) {
                let rule = "the same node twice is one vote counted double; nodes must be distinct";
                return Err(ConfigError::new("node", format!("{name:?}"), rule));
            }
        }
        let meters = Meters::new(self.metrics_by_lock);
        Ok(Redlock { core: Arc::new(Core::new(self.nodes, self.config, self.env, meters)) })
    }
}
