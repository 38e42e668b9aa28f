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

/// Settings of an [`Election`], begun by [`Redlock::election`].
///
/// Awaited, it is built, and this process campaigns with an empty value, for an election whose
/// followers need no more than the leader's [identity](super::Leader::identity):
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
    /// Settings of the election of this name over the handle's nodes. Its main key there is the
    /// handle's prefix + `election:` + `name`. [`build`](ElectionBuilder::build) checks them.
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
    /// Lease length, 10 ms to `max_ttl`; default the handle's. It bounds how long the name is
    /// without a leader after a leader died; a living leader renews at a quarter of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl;
        self
    }

    /// How long this process needs to end what it began as the leader after it lost the
    /// leadership: for so long after its loss nobody else leads (a lock-delay). Default zero.
    ///
    /// It costs nothing when a leader resigns. After a crash the name is without a leader for the
    /// ttl and this, so keep it as short as the work allows. `ttl` and `drain` together are at most
    /// `max_ttl`. [`Leadership::drain_remaining`](super::Leadership::drain_remaining) says what is
    /// left of it.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.0.drain = drain;
        self
    }

    /// Which candidates are preferred: those of higher priority. Default 0.
    ///
    /// While an eligible candidate of higher priority [is listed](Election::candidates), one of
    /// lower priority leaves it each attempt for a moment: a sixteenth of the ttl (25 ms at least)
    /// for each higher priority in the list, and four times that at most. So a listed candidate
    /// that cannot lead (it died within the last ttl, or reaches too few nodes) delays the others
    /// by at most a quarter of the ttl, or 100 ms if that is longer; it never prevents a leader. It
    /// is a preference and no promise: the preferred candidate's requests may be slower than that.
    /// A leader stays when a candidate of higher priority comes.
    ///
    /// Where no process sets a priority, nothing is held back. A process that sets one reads the
    /// list before its first attempt, which costs one round trip; the others make their first
    /// attempt without it.
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// With `false`, this process does not attempt to lead until
    /// [`set_eligible`](Election::set_eligible) says so: [`campaign`](Election::campaign) waits for
    /// that, and is [listed](Election::candidates) as not eligible. Default `true`.
    pub fn eligible(mut self, eligible: bool) -> Self {
        self.1 = eligible;
        self
    }

    /// [`lead`](Election::lead) ends when the leadership is lost, instead of campaigning again.
    pub fn one_term(mut self) -> Self {
        self.0.one_term = true;
        self
    }

    /// How long [`campaign`](Election::campaign) and [`lead`](Election::lead) wait to be elected at
    /// most. Default: as long as their future is polled.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.0.acquire_timeout = Some(timeout);
        self
    }

    /// Waits between attempts when no node gives a hint.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.retry = policy;
        self
    }

    /// How many replicas must have a term, its metadata and each renewal before they count; default
    /// [`Durability::Primary`]. [`Leadership::durability`](super::Leadership::durability) says how
    /// many had them.
    pub fn durability(mut self, level: Durability) -> Self {
        self.0.level = level;
        self
    }

    /// Checks the name and the settings. Nothing is sent.
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

/// [`build`](ElectionBuilder::build), whose refusal is [`CampaignError::Config`], and
/// [`campaign`](Election::campaign) with an empty value. Cancellation is as safe as there.
impl IntoFuture for ElectionBuilder {
    type Output = Result<Leadership, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.build().map_err(CampaignError::Config)?.campaign("").await })
    }
}
