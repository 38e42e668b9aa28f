//! Attempts to acquire a lock. Before the first request an [`Undo`] is made: if the attempt loses
//! or its future is dropped, it releases what nodes may have granted. A takeover decides itself
//! what is released (locks 13).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{Sleep, timeout};

use crate::client::Core;
use crate::client::fair::Fair;
use crate::client::lease::{Lease, Subject};
use crate::client::release::Undo;
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect};
use crate::client::round::{Inbox, Round};
use crate::durability::Durability;
use crate::error::{
    AcquireError, Advice, NoQuorum, NodeError, NodeFault, NodeOutcome, Resource, Taken,
};
use crate::metrics::LeaseMeters;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Op};
use crate::quorum::acquire::{Acquire, Loss};
use crate::quorum::slots::AcquireSlot;
use crate::span::Call;
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

const WAIT: Duration = Duration::from_secs(30);
pub(crate) const AFTER_QUARANTINE: Duration = Duration::from_secs(1);

pub(crate) struct LockAttempt<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) of: Resource,
    pub(crate) keys: &'a LockKeys,
    pub(crate) mode: LockMode,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    pub(crate) meters: Arc<LeaseMeters>,
    pub(crate) operation: &'a Call,
    pub(crate) waits_for_quarantine: bool,
    pub(crate) awaits_all: bool,
    /// Owner token of all attempts of a takeover, a hand-over or a join.
    pub(crate) taker: Option<OwnerToken>,
    pub(crate) fair: Option<Fair<'a>>,
}

impl Core {
    /// Fails without a request to any node if no permit is free within `within` (at least
    /// `node_deadline`).
    async fn attempt_permit(&self, within: Duration) -> Result<SemaphorePermit<'_>, Loss> {
        if let Ok(permit) = self.attempt_permits.try_acquire() {
            return Ok(permit);
        }
        let within = within.max(self.config.node_deadline);
        let permit = tokio::select! {
            biased;
            // A handle that is being closed sends no requests, so the call does not wait for a
            // permit.
            () = self.closing.begun() => return Err(Loss::NoQuorum(self.closed())),
            permit = timeout(within, self.attempt_permits.acquire()) => {
                permit.ok().and_then(Result::ok)
            }
        };
        permit.ok_or_else(|| {
            let detail = "too many attempts of this handle are under way";
            let error = NodeError::not_executed(NodeFault::Busy, detail);
            Loss::NoQuorum(vec![NodeOutcome::Failed(error); self.n()])
        })
    }
}

