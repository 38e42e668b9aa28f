//! Requests to the leader to resign (election 9). A request is a second lock beside the election's,
//! whose metadata name the term that is to end, so it does not affect a later one.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::Instrument as _;

use super::error::LeaderError;
use super::observe::Observation;
use super::value::{Identity, Leader};
use super::{Election, Leadership};
use crate::client::acquire::LockAttempt;
use crate::client::retry::{GivenUp, RetryTerms, Wait, retry};
use crate::client::runtime::within;
use crate::config::renew_every;
use crate::error::NoQuorum;
use crate::lock::{LockGuard, digest, note};
use crate::op::{Holder, LockMode};
use crate::quorum::acquire::Loss;
use crate::quorum::leader::Sight;
use crate::span::{Call, operation};
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

/// Result of [`Election::step_down`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the leader may not have resigned"]
pub enum StepDown {
    /// The term of this leader has ended, by a resignation or by the end of its lease.
    Resigned(Leader),
    /// There was no leader, so no request was sent.
    Vacant,
    /// This leader has another term than the caller named ([`Election::step_down_from`]), so no
    /// request was sent.
    OtherTerm(Leader),
    /// The leader still leads after the request. Possible reasons: the leader is busy, does not
    /// wait for requests ([`Leadership::asked_to_resign`]), or runs an earlier version of palisade.
    StillLeads(Leader),
}

/// A request to this leader to resign.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResignRequest {
    /// Reason that the operator gave; may be empty.
    pub reason: String,
    /// Process that sent the request.
    pub by: Identity,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    term: FencingToken,
    owner: String,
    reason: String,
    host: String,
    pid: u32,
    boot: u64,
}

impl Request {
    fn new(term: FencingToken, owner: OwnerToken, reason: &str) -> Self {
        let Identity { host, pid, boot } = Identity::here();
        let reason = String::from_utf8_lossy(&note(reason)).into_owned();
        Self { term, owner: digest(owner), reason, host, pid, boot }
    }

    fn encode(&self) -> Arc<[u8]> {
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let request: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        (request.owner == digest(owner)).then_some((1, request))
    }
}

impl Election {
    /// Asks the leader to resign, and waits at most `limit` for the resignation. An operator uses
    /// this function before the shutdown of a host. The leader receives the `reason`, cut to one
    /// kibibyte.
    ///
    /// With hints from the nodes, the leader gets the request within milliseconds. Without hints it
    /// gets the request within a quarter of the ttl. If the leader uses [`lead`](Self::lead), its
    /// work is stopped at the next await. The leader campaigns again after one ttl, so that other
    /// candidates can attempt first. A program that uses a [`Leadership`] directly gets the request
    /// by [`Leadership::asked_to_resign`], and may ignore it. No other process leads before the
    /// resignation of the leader or the end of its lease.
    ///
    /// # Errors
    /// [`LeaderError::NoQuorum`] if too few nodes answered the read of the leader or the write of
    /// the request; [`LeaderError::Closed`] if the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If the future is dropped, the leader may still have received the request. The request is
    /// removed in the background, or ends after one ttl.
    pub async fn step_down(&self, reason: &str, limit: Duration) -> Result<StepDown, LeaderError> {
        self.end_term(None, reason, limit).await
    }

    /// Asks the leader of this term to resign, as [`step_down`](Self::step_down) does. A leader of
    /// another term does not receive the request. It is for an operator who was shown a term and
    /// wants to end only this term.
    ///
    /// # Errors
    /// [`LeaderError::NoQuorum`] or [`LeaderError::Closed`], for the same reasons as
    /// [`step_down`](Self::step_down).
    ///
    /// # Cancellation safety
    /// If the future is dropped, the leader may still have received the request. The request is
    /// removed in the background, or ends after one ttl.
    pub async fn step_down_from(
        &self,
        term: FencingToken,
        reason: &str,
        limit: Duration,
    ) -> Result<StepDown, LeaderError> {
        self.end_term(Some(term), reason, limit).await
    }

    async fn end_term(
        &self,
        term: Option<FencingToken>,
        reason: &str,
        limit: Duration,
    ) -> Result<StepDown, LeaderError> {
        let operation = operation!("step_down", of = %self.resource());
        let request = self.request_resignation(term, reason, limit, &operation);
        let result = request.instrument(operation.span()).await;
        operation.over(match &result {
            Ok(StepDown::Resigned(_)) => "resigned",
            Ok(StepDown::Vacant) => "vacant",
            Ok(StepDown::OtherTerm(_)) => "other_term",
            Ok(StepDown::StillLeads(_)) => "still_leads",
            Err(LeaderError::NoQuorum(_)) => "no_quorum",
            Err(LeaderError::Closed(_)) => "closed",
        });
        result
    }

