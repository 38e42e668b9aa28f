//! A call under one idempotency key: its settings and its operations.

use std::future::{Future, Ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::birth::{self, check_past, millis_since_1970};
use super::policy::Policy;
use super::run::{self, decode, encode};
use super::store::{Store, store};
use super::unknown_past::Doubt;
use super::{
    CodecError, Context, Failed, Forgotten, Idempotency, KeyName, Lapsed, NotRecorded, Outcome,
    Probed, Resolved, RunError, Status,
};
use crate::client::claim::{ClaimTerms, DataLossTerms};
use crate::error::{ConfigError, NoQuorum, NodeOutcome};
use crate::name::{check_name, record_key};
use crate::op::FingerprintBytes;
use crate::quorum::complete::Found;
use crate::quorum::record::Refusal;

/// A call under one idempotency key, with its settings. Nothing is sent before the future of one of
/// its operations is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Call {
    pub(super) of: Idempotency,
    pub(super) key: Arc<str>,
    pub(super) policy: Policy,
    /// Longest wait for the result of another caller's handler that runs under the key; `None`: the
    /// default of the operation.
    pub(super) in_flight_timeout: Option<Duration>,
    pub(super) fingerprint: Result<Option<FingerprintBytes>, CodecError>,
    /// Time at which the request was made, in milliseconds since 1970; `None` if it is unknown.
    created: Option<u64>,
    bad: Option<ConfigError>,
}

/// A call with a probe, a function that reports whether earlier attempts took effect. Made by
/// [`Call::probe`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Probing<P> {
    pub(super) call: Call,
    probe: P,
}

impl Call {
    pub(super) fn new(of: Idempotency, key: &str) -> Self {
        Self {
            bad: check_name("key", key).err(),
            key: Arc::from(key),
            policy: of.policy,
            in_flight_timeout: None,
            fingerprint: Ok(None),
            created: None,
            of,
        }
    }

    /// Sets the fingerprint of the request, a hash of its content. A later call under the same key
    /// with another fingerprint is answered [`Outcome::Mismatch`], not with this request's result.
    ///
    /// The fingerprint is SHA-256 over the canonical form of `request`: JSON without white space,
    /// with the members of every object sorted by the bytes of their names, numbers and strings as
    /// `serde_json` prints them. If `request` cannot be written as JSON, the operations of the call
    /// return an error.
    pub fn fingerprint<R: Serialize + ?Sized>(mut self, request: &R) -> Self {
        self.fingerprint = super::canonical::fingerprint(request).map(Some);
        self
    }

    /// Sets the fingerprint as [`fingerprint`](Self::fingerprint) does, as SHA-256 over these bytes
    /// as they are. For requests whose copies all consist of the same bytes.
    pub fn fingerprint_bytes(mut self, request: &[u8]) -> Self {
        self.fingerprint = Ok(Some(super::canonical::of_bytes(request)));
        self
    }

    /// Sets the time at which the *request* was made, which is the same in every copy of the
    /// request, however often it is sent. Use a time that the message carries, not the time at
    /// which this copy arrived. If the time is set:
    ///
    /// - Nodes that are new or lost data (a first start, a restart, a failover) know that a request
    ///   which was made after the loss, plus a margin, was never run, so it runs as soon as they
    ///   grant claims again. Without the time they cannot know this of any new key until one
    ///   retention has passed, and the policy for [forgotten](Forgotten) keys decides. The margin
    ///   is twice `clock_error`, and for a Sentinel group also the failover window.
    /// - If a copy arrives when the request is older than the retention, by the nodes' clocks, it
    ///   is answered [`Outcome::TooOld`], because its record may be gone. Without the time such a
    ///   copy runs again.
    ///
    /// The time is assumed to be right within `clock_error`. If the sender's clock is behind by
    /// more, the answer is only more careful than needed. If it is ahead by more, a request that
    /// ran shortly before a node lost its data may run again, because it looks newer than the loss.
    /// A time further ahead of this machine's clock than twice `clock_error` is refused as
    /// [`RunError::Config`]. So for requests made on machines whose clocks are not kept in time
    /// (browsers, phones), give the time at which your own first server received them.
    pub fn created_at(mut self, created: SystemTime) -> Self {
        self.created = Some(millis_since_1970(created));
        self
    }

