//! Requests to a leader to resign, from another process (election 9).
//!
//! The request is a lock beside the election's, whose metadata name the term: it is fenced, renewed
//! while the requester waits for the answer, and removed when the wait ends. It grants nothing, and
//! the leader answers it by resigning.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::Instrument as _;

use super::error::StepDownError;
use super::observe::Observation;
use super::value::{Identity, Leader};
use super::{Election, Leadership};
use crate::client::lease::{Lease, Subject};
use crate::client::retry::{GivenUp, RetryTerms, Wait, retry};
use crate::client::runtime::within;
use crate::config::renew_every;
use crate::error::NoQuorum;
use crate::lock::{LockAttempt, LockGuard, digest, note};
use crate::op::Holder;
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
    /// The term of this leader has ended: it has resigned, or its lease has ended.
    Resigned(Leader),
    /// There is no leader, so no request was sent.
    Vacant,
    /// The leader was asked and still leads: it is busy, it does not listen
    /// ([`Leadership::asked_to_resign`]), or it is an earlier version of palisade.
    StillLeads(Leader),
}

/// An operator's request that the leader resigns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResignRequest {
    /// Reason for the request; may be empty.
    pub reason: String,
    /// The process that asked.
    pub by: Identity,
}

/// A request as it is stored on the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// The term that is to end.
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
        // The request consists of strings and numbers, which JSON can always hold.
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    /// Reads the request of this owner from a node's answer; `None` if there is none.
    fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let request: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        (request.owner == digest(owner)).then_some((1, request))
    }
}

impl Election {
    /// Asks the leader to resign, and waits for that for at most `limit`: for operators, before a
    /// host is taken out of service. `reason` is shown to the leader, cut to one kibibyte.
    ///
    /// The leader gets the request within milliseconds where the nodes give hints, otherwise at its
    /// next renewal. With [`lead`](Self::lead) its work is stopped at its next await, and it
    /// campaigns again after one ttl, so that others come first. A leader that holds a
    /// [`Leadership`] itself gets it by [`Leadership::asked_to_resign`]. The leader may ignore the
    /// request, and no other process leads before it has resigned or its lease has ended.
    ///
    /// # Errors
    /// [`StepDownError::NoQuorum`] if too few nodes answered, so that the leader is unknown or
    /// could not be asked; [`StepDownError::Closed`] once the handle is
    /// [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If dropped, the leader may have received the request all the same; the request is removed in
    /// the background, at the latest after one ttl.
    pub async fn step_down(
        &self,
        reason: &str,
        limit: Duration,
    ) -> Result<StepDown, StepDownError> {
        let operation = operation!("step_down", of = %self.resource());
        let result =
            self.request_resignation(reason, limit, &operation).instrument(operation.span()).await;
        operation.over(match &result {
            Ok(StepDown::Resigned(_)) => "resigned",
            Ok(StepDown::Vacant) => "vacant",
            Ok(StepDown::StillLeads(_)) => "still_leads",
            Err(StepDownError::NoQuorum(_)) => "no_quorum",
            Err(StepDownError::Closed(_)) => "closed",
        });
        result
    }

    async fn request_resignation(
        &self,
        reason: &str,
        limit: Duration,
        operation: &Call,
    ) -> Result<StepDown, StepDownError> {
        let end = self.core.env.now() + limit;
        let mut observer = self.observe();
        let Some(leader) = self.leader().await? else { return Ok(StepDown::Vacant) };
        let term = leader.term;
        let request = self.write_request(term, reason, end, operation).await?;
        loop {
            let left = end.since(self.core.env.now());
            match within(left, observer.next()).await {
                Some(Some(Observation::Leader { leader, .. })) if leader.term == term => {}
                Some(Some(Observation::Leader { .. } | Observation::Vacant)) => {
                    break self.withdraw(request, StepDown::Resigned(leader)).await;
                }
                // The leader is unknown for a while: the nodes answer again, or the time ends.
                Some(Some(_)) => {}
                Some(None) => break Err(StepDownError::Closed(self.resource())),
                None => match self.leader().await? {
                    Some(now) if now.term == term => {
                        break self.withdraw(request, StepDown::StillLeads(now)).await;
                    }
                    _ => break self.withdraw(request, StepDown::Resigned(leader)).await,
                },
            }
        }
    }

    /// Writes the request on a majority. Returns `None` if another process's request was there to
    /// the end.
    async fn write_request(
        &self,
        term: FencingToken,
        reason: &str,
        deadline: Moment,
        operation: &Call,
    ) -> Result<Option<LockGuard>, StepDownError> {
        let (of, keys) = (self.resource(), self.keys.request());
        let ttl = self.core.config.ttl;
        let mut attempt = LockAttempt {
            core: &self.core,
            keys: &keys,
            ttl,
            level: self.level,
            waits_for_quarantine: false,
            operation,
        };
        let terms = RetryTerms {
            key: keys.lock(),
            wait: Wait::Queue,
            policy: self.retry,
            deadline: Some(deadline),
        };
        let won = match retry(&self.core, &mut attempt, terms).await {
            Ok(won) => won,
            Err(GivenUp { closed: true, .. }) => return Err(StepDownError::Closed(of)),
            Err(GivenUp { refused, waited, .. }) => match refused {
                // Another request is stored, for this leader or for one whose term has passed.
                Loss::Taken(_) => return Ok(None),
                Loss::NoQuorum(outcomes) => {
                    let why = self.core.no_quorum(outcomes).of(of);
                    let why = NoQuorum { waited: Some(waited), ..why };
                    return Err(StepDownError::NoQuorum(why));
                }
            },
        };
        let meta = Request::new(term, won.owner, reason).encode();
        let (id, times) = ((won.owner, won.token), (ttl, won.until));
        let subject = Subject::Lock { of, keys };
        let leases = Arc::clone(&self.core.meters.lock(&self.name).leases);
        let lease = Lease::new(subject, id, times, None, won.replies, Some(meta), leases);
        let (core, name) = (Arc::clone(&self.core), Arc::clone(&self.name));
        let guard = LockGuard::new(core, Arc::new(lease), name, true);
        // If this write is not confirmed, the next renewal repeats it.
        drop(guard.extend().await);
        Ok(Some(guard))
    }

    /// Releases the request, and returns the outcome.
    async fn withdraw(
        &self,
        request: Option<LockGuard>,
        outcome: StepDown,
    ) -> Result<StepDown, StepDownError> {
        if let Some(guard) = request {
            // Parts of the request that remain on some nodes end with their ttl, and apply to no
            // later term.
            drop(guard.release().await);
        }
        Ok(outcome)
    }
}

impl Leadership {
    /// Resolves when another process asks this leader to resign ([`Election::step_down`]): resign
    /// soon after. Select a leader's work against it, beside [`lost`](Self::lost);
    /// [`Election::lead`] does both. Pending as long as there is no request. While it is awaited,
    /// the nodes are asked for a request once in a quarter of the ttl.
    ///
    /// Once it has resolved, the next campaign through the same [`Election`] begins one ttl later.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is lost: a request that is still stored is returned by the next call.
    pub async fn asked_to_resign(&self) -> ResignRequest {
        let core = self.guard().core();
        let keys = self.keys().request();
        core.listen();
        let waiting = core.hints.wait(keys.lock(), None);
        loop {
            // Listening begins before the read, so a change during the read is not missed.
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
