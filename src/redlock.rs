//! [`Redlock`], the handle over several nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
pub use crate::client::close::CloseReport;
use crate::config::{Config, default_clock_error};
use crate::env::{Env, SystemEnv};
use crate::error::{ConfigError, ResumeError};
use crate::lock::{
    HandOver, LockGuard, MultiMutexBuilder, MutexBuilder, RwLock, SemaphoreBuilder, resume,
};
use crate::metrics::Meters;
use crate::name::deployment_id;
use crate::node::{LockNode, NodeEvents, NodeMetrics};
use crate::safe_text::{Quoted, is_plain};
use crate::time::{Drift, Moment};

/// A handle over several independent nodes. It is cheap to clone. Clones share connections, the
/// task that renews leases, and all leases.
///
/// **Runtimes.** Each operation uses the timers of the tokio runtime that polls it. The runtime
/// must have time and IO enabled; otherwise the operation fails with [`NodeFault::Closed`]. The
/// handle has background tasks, which send requests to the nodes, keep the connections, renew
/// leases and receive hints of releases. Each task runs on the runtime on which an operation first
/// needed the task. If that runtime has ended, the task starts again on another runtime. But a
/// runtime can exist without being driven, for example after `block_on` of a current-thread runtime
/// has returned. Then nothing is sent and no lease is renewed, and operations on other runtimes
/// fail because no node answers. So make the first call on a runtime that is driven for as long as
/// locks are held.
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
    /// Returns a builder of a handle. Add nodes to it, then call [`build`](RedlockBuilder::build).
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder {
            nodes: Vec::new(),
            config: Config::default(),
            max_ttl: None,
            clock_error: None,
            deployment: None,
            env: Arc::new(SystemEnv),
            metrics_by_lock: false,
        }
    }

    /// Returns a builder for the mutex with this name. Its key on the nodes is the handle's prefix
    /// followed by the name exactly as given. [`build`](MutexBuilder::build) checks the settings;
    /// nothing is sent before the mutex is acquired.
    pub fn mutex(&self, name: impl AsRef<str>) -> MutexBuilder {
        MutexBuilder::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Returns a builder for the read-write lock with this name. A writer of this lock and a holder
    /// of the [`mutex`](Self::mutex) with the same name exclude each other. Unlike the builder of a
    /// mutex, this builder cannot be awaited itself.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> MutexBuilder<RwLock> {
        MutexBuilder::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Returns a builder for a semaphore with this number of permits, 1 to 256, with the defaults
    /// of this handle. All callers that use the name should give the same number, because the nodes
    /// do not store it.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u16) -> SemaphoreBuilder {
        SemaphoreBuilder::of_permits(Arc::clone(&self.core), name.as_ref(), permits)
    }

    /// Returns a builder for a lock of several names, 2 to 32, with the defaults of this handle.
    /// Either all names are acquired, under one fencing token, or none. The order of the names does
    /// not matter.
    ///
    /// ```
    /// # async fn demo(redlock: palisade::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let both = redlock.multi(["account:1", "account:2"]).build()?;
    /// let guard = both.acquire().await?;
    /// println!("transfer with token {}", guard.fencing_token());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn multi(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> MultiMutexBuilder {
        let names = names.into_iter().map(|name| name.as_ref().into()).collect();
        MultiMutexBuilder::of_names(Arc::clone(&self.core), names)
    }

    /// Redeems the ticket of a lock that its holder has [handed over](crate::LockGuard::hand_over).
    /// Returns a guard of the lock, with a larger fencing token than that of the old holder. No
    /// other owner had the lock in between. The guard has the ttl, the durability level and the
    /// renewal of the old guard, and the rest of its `max_hold`.
    ///
    /// A ticket is redeemed at most once. A second or late delivery normally gets
    /// [`ResumeError::Gone`], or [`ResumeError::NoQuorum`] if too few nodes answer. If two
    /// deliveries come at the same time, it can happen that neither gets the lock; then acquire it
    /// as usual.
    ///
    /// If too few nodes answer, the call tries again while the nodes may still have the lock for
    /// the old holder, at most for [`HandOver::rest`] from the call on. This handle needs the same
    /// nodes and the same prefix as the old holder's handle, and a `max_ttl` of at least the lock's
    /// ttl.
    ///
    /// ```
    /// # async fn demo(text: String) -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = palisade::Redlock::from_urls("memory://")?;
    /// let guard = redlock.mutex("job").await?;
    /// let ticket = guard.hand_over().await?;
    /// let text = serde_json::to_string(&ticket)?;
    /// // In another process:
    /// let guard = redlock.resume(&serde_json::from_str(&text)?).await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ResumeError::Gone`] if the ticket was redeemed before or its lease has ended.
    /// [`ResumeError::NoQuorum`] if too few nodes gave an answer that counts; the ticket may be
    /// used up. [`ResumeError::Config`] if the ticket does not fit this handle.
    /// [`ResumeError::Closed`] if the handle is closed.
    ///
    /// # Cancellation safety
    /// If the future is dropped at any await, the lock is not held, and the ticket may be used up.
    /// A lock that some nodes have already transferred is released in the background.
    pub async fn resume(&self, ticket: &HandOver) -> Result<LockGuard, ResumeError> {
        resume(&self.core, ticket).await
    }

    /// Returns the settings of this handle.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Closes this handle and all its clones, at the end of a program or before a reload.
    ///
    /// After this call, no new operation begins. Calls that acquire or campaign fail with the error
    /// that the handle is closed, and calls that already wait fail at once. Observers end, and
    /// idempotency keys are not claimed any more. Holders keep their locks, leaderships and claims,
    /// and may still renew, complete and release them. So a lock is never taken away from running
    /// work. An [`Owner`](crate::Owner) that holds a [`ReentrantMutex`](crate::ReentrantMutex) may
    /// even acquire it again, because this needs no node, and the owner's work could not end
    /// otherwise. When a guard or a leadership is dropped or released, the release is sent to each
    /// node until the node has confirmed it.
    ///
    /// Returns as soon as nothing is held, no request is running and every release is confirmed, at
    /// the latest after `within`. Leases that are still held then are not renewed any more. So
    /// their guards are lost at their deadlines, which are before any other owner can have the
    /// locks. To avoid this, drop or release your guards before the call.
    ///
    /// Without this call, the lock whose guard `main` drops last often stays locked until its ttl
    /// has passed. The reason: `Drop` releases in the background, and the runtime ends before the
    /// release.
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
    /// If the future is dropped, the handle stays closed for new operations, but leases are still
    /// renewed, and pending releases are still sent. The method may be called again.
    pub async fn close(&self, within: Duration) -> CloseReport {
        self.core.close(within).await
    }

    /// Resolves when [`close`](Self::close) has been called on this handle or a clone. Work that
    /// goes on for as long as the handle is used can end itself then.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The method may be called again.
    pub async fn closing(&self) {
        self.core.closing.begun().await;
    }

    /// Returns the clocks and the source of randomness of this handle, which
    /// [`RedlockBuilder::env`] sets. A library above this one that uses them, too, runs in the
    /// simulator of its user.
    pub fn env(&self) -> &dyn Env {
        &*self.core.env
    }

    /// Returns the present moment on the clock by which this handle's deadlines are measured, such
    /// as [`LockGuard::valid_until`](crate::LockGuard::valid_until). The clock is monotonic and
    /// continues while the machine is suspended. The clock of an `Instant` stops during a suspend
    /// on some systems.
    pub fn now(&self) -> Moment {
        self.core.env.now()
    }

    /// Returns the number of leases that this handle keeps alive now.
    pub fn held(&self) -> usize {
        self.core.renewer.len()
    }

    /// Returns the events of the nodes from now on, each with its node's name: lost and new
    /// connections, restarts and failovers, quarantines, min-replicas checks, and settings in which
    /// clients disagree. The events are for operators and tests. Events may be lost (a subscriber
    /// that lags by more than 1024 misses the oldest), and nothing in this library depends on them.
    /// Events about connections and min-replicas checks are produced only while a tokio runtime
    /// drives the handle, so call this method within a runtime.
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

    /// Returns the counters of each node since this handle was made, in the order in which the
    /// nodes were added. The call is cheap, because it only reads the counters.
    pub fn metrics(&self) -> Vec<NodeMetrics> {
        self.core.metrics()
    }
}

