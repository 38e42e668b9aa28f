//! Hand-over of a lock to another process (`docs/design/hand_over.md`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::{LockGuard, Mutex, MutexBuilder};
use crate::client::Core;
use crate::client::acquire::LockAttempt;
use crate::client::lease::{Lease, Subject};
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect, RetryTerms, Wait, retry};
use crate::durability::Durability;
use crate::error::{AcquireError, ConfigError, HandOverError, ResumeError};
use crate::op::{IfHeld, LockMode, Op};
use crate::quorum::acquire::Loss;
use crate::safe_text::Quoted;
use crate::span::{Call, operation};
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

const VERSION: u8 = 1;

/// Ticket for a lock that its holder hands over to another process, which redeems it with
/// [`Redlock::resume`](crate::Redlock::resume). Made by [`LockGuard::hand_over`].
///
/// It is written and read with serde, for example as JSON in a message. **It is a secret**: whoever
/// has it can take the lock. `Debug` shows neither the owner token nor the key.
///
/// A ticket can be redeemed once, and only while the nodes still have the lock for the old holder,
/// so for about one ttl. If it is not redeemed, the lock stays taken for that time.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
#[must_use = "the lock stays taken until the ticket is redeemed or the ttl is over"]
pub struct HandOver {
    name: Arc<str>,
    key: Arc<str>,
    owner: OwnerToken,
    token: FencingToken,
    ttl: Duration,
    /// When the ticket was made, for how long the old holder could still have relied on the lock.
    rest: Duration,
    /// The old holder had taken the lock over from one that may still rely on it (locks 13). The
    /// new guard adds the drift of its own clock.
    closed: Duration,
    max_hold: Option<Duration>,
    renew: bool,
    level: Durability,
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver")
            .field("name", &self.name)
            .field("fencing_token", &self.token)
            .field("rest", &self.rest)
            .finish_non_exhaustive()
    }
}

impl HandOver {
    /// Returns the lock's name, as it was given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token of the holder that handed the lock over. The guard of
    /// [`Redlock::resume`](crate::Redlock::resume) has a larger one.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the time for which the ticket could be redeemed, counted from the moment at which it
    /// was made. The value does not change while the ticket is sent to the other process.
    pub fn rest(&self) -> Duration {
        self.rest
    }
}

/// Lengths of time in µs: two machines' clocks cannot be compared.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u8,
    name: Arc<str>,
    key: Arc<str>,
    owner: Box<str>,
    token: FencingToken,
    ttl: u64,
    rest: u64,
    closed: u64,
    max_hold: Option<u64>,
    renew: bool,
    replicas: Option<u32>,
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// In whole µs, rounded down.
fn whole(span: Duration) -> Duration {
    Duration::from_micros(micros(span))
}

/// In whole µs, rounded up.
fn whole_up(span: Duration) -> Duration {
    whole(span.saturating_add(Duration::from_nanos(999)))
}

impl From<HandOver> for Written {
    fn from(of: HandOver) -> Self {
        Self {
            version: VERSION,
            name: of.name,
            key: of.key,
            owner: of.owner.as_str().into(),
            token: of.token,
            ttl: micros(of.ttl),
            rest: micros(of.rest),
            closed: micros(of.closed),
            max_hold: of.max_hold.map(micros),
            renew: of.renew,
            replicas: match of.level {
                Durability::Primary => Some(0),
                Durability::Replicas(k) => Some(k),
                Durability::AllReplicas => None,
            },
        }
    }
}

impl TryFrom<Written> for HandOver {
    type Error = &'static str;

    fn try_from(of: Written) -> Result<Self, &'static str> {
        if of.version != VERSION {
            return Err("the ticket was written by another version of palisade; use one version");
        }
        let owner = OwnerToken::parse(of.owner.as_bytes()).filter(|owner| !owner.is_ownerless());
        let ttl = Duration::from_micros(of.ttl);
        Ok(Self {
            name: of.name,
            key: of.key,
            owner: owner.ok_or("the ticket has no owner token; it was damaged or made up")?,
            token: of.token,
            ttl,
            rest: Duration::from_micros(of.rest).min(ttl),
            closed: Duration::from_micros(of.closed).min(ttl),
            max_hold: of.max_hold.map(Duration::from_micros),
            renew: of.renew,
            level: match of.replicas {
                None => Durability::AllReplicas,
                Some(0) => Durability::Primary,
                Some(k) => Durability::Replicas(k),
            },
        })
    }
}

