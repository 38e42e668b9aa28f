//! Settings of an election, all of which are checked when it is built.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::state::Course;
use super::{CampaignError, Election, Leadership};
use crate::durability::Durability;
use crate::error::{ConfigError, Resource};
use crate::name::{LockKeys, check_election};
use crate::quorum::backoff::RetryPolicy;
use crate::redlock::Redlock;

/// Settings of an [`Election`], made by [`Redlock::election`].
///
/// Awaiting the builder itself builds the election and campaigns with an empty value. This is
/// enough if the followers need only the leader's [identity](super::Leader::identity):
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # use palisade::{MemoryNode, Redlock};
/// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
/// let leadership = redlock.election("billing").await?;
/// # leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ElectionBuilder(Election, bool);

impl Redlock {
    /// Returns a builder for the election with this name, over the nodes of the handle. On the
    /// nodes the election's lock has the key `election:` + `name`, after the handle's prefix.
    /// [`build`](ElectionBuilder::build) checks the settings.
    pub fn election(&self, name: impl AsRef<str>) -> ElectionBuilder {
        let (core, name) = (Arc::clone(&self.core), name.as_ref());
        let election = Election {
            keys: LockKeys::of_election(&core.config.prefix, name),
            ttl: core.config.ttl,
            drain: Duration::ZERO,
            one_term: false,
            priority: None,
            acquire_timeout: None,
            retry: RetryPolicy::default(),
            level: Durability::Primary,
            name: name.into(),
            course: Course::new(core.config.drift, true),
            core,
        };
        ElectionBuilder(election, true)
    }
}

impl ElectionBuilder {
    /// Sets the length of the leader's lease, from 10 ms to `max_ttl`; the default is the handle's
    /// ttl. A living leader renews its lease at a quarter of it. If the leader dies, the name is
    /// without a leader for at most this time, plus the [`drain`](Self::drain) time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl;
        self
    }

    /// Sets the time that this process needs to end the leader's work after it has lost the
    /// leadership. For this long after the loss no other process leads (a lock-delay). The default
    /// is zero.
    ///
    /// The drain time costs nothing when a leader resigns. After a crash the name is without a
    /// leader for `ttl` plus `drain`, so keep `drain` as short as the work allows. `ttl` and
    /// `drain` together are at most `max_ttl`.
    /// [`Leadership::drain_remaining`](super::Leadership::drain_remaining) returns how much of the
    /// drain time is left.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.0.drain = drain;
        self
    }

    /// Sets the priority of this process; the default is 0. Candidates of higher priority are
    /// preferred.
    ///
    /// While an eligible candidate of higher priority [is listed](Election::candidates), a
    /// candidate of lower priority delays each of its attempts. For each higher priority in the
    /// list the delay is a sixteenth of the ttl, and at least 25 ms; at most four priorities count.
    /// So a listed candidate that cannot lead, because it died within the last ttl or reaches too
    /// few nodes, delays the others by at most a quarter of the ttl, or by 100 ms if that is
    /// longer. It never prevents them from leading. The priority is a preference and no promise,
    /// because the preferred candidate's requests may take longer than the delay. A leader goes on
    /// leading when a candidate of higher priority joins.
    ///
    /// If no process sets a priority, no attempt is delayed. A process that sets a priority reads
    /// the list before its first attempt, which costs one round trip. The other processes make
    /// their first attempt without reading the list.
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// Sets whether this process attempts to lead; the default is `true`. With `false`,
    /// [`campaign`](Election::campaign) waits until [`set_eligible`](Election::set_eligible) is
    /// called with `true`. While it waits, the process is [listed](Election::candidates) as not
    /// eligible.
    pub fn eligible(mut self, eligible: bool) -> Self {
        self.1 = eligible;
        self
    }

    /// Makes [`lead`](Election::lead) return when the leadership is lost, instead of campaigning
    /// again.
    pub fn one_term(mut self) -> Self {
        self.0.one_term = true;
        self
    }

    /// Sets the longest time for which [`campaign`](Election::campaign) and
    /// [`lead`](Election::lead) wait to be elected. By default they wait as long as their future is
    /// polled.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.0.acquire_timeout = Some(timeout);
        self
    }

    /// Sets the pauses between the attempts of a campaign. They apply when no hint comes from a
    /// node.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.retry = policy;
        self
    }

    /// Sets how many replicas must have the term, its metadata and each renewal before these count;
    /// the default is [`Durability::Primary`].
    /// [`Leadership::durability`](super::Leadership::durability) returns how many replicas had
    /// them.
    pub fn durability(mut self, level: Durability) -> Self {
        self.0.level = level;
        self
    }

    /// Checks the name and the settings, and builds the election. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] with the first rule that is broken, the election, the setting and its value.
    pub fn build(self) -> Result<Election, ConfigError> {
        let checked = self.check();
        checked.map_err(|e| e.of(Resource::Election(Arc::clone(&self.0.name))))?;
        let Self(election, eligible) = self;
        let course = Course::new(election.core.config.drift, eligible);
        Ok(Election { course, ..election })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Election { name, keys, level, core, ttl, drain, .. } = &self.0;
        check_election(name, keys)?;
        level.check()?;
        core.config.check_ttl(*ttl)?;
        if ttl.saturating_add(*drain) > core.config.max_ttl {
            let most = core.config.max_ttl;
            let rule = format!(
                "ttl ({ttl:?}) and drain together are at most max_ttl ({most:?}); use a shorter \
                 ttl, or raise `max_ttl` in every process that uses these nodes"
            );
            return Err(ConfigError::new("drain", format!("{drain:?}"), rule));
        }
        core.config.check_renewed(*ttl)
    }
}

/// Builds the election as [`build`](ElectionBuilder::build) does, and then campaigns with an empty
/// value as [`campaign`](Election::campaign) does. An error of `build` becomes
/// [`CampaignError::Config`]. Cancellation is as safe as that of `campaign`.
impl IntoFuture for ElectionBuilder {
    type Output = Result<Leadership, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.build().map_err(CampaignError::Config)?.campaign("").await })
    }
}
