//! Requests of another process that a leader resign (election 9).
//!
//! A request is a lock beside the election's lock, and its metadata name the term that is to end.
//! So it is fenced. The requester renews it while it waits for the answer, and then removes it. The
//! request grants nothing; the leader answers it by resigning.

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
    /// The term of this leader has ended: it has resigned, or its lease has ended.
    Resigned(Leader),
    /// There is no leader, so no request was sent.
    Vacant,
    /// The leader was asked and still leads. It may be busy, or not listen for requests
    /// ([`Leadership::asked_to_resign`]), or run an earlier version of palisade.
    StillLeads(Leader),
}

/// A request of an operator that this leader resign.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResignRequest {
    /// Reason that the operator gave; may be empty.
    pub reason: String,
    /// Process that sent the request.
    pub by: Identity,
}

/// A request, in the form stored on the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// Term that is to end.
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
        // The request contains only strings and numbers, which JSON can always represent.
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    /// Reads the request of this owner from a node's answer; `None` if the node has none.
    fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let request: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        (request.owner == digest(owner)).then_some((1, request))
    }
}

impl Election {
    /// Asks the leader to resign, and waits for at most `limit` until it has. An operator uses this
    /// before a host is taken out of service. The leader is shown the `reason`, cut to one
    /// kibibyte.
    ///
    /// The leader gets the request within milliseconds if the nodes give hints, and otherwise at
    /// its next renewal. If it leads by [`lead`](Self::lead), its work is stopped at its next
    /// await, and it campaigns again after one ttl, so that other candidates come first. A leader
    /// that holds a [`Leadership`] itself gets the request by [`Leadership::asked_to_resign`]. The
    /// leader may ignore the request. No other process leads before it has resigned or its lease
    /// has ended.
    ///
    /// # Errors
    /// [`StepDownError::NoQuorum`] if too few nodes answered, so that it is unknown who leads, or
    /// the leader could not be asked; [`StepDownError::Closed`] once the handle is
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
                // It is unknown who leads. Either the nodes will answer again, or the time ends.
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

    /// Stores the request on a majority of the nodes. Returns `None` if the request of another
    /// process was stored there until the deadline.
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
            mode: LockMode::Exclusive,
            keys: &keys,
            ttl,
            level: self.level,
            waits_for_quarantine: false,
            operation,
        };
        let terms = RetryTerms {
            all: None,
            key: keys.lock(),
            wait: Wait::Queue(LockMode::Exclusive),
            policy: self.retry,
            deadline: Some(deadline),
        };
        let won = match retry(&self.core, &mut attempt, terms).await {
            Ok(won) => won,
            Err(GivenUp { closed: true, .. }) => return Err(StepDownError::Closed(of)),
            Err(GivenUp { refused, waited, .. }) => match refused {
                // The request of another process is stored, for this term or for an earlier one.
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
        // If too few nodes confirm this write, the next renewal repeats it.
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
            // If parts of the request remain on some nodes, they end with their ttl, and have no
            // effect on a later term.
            drop(guard.release().await);
        }
        Ok(outcome)
    }
}

impl Leadership {
    /// Resolves when another process asks this leader to resign ([`Election::step_down`]); the
    /// leader should then resign soon. Without a request it stays pending. Run the leader's work in
    /// a `select!` with this and with [`lost`](Self::lost); [`Election::lead`] does both. While
    /// this future is polled, the nodes are asked for a request once in a quarter of the ttl.
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
