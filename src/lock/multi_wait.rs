//! The wait of a call that acquires several names (multi_lock 6).
//!
//! First it makes attempts at all names together. If they are not free together, it collects them:
//! it waits for one name after the other in the nodes' queues, in the order of the names, and holds
//! what it has collected, but not longer than a limit that grows. No work runs under these leases.
//! When it wins the next name, one op moves the collected ones to the owner token that won it. The
//! last such *join* is the grant of all names.
//!
//! Cancellation: a call that is dropped releases what it has collected.

use std::time::Duration;

use super::Mutex;
use crate::client::Core;
use crate::client::acquire::{AFTER_QUARANTINE, LockAttempt, is_hopeless};
use crate::client::lease::Lease;
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect, RetryTerms, Wait, retry};
use crate::durability::Durability;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Op};
use crate::quorum::acquire::Loss;
use crate::span::Call;
use crate::time::Moment;
use crate::token::OwnerToken;

const TOGETHER: Duration = Duration::from_millis(250);
/// Smallest limit on the hold of collected names while waiting for the next. Not won within it, the
/// limit is doubled, up to the ttl.
const LIMIT_MIN: Duration = Duration::from_millis(250);

pub(super) struct MultiWait<'a> {
    pub(super) mutex: &'a Mutex,
    /// In the order of the names; at least two.
    pub(super) names: &'a [LockKeys],
    pub(super) operation: &'a Call,
    pub(super) began: Moment,
    pub(super) deadline: Moment,
}

/// Dropping this value releases the names.
struct Collected<'a> {
    core: &'a Core,
    keys: LockKeys,
    owner: OwnerToken,
    ttl: Duration,
    /// Until then a majority keeps the collected names for the call.
    until: Moment,
    armed: bool,
}

impl Drop for Collected<'_> {
    fn drop(&mut self) {
        if self.armed {
            let Self { core, owner, ttl, .. } = *self;
            let (mode, keys) = (LockMode::Exclusive, self.keys.clone());
            let release = Op::Release { mode, keys, owner, meta: false };
            core.undo(&release, None, core.forgotten_at(core.env.now(), ttl));
        }
    }
}

enum Stop {
    GivenUp(GivenUp<Loss>),
    Over,
}

impl From<GivenUp<Loss>> for Stop {
    fn from(given_up: GivenUp<Loss>) -> Self {
        Self::GivenUp(given_up)
    }
}

/// The last name was won with the owner token of `acquire`, the others are collected under `from`.
/// All attempts of one join have one owner token, so none is refused because of an earlier one, and
/// what nodes have transferred stays transferred until the last has failed.
struct Join<'a> {
    acquire: LockAttempt<'a>,
    from: OwnerToken,
}

impl Attempt for Join<'_> {
    type Granted = Lease;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Lease, Loss> {
        self.acquire.operation.attempt();
        let if_held = Some(IfHeld::TakeFrom(self.from));
        self.acquire.once(AttemptTerms { if_held, ..terms }).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        self.acquire.prospect(loss, deadline)
    }
}

impl<'a> MultiWait<'a> {
    /// All names, or none, by the call's deadline. If the future is dropped, all grants are
    /// released in the background.
    pub(super) async fn acquire(mut self) -> Result<Lease, GivenUp<Loss>> {
        let (mutex, core) = (self.mutex, &self.mutex.core);
        let mut attempt = mutex.attempt(LockMode::Exclusive, self.operation);
        let end = Some(self.deadline.min(self.began + TOGETHER));
        let terms = RetryTerms { deadline: end, ..mutex.retry_terms(Wait::Pauses) };
        let mut given_up = match retry(core, &mut attempt, terms).await {
            Ok(won) => return Ok(won),
            Err(given_up) => given_up,
        };
        // Twice a request's deadline, so that a slow node can grant a name and answer within it.
        let mut limit = LIMIT_MIN.max(2 * core.config.node_deadline);
        while self.may_go_on(&given_up) {
            limit = limit.min(mutex.ttl);
            // Boxed, so that the future of a call that gets all names together stays small.
            match Box::pin(self.collect(limit)).await {
                Ok(won) => return Ok(won),
                Err(Stop::GivenUp(later)) => given_up = later,
                Err(Stop::Over) => given_up.closed = !core.closing.is_open(),
            }
            limit *= 2;
        }
        Err(given_up)
    }