    /// Sets the time at which the request was made, as [`created_at`](Self::created_at) does, from
    /// a key that is a version 7 UUID. If the key has another form, the operations of the call
    /// return an error. For a key of which a UUID is only a part, there is the function
    /// [`created_in_uuid_v7`](super::created_in_uuid_v7).
    pub fn created_in_uuid_v7(self) -> Self {
        let created = birth::created_in_uuid_v7(&self.key);
        self.created_in(created, "a version 7 UUID")
    }

    /// Sets the time at which the request was made, as [`created_at`](Self::created_at) does, from
    /// a key that is a ULID. If the key has another form, the operations of the call return an
    /// error. For a key of which a ULID is only a part, there is the function
    /// [`created_in_ulid`](super::created_in_ulid).
    pub fn created_in_ulid(self) -> Self {
        let created = birth::created_in_ulid(&self.key);
        self.created_in(created, "a ULID")
    }

    fn created_in(mut self, created: Option<SystemTime>, what: &str) -> Self {
        if let Some(created) = created {
            return self.created_at(created);
        }
        if self.bad.is_none() {
            let rule =
                format!("must be {what} to say when it was made; or call `created_at` instead");
            self.bad = Some(ConfigError::new("key", format!("{:?}", self.key), rule));
        }
        self
    }

