//! [`Redlock`]: the handle over N nodes from which everything else is made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
pub use crate::client::close::CloseReport;
use crate::config::{Config, default_clock_error};
use crate::env::{Env, SystemEnv};
use crate::error::ConfigError;
use crate::lock::{MutexBuilder, RwLock};
use crate::metrics::Meters;
use crate::node::{LockNode, NodeEvents, NodeMetrics};
use crate::shown::{Quoted, is_plain};
use crate::time::{Drift, Moment};

/// A handle over N independent nodes. Cheap to clone; clones share connections, the renewer and all
/// leases.
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
    /// Returns a builder of a handle: add nodes, then [`build`](RedlockBuilder::build).
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

    /// Returns a builder for a mutex of this name: the key on the nodes is the handle's prefix
    /// followed by the name exactly as given. [`build`](MutexBuilder::build) checks the settings;
    /// nothing is sent before the mutex is acquired.
    pub fn mutex(&self, name: impl AsRef<str>) -> MutexBuilder {
        MutexBuilder::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Returns the settings of a read-write lock, with the defaults of this handle. Its writer is a
    /// [`mutex`](Self::mutex) of the same name: the two exclude each other.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> MutexBuilder<RwLock> {
        MutexBuilder::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Returns the settings of this handle.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Closes this handle and all its clones, at the end of a program or before a reload.
    ///
    /// From the call on no new operation begins: acquiring and campaigning answer *closed* (calls
    /// that wait, at once), observers end, and idempotency keys are not claimed any more. What is
    /// held is left to its holders, who may still renew, complete and release: a lock is never
    /// taken away from running work. Guards and leaderships that are dropped or released are
    /// released on the nodes, and each release is sent until its node has confirmed it.
    ///
    /// Returns as soon as nothing is held, no request is running and every release is confirmed, at
    /// the latest after `within`. What is still held then is not renewed any more: its guard is
    /// lost at its deadline, which is before any other owner can have it. So drop or release your
    /// own guards before.
    ///
    /// Without this call the lock whose guard `main` drops last often stays locked until its ttl
    /// has passed, because `Drop` releases in the background and the runtime ends first.
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
    /// If dropped, the handle still begins no new operation; what is held goes on to be renewed,
    /// and pending releases go on to be sent. It may be called again.
    pub async fn close(&self, within: Duration) -> CloseReport {
        self.core.close(within).await
    }

    /// Returns the present moment on the clock of this handle's deadlines, such as
    /// [`LockGuard::valid_until`](crate::LockGuard::valid_until). It is monotonic, and goes on
    /// while the machine is suspended, which an `Instant` does not do everywhere.
    pub fn now(&self) -> Moment {
        self.core.env.now()
    }

    /// Returns how many leases (locks, leaderships, claims) this handle keeps alive now.
    pub fn held(&self) -> usize {
        self.core.renewer.len()
    }

    /// Returns the events of the nodes from now on, each with its node's name: connections lost and
    /// made, new data histories, quarantines, min-replicas checks, settings that disagree. For
    /// operators and tests: events may be lost (a subscriber that lags by more than 1024 misses the
    /// oldest), and nothing in this library depends on them. The events that the nodes themselves
    /// report (`Up`, `Down`, min-replicas) come only while a tokio runtime drives the handle; call
    /// this within one.
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

    /// Returns the counts of this handle since it was made, one entry per node in the order in
    /// which they were added. Cheap: the counters are kept once per batch, and this only reads
    /// them.
    pub fn metrics(&self) -> Vec<NodeMetrics> {
        self.core.metrics()
    }
}

/// Settings and nodes of a [`Redlock`], made by [`Redlock::builder`]; [`build`](Self::build) checks
/// all relations between them.
#[derive(Clone)]
#[must_use]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn LockNode>>,
    config: Config,
    /// The value that was set; otherwise it follows `ttl`.
    max_ttl: Option<Duration>,
    /// The value that was set; otherwise it follows `max_ttl`.
    clock_error: Option<Duration>,
    env: Arc<dyn Env>,
    /// True if the metrics have the names of locks as labels.
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

    /// Sets the lease length of locks that set none. 10 ms to `max_ttl`, default 15 s. Long enough
    /// for two renewals to fail and for a failover of a Sentinel group to pass, short enough to
    /// wait for after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Sets the longest lease that any client of these nodes uses, at most one day, default the
    /// [`ttl`](Self::ttl). For this long a restarted or promoted node grants nothing, so all
    /// clients must agree on it; the nodes keep the largest value that any client sent recently.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// Sets the bound on the rate error of the nodes' clocks, at most 10 %, default 1 %.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.config.drift = drift;
        self
    }

    /// Sets the longest time that one node may take to answer, at least 1 ms, default 250 ms.
    pub fn node_deadline(mut self, deadline: Duration) -> Self {
        self.config.node_deadline = deadline;
        self
    }

    /// Sets E, the bound on the error of any clock against true time: of this machine, of the
    /// nodes, of the makers of requests. Less than half of `max_ttl`; default 2 s, at most a
    /// quarter of `max_ttl`. The order of tokens after a node lost its data depends on it, and
    /// whether such a node may report that an idempotency key was never used. All clients must
    /// agree on it.
    pub fn clock_error(mut self, bound: Duration) -> Self {
        self.clock_error = Some(bound);
        self
    }

    /// Sets the text before every name of this handle. Default empty. At most 512 bytes, no control
    /// characters, and no `election:` or `idem:`, which begin the names of elections and
    /// idempotency keys. It ends with a separator, as `billing:`, and not with a letter or a digit.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Allows an even number of nodes, which needs one more vote for a majority and tolerates no
    /// more faults.
    pub fn allow_even_nodes(mut self) -> Self {
        self.config.allow_even = true;
        self
    }

    /// Gives the metrics of locks the lock's name as the label `name`, which is empty otherwise.
    /// For programs with few locks: after the first 256 names all others are called `(other)`. See
    /// the manual's page [metrics](crate::manual::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_by_lock_name(mut self) -> Self {
        self.metrics_by_lock = true;
        self
    }

    /// Sets other clocks and another source of randomness, as a simulator does.
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