impl LockGuard {
    /// Hands the lock over to another process: extends the lock once more, ends this guard without
    /// a release, and returns the ticket with which [`Redlock::resume`](crate::Redlock::resume)
    /// gets the lock in the other process. No other owner gets the lock in between, if the ticket
    /// is redeemed within about one ttl.
    ///
    /// **Before the call, finish or stop all work under the guard.** The guard's lost signals
    /// resolve when the call ends. A late write of this process is refused only once the new holder
    /// has written under its larger token.
    ///
    /// Only the guard of a mutex and a [`WriteGuard`](super::WriteGuard) can be handed over. The
    /// ticket contains the ttl, the durability level, the rest of `max_hold`, and whether the lock
    /// is renewed. The time between the making of the ticket and its redemption does not count
    /// towards `max_hold`, because the clocks of two machines cannot be compared.
    ///
    /// If the ticket cannot be sent, redeem it in this process. If the process dies first, the lock
    /// is free after one ttl.
    ///
    /// # Errors
    /// [`HandOverError::Lost`] if the lock is lost. [`HandOverError::Unconfirmed`] if too few nodes
    /// confirmed the extension. [`HandOverError::NotExclusive`] for a lock that is held for
    /// reading, a permit, and several names. After an error there is no ticket, the guard is gone,
    /// and the lock is released in the background: stop the work, or acquire the lock again.
    ///
    /// # Cancellation safety
    /// If dropped, there is no ticket, and the lock is released in the background, as by a drop of
    /// the guard.
    pub async fn hand_over(self) -> Result<HandOver, HandOverError> {
        let operation = operation!("hand_over", of = %self.resource());
        operation.token(self.fencing_token());
        let ticket = self.give_up().instrument(operation.span()).await;
        operation.over(match &ticket {
            Ok(_) => "handed_over",
            Err(HandOverError::Lost(_)) => "lost",
            Err(HandOverError::Unconfirmed(_)) => "unconfirmed",
            Err(HandOverError::NotExclusive(_)) => "not_exclusive",
        });
        ticket
    }

    async fn give_up(self) -> Result<HandOver, HandOverError> {
        let (core, lease) = (self.core(), self.lease());
        let is_one = matches!(&lease.subject, Subject::Lock { keys, .. } if !keys.is_many());
        if lease.grant.lock().mode != LockMode::Exclusive || !is_one {
            return Err(HandOverError::NotExclusive(self.resource()));
        }
        // A renewal that arrives after the extension below could create the lock again where the
        // next holder has already released it.
        lease.seal();
        core.renewer.remove(lease);
        let until = self.extend().await?;
        self.ticket(until, core.env.now())
    }

    fn ticket(&self, until: Moment, now: Moment) -> Result<HandOver, HandOverError> {
        let lease = self.lease();
        let lost = || Err(HandOverError::Lost(self.resource()));
        let Subject::Lock { keys, .. } = &lease.subject else { return lost() };
        let ticket = HandOver {
            name: self.name().into(),
            key: keys.lock().into(),
            owner: lease.owner,
            token: lease.token,
            // A node transfers the lock only for a ttl that is not shorter than the rest of the old
            // lease.
            ttl: whole_up(lease.ttl),
            rest: whole(until.since(now)),
            closed: whole_up(lease.lapses_before.since(now)).min(whole_up(lease.ttl)),
            max_hold: lease.renew_until.map(|end| whole(end.since(now))),
            renew: self.renews(),
            level: lease.durability().level,
        };
        if lease.end_held(now) {
            return Ok(ticket);
        }
        // The drop of a guard whose lease has ended releases nothing.
        self.undo(now);
        lost()
    }
}

struct Resume<'a> {
    acquire: LockAttempt<'a>,
    ticket: &'a HandOver,
    /// Of all attempts, so a node whose answer was lost does not refuse the next one.
    taker: OwnerToken,
    /// When the last attempt was sent; `None` if the drop has nothing to release.
    owed: Option<Moment>,
}

impl Attempt for Resume<'_> {
    type Granted = Lease;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Lease, Loss> {
        let core = self.acquire.core;
        self.acquire.operation.attempt();
        self.owed = Some(core.env.now());
        let HandOver { owner: from, token, .. } = *self.ticket;
        let if_held = Some(IfHeld::TakeOnly { from, token });
        self.acquire.once(AttemptTerms { if_held, ..terms }).await
    }

    /// After a refusal the nodes that did not refuse are no majority (hand_over 5).
    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        match loss {
            Loss::Taken(_) => None,
            Loss::NoQuorum(_) => self.acquire.prospect(loss, deadline),
        }
    }
}

/// The old holder has given up what nodes have transferred, and no other ticket can redeem it. If
/// an earlier holder may still rely on it, it ends with its ttl (locks 13).
impl Drop for Resume<'_> {
    fn drop(&mut self) {
        let LockAttempt { core, keys, ttl, .. } = &self.acquire;
        if let Some(sent) = self.owed.filter(|_| self.ticket.closed.is_zero()) {
            let (mode, owner) = (LockMode::Exclusive, self.taker);
            let release = Op::Release { mode, keys: (*keys).clone(), owner, meta: false };
            core.undo(&release, None, core.forgotten_at(sent, *ttl));
        }
    }
}

