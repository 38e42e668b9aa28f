//! Campaigns: acquires the election's lock, and publishes the value on a majority.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use super::Election;
use super::candidates::Seat;
use super::error::CampaignError;
use super::leadership::Leadership;
use super::value::{Metadata, check_value};
use crate::client::acquire::{LockAttempt, is_hopeless};
use crate::client::close::Operation;
use crate::client::lease::Lease;
use crate::client::retry::{Attempt, AttemptTerms, Prospect, RetryTerms, Wait, is_crowded, retry};
use crate::error::{Advice, ExtendError, NoQuorum, Taken};
use crate::lock::LockGuard;
use crate::op::LockMode;
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;

/// Then a campaign warns that too few nodes answer, or ends because of another program's value.
const FAILING: Duration = Duration::from_secs(60);

/// Result of [`Election::try_campaign`].
#[derive(Debug)]
#[must_use]
pub enum TryCampaign {
    /// This process was elected.
    Won(Leadership),
    /// Another process leads, or several candidates competed and none won. If none won,
    /// [`Taken::retry_after`] is zero.
    Following(Taken),
}

impl TryCampaign {
    fn leadership(&self) -> Option<&Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }

    /// Returns the leadership if this process was elected.
    pub fn won(self) -> Option<Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }
}

struct CampaignTimes {
    started: Moment,
    deadline: Option<Moment>,
}

struct Candidacy<'a> {
    election: &'a Election,
    acquire: LockAttempt<'a>,
    value: &'a str,
    seat: &'a Seat<'a>,
    /// A refusal because another process leads is no failure.
    failing_since: Option<Moment>,
    warned: bool,
}

enum NotElected {
    Following(Taken),
    LostAtOnce,
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
            // Nodes that grant the lock but refuse the metadata cause this at each attempt.
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
        // Otherwise it is another program's value under the key, which no wait removes.
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
    /// Campaigns until this process is elected or
    /// [`acquire_timeout`](super::ElectionBuilder::acquire_timeout) has passed. During the wait
    /// this process is [listed](Self::candidates) as a candidate. The list costs each node one
    /// request per quarter of the ttl. If this process led before and was [asked to step
    /// down](Leadership::asked_to_resign), the campaign begins one ttl later.
    ///
    /// When `campaign` returns a leadership, a majority of the nodes has `value` under the new
    /// term. When a leader resigns, each `Redlock` handle wakes one of its own candidates at a
    /// time. If too few nodes answer, the campaign logs one warning and continues. The campaign
    /// ends with an error if every node has a fault that only a person can correct.
    ///
    /// # Errors
    /// [`CampaignError::Config`] if the value is too long (its metadata may take
    /// [`MAX_METADATA`](super::MAX_METADATA) bytes); [`CampaignError::NoQuorum`] if no node can
    /// serve until a person changes a setting; [`CampaignError::TimedOut`] if another program's
    /// value is still under the key after a minute; [`CampaignError::Closed`] as soon as the handle
    /// is [closed](crate::Redlock::close). With an `acquire_timeout` also
    /// [`CampaignError::TimedOut`] if another process led to the end, [`CampaignError::NoQuorum`]
    /// if too few nodes answered, and [`CampaignError::Ineligible`] if this process [may not
    /// lead](Self::set_eligible).
    ///
    /// # Cancellation safety
    /// The future may be dropped at any await. Grants that the nodes have given are then released
    /// in the background, and end with the ttl at the latest. A hint that was for this campaign
    /// wakes another candidate of the handle.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, CampaignError> {
        let operation = operation!("campaign", of = %self.resource());
        let value = value.into();
        let won = self.elect(&value, &operation).instrument(operation.span()).await;
        over(operation, won.as_ref().map(Some));
        won
    }

    /// Makes one attempt to be elected. This call does not [list](Self::candidates) the process as
    /// a candidate. If this process has a [priority](super::ElectionBuilder::priority), the attempt
    /// waits for candidates of higher priority, like the attempts of a campaign.
    ///
    /// # Errors
    /// [`CampaignError::Config`], [`CampaignError::NoQuorum`], [`CampaignError::Ineligible`] or
    /// [`CampaignError::Closed`], for the same reasons as [`campaign`](Self::campaign). If another
    /// process leads, the result is [`TryCampaign::Following`] and no error.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any await. Grants that the nodes have given are then released
    /// in the background.
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
            let taken = Taken { retry_after: Some(wait), foreign: false, queued: None };
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
            let won = self.attempt(operation).make(AttemptTerms::SINGLE).await;
            return match won {
                Ok(won) => match self.take_office(won, value, None).await {
                    Ok(leadership) => Ok(TryCampaign::Won(leadership)),
                    // Another process has the lock, or a node lost it with its data. One more
                    // attempt shows the cause.
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

    async fn seek(
        &self,
        value: &str,
        seat: &Seat<'_>,
        times: &CampaignTimes,
        operation: &Call,
    ) -> Result<Leadership, CampaignError> {
        let left = times.deadline.map_or(Duration::MAX, |end| end.since(self.core.env.now()));
        self.leave(seat.hold_back().min(left)).await?;
        let acquire = self.attempt(operation);
        let mut candidacy =
            Candidacy { election: self, acquire, value, seat, failing_since: None, warned: false };
        let terms = RetryTerms {
            key: self.keys.lock(),
            wait: Wait::Watch,
            policy: self.retry,
            deadline: times.deadline,
            since: None,
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

    /// The nodes keep the lock for the ttl plus the drain time (election 8).
    pub(super) fn attempt<'a>(&'a self, operation: &'a Call) -> LockAttempt<'a> {
        LockAttempt {
            core: &self.core,
            of: self.resource(),
            keys: &self.keys,
            mode: LockMode::Exclusive,
            ttl: self.ttl + self.drain,
            level: self.level,
            meters: Arc::clone(&self.core.meters.election(&self.name).leases),
            operation,
            waits_for_quarantine: false,
            awaits_all: false,
            taker: None,
            fair: None,
        }
    }

    fn taken(&self, taken: &Taken) {
        let now = self.core.env.now();
        self.course.led(now, now + taken.retry_after.unwrap_or_default());
    }

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
        let taken = Taken { retry_after, foreign: false, queued: None };
        Err(CampaignError::TimedOut { of: self.resource(), waited: until.since(now), taken })
    }

    fn begin(&self, value: &str) -> Result<Operation<'_>, CampaignError> {
        check_value(value).map_err(|e| CampaignError::Config(e.of(self.resource())))?;
        // From now on the metrics include this election, even if it has no terms.
        self.core.meters.election(&self.name);
        self.core.closing.enter().ok_or_else(|| CampaignError::Closed(self.resource()))
    }

    /// After a failure releases the lock.
    async fn take_office(
        &self,
        won: Lease,
        value: &str,
        seat: Option<String>,
    ) -> Result<Leadership, ExtendError> {
        let since = (self.core.env.wall_micros(), self.drain);
        let metadata = Metadata::first(value, (won.owner, won.token), since);
        let metadata = metadata.of(self.priority(), seat);
        let lease = won.with_drain(self.drain);
        lease.set_meta(metadata.encode());
        // Releases the lock if the campaign is dropped.
        let guard = LockGuard::new(&self.core, lease, &self.name, true);
        match guard.extend().await {
            Ok(_) => {
                guard.lease().count();
                self.core.meters.election(&self.name).term();
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

fn met() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false, queued: None }
}
