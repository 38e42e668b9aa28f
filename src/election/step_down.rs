//! Asking a leader to resign, from outside (election 9).
//!
//! The request is a lock beside the election's, whose metadata name the term: it is fenced,
//! renewed while somebody waits for the answer, and gone when nobody does. It grants nothing, and
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

/// What [`Election::step_down`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the leader may not have resigned"]
pub enum StepDown {
    /// The term of this leader is over: it has resigned, or its lease has ended.
    Resigned(Leader),
    /// Nobody leads, so nobody was asked.
    Vacant,
    /// It was asked and still leads: it is busy, it does not listen
    /// ([`Leadership::asked_to_resign`]), or it is an earlier version of palisade.
    StillLeads(Leader),
}

/// The wish of an operator that the leader resigns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResignRequest {
    /// Why; may be empty.
    pub reason: String,
    /// Which process asked.
    pub by: Identity,
}

/// The same, as the nodes have it.
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
        // Strings and numbers: there is nothing in it that JSON cannot hold.
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    /// The owner's own request on a node.
    fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let request: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        (request.owner == digest(owner)).then_some((1, request))
    }
}

impl Election {
    /// Asks the leader to resign, and waits for that for so long: for operators, before a host is
    /// taken out of service. `reason` is shown to the leader, cut to one kibibyte.
    ///
    /// The leader hears of it within milliseconds where the nodes give hints, else at its next
    /// renewal. With [`lead`](Self::lead) its work is stopped at its next await, and it campaigns
    /// again after one ttl, so that others come first. A leader that holds a [`Leadership`] by
    /// itself is asked by [`Leadership::asked_to_resign`]. It is a wish: nobody is forced, and
    /// nobody else leads before the leader has resigned or its lease has ended.
    ///
    /// # Errors
    /// [`StepDownError::NoQuorum`] if too few nodes answered, so that it is not known who leads or
    /// nobody could be asked; [`StepDownError::Closed`] once the handle is
    /// [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If dropped, the leader may have heard of it all the same; the wish itself is taken back in
    /// the background, at the latest after one ttl.
    pub async fn step_down(
        &self,
        reason: &str,
        limit: Duration,
    ) -> Result<StepDown, StepDownError> {
        let operation = operation!("step_down", of = %self.resource());
        let came_to = self.ask_for_it(reason, limit, &operation).instrument(operation.span()).await;
        operation.over(match &came_to {
            Ok(StepDown::Resigned(_)) => "resigned",
            Ok(StepDown::Vacant) => "vacant",
            Ok(StepDown::StillLeads(_)) => "still_leads",
            Err(StepDownError::NoQuorum(_)) => "no_quorum",
            Err(StepDownError::Closed(_)) => "closed",
        });
        came_to
    }

    async fn ask_for_it(
        &self,
        reason: &str,
        limit: Duration,
        operation: &Call,
    ) -> Result<StepDown, StepDownError> {
        let end = self.core.env.now() + limit;
        let mut observer = self.observe();
        let Some(leader) = self.leader().await? else { return Ok(StepDown::Vacant) };
        let term = leader.term;
        let asked = self.ask(term, reason, end, operation).await?;
        loop {
            let left = end.since(self.core.env.now());
            match within(left, observer.next()).await {
                Some(Some(Observation::Leader { leader, .. })) if leader.term == term => {}
                Some(Some(Observation::Leader { .. } | Observation::Vacant)) => {
                    break self.taken_back(asked, StepDown::Resigned(leader)).await;
                }
                // Not known for a while: that ends, or the time does.
                Some(Some(_)) => {}
                Some(None) => break Err(StepDownError::Closed(self.resource())),
                None => match self.leader().await? {
                    Some(now) if now.term == term => {
                        break self.taken_back(asked, StepDown::StillLeads(now)).await;
                    }
                    _ => break self.taken_back(asked, StepDown::Resigned(leader)).await,
                },
            }
        }
    }

    /// Writes the request on a majority. None if somebody else's was there to the end.
    async fn ask(
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
                // Another request is there, for this leader or for one whose term has passed.
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
        // If it is not confirmed, the next renewal writes it again.
        drop(guard.extend().await);
        Ok(Some(guard))
    }

    async fn taken_back(
        &self,
        asked: Option<LockGuard>,
        came_to: StepDown,
    ) -> Result<StepDown, StepDownError> {
        if let Some(guard) = asked {
            // What is left of it ends with its ttl, and is of no term to come.
            drop(guard.release().await);
        }
        Ok(came_to)
    }
}

impl Leadership {
    /// Resolves when somebody asks this leader to resign
    /// ([`Election::step_down`]): resign then, soon. Select what a leader does against it, beside
    /// [`lost`](Self::lost); [`Election::lead`] does both. Pending as long as nobody asks. While it
    /// is awaited, the nodes are asked at a quarter of the ttl whether somebody does.
    ///
    /// Once it has resolved, the next campaign through the same [`Election`] begins one ttl later.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is lost: a wish that is still there is reported by the next call.
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
                self.course().asked();
                let Request { reason, host, pid, boot, .. } = request;
                return ResignRequest { reason, by: Identity { host, pid, boot } };
            }
            within(renew_every(self.guard().lease().ttl), hint).await;
        }
    }
}