    /// Needed before each wait, because `retry` makes its first attempt even after the deadline or
    /// the closing.
    fn check_time(&self) -> Result<(), Stop> {
        let core = &self.mutex.core;
        let is_over = core.env.now() >= self.deadline || !core.closing.is_open();
        if is_over { Err(Stop::Over) } else { Ok(()) }
    }

    /// After a wait for quarantines beyond the deadline, moves it for the remaining attempts. A
    /// user's `acquire_timeout` stays.
    fn after_turn(&mut self) {
        let now = self.mutex.core.env.now();
        if now >= self.deadline && self.mutex.acquire_timeout.is_none() {
            self.deadline = now + AFTER_QUARANTINE;
        }
    }

    fn may_go_on(&self, given_up: &GivenUp<Loss>) -> bool {
        let core = &self.mutex.core;
        let is_hopeless = match &given_up.refused {
            Loss::NoQuorum(outcomes) => is_hopeless(&core.no_quorum(outcomes.clone())),
            Loss::Taken(_) => false,
        };
        !given_up.closed && !is_hopeless && core.env.now() < self.deadline
    }

    /// Fails if the next name takes longer than `limit`. Before that it releases the collected
    /// names and waits until it gets the name that was not free, and releases that too: until then,
    /// to collect the others again would be in vain.
    async fn collect(&mut self, limit: Duration) -> Result<Lease, Stop> {
        let mut collected = self.turn(&self.names[0], limit, None).await?;
        self.after_turn();
        let mut count = 1;
        loop {
            let name = &self.names[count];
            self.check_time()?;
            let next = match self.turn(name, limit, Some(collected.until)).await {
                Ok(next) => next,
                Err(given_up) => {
                    drop(collected);
                    if self.may_go_on(&given_up) {
                        drop(self.turn(name, limit, None).await?);
                        self.after_turn();
                    }
                    return Err(given_up.into());
                }
            };
            self.check_time()?;
            count += 1;
            let (won, mut joined) = self.join(collected, next, &self.names[..count], limit).await?;
            if count == self.names.len() {
                joined.armed = false;
                return Ok(won);
            }
            collected = joined;
        }
    }

    /// Waits for one name in the nodes' queues, until the call's deadline and not beyond `end`,
    /// until which the call holds the collected ones.
    async fn turn(
        &self,
        keys: &LockKeys,
        ttl: Duration,
        end: Option<Moment>,
    ) -> Result<Collected<'a>, GivenUp<Loss>> {
        let (mutex, core) = (self.mutex, &self.mutex.core);
        let mut attempt = LockAttempt {
            keys,
            ttl,
            // No work runs under a name until all are won, so no replica needs to confirm it.
            level: Durability::Primary,
            ..mutex.attempt(LockMode::Exclusive, self.operation)
        };
        attempt.waits_for_quarantine &= end.is_none();
        let terms = RetryTerms {
            key: keys.lock(),
            deadline: Some(end.map_or(self.deadline, |end| end.min(self.deadline))),
            since: Some(self.began),
            ..mutex.retry_terms(Wait::Queue(LockMode::Exclusive))
        };
        let won = retry(core, &mut attempt, terms).await?;
        let (owner, until) = (won.owner, won.until());
        Ok(Collected { core, keys: keys.clone(), owner, ttl, until, armed: true })
    }

    /// Moves the collected names to the owner token of `next`. Returns the lease of all.
    async fn join(
        &self,
        collected: Collected<'a>,
        mut next: Collected<'a>,
        names: &[LockKeys],
        limit: Duration,
    ) -> Result<(Lease, Collected<'a>), GivenUp<Loss>> {
        let (mutex, core) = (self.mutex, &self.mutex.core);
        let (ttl, level) = if names.len() == self.names.len() {
            (mutex.ttl, mutex.level)
        } else {
            (limit, Durability::Primary)
        };
        let keys = LockKeys::many(names.to_vec());
        (next.keys, next.ttl) = (keys.clone(), ttl);
        let acquire = LockAttempt {
            keys: &keys,
            ttl,
            level,
            taker: Some(next.owner),
            waits_for_quarantine: false,
            ..mutex.attempt(LockMode::Exclusive, self.operation)
        };
        let mut join = Join { acquire, from: collected.owner };
        let terms = RetryTerms {
            deadline: Some(collected.until.min(self.deadline)),
            ..mutex.retry_terms(Wait::Pauses)
        };
        let won = retry(core, &mut join, terms).await?;
        next.until = won.until();
        // A node may have granted the newest name and then refused the request for all, so a
        // release must go to all nodes.
        (0..core.n()).for_each(|node| won.grant.lock().extended(node));
        Ok((won, next))
    }
}
