//! Leader election: one of the candidates for a name leads, and the others follow or watch.
//!
//! An election is a lock whose holder publishes a value. Its key on the nodes is the handle's
//! prefix, then `election:`, then the name. The *term* is the lock's fencing token. Each leader has
//! a larger term than all earlier leaders, so a resource can refuse the writes of an earlier
//! leader. The operations have the same names as in etcd:
//!
//! | operation | does |
//! |---|---|
//! | [`Election::campaign`] | waits to lead; the value is on a majority before it returns |
//! | [`Election::lead`] | campaigns, runs some work while it leads, and starts over after a loss |
//! | [`Leadership::proclaim`] | publishes another value, in the same term |
//! | [`Leadership::resign`] | ends the term; the waiting candidates are woken |
//! | [`Election::leader`] | asks who leads now |
//! | [`Election::candidates`] | lists the processes that take part, in the order of preference |
//! | [`Election::observe`] | yields each change: a leader, none, unknown, known again |
//! | [`Election::watch_state`] | reports if this process follows, leads, is in jeopardy, has lost |
//! | [`Election::step_down`] | asks the leader, from another process, to resign |
//!
//! ```
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::{MemoryNode, Redlock};
//! let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
//! let election = redlock.election("billing").build()?;
//! let leadership = election.campaign("10.0.0.7:8080").await?;
//! let leader = election.leader().await?.expect("just elected");
//! assert_eq!(leader.value, "10.0.0.7:8080");
//! assert_eq!(leader.term, leadership.term());
//! leadership.proclaim("10.0.0.7:9090").await?;
//! tokio::select! {
//!     () = leadership.lost() => return Err("another process may lead now".into()),
//!     () = async { /* lead, and send `leadership.term()` with each write */ } => {}
//! }
//! leadership.resign().await?;
//! # Ok(()) }
//! ```
//!
//! Two leaderships of one name are never valid at the same time, and terms only grow. A leader
//! stops at the deadline by its own clock, before any other process can win. A reader never
//! receives the value of one leader with the term of another.
//!
//! Do not use the leadership as the *readiness* check of a process. In a healthy election all
//! replicas except the leader follow.

mod builder;
mod campaign;
mod candidates;
mod error;
mod lead;
mod leadership;
mod metrics;
mod observe;
mod priority;
mod state;
mod step_down;
mod value;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::durability::Durability;
use crate::error::Resource;
use crate::name::LockKeys;
use crate::quorum::leader::Sight;
use crate::retry_policy::RetryPolicy;

pub use builder::ElectionBuilder;
pub use campaign::TryCampaign;
pub use candidates::Candidate;
pub use error::{CampaignError, LeaderError, ProclaimError};
pub use leadership::Leadership;
pub use metrics::ElectionMetrics;
pub use observe::{Observation, Observer};
pub use state::{State, StateWatch};
pub use step_down::{ResignRequest, StepDown};
pub use value::{Identity, Leader, MAX_METADATA};

use state::Course;
pub(crate) use value::Metadata;

/// An election for one name, made by [`Redlock::election`](crate::Redlock::election). An `Election`
/// is cheap to make and to clone. It sends nothing before the first operation.
#[derive(Clone, Debug)]
pub struct Election {
    core: Arc<Core>,
    name: Arc<str>,
    keys: LockKeys,
    ttl: Duration,
    drain: Duration,
    one_term: bool,
    priority: Option<u8>,
    acquire_timeout: Option<Duration>,
    retry: RetryPolicy,
    level: Durability,
    course: Arc<Course>,
}

impl Election {
    /// Returns the name of the election, without the prefix.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the present leader from a majority of the nodes; `None` if there is no leader.
    ///
    /// A winner leads only after it has proclaimed its value, so a winner without a value on the
    /// nodes is not returned. After [`campaign`](Self::campaign) or
    /// [`proclaim`](Leadership::proclaim) has returned, every later result has the proclaimed value
    /// or a newer one. During `campaign` or `proclaim`, a result may have the old value or the new
    /// one. The result may be out of date when it arrives, so send the term as a fencing token with
    /// each write that depends on it.
    ///
    /// After a restart or failover, a server is in quarantine and may have old data. Its reply
    /// counts only if the leader's lease on this server was certainly renewed since then. If the
    /// other nodes are no majority, the result is an error that names the quarantine.
    ///
    /// # Errors
    /// [`LeaderError::NoQuorum`] with the reply of each node if no majority of replies counts.
    /// [`LeaderError::Closed`] once the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub async fn leader(&self) -> Result<Option<Leader>, LeaderError> {
        self.look(false).await
    }

    /// Returns the [priority](ElectionBuilder::priority) of this process.
    pub fn priority(&self) -> u8 {
        self.priority.unwrap_or_default()
    }

    fn resource(&self) -> Resource {
        Resource::Election(Arc::clone(&self.name))
    }

    async fn look(&self, wait: bool) -> Result<Option<Leader>, LeaderError> {
        let closed = || LeaderError::Closed(self.resource());
        let _operation = self.core.closing.enter().ok_or_else(closed)?;
        let seen = self.sight(wait).await?;
        Ok(seen.map(|(metadata, remaining)| metadata.leader(remaining)))
    }

    /// With the time until the lease ends on the nodes. `None` if there is no leader.
    async fn sight(&self, wait: bool) -> Result<Option<(Metadata, Duration)>, LeaderError> {
        let requested_at = self.core.env.now();
        match self.core.inspect(&self.keys, wait, Metadata::read).await {
            Sight::Leads { content, remaining } => {
                self.course.led(self.core.env.now(), requested_at + remaining);
                Ok(Some((content, remaining)))
            }
            Sight::Mute | Sight::Vacant => {
                self.course.vacant(self.core.env.now());
                Ok(None)
            }
            Sight::NoQuorum(outcomes) => {
                let why = self.core.no_quorum(outcomes).of(self.resource());
                Err(LeaderError::NoQuorum(why))
            }
        }
    }
}
