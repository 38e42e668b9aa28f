//! One attempt to acquire a lock.
//!
//! Cancellation: every attempt has an [`Undo`] from the moment at which its first byte may be sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use crate::client::Core;
use crate::client::reply_collector::ReplyCollector;
use crate::client::round::Round;
use crate::client::undo::Undo;
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::name::LockKeys;
use crate::op::{IfHeld, Op};
use crate::quorum::acquire::{Acquire, Loss};
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

/// Request of one attempt to the nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireRequest<'a> {
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// Request to nodes where another owner has the lock.
    pub(crate) if_held: Option<IfHeld>,
    /// Longest wait for a permit (at most `ATTEMPTS_MAX` attempts run at once); at least
    /// `node_deadline`.
    pub(crate) within: Duration,
    /// Owner of all attempts of a takeover; `None`: each attempt draws a fresh one.
    pub(crate) taker: Option<OwnerToken>,
}

/// Result of a won attempt.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) until: Moment,
    pub(crate) replies: Arc<ReplyCollector>,
}

impl Core {
    /// Waits for a permit of `places`. After `within` (at least `node_deadline`) the attempt fails
    /// without having asked a node.
    async fn place(&self, within: Duration) -> Result<SemaphorePermit<'_>, Loss> {
        if let Ok(place) = self.places.try_acquire() {
            return Ok(place);
        }
        let within = within.max(self.config.node_deadline);
        let place = tokio::select! {
            biased;
            // All who wait are woken by it, and would ask the nodes at once.
            () = self.closing.begun() => return Err(Loss::NoQuorum(self.closed())),
            place = timeout(within, self.places.acquire()) => place.ok().and_then(Result::ok),
        };
        place.ok_or_else(|| {
            let detail = "too many attempts of this handle are under way";
            let error = NodeError::not_executed(NodeFault::Busy, detail);
            Loss::NoQuorum(vec![NodeOutcome::Failed(error); self.n()])
        })
    }

    /// Makes one attempt with an owner token of its own. The attempt is rolled back unless it wins;
    /// one of a takeover is not rolled back: what it may have taken lapses by its ttl (locks 13).
    pub(crate) async fn attempt(&self, ask: AcquireRequest<'_>) -> Result<Acquired, Loss> {
        let AcquireRequest { keys, ttl, level, if_held, within, taker } = ask;
        let timer = self.timer().map_err(Loss::NoQuorum)?;
        let _place = self.place(within).await?;
        let owner = taker.unwrap_or_else(|| OwnerToken::from_random(self.env.random()));
        let proposal = self.proposal(keys.lock());
        let sent = self.env.now();
        let until = valid_until(sent, ttl, self.config.drift);
        let replies = ReplyCollector::at(self.n(), level, until);
        let raise = Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(0) };
        let mut machine = Acquire::new(self.n(), sent, until, self.patience(), raise);
        let mut undo = Undo {
            core: self,
            op: Op::Release { keys: keys.clone(), owner, meta: false },
            until: self.forgotten_at(sent, ttl),
            replies: Arc::clone(&replies),
            armed: taker.is_none(),
        };
        let acquire = Op::Acquire { keys: keys.clone(), owner, ttl, proposal, if_held };
        self.send_all(acquire, self.node_deadline(sent).min(until), &replies);
        let round = Round { replies: &replies, timer, until, of: None };
        let outcome = self.run(sent, &mut machine, round).await;
        self.saw(keys.lock(), machine.largest(), proposal);
        // If the attempt lost, dropping `undo` rolls it back before the next attempt votes against
        // it.
        let token = outcome?;
        undo.armed = false;
        Ok(Acquired { owner, token, ttl, until, replies })
    }
}
