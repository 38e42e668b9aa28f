//! Leader election: of all candidates for a name one leads, the others follow or watch.
//!
//! An election is a lock whose holder publishes a value: its key on the nodes is the handle's
//! prefix, then `election:`, then the name; the *term* is the lock's fencing token, so it grows
//! with each leader and a resource can refuse a deposed one. The names are etcd's:
//!
//! | verb | does |
//! |---|---|
//! | [`Election::campaign`] | waits to lead; the value is on a majority before it returns |
//! | [`Leadership::proclaim`] | publishes another value, in the same term |
//! | [`Leadership::resign`] | ends the term; the next candidate is woken |
//! | [`Election::leader`] | asks who leads now |
//! | [`Election::observe`] | yields each change: leader, vacancy, "unknown now" |
//!
//! ```
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::{Election, MemoryNode, Redlock};
//! let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
//! let election = Election::new(&redlock, "billing");
//! let leadership = election.campaign("10.0.0.7:8080").await?;
//! let leader = election.leader().await?.expect("just elected");
//! assert_eq!(leader.value, "10.0.0.7:8080");
//! assert_eq!(leader.term, leadership.term());
//! leadership.proclaim("10.0.0.7:9090").await?;
//! tokio::select! {
//!     () = leadership.lost() => return Err("somebody else may lead now".into()),
//!     () = async { /* lead, and send `leadership.term()` with each write */ } => {}
//! }
//! leadership.resign().await.into_result()?;
//! # Ok(()) }
//! ```
//!
//! Two leaderships of a name are never valid at once, and terms only grow; a leader stops at the
//! deadline of its own clock, before anyone else can win; no reader is ever shown one leader's
//! value under another's term.
//!
//! Whether a process is *ready* should not depend on whether it leads: of n replicas all but one
//! follow, and that is health.

mod campaign;
mod error;
mod leadership;
mod observe;
mod value;

use std::sync::Arc;
use std::time::Duration;

use crate::driver::Core;
use crate::durability::Durability;
use crate::error::{ConfigError, Resource};
use crate::name::{LockKeys, check_election};
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::leader::Sight;
use crate::redlock::Redlock;

pub use campaign::TryCampaign;
pub use error::{CampaignError, LeaderError, ProclaimError};
pub use leadership::Leadership;
pub use observe::{Observation, Observer};
pub use value::{Leader, WORDS_MAX};

use value::Metadata;

/// An election for one name. Cheap to clone and to make; nothing is sent before a verb is called.
#[derive(Clone, Debug)]
pub struct Election {
    core: Arc<Core>,
    name: Arc<str>,
    keys: LockKeys,
    ttl: Duration,
    wait: Option<Duration>,
    retry: RetryPolicy,
    level: Durability,
    bad: Option<ConfigError>,
}

impl Election {
    /// The election of this name over the handle's nodes. Its main key there is the handle's prefix
    /// + `election:` + `name`. An invalid name is reported by the first call.
    pub fn new(redlock: &Redlock, name: impl AsRef<str>) -> Self {
        let (core, name) = (Arc::clone(&redlock.core), name.as_ref());
        let keys = LockKeys::of_election(&core.config.prefix, name);
        let bad = check_election(name, &keys).err();
        Self {
            keys,
            ttl: core.config.ttl,
            wait: None,
            retry: RetryPolicy::default(),
            level: Durability::Primary,
            bad,
            name: name.into(),
            core,
        }
    }

    /// The name as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lease length, 10 ms to `max_ttl`; default the handle's. It bounds how long the name is
    /// without a leader after a leader died; a running leader renews at a quarter of it.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`campaign`](Self::campaign) waits at most; `None`, the default: as long as its
    /// future is polled.
    #[must_use]
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// Waits between attempts when no node gives a hint.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How many replicas must have a term, its value and each renewal before they count; default
    /// [`Durability::Primary`]. [`Leadership::durability`] reports how many had them.
    #[must_use]
    pub fn durability(mut self, level: Durability) -> Self {
        self.level = level;
        self
    }

    /// Checks name and settings without asking any node; the verbs do it too.
    ///
    /// # Errors
    /// The first rule that is broken, with field, value and rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(bad) = &self.bad {
            return Err(bad.clone());
        }
        self.level.check()?;
        self.core.config.check_ttl(self.ttl)?;
        self.core.config.check_renewed(self.ttl)
    }

    /// The leader now, as a majority of the nodes has it; `None` if nobody leads.
    ///
    /// A winner that has not yet proclaimed its value leads nobody: it is not shown until its value
    /// is on a node. Once [`campaign`](Self::campaign) or [`proclaim`](Leadership::proclaim) has
    /// returned, every later answer shows that value or a later one; while they are under way
    /// either may be shown. The answer may be old when it arrives: fence what depends on it.
    ///
    /// A server in quarantine after a restart or failover may have old data, which does not count.
    /// If the other nodes are no majority, the answer is an error that says so.
    ///
    /// # Errors
    /// [`LeaderError::NoQuorum`] with the answer of each node if no majority knows, also while
    /// restarted nodes are in quarantine and the leader has not certainly re-asserted itself there;
    /// [`LeaderError::Closed`] once the handle is [closed](Redlock::close).
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub async fn leader(&self) -> Result<Option<Leader>, LeaderError> {
        self.check().map_err(|e| LeaderError::Config(e.of(self.resource())))?;
        self.look(false).await
    }

    fn resource(&self) -> Resource {
        Resource::Election(Arc::clone(&self.name))
    }

    /// One read; with `wait` the nodes are asked to send a hint at the next change.
    async fn look(&self, wait: bool) -> Result<Option<Leader>, LeaderError> {
        let closed = || LeaderError::Closed(self.resource());
        let _verb = self.core.closing.enter().ok_or_else(closed)?;
        match self.core.inspect(&self.keys, wait, Metadata::read).await {
            Sight::Leads { words, remaining } => Ok(Some(words.leader(remaining))),
            Sight::Mute | Sight::Vacant | Sight::Pending => Ok(None),
            Sight::NoQuorum(outcomes) => {
                let why = self.core.no_quorum(outcomes).of(self.resource());
                Err(LeaderError::NoQuorum(why))
            }
        }
    }
}