impl LockAttempt<'_> {
    pub(crate) async fn once(&self, terms: AttemptTerms) -> Result<Lease, Loss> {
        let timer = self.core.timer().map_err(Loss::NoQuorum)?;
        let _permit = self.core.attempt_permit(terms.left).await?;
        let won = self.ask(terms.if_held, timer).await;
        if let Some(fair) = &self.fair {
            fair.attempted(&won, self.level, self.core.env.now());
        }
        won
    }

    async fn ask(&self, if_held: Option<IfHeld>, timer: Sleep) -> Result<Lease, Loss> {
        let Self { core, keys, mode, ttl, level, awaits_all, taker, .. } = *self;
        let if_held = match (&self.fair, if_held) {
            (Some(Fair { ticket, .. }), Some(IfHeld::Queue(place))) => {
                Some(IfHeld::Fair { place, ticket: *ticket })
            }
            _ => if_held,
        };
        let owner = taker.unwrap_or_else(|| OwnerToken::from_random(core.env.random()));
        let mode = match mode {
            LockMode::Slot(slots) => LockMode::Slot(slots.in_order_of(&owner)),
            LockMode::Exclusive | LockMode::Shared => mode,
        };
        let proposal = keys.all().map(|keys| core.proposal(keys.lock())).max().unwrap_or(0);
        let sent = core.env.now();
        let until = valid_until(sent, ttl, core.config.drift);
        let grant = core.grant(mode, level);
        let inbox = Inbox::of(&grant, 0, until);
        let raise =
            Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(0), slot: None };
        let machine = Acquire::new(core.n(), sent, until, core.patience(), raise);
        let only = matches!(if_held, Some(IfHeld::TakeOnly { .. }));
        let machine = machine.awaiting_all(awaits_all).taken_if_refused(only);
        let mut undo = Undo {
            core,
            op: Op::Release { mode, keys: keys.clone(), owner, meta: false },
            until: core.forgotten_at(sent, ttl),
            grant: Arc::clone(&grant),
            armed: taker.is_none(),
        };
        let acquire = Op::Acquire { mode, keys: keys.clone(), owner, ttl, proposal, if_held };
        let moves = mode.slots().map(|_| acquire.clone());
        core.send_all(acquire, core.node_deadline(sent).min(until), &inbox);
        let round = Round { inbox: &inbox, timer, until, of: None };
        let token = match moves {
            None => {
                let mut machine = machine;
                let outcome = core.run(sent, &mut machine, round).await;
                keys.all().for_each(|keys| core.saw(keys.lock(), machine.largest(), proposal));
                outcome?
            }
            Some(acquire) => {
                let mut machine = AcquireSlot::new(machine, acquire);
                let outcome = core.run(sent, &mut machine, round).await;
                core.saw(keys.lock(), machine.largest(), proposal);
                let (token, slot) = outcome?;
                let mode = grant.lock().won_with(slot);
                let keys = keys.clone();
                let op = Op::Extend { mode, keys, owner, ttl, token, meta: None, reassert: None };
                let deadline = core.node_deadline(core.env.now()).min(until);
                for node in machine.strays() {
                    // A refusal of the acquire may still arrive, but the extension may give the
                    // owner the slot.
                    grant.lock().extended(node);
                    core.send(node, op.clone(), deadline, &inbox);
                }
                token
            }
        };
        undo.armed = false;
        let subject = Subject::Lock { of: self.of.clone(), keys: keys.clone() };
        let meters = Arc::clone(&self.meters);
        let replicas = inbox.replicas();
        grant.lock().durability.replicas = replicas;
        Ok(Lease::new(subject, owner, token, ttl, until, grant, meters))
    }
}

impl Attempt for LockAttempt<'_> {
    type Granted = Lease;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Lease, Loss> {
        self.operation.attempt();
        self.once(terms).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        let is_refused = match loss {
            Loss::NoQuorum(outcomes) => self.core.is_refused(outcomes),
            Loss::Taken(_) => true,
        };
        let prospect = Prospect::after(loss, is_refused);
        if let Loss::NoQuorum(outcomes) = loss {
            let why = self.core.no_quorum(outcomes.clone());
            if is_hopeless(&why) {
                return None;
            }
            if let Some(fair) = &mut self.fair {
                if prospect == Prospect::NotDurable {
                    fair.not_durable();
                } else {
                    fair.unanswered(self.core.env.now());
                }
            }
            if self.waits_for_quarantine
                && let Some(left) = why.quarantine()
            {
                let end = self.core.env.now() + left + AFTER_QUARANTINE;
                *deadline = deadline.map(|deadline| deadline.max(end));
            }
        }
        if let (Some(fair), Loss::Taken(Taken { queued: Some(queued), .. })) =
            (&mut self.fair, loss)
            && fair.refused(*queued, self.core.env.now())
        {
            return Some(Prospect::Ticketed);
        }
        Some(prospect)
    }
}

pub(crate) fn acquire_deadline(core: &Core, timeout: Option<Duration>) -> Moment {
    core.env.now() + timeout.unwrap_or(WAIT)
}

pub(crate) fn is_hopeless(why: &NoQuorum) -> bool {
    matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild)
}

pub(crate) fn not_acquired(core: &Core, of: Resource, given_up: GivenUp<Loss>) -> AcquireError {
    let GivenUp { refused, waited, closed } = given_up;
    match refused {
        _ if closed => AcquireError::Closed(of),
        Loss::Taken(taken) => AcquireError::TimedOut { of, waited, taken },
        Loss::NoQuorum(outcomes) => {
            let why = core.no_quorum(outcomes).of(of);
            AcquireError::NoQuorum(NoQuorum { waited: Some(waited), ..why })
        }
    }
}
