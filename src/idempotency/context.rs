//! The context that a handler and a probe get: the claim of their attempt, its fencing token and
//! its steps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::step::Steps;
use super::{Failed, StepError, canonical};
use crate::client::Core;
use crate::client::failover::Failover;
use crate::client::lease::{Lease, Subject};
use crate::durability::Achieved;
use crate::lock::LostSignal;
use crate::op::{FingerprintBytes, RecordKey, StoredSteps};
use crate::time::Moment;
use crate::token::FencingToken;

/// The context of an attempt, passed to the handler and to the probe. Cheap to clone, and owned, so
/// that it can move into the handler's future and into tasks that the handler spawns.
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    core: Arc<Core>,
    lease: Arc<Lease>,
    record: RecordKey,
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
        lease: &Arc<Lease>,
        (record, steps): (&RecordKey, Option<&StoredSteps>),
        (namespace, key): (&Arc<str>, &Arc<str>),
        attempt: u32,
    ) -> Self {
        Self(Arc::new(Shared {
            core: Arc::clone(core),
            lease: Arc::clone(lease),
            record: Arc::clone(record),
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

    /// Returns an error if an earlier attempt finished a step that the handler of this attempt did
    /// not reach. The handler's value must then not be stored.
    pub(super) fn unfinished(&self) -> Option<StepError> {
        self.0.steps.unfinished()
    }

    /// Stores `list`, which has all finished steps of the key, on a majority of nodes. `step` is
    /// the name that an error reports.
    pub(super) async fn store(&self, step: &str, list: &Arc<[u8]>) -> Result<(), Failed> {
        let Err(why) = self.0.core.store_steps(&self.0.lease, list).await else { return Ok(()) };
        let (overtaken, nodes) = (why.overtaken, self.0.core.no_quorum(why.nodes));
        Err(StepError::NotRecorded { name: step.to_owned(), overtaken, nodes }.into())
    }

    /// Returns the fencing token: larger than that of every earlier attempt on this key. Send it
    /// with every write, and let the receiver refuse a token that is smaller than one that it has
    /// seen for the key.
    pub fn fencing_token(&self) -> FencingToken {
        self.0.lease.token
    }

    /// Returns the number of this attempt: 1 for the first one, more if earlier attempts left no
    /// result and may have taken effect. Attempts that reported that they had no effect or may be
    /// repeated ([`Failed`](super::Failed)) do not count, nor do attempts that the nodes lost with
    /// their data.
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

    /// Returns an idempotency key for a request of this step to a downstream system that recognises
    /// repeats by such a key. It has 32 hexadecimal digits, and is the same for every attempt and
    /// different for every step, key, namespace and prefix.
    pub fn child_key(&self, step: &str) -> String {
        canonical::child_key(&self.0.record, step)
    }

    /// Returns the request's [fingerprint](super::Call::fingerprint), if the call has one.
    pub fn fingerprint(&self) -> Option<&FingerprintBytes> {
        match &self.0.lease.subject {
            Subject::Claim { fingerprint, .. } => fingerprint.as_ref(),
            Subject::Lock { .. } => None,
        }
    }

    /// Returns how long the nodes keep the record of the key after they wrote it last: at least the
    /// namespace's retention plus twice `clock_error`. A database that stores the key together with
    /// the effect should keep the key as long.
    pub fn kept_for(&self) -> Duration {
        let config = &self.0.core.config;
        let fences = config.max_ttl + 4 * config.clock_error + Duration::from_secs(1);
        match &self.0.lease.subject {
            Subject::Claim { retention, .. } => fences.max(*retention + 2 * config.clock_error),
            Subject::Lock { .. } => fences,
        }
    }

    /// Returns the time since this attempt's claim was granted. The clock also counts while the
    /// machine is suspended.
    pub fn elapsed(&self) -> Duration {
        self.0.core.env.now().since(self.0.claimed)
    }

    /// Returns true if the claim is still held. Sends nothing, but looks at a local clock that also
    /// counts while the machine is suspended. Once it has returned false it never returns true
    /// again.
    pub fn is_valid(&self) -> bool {
        !crate::lock::is_lost(&self.0.core, &self.0.lease)
    }

    /// Returns the time until the lease ends unless it is renewed; zero once the claim is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.0.core.env.now();
        if self.0.lease.is_valid(now) { self.0.lease.until().since(now) } else { Duration::ZERO }
    }

    /// Returns the time at which the lease ends unless it is renewed, as a tokio `Instant`; see
    /// also [`LockGuard::deadline`](crate::LockGuard::deadline).
    pub fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.remaining()
    }

    /// Returns how many replicas had the claim when it was granted or renewed last. On this depends
    /// whether the nodes still know after a failover that this attempt began.
    pub fn durability(&self) -> Achieved {
        self.0.lease.durability()
    }

    /// Resolves when a node failed over, was restarted or lost its data, and returns the state of
    /// the claim after that, as [`LockGuard::failover`](crate::LockGuard::failover) does for a
    /// lock.
    ///
    /// # Cancellation safety
    /// If dropped, the state of the claim is not consumed: the next call returns it.
    pub async fn failover(&self) -> Failover {
        crate::lock::failover(&self.0.core, &self.0.lease).await
    }

    /// Resolves when the claim is lost, so that another caller may run the key, or when the call
    /// that made this context is over.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        crate::lock::lost(&self.0.core, &self.0.lease).await;
    }

    /// Returns a signal that resolves when [`lost`](Self::lost) does, for tasks that do not have
    /// this context.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(&self.0.core, &self.0.lease)
    }
}
