//! A call under one key: its settings and its operations.

use std::future::{Future, Ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::birth::{self, check_past, millis_since_1970};
use super::policy::{Doubt, Policy};
use super::run::{self, decode, encode};
use super::store::{Store, store};
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

/// A call under one key, not yet made. Nothing is sent before the future of one of its operations
/// is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Call {
    pub(super) of: Idempotency,
    pub(super) key: Arc<str>,
    pub(super) policy: Policy,
    /// Longest wait for a handler that runs elsewhere; `None`: the operation's own default.
    pub(super) in_flight_timeout: Option<Duration>,
    pub(super) fingerprint: Result<Option<FingerprintBytes>, CodecError>,
    /// Time at which the request was made, in milliseconds since 1970.
    created: Option<u64>,
    bad: Option<ConfigError>,
}

/// A call with a probe.
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

    /// Sets the content of the request. A later call under the same key with another fingerprint is
    /// answered [`Outcome::Mismatch`] instead of another request's result.
    ///
    /// The fingerprint is SHA-256 over the canonical form of `request`: JSON without white space,
    /// with the members of every object sorted by the bytes of their names, numbers and strings as
    /// `serde_json` prints them. A `request` without such a form is an error of the call.
    pub fn fingerprint<R: Serialize + ?Sized>(mut self, request: &R) -> Self {
        self.fingerprint = super::canonical::fingerprint(request).map(Some);
        self
    }

    /// Sets the fingerprint as [`fingerprint`](Self::fingerprint) does, as SHA-256 over these bytes
    /// as they are. For requests that arrive as bytes and are sent again as the same bytes.
    pub fn fingerprint_bytes(mut self, request: &[u8]) -> Self {
        self.fingerprint = Ok(Some(super::canonical::of_bytes(request)));
        self
    }

    /// Sets the time at which the *request* was made: the same in every copy of the request,
    /// however often it is sent. Use a time that the message carries, not the time at which this
    /// copy arrived. With this time:
    ///
    /// - Nodes that are new or lost data (a first start, a restart, a failover) know that a request
    ///   made after that, plus a margin, was never run: it runs as soon as they grant again.
    ///   Without the time they cannot know this of any new key until one retention has passed, and
    ///   the policy for [forgotten](Forgotten) keys decides. The margin is twice `clock_error`, and
    ///   for a Sentinel group also the failover window.
    /// - A copy that arrives after the retention has passed since then, by the nodes' clocks, is
    ///   answered [`Outcome::TooOld`], because its record may be gone. Without the time such a copy
    ///   runs again.
    ///
    /// The time is assumed to be right within `clock_error`. A clock that is behind only makes the
    /// answer more careful than needed. If the sender's clock is ahead by more, a request that ran
    /// shortly before a node lost its data may run again, for it looks newer than the loss. A time
    /// further ahead of this machine's clock than twice `clock_error` is refused as
    /// [`RunError::Config`]. So for requests made on machines whose clocks are not kept in time
    /// (browsers, phones), give the time at which your own first server received them.
    pub fn created_at(mut self, created: SystemTime) -> Self {
        self.created = Some(millis_since_1970(created));
        self
    }

    /// Sets the time as [`created_at`](Self::created_at) does, from the key, which is a version 7
    /// UUID (for keys that contain one: [`created_in_uuid_v7`](super::created_in_uuid_v7)). A key
    /// of another form is an error of the call.
    pub fn created_in_uuid_v7(self) -> Self {
        let created = birth::created_in_uuid_v7(&self.key);
        self.created_in(created, "a version 7 UUID")
    }

    /// Sets the time as [`created_at`](Self::created_at) does, from the key, which is a ULID (for
    /// keys that contain one: [`created_in_ulid`](super::created_in_ulid)). A key of another form
    /// is an error of the call.
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

    /// Sets the policy for an earlier attempt without a result, for this call alone.
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.policy.lapsed = policy;
        self
    }

    /// Sets the policy for a key of which too few nodes know whether it was used before, for this
    /// call alone.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.policy.forgotten = policy;
        self
    }

    /// Sets the longest wait for the result of another caller's running handler before answering
    /// [`Outcome::InFlight`]; zero: answer at once. The end of that handler wakes the call. Default
    /// 1 s. In a batch that is claimed together ([`Idempotency::claim_many`]) the default is zero,
    /// because one call that waits delays the whole batch.
    pub fn in_flight_timeout(mut self, timeout: Duration) -> Self {
        self.in_flight_timeout = Some(timeout);
        self
    }

    /// Sets a probe, which replaces both policies: it reports whether earlier attempts took effect.
    /// The probe is called before any handler runs, and only if an earlier attempt left no result
    /// or too few nodes know whether there was one. It gets the context of the new attempt, whose
    /// [`child_key`](Context::child_key)s are those of the earlier attempts, and must only read.
    ///
    /// [`Found`](Probed::Found) is stored and answered as [`Outcome::Replayed`], because the effect
    /// is that of an earlier attempt. After [`NotFound`](Probed::NotFound) the handler runs.
    /// [`Unknown`](Probed::Unknown) parks the key.
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
    /// The error of a failed handler decides about the key: after an ordinary error it is unknown
    /// whether the handler took effect; a handler that knows more returns [`Failed`]. The claim
    /// ends at once, so no other caller waits for the end of the lease.
    ///
    /// # Errors
    /// [`RunError`]: nothing was run (`Config`, `NoQuorum`, `NotInitialised`), the handler failed
    /// (`Handler`), or it ran and its result is not known to be stored (`NotRecorded`, `Codec`).
    ///
    /// # Cancellation safety
    /// If dropped before the handler was started, the claim is released and the attempt does not
    /// count. If dropped while the handler runs, the handler is dropped at its current await; the
    /// claim is not released, so other callers find the key in flight until the lease ends, and
    /// then a lapsed attempt. A server framework drops a request's future when its client hangs up:
    /// there, use [`detached`](Self::detached), so that a handler that has begun is finished. If
    /// dropped while the result is being stored, the requests are already sent.
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
    /// Operators use it for a parked key whose effect is known not to have happened.
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

    /// Stores a result without running a handler. Operators use it for a parked key whose effect is
    /// known. An existing result is never changed, and a running handler is not interrupted.
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
            // A forced claim is not refused for the request's age, and a `sure` store not because
            // the key is forgotten, so neither is expected here.
            Store::Forgotten(_) | Store::Refused(Refusal::TooOld) => {
                Resolved::InFlight { retry_after: Duration::ZERO }
            }
            Store::Unsure(not) => return Err(RunError::NotRecorded(*not)),
        })
    }

    /// Reads the state of the key, without a claim. If the call has a
    /// [`fingerprint`](Self::fingerprint), the result of another request is not returned.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, or `Codec` if what is stored cannot be read as `T`.
    ///
    /// # Cancellation safety
    /// Reads only.
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

    /// Returns the prefix of the handle.
    pub(crate) fn prefix(&self) -> &str {
        &self.of.core.config.prefix
    }

    fn config(&self, error: ConfigError) -> RunError {
        RunError::Config { key: self.name(), error }
    }

    pub(super) fn codec(&self, error: CodecError) -> RunError {
        RunError::Codec { key: self.name(), error }
    }

    /// Returns the pause before the call is made again. `rest` is the time until the lease of the
    /// running claim ends.
    pub(super) fn pause(&self, rest: Duration) -> Duration {
        let env = &self.of.core.env;
        let lease = (self.of.lease, rest);
        self.of.in_flight.pause(&self.key, (env.now(), env.random()), lease)
    }

    pub(super) fn no_quorum(&self, nodes: Vec<NodeOutcome>) -> RunError {
        RunError::NoQuorum { key: self.name(), error: self.nodes(nodes) }
    }

    /// Returns the error for a key that may have been used before `fresh` nodes, whose data began
    /// empty, had any record.
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

    /// Validates the call and builds the terms of its claim.
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
            // No claim is older than the request or than the first use of the namespace, so the
            // later of the two times counts.
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
    /// Runs the call as [`Call::run`] does, with the probe in place of the policies.
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