/// Builder of a [`Redlock`], made by [`Redlock::builder`]. [`build`](Self::build) checks the
/// settings and all relations between them.
#[derive(Clone)]
#[must_use]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn LockNode>>,
    config: Config,
    max_ttl: Option<Duration>,
    /// `None` for a value that is derived from `max_ttl`.
    clock_error: Option<Duration>,
    deployment: Option<String>,
    env: Arc<dyn Env>,
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
    /// Adds a node, which has one vote.
    pub fn node(self, node: impl LockNode) -> Self {
        self.node_arc(Arc::new(node))
    }

    /// Adds a node that the caller shares. It has one vote.
    pub fn node_arc(mut self, node: Arc<dyn LockNode>) -> Self {
        self.nodes.push(node);
        self
    }

    /// Sets the lease length of locks without a ttl of their own, between 10 ms and `max_ttl`.
    /// Default: 15 s. This is long enough for two failed renewals and for a failover of a Sentinel
    /// group, and short enough for callers that wait after a crash of the holder.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Sets the longest lease that any client of these nodes uses, at most one day. Default: the
    /// [`ttl`](Self::ttl). A restarted or promoted node grants nothing for at least this time, so
    /// all clients should set the same value. The nodes use the largest value that any client sent
    /// recently.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// Sets how much faster a node's clock may run than this machine's, at most 10 %. Default: 1 %.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.config.drift = drift;
        self
    }

    /// Sets the longest time that one node may take to answer, at least 1 ms. Default: 250 ms.
    pub fn node_deadline(mut self, deadline: Duration) -> Self {
        self.config.node_deadline = deadline;
        self
    }

    /// Sets E, the largest error of any clock against true time: the clocks of this machine, of the
    /// nodes, and of the programs that make requests with idempotency keys. E must be less than
    /// half of `max_ttl`. Default: 2 s, or a quarter of `max_ttl` if that is less. After a node has
    /// lost its data, three promises depend on E: fencing tokens keep their order, the node can
    /// tell that an idempotency key was never used, and a key has one result. All clients must set
    /// the same E.
    pub fn clock_error(mut self, bound: Duration) -> Self {
        self.clock_error = Some(bound);
        self
    }

    /// Sets the text before the name of each lock, election and idempotency key of this handle.
    /// Default: empty. It may have at most 512 bytes. It must not contain control characters or the
    /// words `election:`, `idem:` and `permits:`, because these words follow the prefix in the keys
    /// of elections, idempotency records and semaphores. It must end with a separator, for example
    /// `billing:`, and not with a letter or a digit.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets the id of the deployment whose data the nodes must have: the 16 hexadecimal digits that
    /// `palisade init` gave it (`palisade settings` prints them). A node with the data of another
    /// deployment is refused at once ([`ForeignData`](crate::error::NodeFault::ForeignData)).
    /// Without it a handle takes over the id that it finds first, so a new program does not notice
    /// that an address leads to another deployment.
    pub fn deployment(mut self, id: impl Into<String>) -> Self {
        self.deployment = Some(id.into());
        self
    }

    /// Allows an even number of nodes. An even number tolerates no more faulty nodes than one node
    /// less, but its majority needs one more vote.
    pub fn allow_even_nodes(mut self) -> Self {
        self.config.allow_even = true;
        self
    }

    /// Adds the lock's name to the metrics of locks, as the label `name`. Without this setting the
    /// label is empty. Use it only in programs with few locks: only the first 256 names are shown,
    /// and all other locks share the label `(other)`. See the manual's page
    /// [metrics](crate::manual::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_by_lock_name(mut self) -> Self {
        self.metrics_by_lock = true;
        self
    }

    /// Sets the clocks and the source of randomness, in place of those of the machine. It is for
    /// example for a simulator.
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// Checks all settings and makes the handle. It opens no connection, so a node that is down is
    /// reported only by the first operation, within the operation's deadline.
    ///
    /// # Errors
    /// [`ConfigError`] with the field, its value and the broken rule.
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
        let id = self.deployment.as_deref().map(deployment_id).transpose()?.unwrap_or(0);
        Ok(Redlock { core: Arc::new(Core::new(self.nodes, self.config, self.env, meters, id)) })
    }
}
