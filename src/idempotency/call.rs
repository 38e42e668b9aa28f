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
use crate::quorum::claim::Refusal;
use crate::quorum::complete::Found;

/// A call under one idempotency key, with its settings. A call sends nothing before one of its
/// operations is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Call {
    pub(super) of: Idempotency,
    pub(super) key: Arc<str>,
    pub(super) policy: Policy,
    /// `None`: the default of the called operation, such as [`run`](Self::run).
    pub(super) in_flight_timeout: Option<Duration>,
    pub(super) fingerprint: Result<Option<FingerprintBytes>, CodecError>,
    /// Milliseconds since 1970; `None` if unknown.
    created: Option<u64>,
    pub(super) bad: Option<ConfigError>,
}

/// A call with a probe. Made by [`Call::probe`].
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
    /// with another fingerprint gets [`Outcome::Mismatch`] in place of the stored result.
    ///
    /// The fingerprint is SHA-256 over the canonical form of `request`. This form is JSON without
    /// white space. The members of every object are sorted by the bytes of their names. Numbers and
    /// strings have the form that `serde_json` prints. If `request` cannot be converted to JSON, or
    /// has a number that is not finite, the operations of the call return an error.
    ///
    /// The first fingerprint stays with the record. Calls without a fingerprint are not compared:
    /// such a call gets the result of any request under its key, and a record that no call with a
    /// fingerprint has used gives its result to every request. So set it in all calls of a
    /// namespace, or in none.
    pub fn fingerprint<R: Serialize + ?Sized>(mut self, request: &R) -> Self {
        self.fingerprint = super::canonical::fingerprint(request).map(Some);
        self
    }

    /// Sets the fingerprint of the request to SHA-256 over `request`, without a canonical form;
    /// compare [`fingerprint`](Self::fingerprint). Use it for requests whose repeats have exactly
    /// the same bytes.
    pub fn fingerprint_bytes(mut self, request: &[u8]) -> Self {
        self.fingerprint = Ok(Some(super::canonical::of_bytes(request)));
        self
    }

    /// Sets the creation time of the *request*. Every copy of the request must have the same time.
    /// Use a time in the message, and not the time at which this copy arrived. This setting has two
    /// effects:
    ///
    /// - A node may be new, or may have lost data (after a restart or a failover). A request that
    ///   was made later than this loss, plus a margin, was certainly never run. So the request runs
    ///   as soon as the nodes grant claims again. Without the time, the policy for
    ///   [forgotten](Forgotten) keys decides about every new key until one retention has passed.
    ///   The margin is twice `clock_error`, and for a Sentinel group also the failover window.
    /// - A request that is older than the retention, by the clocks of the nodes, gets
    ///   [`Outcome::TooOld`], because its record may have expired. Without the time such a request
    ///   runs again.
    ///
    /// The library assumes that the error of the time is at most `clock_error`. If the sender's
    /// clock is further behind, keys may count as forgotten or too old without need. If the
    /// sender's clock is further ahead, a request may look newer than a loss of data, and may run
    /// again. A time that is more than twice `clock_error` ahead of this machine's clock is an
    /// error ([`RunError::Config`]). The clocks of some machines are not synchronised (browsers,
    /// phones). For requests of such machines, set the time at which your first server received the
    /// request.
    pub fn created_at(mut self, created: SystemTime) -> Self {
        self.created = Some(millis_since_1970(created));
        self
    }

    /// Sets the creation time of the request, like [`created_at`](Self::created_at), from a key
    /// that is a version 7 UUID. If the key has another form, the operations of the call return an
    /// error. If the UUID is only a part of the key, use the function
    /// [`created_in_uuid_v7`](super::created_in_uuid_v7).
    pub fn created_in_uuid_v7(self) -> Self {
        let created = birth::created_in_uuid_v7(&self.key);
        self.created_in(created, "a version 7 UUID")
    }

    /// Sets the creation time of the request, like [`created_at`](Self::created_at), from a key
    /// that is a ULID. If the key has another form, the operations of the call return an error. If
    /// the ULID is only a part of the key, use the function
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

    /// Sets the policy of this call for a lapsed key.
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.policy.lapsed = policy;
        self
    }

    /// Sets the policy of this call for a forgotten key.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.policy.forgotten = policy;
        self
    }

    /// Sets the longest wait for another caller's handler under the same key. After this wait the
    /// call returns [`Outcome::InFlight`]. Zero means that the call does not wait. The end of the
    /// handler wakes the call. Default 1 s. For [`Idempotency::claim_many`] the default is zero,
    /// because a waiting call delays the whole batch.
    pub fn in_flight_timeout(mut self, timeout: Duration) -> Self {
        self.in_flight_timeout = Some(timeout);
        self
    }

    /// Sets a probe: a function that reports if earlier attempts took effect. The probe replaces
    /// the policies [`Lapsed`] and [`Forgotten`]. The probe is called before the handler, and only
    /// for a key that is lapsed or forgotten. The probe gets the context of the new attempt, with
    /// the same [`child_key`](Context::child_key)s as in the earlier attempts. The probe must only
    /// read.
    ///
    /// After [`Found`](Probed::Found) its value is stored, and the call returns
    /// [`Outcome::Replayed`], because the effect is that of an earlier attempt. After
    /// [`NotFound`](Probed::NotFound) the handler runs. After [`Unknown`](Probed::Unknown) the key
    /// is parked. There is one exception: if an operator has decided to run forgotten keys, the
    /// handler of a key that is only forgotten runs.
    pub fn probe<P, PF>(self, probe: P) -> Probing<P>
    where
        P: FnOnce(Context) -> PF,
    {
        Probing { call: self, probe }
    }

    /// Runs the handler and stores its result, if the key has no result yet.
    ///
    /// The handler runs inside this future. During the handler its claim is renewed. If no renewal
    /// succeeds before the lease ends, [`Context::lost`] resolves, and another caller may run the
    /// handler. The result is stored as JSON. A value that JSON does not keep (a number that is not
    /// finite, `Some(None)`) is an error of this call, and the attempt lapses: it took effect and
    /// left no result.
    ///
    /// If the handler fails, the kind of its error decides about the next call. After an ordinary
    /// error the handler may or may not have taken effect, so the next call applies its policy or
    /// its probe. A handler with more information returns [`Failed`]. In both cases the claim ends
    /// at once, so other callers need not wait for the end of the lease.
    ///
    /// # Errors
    /// [`RunError`] if the handler did not run (`Config`, `NoQuorum`, `NotInitialised`), if the
    /// handler failed (`Handler`), if the handler ran and its result may not be stored
    /// (`NotRecorded`), or if a value could not be converted to or from JSON (`Codec`).
    ///
    /// # Cancellation safety
    /// If the future is dropped before the start of the handler, the claim is released and the
    /// attempt does not count. If the future is dropped during the handler, the handler is dropped
    /// at its current await. The claim is not released then: for other callers the key is in flight
    /// until the lease ends, and lapsed after that. A server framework drops the future of a
    /// request when the client disconnects. There, use [`detached`](Self::detached), which finishes
    /// a started handler. If the future is dropped while the result is being stored, the requests
    /// are already sent. The result is then stored if enough nodes execute the requests.
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

    /// Runs the handler like [`run`](Self::run), with [`Lapsed::Rerun`] and [`Forgotten::Run`]. An
    /// operator uses this function for a key that is parked, because an earlier attempt may have
    /// taken effect, after a check that it did not.
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

    /// Stores a result without a run of a handler. An operator uses this function for a key that is
    /// parked, because an earlier attempt may have taken effect, after a check that it did. This
    /// function never changes an existing result, and never interrupts a running handler.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, `Codec`; `NotRecorded` if the result may or may not have been stored.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the result may or may not be stored; a second `resolve` is safe.
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
            // Nodes never refuse a forced claim because of the request's age, and with `sure` the
            // value is stored even if the nodes may have lost another result.
            Store::Forgotten(_) | Store::Refused(Refusal::TooOld) => {
                Resolved::InFlight { retry_after: Duration::ZERO }
            }
            Store::Unsure(not) => return Err(RunError::NotRecorded(not)),
        })
    }

    /// Reads the state of the key and claims nothing. If the call has a
    /// [`fingerprint`](Self::fingerprint), a result with another fingerprint is not returned.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, or `Codec` if the stored result cannot be converted to `T`.
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

    pub(crate) fn prefix(&self) -> &str {
        &self.of.core.config.prefix
    }

    fn config(&self, error: ConfigError) -> RunError {
        RunError::Config { key: self.name(), error }
    }

    pub(super) fn codec(&self, error: CodecError) -> RunError {
        RunError::Codec { key: self.name(), error }
    }

    /// `rest` is the rest of the lease of the other's claim.
    pub(super) fn pause(&self, rest: Duration) -> Duration {
        let env = &self.of.core.env;
        let lease = (self.of.lease, rest);
        self.of.in_flight.pause(&self.key, (env.now(), env.random()), lease)
    }

    pub(super) fn no_quorum(&self, nodes: Vec<NodeOutcome>) -> RunError {
        RunError::NoQuorum { key: self.name(), error: self.nodes(nodes) }
    }

    /// Some nodes' data began empty, and no operator has marked these nodes as new.
    pub(super) fn not_initialised(&self, doubt: &Doubt) -> RunError {
        let fresh = doubt.forgotten.iter().flat_map(|forgotten| &forgotten.fresh);
        let nodes = fresh.map(|node| self.of.core.name(*node)).collect();
        let commands = self.of.core.commands.with_retention(self.of.retention);
        RunError::NotInitialised { key: self.name(), nodes, commands }
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
            // An earlier claim is never older than the request or the first use of the namespace.
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
    /// Runs the call like [`Call::run`]. If an earlier attempt may have taken effect, the probe and
    /// not the policies (`on_lapsed`, `on_forgotten`) decides if the handler runs.
    ///
    /// # Errors
    /// As [`Call::run`].
    ///
    /// # Cancellation safety
    /// As [`Call::run`]. If the future is dropped during the probe, the call's claim of the key is
    /// released.
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
