//! One attempt to acquire a lock.
//!
//! Cancellation: before the first request is sent, an [`Undo`] is made. If the attempt loses or its
//! future is dropped, the [`Undo`] releases what nodes may have granted. Only an attempt of a
//! takeover releases nothing (locks 13).

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
use crate::op::{IfHeld, LockMode, Op};
use crate::quorum::acquire::{Acquire, Loss};
use crate::quorum::slots::AcquireSlot;
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

/// Parameters of one attempt to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireRequest<'a> {
    pub(crate) mode: LockMode,
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// Action of a node if another owner has the lock: it registers this handle for a wake-up hint,
    /// or transfers the lock to the caller. `None`: it only refuses.
    pub(crate) if_held: Option<IfHeld>,
    /// Longest wait for a permit, of which a handle has `ATTEMPTS_MAX` for attempts under way; a
    /// value below `node_deadline` is raised to it.
    pub(crate) within: Duration,
    /// Owner token that all attempts of one takeover share. `None` for all other attempts, each of
    /// which draws a fresh token.
    pub(crate) taker: Option<OwnerToken>,
    /// An attempt that no majority can answer waits for the answers of the other nodes all the
    /// same, because the caller needs them.
    pub(crate) awaits_all: bool,
}

impl<'a> AcquireRequest<'a> {
    /// Makes the parameters of an attempt that waits for nothing and takes the lock from no other
    /// owner.
    pub(crate) fn new(keys: &'a LockKeys, ttl: Duration, level: Durability) -> Self {
        let (if_held, within, taker, awaits_all) = (None, Duration::ZERO, None, false);
        let mode = LockMode::Exclusive;
        Self { mode, keys, ttl, level, if_held, within, taker, awaits_all }
    }
}

/// Result of an attempt that got the lock.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) mode: LockMode,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) until: Moment,
    pub(crate) replies: Arc<ReplyCollector>,
}

impl Core {
    /// Waits for a permit to make an attempt. If there is none within `within` (at least
    /// `node_deadline`), the attempt fails without a request to any node.
    async fn place(&self, within: Duration) -> Result<SemaphorePermit<'_>, Loss> {
        if let Ok(place) = self.places.try_acquire() {
            return Ok(place);
        }
        let within = within.max(self.config.node_deadline);
        let place = tokio::select! {
            biased;
            // Closing wakes all calls that wait for a permit, and they would ask the nodes at once.
            () = self.closing.begun() => return Err(Loss::NoQuorum(self.closed())),
            place = timeout(within, self.places.acquire()) => place.ok().and_then(Result::ok),
        };
        place.ok_or_else(|| {
            let detail = "too many attempts of this handle are under way";
            let error = NodeError::not_executed(NodeFault::Busy, detail);
            Loss::NoQuorum(vec![NodeOutcome::Failed(error); self.n()])
        })
    }

    /// Makes one attempt to acquire a lock. The attempt is rolled back unless it wins. Only an
    /// attempt of a takeover is not rolled back: what it may have taken lapses by its ttl (locks
    /// 13).
    pub(crate) async fn attempt(&self, ask: AcquireRequest<'_>) -> Result<Acquired, Loss> {
        let AcquireRequest { mode, keys, ttl, level, if_held, within, taker, awaits_all } = ask;
        let timer = self.timer().map_err(Loss::NoQuorum)?;
        let _place = self.place(within).await?;
        let owner = taker.unwrap_or_else(|| OwnerToken::from_random(self.env.random()));
        let mode = match mode {
            LockMode::Slot(slots) => LockMode::Slot(slots.in_order_of(&owner)),
            LockMode::Exclusive | LockMode::Shared => mode,
        };
        let proposal = keys.all().map(|keys| self.proposal(keys.lock())).max().unwrap_or(0);
        let sent = self.env.now();
        let until = valid_until(sent, ttl, self.config.drift);
        let replies = ReplyCollector::at(self.n(), level, until);
        let raise =
            Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(0), slot: None };
        let machine = Acquire::new(self.n(), sent, until, self.patience(), raise);
        let only = matches!(if_held, Some(IfHeld::TakeOnly { .. }));
        let machine = machine.awaiting_all(awaits_all).taken_if_refused(only);
        let mut undo = Undo {
            core: self,
            op: Op::Release { mode, keys: keys.clone(), owner, meta: false },
            until: self.forgotten_at(sent, ttl),
            replies: Arc::clone(&replies),
            armed: taker.is_none(),
        };
        let acquire = Op::Acquire { mode, keys: keys.clone(), owner, ttl, proposal, if_held };
        let moves = mode.slots().map(|slots| (slots, acquire.clone()));
        self.send_all(acquire, self.node_deadline(sent).min(until), &replies);
        let round = Round { replies: &replies, timer, until, of: None };
        // If the attempt lost, the return drops `undo`, which releases what nodes granted. So the
        // caller's next attempt is not refused because of this one.
        let (token, mode) = match moves {
            None => {
                let mut machine = machine;
                let outcome = self.run(sent, &mut machine, round).await;
                keys.all().for_each(|keys| self.saw(keys.lock(), machine.largest(), proposal));
                (outcome?, mode)
            }
            Some((slots, acquire)) => {
                let mut machine = AcquireSlot::new(machine, acquire);
                let outcome = self.run(sent, &mut machine, round).await;
                self.saw(keys.lock(), machine.largest(), proposal);
                let (token, slot) = outcome?;
                replies.won_with(slot);
                let mode = LockMode::Slot(slots.exactly(slot));
                let keys = keys.clone();
                let op = Op::Extend { mode, keys, owner, ttl, token, meta: None, reassert: None };
                let deadline = self.node_deadline(self.env.now()).min(until);
                for node in machine.strays() {
                    // The extension may give the slot on a node whose refusal of the acquire is
                    // still on its way. The release then asks that node, too.
                    replies.extended(node);
                    self.send(node, op.clone(), deadline, &replies);
                }
                (token, mode)
            }
        };
        undo.armed = false;
        Ok(Acquired { mode, owner, token, ttl, until, replies })
    }
}
