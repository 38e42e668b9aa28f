//! Settings of an election, all checked when it is built.

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
/// If the builder itself is awaited, the election is built and this process campaigns with an empty
/// value. That is for an election whose followers need no more than the leader's
/// [identity](super::Leader::identity):
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
    /// Returns a builder for the election of this name over the handle's nodes. Its main key there
    /// is the handle's prefix + `election:` + `name`. [`build`](ElectionBuilder::build) checks the
    /// settings.
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
    /// Sets the lease length, 10 ms to `max_ttl`; default the handle's. It bounds how long the name
    /// is without a leader after a leader died; a living leader renews at a quarter of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl;
        self
    }

    /// Sets the time that this process needs to end its work as the leader after it lost the
    /// leadership: for this long after the loss no other process leads (a lock-delay). Default
    /// zero.
    ///
    /// The drain time costs nothing when a leader resigns. After a crash the name is without a
    /// leader for `ttl` plus `drain`, so keep it as short as the work allows. `ttl` and `drain`
    /// together are at most `max_ttl`.
    /// [`Leadership::drain_remaining`](super::Leadership::drain_remaining) returns what is left of
    /// it.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.0.drain = drain;
        self
    }

    /// Sets the priority of this process: candidates of higher priority are preferred. Default 0.
    ///
    /// While an eligible candidate of higher priority [is listed](Election::candidates), a
    /// candidate of lower priority delays each of its attempts: by a sixteenth of the ttl (25 ms at
    /// least) for each higher priority in the list, and by at most four times that. So a listed
    /// candidate that cannot lead (it died within the last ttl, or reaches too few nodes) delays
    /// the others by at most a quarter of the ttl, or 100 ms if that is longer; it never prevents a
    /// leader. The priority is a preference and no promise: the preferred candidate's requests may
    /// be slower than the delay. A leader stays when a candidate of higher priority joins.
    ///
    /// Where no process sets a priority, no attempt is delayed. A process that sets one reads the
    /// list before its first attempt, which costs one round trip; the others make their first
    /// attempt without it.
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// Sets whether this process attempts to lead. With `false`, it does not until
    /// [`set_eligible`](Election::set_eligible) is called with `true`:
    /// [`campaign`](Election::campaign) waits for that call, and is [listed](Election::candidates)
    /// as not eligible. Default `true`.
    pub fn eligible(mut self, eligible: bool) -> Self {
        self.1 = eligible;
        self
    }

    /// Makes [`lead`](Election::lead) end when the leadership is lost, instead of campaigning
    /// again.
    pub fn one_term(mut self) -> Self {
        self.0.one_term = true;
        self
    }

    /// Sets the longest time for which [`campaign`](Election::campaign) and
    /// [`lead`](Election::lead) wait to be elected. Default: as long as their future is polled.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.0.acquire_timeout = Some(timeout);
        self
    }

    /// Sets the pauses between attempts when no node gives a hint.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.retry = policy;
        self
    }

    /// Sets how many replicas must have a term, its metadata and each renewal before they count;
    /// default [`Durability::Primary`]. [`Leadership::durability`](super::Leadership::durability)
    /// returns how many had them.
    pub fn durability(mut self, level: Durability) -> Self {
        self.0.level = level;
        self
    }

    /// Checks the name and the settings, and builds the election. Nothing is sent.
    ///
    /// # Errors
    /// The first rule that is broken, with the election, the setting, its value and the rule.
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

/// Calls [`build`](ElectionBuilder::build), whose error becomes [`CampaignError::Config`], and then
/// [`campaign`](Election::campaign) with an empty value. Cancellation is as safe as that of
/// `campaign`.
impl IntoFuture for ElectionBuilder {
    type Output = Result<Leadership, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.build().map_err(CampaignError::Config)?.campaign("").await })
    }
}
