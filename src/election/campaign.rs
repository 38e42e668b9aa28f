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
use crate::error::{Advice, ExtendError, Taken};
use crate::lock::{Bid, LockGuard, Manner, acquire_within};
use crate::quorum::acquire::Loss;
use crate::span::{Call, operation};
use crate::time::Moment;

/// Longest single wait inside a campaign; then it looks at its own deadline and begins again.
const ROUND: Duration = Duration::from_secs(60);

/// What [`Election::try_campaign`] found.
#[derive(Debug)]
#[must_use]
pub enum TryCampaign {
    /// Elected.
    Won(Leadership),
    /// Somebody else leads, or several candidates met ([`Taken::retry_after`] is zero then).
    Following(Taken),
}

impl TryCampaign {
    fn leadership(&self) -> Option<&Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }

    /// The leadership, if there is one.
    pub fn won(self) -> Option<Leadership> {
        match self {
            Self::Won(leadership) => Some(leadership),
            Self::Following(_) => None,
        }
    }
}

impl Election {
    /// Campaigns until elected: as long as the future is polled, or until
    /// [`acquire_timeout`](super::ElectionBuilder::acquire_timeout) has passed. While it waits, it
    /// is [listed](Self::candidates), which costs each node one request per quarter of the ttl.
    /// After this process was [asked to step down](Leadership::asked_to_resign) it begins one ttl
    /// later.
    ///
    /// When it returns, a majority of the nodes shows `value` under the new term. All candidates
    /// are woken when a leader resigns, of each handle one at a time. Without a quorum it keeps
    /// trying (and logs one warning), unless the fault of every node needs a person.
    ///
    /// # Errors
    /// [`CampaignError::Config`] if the value is too long (its metadata may take
    /// [`WORDS_MAX`](super::WORDS_MAX)); [`CampaignError::NoQuorum`] if no node can serve until
    /// somebody changes a setting; [`CampaignError::Closed`] as soon as the handle is
    /// [closed](crate::Redlock::close). With an `acquire_timeout` also
    /// [`CampaignError::TimedOut`] if somebody else led to the end,
    /// [`CampaignError::NoQuorum`] if too few nodes could be asked, and
    /// [`CampaignError::Ineligible`] if this process [may not lead](Self::set_eligible).
    ///
    /// # Cancellation safety
    /// If dropped at any await it holds nothing: what nodes granted is released in the background,
    /// and the ttl ends it at the latest. Its place among the waiters passes to the next.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, CampaignError> {
        let operation = operation!("campaign", of = %self.resource());
        let value = value.into();
        let won = self.elect(&value, &operation).instrument(operation.span()).await;
        over(operation, won.as_ref().map(Some));
        won
    }

    /// One attempt. It is not [listed](Self::candidates). With a
    /// [priority](super::ElectionBuilder::priority) it is held back as those of a campaign are.
    ///
    /// # Errors
    /// [`CampaignError::Config`], [`CampaignError::NoQuorum`], [`CampaignError::Ineligible`] or
    /// [`CampaignError::Closed`].
    /// "Somebody else leads" is none.
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
                    // Lost to somebody else, or with a node's data: the next attempt shows which.
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
        let deadline = self.acquire_timeout.map(|d| started + d);
        self.let_others(deadline).await?;
        let seat = Seat::new(self, value);
        if self.priority.is_some() || !self.is_eligible() {
            seat.write().await;
        }
        let seek = async {
            loop {
                self.eligible_by(deadline, started).await?;
                tokio::select! {
                    biased;
                    won = self.seek(value, &seat, (started, deadline), operation) => return won,
                    // What it may have been granted is given back.
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

    /// Waits until this process may attempt to lead.
    async fn eligible_by(
        &self,
        deadline: Option<Moment>,
        started: Moment,
    ) -> Result<(), CampaignError> {
        if self.is_eligible() {
            return Ok(());
        }
        let over = async {
            match deadline {
                Some(end) => tokio::time::sleep(end.since(self.core.env.now())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.core.closing.begun() => Err(CampaignError::Closed(self.resource())),
            () = self.course.eligible_is(true) => Ok(()),
            () = over => {
                let waited = self.core.env.now().since(started);
                Err(CampaignError::Ineligible { of: self.resource(), waited })
            }
        }
    }

    /// Leaves an attempt to others for so long.
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

    /// Attempts until elected, or until then.
    async fn seek(
        &self,
        value: &str,
        seat: &Seat<'_>,
        (started, deadline): (Moment, Option<Moment>),
        operation: &Call,
    ) -> Result<Leadership, CampaignError> {
        let of = self.resource();
        let lost = |loss: &Loss| match loss {
            Loss::Taken(taken) => {
                seat.wait();
                self.taken(taken);
            }
            Loss::NoQuorum(_) => {}
        };
        let hold_back = || seat.hold_back();
        let mut delays = self.retry.delays(self.core.env.random() as u64);
        let mut warned = false;
        loop {
            let left = deadline.map_or(ROUND, |d| d.since(self.core.env.now()).min(ROUND));
            self.leave(seat.hold_back().min(left)).await?;
            let (keys, ttl, level) = (&self.keys, self.on_nodes(), self.level);
            let manner = Manner::Candidate(&hold_back);
            let bid = Bid { of: &of, keys, ttl, level, lost: &lost, manner, operation };
            let won = acquire_within(&self.core, bid, Some(left), self.retry).await;
            let failed = match won {
                Ok(won) => match self.take_office(won, value, Some(seat.id())).await {
                    Ok(leadership) => return Ok(leadership),
                    Err(ExtendError::Lost(of)) => {
                        CampaignError::TimedOut { of, waited: left, taken: met() }
                    }
                    Err(ExtendError::Unknown(e)) => e.into(),
                },
                Err(e) => e.into(),
            };
            let now = self.core.env.now();
            if matches!(failed.advice(), Advice::Misconfigured | Advice::Rebuild) {
                return Err(failed);
            }
            if deadline.is_some_and(|d| now >= d) {
                return Err(failed.after(now.since(started)));
            }
            let broken = matches!(failed, CampaignError::NoQuorum(_));
            if broken && !warned {
                tracing::warn!(%of, why = %failed, "campaign goes on without a quorum");
            }
            warned = broken;
            // Nodes that grant but refuse the metadata must not be asked in a hot loop.
            let pause = delays.next().unwrap_or(ROUND);
            let pause = deadline.map_or(pause, |d| d.since(now).min(pause));
            tokio::select! {
                biased;
                () = self.core.closing.begun() => return Err(CampaignError::Closed(of)),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// How long nodes keep a leadership that is not renewed (election 8).
    fn on_nodes(&self) -> Duration {
        self.ttl + self.drain
    }

    /// A majority could speak, and somebody has the name for so long at least.
    fn taken(&self, taken: &Taken) {
        let now = self.core.env.now();
        self.course.led(now, now + taken.retry_after.unwrap_or_default());
    }

    /// Others come first where this process has just stepped down because it was asked to.
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

    /// Begins a call that makes a leader.
    fn begin(&self, value: &str) -> Result<Operation<'_>, CampaignError> {
        check_value(value).map_err(|e| CampaignError::Config(e.of(self.resource())))?;
        // From here on it is known that this process does not lead.
        self.core.meters.election(&self.name);
        self.core.closing.enter().ok_or_else(|| CampaignError::Closed(self.resource()))
    }

    /// Publishes the first value on a majority: before that nobody leads. On failure the lock is
    /// given back first.
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
        // From here on a dropped future gives back through the guard.
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

/// A campaign came to this; `None`: somebody else leads.
fn over(operation: Call, came_to: Result<Option<&Leadership>, &CampaignError>) {
    if let Ok(Some(leadership)) = came_to {
        operation.token(leadership.term());
    }
    operation.over(match came_to {
        Ok(Some(_)) => "won",
        Ok(None) | Err(CampaignError::TimedOut { .. }) => "taken",
        Err(CampaignError::Closed(_)) => "closed",
        Err(CampaignError::Config(_)) => "config",
        Err(CampaignError::Ineligible { .. }) => "ineligible",
        Err(CampaignError::NoQuorum(_)) => "no_quorum",
    });
}

/// Won and lost at once: the next attempt may follow immediately.
fn met() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false }
}
