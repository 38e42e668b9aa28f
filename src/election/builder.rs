//! Settings of an election. [`ElectionBuilder::build`] checks them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::state::Course;
use super::{CampaignError, Election, Leadership};
use crate::durability::Durability;
use crate::error::{ConfigError, Resource};
use crate::name::{LockKeys, check_election};
use crate::redlock::Redlock;
use crate::retry_policy::RetryPolicy;

/// Settings of an [`Election`], made by [`Redlock::election`].
///
/// Awaiting the builder builds the election and campaigns with an empty value. Followers then read
/// only the leader's [identity](super::Leader::identity):
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
    /// Returns a builder for the election `name` on the nodes of this `Redlock` handle. The key of
    /// the election on the nodes is the handle's prefix, then `election:`, then `name`.
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
    /// Sets the length of the leader's lease, from 10 ms to `max_ttl`; the default is the `Redlock`
    /// handle's ttl. A leader renews its lease after each quarter of the ttl. After the death of a
    /// leader, the election has no leader for at most the ttl plus the [`drain`](Self::drain) time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl;
        self
    }

    /// Sets the drain time: the time that this process needs to end the leader's work after a loss
    /// of the leadership. No other process leads in this time, because the nodes keep the lock for
    /// it. The default is zero.
    ///
    /// After a resignation, the next leader need not wait for the drain time. After a crash the
    /// election has no leader for `ttl` plus `drain`, so keep `drain` as short as the work allows.
    /// `ttl` and `drain` together are at most `max_ttl`.
    /// [`Leadership::drain_remaining`](super::Leadership::drain_remaining) returns the rest.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.0.drain = drain;
        self
    }

    /// Sets the priority of this process; the default is 0. Candidates of higher priority are
    /// preferred, without a guarantee.
    ///
    /// An eligible candidate of higher priority delays the attempts of candidates with lower
    /// priority while it [is listed](Election::candidates). For each different higher priority in
    /// the list, the delay is a sixteenth of the ttl, but at least 25 ms. At most four priorities
    /// count. A listed candidate that died within the last ttl, or reaches too few nodes, delays
    /// the others by at most a quarter of the ttl, or by 100 ms if that is longer. A leader keeps
    /// the leadership when a candidate of higher priority joins.
    ///
    /// A process that sets a priority reads the list before its first attempt, which costs one
    /// round trip. If no process sets a priority, no attempt is delayed.
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// Sets whether this process attempts to lead; the default is `true`. With `false`,
    /// [`campaign`](Election::campaign) waits for the call
    /// [`set_eligible(true)`](Election::set_eligible). During this wait the process is
    /// [listed](Election::candidates) as not eligible.
    pub fn eligible(mut self, eligible: bool) -> Self {
        self.1 = eligible;
        self
    }

    /// Makes [`lead`](Election::lead) return after a loss of the leadership. Without this setting
    /// `lead` campaigns again.
    pub fn one_term(mut self) -> Self {
        self.0.one_term = true;
        self
    }

    /// Sets the longest wait of [`campaign`](Election::campaign) and [`lead`](Election::lead) to be
    /// elected. By default both wait without a limit.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.0.acquire_timeout = Some(timeout);
        self
    }

    /// Sets the pauses between the attempts of a campaign. A hint from a node ends a pause early.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.retry = policy;
        self
    }

    /// Sets the number of replicas that must have a write before it counts: the win with the
    /// leader's value, and each renewal. The default is [`Durability::Primary`].
    /// [`Leadership::durability`](super::Leadership::durability) returns the number of replicas
    /// that had the write.
    pub fn durability(mut self, level: Durability) -> Self {
        self.0.level = level;
        self
    }

    /// Checks the name and the settings, and builds the election. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] with the first broken rule, the election, the setting and the value of the
    /// setting.
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

/// Builds like [`build`](ElectionBuilder::build), whose error becomes [`CampaignError::Config`],
/// and campaigns with an empty value like [`campaign`](Election::campaign), with the same
/// cancellation safety.
impl IntoFuture for ElectionBuilder {
    type Output = Result<Leadership, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.build().map_err(CampaignError::Config)?.campaign("").await })
    }
}