    /// Sets, for this call alone, the policy for a key whose earlier attempt began and left no
    /// result.
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.policy.lapsed = policy;
        self
    }

    /// Sets, for this call alone, the policy for a key of which too few nodes know whether it was
    /// used before.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.policy.forgotten = policy;
        self
    }

    /// Sets the longest time for which the call waits while another caller's handler runs under the
    /// key; then it is answered [`Outcome::InFlight`]. Zero means that the call does not wait. The
    /// end of the handler wakes the call. Default 1 s. In a batch that is claimed together
    /// ([`Idempotency::claim_many`]) the default is zero, because one call that waits delays the
    /// whole batch.
    pub fn in_flight_timeout(mut self, timeout: Duration) -> Self {
        self.in_flight_timeout = Some(timeout);
        self
    }

    /// Sets a probe, a function that reports whether earlier attempts took effect. It replaces the
    /// policies [`Lapsed`] and [`Forgotten`]. It is called before the handler runs, and only if an
    /// earlier attempt left no result or too few nodes know whether there was one. It gets the
    /// context of the new attempt, which has the same [`child_key`](Context::child_key)s as the
    /// earlier attempts, and it must only read.
    ///
    /// [`Found`](Probed::Found) is stored and answered as [`Outcome::Replayed`], because the effect
    /// is that of an earlier attempt. After [`NotFound`](Probed::NotFound) the handler runs. After
    /// [`Unknown`](Probed::Unknown) the key is parked, unless it is only forgotten and an operator
    /// decided to run such keys.
    pub fn probe<P, PF>(self, probe: P) -> Probing<P>
    where
        P: FnOnce(Context) -> PF,
    {
        Probing { call: self, probe }
    }

    /// Runs the handler unless the key has a result, and stores what it returns.
    ///
    /// The handler runs inside this future. While the handler runs its claim is renewed; if renewal
    /// fails until the lease ends, [`Context::lost`] resolves and other callers may take over. A
    /// result is stored as JSON.
    ///
    /// If the handler fails, its error decides what the next call does. After an ordinary error it
    /// is unknown whether the handler took effect, so the next call decides by its policy or its
    /// probe. A handler that knows more returns [`Failed`]. In both cases the claim ends at once,
    /// so that no other caller has to wait for the end of the lease.
    ///
    /// # Errors
    /// [`RunError`] if nothing was run (`Config`, `NoQuorum`, `NotInitialised`), if the handler
    /// failed (`Handler`), if it ran and its result is not known to be stored (`NotRecorded`), or
    /// if a value could not be converted to JSON or back (`Codec`).
    ///
    /// # Cancellation safety
    /// If dropped before the handler was started, the claim is released and the attempt does not
    /// count. If dropped while the handler runs, the handler is dropped at its current await; the
    /// claim is not released, so other callers find the key in flight until the lease ends, and
    /// then a lapsed attempt. A server framework drops a request's future when its client hangs up:
    /// there, use [`detached`](Self::detached), so that a handler that has begun is finished. If
    /// dropped while the result is being stored, the requests are already sent, so the result is
    /// stored if enough nodes execute them.
    pub async fn run<T, E, F, Fut>(self, handler: F) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let no_probe = None::<fn(Context) -> Ready<Probed<T>>>;
        run::run(self, no_probe, handler).await
    }

    /// Runs the handler as [`run`](Self::run) does, with [`Lapsed::Rerun`] and [`Forgotten::Run`].
    /// Operators use it for a parked key when they found out that its effect did not happen.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation safety
    /// As [`run`](Self::run).
    pub async fn rerun<T, E, F, Fut>(mut self, handler: F) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.policy = Policy::AT_LEAST_ONCE;
        self.run(handler).await
    }

    /// Stores a result without running a handler. Operators use it for a parked key when they found
    /// out that its effect did happen. An existing result is never changed, and a running handler
    /// is not interrupted.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, `Codec`; `NotRecorded` if the result may or may not have been stored.
    ///
    /// # Cancellation safety
    /// If dropped, the result may or may not be stored; resolving again is safe.
    pub async fn resolve<T>(self, value: &T) -> Result<Resolved<T>, RunError>
    where
        T: Serialize + DeserializeOwned,
    {
        let terms = self.terms()?;
        let bytes = encode(value).map_err(|e| self.codec(e))?;
        if bytes.len() > self.of.max_result {
            return Ok(Resolved::TooLarge);
        }
        Ok(match store(&self, &terms, Some(&bytes), true).await {
            Store::Ours => Resolved::Stored,
            Store::Other(Some(bytes)) => {
                Resolved::AlreadyStored(decode(&bytes).map_err(|e| self.codec(e))?)
            }
            Store::Other(None) => Resolved::AlreadyStoredNotKept,
            Store::Refused(Refusal::Mismatch) => Resolved::Mismatch,
            Store::Refused(Refusal::NoQuorum(nodes)) => return Err(self.no_quorum(nodes)),
            Store::Refused(
                Refusal::InFlight { retry_after } | Refusal::Contended { retry_after },
            ) => Resolved::InFlight { retry_after },
            // Neither is expected here: `store` claims with `force`, which nodes never refuse
            // because of the request's age, and with `sure` it stores also if the key is forgotten.
            Store::Forgotten(_) | Store::Refused(Refusal::TooOld) => {
                Resolved::InFlight { retry_after: Duration::ZERO }
            }
            Store::Unsure(not) => return Err(RunError::NotRecorded(*not)),
        })
    }

    /// Reads the state of the key without claiming it. If the call has a
    /// [`fingerprint`](Self::fingerprint), a result that was stored with another one is not
    /// returned.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, or `Codec` if what is stored cannot be read as `T`.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub async fn lookup<T: DeserializeOwned>(self) -> Result<Status<T>, RunError> {
        let terms = self.terms()?;
        Ok(match self.of.core.look(&terms).await {
            Found::Stored(record) => match record.value {
                Some(bytes) => Status::Stored(decode(&bytes).map_err(|e| self.codec(e))?),
                None => Status::NotKept,
            },
            Found::Open { attempt, lease: Some(remaining), .. } => {
                Status::Running { attempt, remaining }
            }
            Found::Open { partial: true, .. } => Status::Unsettled,
            Found::Open { attempt: 0, forgotten: Some(remaining), .. } => {
                Status::Forgotten { remaining }
            }
            Found::Open { attempt: 0, .. } => Status::Absent,
            Found::Open { attempt, .. } => Status::Lapsed { attempt },
            Found::Mismatch => Status::Mismatch,
            Found::NoQuorum(nodes) => return Err(self.no_quorum(nodes)),
        })
    }

    pub(crate) fn name(&self) -> KeyName {
        KeyName::new(&self.of.namespace, &self.key)
    }

    /// Returns the prefix that the handle puts before each of its keys on the nodes.
    pub(crate) fn prefix(&self) -> &str {
        &self.of.core.config.prefix
    }

    fn config(&self, error: ConfigError) -> RunError {
        RunError::Config { key: self.name(), error }
    }

    pub(super) fn codec(&self, error: CodecError) -> RunError {
        RunError::Codec { key: self.name(), error }
    }

    /// Returns how long to wait before this call is made again, because another caller's handler
    /// runs. `rest` is the time until the lease of the other caller's claim ends.
    pub(super) fn pause(&self, rest: Duration) -> Duration {
        let env = &self.of.core.env;
        let lease = (self.of.lease, rest);
        self.of.in_flight.pause(&self.key, (env.now(), env.random()), lease)
    }

    pub(super) fn no_quorum(&self, nodes: Vec<NodeOutcome>) -> RunError {
        RunError::NoQuorum { key: self.name(), error: self.nodes(nodes) }
    }

    /// Returns the error for a key that may have been used before. It names the nodes whose data
    /// began empty and that no operator has marked as new.
    pub(super) fn not_initialised(&self, doubt: &Doubt) -> RunError {
        let fresh = doubt.forgotten.iter().flat_map(|forgotten| &forgotten.fresh);
        let nodes = fresh.map(|node| self.of.core.name(*node)).collect();
        RunError::NotInitialised { key: self.name(), nodes }
    }

    pub(super) fn not_recorded(
        &self,
        (attempt, token): (u32, crate::token::FencingToken),
        overtaken: bool,
        nodes: Vec<NodeOutcome>,
    ) -> NotRecorded {
        let (key, nodes) = (self.name(), self.nodes(nodes));
        NotRecorded { key, attempt, token, overtaken, nodes }
    }

    fn nodes(&self, nodes: Vec<NodeOutcome>) -> NoQuorum {
        self.of.core.no_quorum(nodes)
    }

    /// Checks the settings of the call, and builds the terms of its claim.
    pub(super) fn terms(&self) -> Result<ClaimTerms, RunError> {
        let of = &self.of;
        if let Some(bad) = &self.bad {
            return Err(self.config(bad.clone()));
        }
        if let Some(created) = self.created {
            let (now, error) = (of.core.env.wall_micros(), of.core.config.clock_error);
            check_past("created_at", created, now, error).map_err(|e| self.config(e))?;
        }
        let key = record_key(&of.core.config.prefix, &of.namespace, &self.key);
        Ok(ClaimTerms {
            key,
            lease: of.lease,
            retention: of.retention,
            fingerprint: self.fingerprint.clone().map_err(|e| self.codec(e))?,
            durability: of.durability,
            // No claim of the key is older than its request or than the first use of the namespace,
            // so the later of the two times counts.
            loss: DataLossTerms {
                born: self.created.max(of.in_use_since),
                accepted: of.accepted_loss,
            },
            created: self.created,
            wait: false,
            reports_forgotten: of.reports_forgotten,
        })
    }
}

impl<P> Probing<P> {
    /// Runs the call as [`Call::run`] does, but the probe decides instead of the policies what to
    /// do if an earlier attempt may have taken effect.
    ///
    /// # Errors
    /// As [`Call::run`].
    ///
    /// # Cancellation safety
    /// As [`Call::run`]; if dropped while the probe runs, the claim is released.
    pub async fn run<T, E, F, Fut, PF>(self, handler: F) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned,
        P: FnOnce(Context) -> PF,
        PF: Future<Output = Probed<T>>,
        E: Into<Failed>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        run::run(self.call, Some(self.probe), handler).await
    }
}
