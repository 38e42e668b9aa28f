//! The wait of a call that acquires a lock of several names (rule multi_lock 6 in docs/design).
//!
//! At first the call makes attempts at all names together, with pauses between them. If the names
//! are not free together, the call collects them: it waits for one name after the other in the
//! nodes' queues, in the order of the names. While the call waits for the next name, it holds the
//! names that it has collected, but not for longer than a limit that grows. These names are leases,
//! but no work runs under them yet. When the call wins the next name, it *joins* the names: one op
//! moves the collected names to the owner token that won the next name. The last join is the grant
//! of all names.
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

/// Time for which a call for several names makes attempts at all of the names together. After this
/// time it acquires (collects) them one by one.
const TOGETHER: Duration = Duration::from_millis(250);
/// Smallest value of the limit on the time for which a call holds collected names while it waits
/// for the next name. If the next name is not won within the limit, the limit is doubled, up to the
/// ttl.
const LIMIT_MIN: Duration = Duration::from_millis(250);

/// State of one call that waits for a lock of several names.
pub(super) struct MultiWait<'a> {
    /// Lock of all names together, with the settings of the call.
    pub(super) mutex: &'a Mutex,
    /// Keys on the nodes of each name, in the order of the names; at least two.
    pub(super) names: &'a [LockKeys],
    pub(super) operation: &'a Call,
    pub(super) began: Moment,
    pub(super) deadline: Moment,
}

/// Names that a call for several names has won so far (collected). Dropping this value releases
/// these names.
struct Collected<'a> {
    core: &'a Core,
    keys: LockKeys,
    owner: OwnerToken,
    ttl: Duration,
    /// Time until which a majority of the nodes keeps the collected names for the call.
    until: Moment,
    /// True if dropping this value releases the names that the call has collected.
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

/// Reason for which a call did not acquire the locks of all its names.
enum Stop {
    GivenUp(GivenUp<Loss>),
    /// The deadline of the call passed between two waits, or the `Redlock` handle is being closed.
    Over,
}

impl From<GivenUp<Loss>> for Stop {
    fn from(given_up: GivenUp<Loss>) -> Self {
        Self::GivenUp(given_up)
    }
}

/// Attempt to join names, so that all of them have one owner token. The call has won the last name
/// with the owner token of `acquire`, and has collected the other names with the owner token
/// `from`. All attempts of one join have one owner token. So no attempt is refused because of an
/// earlier one, and names that nodes have transferred stay transferred until the last attempt has
/// failed.
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
    /// Acquires all names, or none, by the deadline of the call.
    ///
    /// # Cancellation safety
    /// If the future is dropped, all grants of nodes are released in the background.
    pub(super) async fn acquire(mut self) -> Result<Lease, GivenUp<Loss>> {
        let (mutex, core) = (self.mutex, &self.mutex.core);
        let mut attempt = mutex.attempt(LockMode::Exclusive, self.operation);
        let end = Some(self.deadline.min(self.began + TOGETHER));
        let terms = RetryTerms { deadline: end, ..mutex.retry_terms(Wait::Pauses) };
        let mut given_up = match retry(core, &mut attempt, terms).await {
            Ok(won) => return Ok(won),
            Err(given_up) => given_up,
        };
        // `limit` is at least twice the deadline of a request to a node. If it were shorter, a slow
        // node could not grant a name and answer within `limit`.
        let mut limit = LIMIT_MIN.max(2 * core.config.node_deadline);
        while self.may_go_on(&given_up) {
            limit = limit.min(mutex.ttl);
            // The future of `collect` is boxed. So the future of a call that gets all names
            // together, and need not collect them one by one, stays small.
            match Box::pin(self.collect(limit)).await {
                Ok(won) => return Ok(won),
                Err(Stop::GivenUp(later)) => given_up = later,
                Err(Stop::Over) => given_up.closed = !core.closing.is_open(),
            }
            limit *= 2;
        }
        Err(given_up)
    }

    /// Returns an error if the deadline of the call has passed, or if the `Redlock` handle is being
    /// closed. This check is needed before each wait, because `retry` makes its first attempt even
    /// after the deadline or the closing.
    fn check_time(&self) -> Result<(), Stop> {
        let core = &self.mutex.core;
        let is_over = core.env.now() >= self.deadline || !core.closing.is_open();
        if is_over { Err(Stop::Over) } else { Ok(()) }
    }

    /// Moves the deadline so that the call can make its remaining attempts, if the call has waited
    /// beyond its deadline because nodes in quarantine granted nothing. If the user set an
    /// `acquire_timeout`, the deadline stays.
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

    /// Acquires the names of the call one after the other. Fails if the call waits for the next
    /// name for longer than `limit`. Before it fails, it releases the collected names and waits in
    /// the nodes' queues until it gets the name that was not free, and releases that name too.
    /// While another owner has that name, collecting the other names again would be in vain.
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

    /// Waits in the nodes' queues for one name, and acquires it. Waits until the deadline of the
    /// call, and not beyond `end`. This is the time until which the call holds the names that it
    /// has acquired (collected) before, or `None` if there are none.
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
            // No work runs under a name until all names are won, so no replica needs to confirm its
            // grant.
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

    /// Moves the collected names (acquired so far) to the owner token of `next`, the name that the
    /// call won last. Returns the lease of all these names together.
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
        // A node may have granted the newest name to the new owner token, and then refused the
        // request for all names together. So a later release must be sent to all nodes.
        (0..core.n()).for_each(|node| won.grant.lock().extended(node));
        Ok((won, next))
    }
}