    async fn request_resignation(
        &self,
        expected: Option<FencingToken>,
        reason: &str,
        limit: Duration,
        operation: &Call,
    ) -> Result<StepDown, LeaderError> {
        let end = self.core.env.now() + limit;
        let mut observer = self.observe();
        let Some(leader) = self.leader().await? else { return Ok(StepDown::Vacant) };
        let term = leader.term;
        if expected.is_some_and(|expected| expected != term) {
            return Ok(StepDown::OtherTerm(leader));
        }
        // A leader of a later term does not follow it.
        let request = self.write_request(term, reason, end, operation).await?;
        loop {
            let left = end.since(self.core.env.now());
            match within(left, observer.next()).await {
                Some(Some(Observation::Leader { leader, .. })) if leader.term == term => {}
                Some(Some(Observation::Leader { .. } | Observation::Vacant)) => {
                    break self.withdraw(request, StepDown::Resigned(leader)).await;
                }
                Some(Some(_)) => {}
                Some(None) => break Err(LeaderError::Closed(self.resource())),
                None => match self.leader().await? {
                    Some(now) if now.term == term => {
                        break self.withdraw(request, StepDown::StillLeads(now)).await;
                    }
                    _ => break self.withdraw(request, StepDown::Resigned(leader)).await,
                },
            }
        }
    }

    async fn write_request(
        &self,
        term: FencingToken,
        reason: &str,
        deadline: Moment,
        operation: &Call,
    ) -> Result<Option<LockGuard>, LeaderError> {
        let (of, keys) = (self.resource(), self.keys.request());
        let mut attempt = LockAttempt {
            keys: &keys,
            ttl: self.core.config.ttl,
            meters: Arc::clone(&self.core.meters.lock(&self.name).leases),
            ..self.attempt(operation)
        };
        let terms = RetryTerms {
            key: keys.lock(),
            wait: Wait::Queue(LockMode::Exclusive),
            policy: self.retry,
            deadline: Some(deadline),
            since: None,
        };
        let won = match retry(&self.core, &mut attempt, terms).await {
            Ok(won) => won,
            Err(GivenUp { closed: true, .. }) => return Err(LeaderError::Closed(of)),
            Err(GivenUp { refused, waited, .. }) => match refused {
                // Another process's request, for this term or an earlier one: this process only
                // waits for the end of the term.
                Loss::Taken(_) => return Ok(None),
                Loss::NoQuorum(outcomes) => {
                    let why = self.core.no_quorum(outcomes).of(of);
                    let why = NoQuorum { waited: Some(waited), ..why };
                    return Err(LeaderError::NoQuorum(why));
                }
            },
        };
        won.set_meta(Request::new(term, won.owner, reason).encode());
        let guard = LockGuard::new(&self.core, won, &self.name, true);
        // If too few confirm, the next renewal repeats it.
        drop(guard.extend().await);
        Ok(Some(guard))
    }

    async fn withdraw(
        &self,
        request: Option<LockGuard>,
        outcome: StepDown,
    ) -> Result<StepDown, LeaderError> {
        if let Some(guard) = request {
            // A node that does not receive this keeps the request until its ttl ends.
            drop(guard.release().await);
        }
        Ok(outcome)
    }
}

impl Leadership {
    /// Resolves when a process asks this leader to resign ([`Election::step_down`]); the leader
    /// should then resign soon. Without a request this future stays pending. Run the leader's work
    /// in a `select!` with this future and with [`lost`](Self::lost); [`Election::lead`] does so.
    /// This future asks the nodes for a request after each quarter of the ttl.
    ///
    /// After this future has resolved, the next campaign through the same [`Election`] begins one
    /// ttl later.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no request is lost: the next call returns a request that is still
    /// stored.
    pub async fn asked_to_resign(&self) -> ResignRequest {
        let core = self.guard().core();
        let keys = self.keys().request();
        core.listen();
        let waiting = core.hints.wait(keys.lock(), None);
        loop {
            // Before the read, so that no change is missed.
            let hint = waiting.any();
            let seen = core.inspect(&keys, true, Request::read).await;
            if let Sight::Leads { content: request, .. } = seen
                && request.term == self.term()
                && self.is_valid()
            {
                self.course().resign_requested();
                let Request { reason, host, pid, boot, .. } = request;
                return ResignRequest { reason, by: Identity { host, pid, boot } };
            }
            within(renew_every(self.guard().lease().ttl), hint).await;
        }
    }
}
