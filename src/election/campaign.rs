//! Campaigning: acquire the lock, publish the value on a majority, lead.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use super::Election;
use super::candidates::Seat;
use super::error::CampaignError;
use super::leadership::Leadership;
use super::value::{Metadata, check_value};
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::close::Operation;
use crate::client::lease::{Lease, Subject};
use crate::client::retry::{Attempt, AttemptTerms, Prospect, RetryTerms, Wait, is_crowded, retry};
use crate::error::{Advice, ExtendError, NoQuorum, Taken};
use crate::lock::{LockAttempt, LockGuard, is_hopeless};
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;

/// Time for which a campaign fails for the same reason before it logs a warning, or ends if only a
/// person can remove the cause.
const FAILING: Duration = Duration::from_secs(60);

/// Result of [`Election::try_campaign`].
#[derive(Debug)]
#[must_use]
pub enum TryCampaign {
    /// This process was elected.
    Won(Leadership),
    /// Another process leads, or several candidates competed ([`Taken::retry_after`] is zero then).
    Following(Taken),
}

impl TryCampaign {
    fn leadership(&self) -> Option<&Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }

    /// Returns the leadership, if this process was elected.
    pub fn won(self) -> Option<Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }
}

/// Start and end of a campaign.
struct CampaignTimes {
    started: Moment,
    /// Time after which no attempt begins; `None`: no limit.
    deadline: Option<Moment>,
}

/// The attempts of one campaign: each acquires the lock and publishes the value.
struct Candidacy<'a> {
    election: &'a Election,
    acquire: LockAttempt<'a>,
    value: &'a str,
    seat: &'a Seat<'a>,
    /// Start of the consecutive attempts that failed for another reason than another process's
    /// leadership.
    failing_since: Option<Moment>,
    /// True if the log has a warning of these failures.
    warned: bool,
}

/// Cause of an attempt that was not elected.
enum NotElected {
    /// Another process leads, or several candidates competed.
    Following(Taken),
    /// This process won the lock and lost it before the value was published.
    LostAtOnce,
    /// Too few nodes answered; `crowded`: requests were not sent because too many wait.
    NoQuorum { why: NoQuorum, crowded: bool },
}

impl Attempt for Candidacy<'_> {
    type Granted = Leadership;
    type Refused = NotElected;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Leadership, NotElected> {
        let Self { election, value, seat, .. } = *self;
        let won = match self.acquire.make(terms).await {
            Ok(won) => won,
            Err(Loss::Taken(taken)) => return Err(NotElected::Following(taken)),
            Err(Loss::NoQuorum(outcomes)) => {
                let crowded = outcomes.iter().any(is_crowded);
                return Err(NotElected::NoQuorum {
                    why: election.core.no_quorum(outcomes),
                    crowded,
                });
            }
        };
        election.take_office(won, value, Some(seat.id())).await.map_err(|e| match e {
            ExtendError::Lost(_) => NotElected::LostAtOnce,
            ExtendError::Unknown(why) => NotElected::NoQuorum { why, crowded: false },
        })
    }

    fn prospect(&mut self, refused: &NotElected, _: &mut Option<Moment>) -> Option<Prospect> {
        let (prospect, fails) = match refused {
            NotElected::Following(taken) => {
                self.seat.wait();
                self.election.taken(taken);
                (Prospect::of_taken(taken), taken.advice() == Advice::Misconfigured)
            }
            // Nodes that grant the lock but refuse the metadata must not be asked in a hot loop.
            NotElected::LostAtOnce => (Prospect::Settling(Duration::ZERO), false),
            NotElected::NoQuorum { why, .. } if is_hopeless(why) => return None,
            NotElected::NoQuorum { crowded, .. } => {
                (Prospect::NoQuorum { crowded: *crowded }, true)
            }
        };
        if !fails {
            (self.failing_since, self.warned) = (None, false);
            return Some(prospect);
        }
        let now = self.election.core.env.now();
        if now.since(*self.failing_since.get_or_insert(now)) < FAILING {
            return Some(prospect);
        }
        // The warning is only for a missing quorum; `Following` comes here when another program's
        // value is under the key, which no wait removes.
        let NotElected::NoQuorum { why, .. } = refused else { return None };
        if !std::mem::replace(&mut self.warned, true) {
            let of = self.election.resource();
            tracing::warn!(%of, %why, "campaign goes on without a quorum");
        }
        Some(prospect)
    }

    fn hold_back(&self) -> Duration {
        self.seat.hold_back()
    }
}