pub(crate) async fn resume(core: &Arc<Core>, ticket: &HandOver) -> Result<LockGuard, ResumeError> {
    let mutex = mutex_of(core, ticket)?;
    let operation = operation!("resume", of = %mutex.resource());
    let call = Acquiring::begin(core, &ticket.name);
    let resumed = redeem(&mutex, ticket, &operation).instrument(operation.span()).await;
    let failed = resumed.as_ref().err().and_then(acquire_error);
    call.over(
        operation,
        match (&resumed, &failed) {
            (Ok(guard), _) => Ok(Some(guard)),
            (Err(_), Some(error)) => Err(error),
            (Err(_), None) => Ok(None),
        },
    );
    resumed
}

/// A ticket that was refused counts as a lock that is taken.
fn acquire_error(error: &ResumeError) -> Option<AcquireError> {
    match error {
        ResumeError::Gone(_) => None,
        ResumeError::NoQuorum(why) => Some(AcquireError::NoQuorum(why.clone())),
        ResumeError::Closed(of) => Some(AcquireError::Closed(of.clone())),
        ResumeError::Config(why) => Some(AcquireError::Config(why.clone())),
    }
}

fn mutex_of(core: &Arc<Core>, ticket: &HandOver) -> Result<Mutex, ResumeError> {
    let HandOver { name, key, ttl, max_hold, renew, level, .. } = ticket;
    let builder = MutexBuilder::<Mutex>::new(Arc::clone(core), name);
    // Rounded up to µs, the largest allowed ttl would be refused.
    let longest = core.config.max_ttl;
    let ttl = if *ttl == whole_up(longest) { longest } else { *ttl };
    let builder = builder.ttl(ttl).auto_renew(*renew).durability(*level);
    let builder = match max_hold {
        Some(limit) => builder.max_hold(*limit),
        None => builder,
    };
    let mutex = builder.build().map_err(ResumeError::Config)?;
    if mutex.keys.lock() == &**key {
        return Ok(mutex);
    }
    let prefix = Quoted(&core.config.prefix).to_string();
    let rule = "the ticket was made by a handle with another prefix; resume with one that has it";
    let error = ConfigError::new("prefix", prefix, rule);
    Err(ResumeError::Config(error.of(mutex.resource())))
}

async fn redeem(
    mutex: &Mutex,
    ticket: &HandOver,
    operation: &Call,
) -> Result<LockGuard, ResumeError> {
    let core = &mutex.core;
    let of = || mutex.resource();
    let closed = || ResumeError::Closed(of());
    let _operation = core.closing.enter().ok_or_else(closed)?;
    let taker = OwnerToken::from_random(core.env.random());
    let acquire = LockAttempt {
        taker: Some(taker),
        // The ticket can be redeemed only for `rest`.
        waits_for_quarantine: false,
        ..mutex.attempt(LockMode::Exclusive, operation)
    };
    let mut resume = Resume { acquire, ticket, taker, owed: None };
    let terms = RetryTerms {
        deadline: Some(core.env.now() + ticket.rest),
        ..mutex.retry_terms(Wait::Watch)
    };
    let won = retry(core, &mut resume, terms).await.map_err(|given_up| {
        let GivenUp { refused, waited, closed: is_closed } = given_up;
        match refused {
            _ if is_closed => closed(),
            Loss::Taken(_) => ResumeError::Gone(of()),
            Loss::NoQuorum(outcomes) => {
                let mut why = core.no_quorum(outcomes).of(of());
                why.waited = Some(waited);
                ResumeError::NoQuorum(why)
            }
        }
    })?;
    resume.owed = None;
    let closed = ticket.closed + core.config.drift.of(ticket.closed);
    Ok(mutex.guard(won.lapsing_before(core.env.now() + closed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryNode, Redlock, TryAcquire};

    /// The nodes keep the lock for longer than its holder may rely on it.
    #[tokio::test]
    async fn a_hand_over_past_the_deadline_releases_the_lock() {
        let redlock = Redlock::builder().node(MemoryNode::new()).build().unwrap();
        let mutex = redlock.mutex("job").build().unwrap();
        let guard = mutex.acquire().await.unwrap();
        let until = guard.valid_until();
        let late = guard.ticket(until, until + Duration::from_millis(1));
        assert!(matches!(late, Err(HandOverError::Lost(_))));
        drop(guard);
        let next = mutex.try_acquire().await.unwrap();
        assert!(matches!(next, TryAcquire::Acquired(_)), "it is left taken");
    }
}
