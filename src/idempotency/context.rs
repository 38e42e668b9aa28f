//! The context of an attempt, for its handler and its probe.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::step::Steps;
use super::{Failed, StepError, canonical};
use crate::client::Core;
use crate::client::claim::Held;
use crate::client::failover::Failover;
use crate::client::lease::Lease;
use crate::durability::Achieved;
use crate::lock::LostSignal;
use crate::op::{Ballot, FingerprintBytes, StoredSteps};
use crate::time::Moment;
use crate::token::FencingToken;

/// The context of an attempt, passed to the handler and to the probe. A context is owned and cheap
/// to clone, so it can move into the handler's future and into spawned tasks.
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    core: Arc<Core>,
    lease: Arc<Lease>,
    ballot: Arc<Ballot>,
    namespace: Arc<str>,
    key: Arc<str>,
    attempt: u32,
    claimed: Moment,
    steps: Steps,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("namespace", &self.0.namespace)
            .field("key", &self.0.key)
            .field("attempt", &self.0.attempt)
            .field("fencing_token", &self.0.lease.token)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(
        core: &Arc<Core>,
        held: &Held,
        steps: Option<&StoredSteps>,
        (namespace, key): (&Arc<str>, &Arc<str>),
        attempt: u32,
    ) -> Self {
        Self(Arc::new(Shared {
            core: Arc::clone(core),
            lease: Arc::clone(&held.lease),
            ballot: Arc::clone(&held.ballot),
            namespace: Arc::clone(namespace),
            key: Arc::clone(key),
            attempt,
            claimed: core.env.now(),
            steps: Steps::new(steps),
        }))
    }

    pub(super) fn steps(&self) -> &Steps {
        &self.0.steps
    }

    /// Set if the handler did not reach a step that an earlier attempt finished. Its value must
    /// then not be stored.
    pub(super) fn unfinished(&self) -> Option<StepError> {
        self.0.steps.unfinished()
    }

    pub(super) async fn store(&self, step: &str, list: &Arc<[u8]>) -> Result<(), Failed> {
        let Err(why) = self.0.core.store_steps(&self.0.lease, &self.0.ballot, list).await else {
            return Ok(());
        };
        let (overtaken, nodes) = (why.overtaken, self.0.core.no_quorum(why.nodes));
        Err(StepError::NotRecorded { name: step.to_owned(), overtaken, nodes }.into())
    }

    /// Returns the fencing token. It is larger than the token of every earlier attempt under this
    /// key. Send the token with every write. The receiver must refuse a token that is smaller than
    /// an earlier one of the same key.
    pub fn fencing_token(&self) -> FencingToken {
        self.0.lease.token
    }

    /// Returns the number of this attempt, counted from 1. Only earlier attempts that left no
    /// result and may have taken effect count. An attempt without an effect, or one that may be
    /// repeated, does not count ([`Failed`]). An attempt that the nodes lost with
    /// their data does not count either.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Returns the key as the caller gave it.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Returns an idempotency key for a request of the step `step` to a downstream system. The
    /// downstream system must recognise repeats by this key. The key has 32 hexadecimal digits. It
    /// is the same for every attempt, and different for every step, key, namespace and prefix.
    pub fn child_key(&self, step: &str) -> String {
        canonical::child_key(&self.0.ballot.key, step)
    }

    /// Returns the request's [fingerprint](super::Call::fingerprint), if the call has one.
    pub fn fingerprint(&self) -> Option<&FingerprintBytes> {
        self.0.ballot.fingerprint.as_ref()
    }

    /// Returns the time for which the nodes keep the record of the key after its last write: at
    /// least the namespace's retention plus twice `clock_error`. A database that stores the key
    /// with the effect should keep the key for the same time.
    pub fn kept_for(&self) -> Duration {
        let config = &self.0.core.config;
        let fences = config.max_ttl + 4 * config.clock_error + Duration::from_secs(1);
        fences.max(self.0.ballot.retention + 2 * config.clock_error)
    }

    /// Returns the time since the nodes granted the claim of this attempt, by a clock that also
    /// counts while the machine is suspended.
    pub fn elapsed(&self) -> Duration {
        self.0.core.env.now().since(self.0.claimed)
    }

    /// Returns true if the claim is still held. Sends nothing; uses a local clock that also counts
    /// while the machine is suspended. After the first `false`, every later result is `false`.
    pub fn is_valid(&self) -> bool {
        !crate::lock::is_lost(&self.0.core, &self.0.lease)
    }

    /// Returns the time until the end of the lease; a renewal extends this time. Zero after a loss
    /// of the claim.
    pub fn remaining(&self) -> Duration {
        crate::lock::remaining(&self.0.core, &self.0.lease)
    }

    /// Returns the end of the lease as a tokio `Instant`; a renewal extends it. See also
    /// [`LockGuard::deadline`](crate::LockGuard::deadline).
    pub fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.remaining()
    }

    /// Returns the number of replicas that had the claim at its grant or its last renewal. After a
    /// failover to one of these replicas the node still has the record of this attempt.
    pub fn durability(&self) -> Achieved {
        self.0.lease.durability()
    }

    /// Resolves after a failover, a restart or a loss of data of a node, with the state of the
    /// claim after that event. It is like [`LockGuard::failover`](crate::LockGuard::failover) of a
    /// lock.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no state is lost: the next call returns it.
    pub async fn failover(&self) -> Failover {
        crate::lock::failover(&self.0.core, &self.0.lease).await
    }

    /// Resolves when the claim is lost, or when the call of this context has ended. After a loss
    /// another caller may run a handler under the key.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        crate::lock::lost(&self.0.core, &self.0.lease).await;
    }

    /// Returns a signal that resolves at the same time as [`lost`](Self::lost). It is for tasks
    /// without this context.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(&self.0.core, &self.0.lease)
    }
}