impl Election {
    /// Campaigns until elected: as long as the future is polled, or until
    /// [`acquire_timeout`](super::ElectionBuilder::acquire_timeout) has passed. While it waits,
    /// this process is [listed](Self::candidates), which costs each node one request per quarter of
    /// the ttl. If this process was [asked to step down](Leadership::asked_to_resign) before, the
    /// campaign begins one ttl later.
    ///
    /// When it returns, a majority of the nodes has `value` under the new term. When a leader
    /// resigns, one candidate of each handle is woken at a time. Without a quorum the campaign
    /// keeps trying (and logs one warning), unless the fault of every node needs a person.
    ///
    /// # Errors
    /// [`CampaignError::Config`] if the value is too long (its metadata may take
    /// [`MAX_METADATA`](super::MAX_METADATA)); [`CampaignError::NoQuorum`] if no node can serve
    /// until a person changes a setting; [`CampaignError::Closed`] as soon as the handle is
    /// [closed](crate::Redlock::close). With an `acquire_timeout` also [`CampaignError::TimedOut`]
    /// if another process led to the end, [`CampaignError::NoQuorum`] if too few nodes could be
    /// asked, and [`CampaignError::Ineligible`] if this process [may not lead](Self::set_eligible).
    ///
    /// # Cancellation safety
    /// If dropped at any await, nothing is held: what nodes granted is released in the background,
    /// and ends with the ttl at the latest. The place among the waiters passes to the next one.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, CampaignError> {
        let operation = operation!("campaign", of = %self.resource());
        let value = value.into();
        let won = self.elect(&value, &operation).instrument(operation.span()).await;
        over(operation, won.as_ref().map(Some));
        won
    }

    /// Makes one attempt. It is not [listed](Self::candidates). With a
    /// [priority](super::ElectionBuilder::priority) it is delayed as the attempts of a campaign
    /// are.
    ///
    /// # Errors
    /// [`CampaignError::Config`], [`CampaignError::NoQuorum`], [`CampaignError::Ineligible`] or
    /// [`CampaignError::Closed`]. The leadership of another process is not an error.
    ///
    /// # Cancellation safety
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(
        &self,
        value: impl Into<String>,
    ) -> Result<TryCampaign, CampaignError> {
        let operation = operation!("try_campaign", of = %self.resource());
        let value = value.into();
        let won = self.try_elect(&value, &operation).instrument(operation.span()).await;
        over(operation, won.as_ref().map(TryCampaign::leadership));
        won
    }

    async fn try_elect(&self, value: &str, operation: &Call) -> Result<TryCampaign, CampaignError> {
        let _operation = self.begin(value)?;
        let wait = self.course.campaigns(self.core.env.now(), self.ttl);
        if !wait.is_zero() {
            let taken = Taken { retry_after: Some(wait), foreign: false };
            return Ok(TryCampaign::Following(taken));
        }
        if !self.is_eligible() {
            return Err(CampaignError::Ineligible { of: self.resource(), waited: Duration::ZERO });
        }
        if self.priority.is_some() {
            let seat = Seat::new(self, value);
            seat.look().await;
            self.leave(seat.hold_back()).await?;
        }
        let mut lost = false;
        loop {
            operation.attempt();
            let (keys, ttl, level) = (&self.keys, self.on_nodes(), self.level);
            let within = Duration::ZERO;
            let ask = AcquireRequest { keys, ttl, level, if_held: None, within, taker: None };
            return match self.core.attempt(ask).await {
                Ok(won) => match self.take_office(won, value, None).await {
                    Ok(leadership) => Ok(TryCampaign::Won(leadership)),
                    // The lock went to another process, or was lost with a node's data: the next
                    // attempt shows which.
                    Err(ExtendError::Lost(_)) if !lost => {
                        lost = true;
                        continue;
                    }
                    Err(ExtendError::Lost(_)) => Ok(TryCampaign::Following(met())),
                    Err(ExtendError::Unknown(e)) => Err(e.into()),
                },
                Err(Loss::Taken(taken)) => {
                    self.taken(&taken);
                    Ok(TryCampaign::Following(taken))
                }
                Err(Loss::NoQuorum(outcomes)) => {
                    Err(self.core.no_quorum(outcomes).of(self.resource()).into())
                }
            };
        }
    }

    async fn elect(&self, value: &str, operation: &Call) -> Result<Leadership, CampaignError> {
        let _operation = self.begin(value)?;
        let started = self.core.env.now();
        let deadline = self.acquire_timeout.map(|timeout| started + timeout);
        let times = CampaignTimes { started, deadline };
        self.let_others(deadline).await?;
        let seat = Seat::new(self, value);
        if self.priority.is_some() || !self.is_eligible() {
            seat.write().await;
        }
        let seek = async {
            loop {
                self.eligible_by(&times).await?;
                tokio::select! {
                    biased;
                    won = self.seek(value, &seat, &times, operation) => return won,
                    // Dropping `seek` releases what nodes may have granted.
                    () = self.course.eligible_is(false) => {}
                }
            }
        };
        tokio::select! {
            biased;
            won = seek => won,
            never = seat.keep() => match never {},
        }
    }

    /// Waits until this process is eligible.
    async fn eligible_by(&self, times: &CampaignTimes) -> Result<(), CampaignError> {
        if self.is_eligible() {
            return Ok(());
        }
        let over = async {
            match times.deadline {
                Some(end) => tokio::time::sleep(end.since(self.core.env.now())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.core.closing.begun() => Err(CampaignError::Closed(self.resource())),
            () = self.course.eligible_is(true) => Ok(()),
            () = over => {
                let waited = self.core.env.now().since(times.started);
                Err(CampaignError::Ineligible { of: self.resource(), waited })
            }
        }
    }

    /// Waits for `span`, so that other candidates can attempt first.
    async fn leave(&self, span: Duration) -> Result<(), CampaignError> {
        if span.is_zero() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.core.closing.begun() => Err(CampaignError::Closed(self.resource())),
            () = tokio::time::sleep(span) => Ok(()),
        }
    }

    /// Makes attempts until elected.
    async fn seek(
        &self,
        value: &str,
        seat: &Seat<'_>,
        times: &CampaignTimes,
        operation: &Call,
    ) -> Result<Leadership, CampaignError> {
        let left = times.deadline.map_or(Duration::MAX, |end| end.since(self.core.env.now()));
        self.leave(seat.hold_back().min(left)).await?;
        let acquire = LockAttempt {
            core: &self.core,
            keys: &self.keys,
            ttl: self.on_nodes(),
            level: self.level,
            waits_for_quarantine: false,
            operation,
        };
        let mut candidacy =
            Candidacy { election: self, acquire, value, seat, failing_since: None, warned: false };
        let terms = RetryTerms {
            key: self.keys.lock(),
            wait: Wait::Watch,
            policy: self.retry,
            deadline: times.deadline,
        };
        let elected = retry(&self.core, &mut candidacy, terms).await;
        elected.map_err(|given_up| {
            let of = self.resource();
            if given_up.closed {
                return CampaignError::Closed(of);
            }
            let waited = self.core.env.now().since(times.started);
            match given_up.refused {
                NotElected::Following(taken) => CampaignError::TimedOut { of, waited, taken },
                NotElected::LostAtOnce => CampaignError::TimedOut { of, waited, taken: met() },
                NotElected::NoQuorum { why, .. } => {
                    CampaignError::NoQuorum(NoQuorum { waited: Some(waited), ..why.of(of) })
                }
            }
        })
    }

    /// Returns how long nodes keep a leadership that is not renewed (election 8).
    fn on_nodes(&self) -> Duration {
        self.ttl + self.drain
    }

    /// Records for the metrics that a majority answered, and that the name is taken for at least
    /// `retry_after`.
    fn taken(&self, taken: &Taken) {
        let now = self.core.env.now();
        self.course.led(now, now + taken.retry_after.unwrap_or_default());
    }

    /// Waits, if this process has just stepped down on request, so that other candidates come
    /// first.
    async fn let_others(&self, deadline: Option<Moment>) -> Result<(), CampaignError> {
        let now = self.core.env.now();
        let wait = self.course.campaigns(now, self.ttl);
        if wait.is_zero() {
            return Ok(());
        }
        let until = deadline.map_or(now + wait, |end| end.min(now + wait));
        tokio::select! {
            biased;
            () = self.core.closing.begun() => return Err(CampaignError::Closed(self.resource())),
            () = tokio::time::sleep(until.since(now)) => {}
        }
        let end = now + wait;
        if until >= end {
            return Ok(());
        }
        let retry_after = Some(end.since(self.core.env.now()));
        let taken = Taken { retry_after, foreign: false };
        Err(CampaignError::TimedOut { of: self.resource(), waited: until.since(now), taken })
    }

    /// Begins an operation that can make this process the leader.
    fn begin(&self, value: &str) -> Result<Operation<'_>, CampaignError> {
        check_value(value).map_err(|e| CampaignError::Config(e.of(self.resource())))?;
        // From here on the metrics have this election, with zero terms.
        self.core.meters.election(&self.name);
        self.core.closing.enter().ok_or_else(|| CampaignError::Closed(self.resource()))
    }

    /// Publishes the first value on a majority; before that no process leads. On failure the lock
    /// is released before this returns.
    async fn take_office(
        &self,
        won: Acquired,
        value: &str,
        seat: Option<String>,
    ) -> Result<Leadership, ExtendError> {
        let since = (self.core.env.wall_micros(), self.drain);
        let metadata = Metadata::first(value, (won.owner, won.token), since);
        let metadata = metadata.of(self.priority(), seat);
        let subject = Subject::Lock { of: self.resource(), keys: self.keys.clone() };
        let (id, times) = ((won.owner, won.token), (self.ttl, won.until - self.drain));
        let meters = self.core.meters.election(&self.name);
        let (leases, encoded) = (Arc::clone(&meters.leases), metadata.encode());
        let lease = Lease::new(subject, id, times, None, won.replies, Some(encoded), leases);
        let lease = lease.with_drain(self.drain);
        // From here on a dropped future releases the lock through the guard.
        let (core, name) = (Arc::clone(&self.core), Arc::clone(&self.name));
        let guard = LockGuard::new(core, Arc::new(lease), name, true);
        match guard.extend().await {
            Ok(_) => {
                guard.lease().count();
                meters.term();
                self.course.leads(self.core.env.now(), guard.lease());
                Ok(Leadership::new(guard, metadata, self))
            }
            Err(e) => {
                let released = guard.release().await;
                tracing::debug!(of = %self.resource(), %e, ?released, "won, not proclaimed");
                Err(e)
            }
        }
    }
}

/// Ends the span and the metrics of a campaign by its result; `None`: another process leads.
fn over(operation: Call, result: Result<Option<&Leadership>, &CampaignError>) {
    if let Ok(Some(leadership)) = result {
        operation.token(leadership.term());
    }
    operation.over(match result {
        Ok(Some(_)) => "won",
        Ok(None) | Err(CampaignError::TimedOut { .. }) => "taken",
        Err(CampaignError::Closed(_)) => "closed",
        Err(CampaignError::Config(_)) => "config",
        Err(CampaignError::Ineligible { .. }) => "ineligible",
        Err(CampaignError::NoQuorum(_)) => "no_quorum",
    });
}

/// Returns the refusal for a lock that was acquired and lost at once: the next attempt may follow
/// immediately.
fn met() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false }
}
