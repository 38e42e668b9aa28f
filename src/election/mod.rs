//! Leader election: of all candidates for a name one leads, the others follow or watch.
//!
//! An election is a lock whose holder leaves words: its key on the nodes is the handle's prefix,
//! then `election:`, then the name; the *term* is the lock's fencing token, so it grows with each
//! leader and a resource can refuse a deposed one. The verbs are etcd's:
//!
//! | verb | does |
//! |---|---|
//! | [`Election::campaign`] | waits to lead; the value is on a majority before it returns |
//! | [`Election::lead`] | campaigns, and runs some work until its end or the loss of the term |
//! | [`Leadership::proclaim`] | says something else, in the same term |
//! | [`Leadership::resign`] | ends the term; the next candidate is woken |
//! | [`Election::leader`] | asks who leads now |
//! | [`Election::observe`] | tells each change: leader, vacancy, "cannot be told now" |
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
//!     () = leadership.lost() => return Err("somebody else may lead now".into()),
//!     () = async { /* lead, and hand `leadership.term()` to whatever is written */ } => {}
//! }
//! leadership.resign().await?;
//! # Ok(()) }
//! ```
//!
//! What holds: two leaderships of a name are never valid at once, and terms only grow; a leader
//! stops at the deadline of its own clock, before anyone else can win; no reader is ever shown one
//! leader's value under another's term.
//!
//! Whether a process is *ready* should not depend on whether it leads: of n replicas all but one
//! follow, and that is health.

mod builder;
mod campaign;
mod error;
mod lead;
mod leadership;
mod observe;
mod value;

use std::sync::Arc;
use std::time::Duration;

use crate::driver::Core;
use crate::durability::Durability;
use crate::error::Resource;
use crate::name::LockKeys;
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::leader::Sight;

pub use builder::ElectionBuilder;
pub use campaign::TryCampaign;
pub use error::{CampaignError, LeaderError, ProclaimError};
pub use leadership::Leadership;
pub use observe::{Observation, Observer};
pub use value::{Leader, WORDS_MAX};

use value::Words;

/// An election for one name. Cheap to clone and to make; nothing is sent before a verb is called.
/// Begun by [`Redlock::election`](crate::Redlock::election).
#[derive(Clone, Debug)]
pub struct Election {
    core: Arc<Core>,
    name: Arc<str>,
    keys: LockKeys,
    ttl: Duration,
    acquire_timeout: Option<Duration>,
    retry: RetryPolicy,
    level: Durability,
}

impl Election {
    /// The name as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who leads now, as a majority of the nodes tells it; `None` if nobody does.
    ///
    /// A winner that has not yet proclaimed its value leads nobody: it is not shown until its words
    /// are on a node. Once [`campaign`](Self::campaign) or [`proclaim`](Leadership::proclaim) has
    /// returned, every later answer shows that value or a later one; while they are under way
    /// either may be shown. The answer may be old when it arrives: fence what depends on it.
    ///
    /// A server in quarantine after a restart or failover is no witness until what it has was
    /// certainly written since: while that leaves no majority the answer is an error that says so.
    ///
    /// # Errors
    /// [`LeaderError::NoQuorum`] with the word of each node if no majority can tell, also while
    /// nodes that restarted are in quarantine and nobody has certainly re-asserted itself there;
    /// [`LeaderError::Closed`] once the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at will.
    pub async fn leader(&self) -> Result<Option<Leader>, LeaderError> {
        self.look(false).await
    }

    fn resource(&self) -> Resource {
        Resource::Election(Arc::clone(&self.name))
    }

    /// One read; with `wait` the nodes are asked to tell the next change.
    async fn look(&self, wait: bool) -> Result<Option<Leader>, LeaderError> {
        let closed = || LeaderError::Closed(self.resource());
        let _verb = self.core.closing.enter().ok_or_else(closed)?;
        match self.core.inspect(&self.keys, wait, Words::read).await {
            Sight::Leads { words, remaining } => Ok(Some(words.leader(remaining))),
            Sight::Mute | Sight::Vacant => Ok(None),
            Sight::NoQuorum(outcomes) => {
                let why = self.core.no_quorum(outcomes).of(self.resource());
                Err(LeaderError::NoQuorum(why))
            }
        }
    }
}
