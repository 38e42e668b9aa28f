//! The wait of a call that acquires several names (multi_lock 6). No work runs under the names that
//! it has collected; the last *join* is the grant of all. A call that is dropped releases them.

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
/// Doubled whenever the next name was not won within it, up to the ttl.
const LIMIT_MIN: Duration = Duration::from_millis(250);

pub(super) struct MultiWait<'a> {
    pub(super) mutex: &'a Mutex,
    /// In their order; at least two.
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

/// All attempts of one join have one owner token, so what nodes have transferred stays transferred
/// until the last has failed.
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
    pub(super) async fn acquire(mut self) -> Result<Lease, GivenUp<Loss>> {
        let (mutex, core) = (self.mutex, &self.mutex.core);
        let mut attempt = mutex.attempt(LockMode::Exclusive, self.operation);
        let end = Some(self.deadline.min(self.began + TOGETHER));
        let terms = RetryTerms { deadline: end, ..mutex.retry_terms(Wait::Pauses) };
        let mut given_up = match retry(core, &mut attempt, terms).await {
            Ok(won) => return Ok(won),
            Err(given_up) => given_up,
        };
        // So that a slow node can grant a name and answer within it.
        let mut limit = LIMIT_MIN.max(2 * core.config.node_deadline);
        while self.may_go_on(&given_up) {
            limit = limit.min(mutex.ttl);
            match Box::pin(self.collect(limit)).await {
                Ok(won) => return Ok(won),
                Err(Stop::GivenUp(later)) => given_up = later,
                Err(Stop::Over) => given_up.closed = !core.closing.is_open(),
            }
            limit *= 2;
        }
        Err(given_up)
    }

    /// `retry` makes its first attempt even after the deadline or the closing.
    fn check_time(&self) -> Result<(), Stop> {
        let core = &self.mutex.core;
        let is_over = core.env.now() >= self.deadline || !core.closing.is_open();
        if is_over { Err(Stop::Over) } else { Ok(()) }
    }

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

    /// Fails if the next name takes longer than `limit`, but only when it has won and released that
    /// name: until then, to collect the others again would be in vain.
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

    /// Not beyond `end`, until which the call holds the collected names.
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
        // A node may have granted the newest name and then refused the request for all.
        (0..core.n()).for_each(|node| won.grant.lock().extended(node));
        Ok((won, next))
    }
}
