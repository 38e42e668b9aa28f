//! One call under one key: what it says, and its verbs.

use std::convert::Infallible;
use std::future::{Future, Ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run::{self, decode, encode};
use super::store::Store;
use super::{
    CodecError, Context, Idempotency, Lapsed, Outcome, Probed, Resolved, RunError, Status,
};
use crate::driver::claim::ClaimTerms;
use crate::error::ConfigError;
use crate::name::check_name;
use crate::op::FingerprintBytes;
use crate::quorum::complete::Found;
use crate::quorum::record::Refusal;

/// A call under one key, not yet made. Nothing is sent before a verb is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its verbs is awaited"]
pub struct Call {
    pub(super) of: Idempotency,
    pub(super) key: Arc<str>,
    pub(super) on_lapsed: Lapsed,
    pub(super) wait: Duration,
    fingerprint: Result<Option<FingerprintBytes>, CodecError>,
    /// When the request was made, in milliseconds since 1970.
    created: Option<u64>,
    bad: Option<ConfigError>,
}

/// A call with a probe.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its verbs is awaited"]
pub struct Probing<P> {
    call: Call,
    probe: P,
}

impl Call {
    pub(super) fn new(of: Idempotency, key: &str) -> Self {
        Self {
            bad: check_name("key", key).err(),
            key: Arc::from(key),
            on_lapsed: of.on_lapsed,
            wait: Duration::ZERO,
            fingerprint: Ok(None),
            created: None,
            of,
        }
    }

    /// What the request says: a later call under the same key with another fingerprint is answered
    /// [`Outcome::Mismatch`] instead of another request's result.
    ///
    /// The fingerprint is SHA-256 over the canonical form of `request`: JSON without white space,
    /// with the members of every object sorted by the bytes of their names, numbers and strings as
    /// `serde_json` prints them. It is told by the verb if `request` has no such form.
    pub fn fingerprint<R: Serialize + ?Sized>(mut self, request: &R) -> Self {
        self.fingerprint = super::canonical::fingerprint(request).map(Some);
        self
    }

    /// When the *request* was made: the same in every copy of it, by the clock of whoever made it
    /// (which is within `clock_error` of true time). Then a node that lost its data before the
    /// request was made still knows that nobody ran it, and a copy that comes after the retention
    /// is answered [`Outcome::TooOld`] instead of being run again.
    pub fn created_at(mut self, created: SystemTime) -> Self {
        self.created = Some(super::builder::millis_since_1970(created));
        self
    }

    /// The policy for this call alone.
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.on_lapsed = policy;
        self
    }

    /// How long to wait for the result of somebody else's running handler before answering
    /// [`Outcome::InFlight`]. Default zero: answer at once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Asks `probe` whether earlier attempts took effect, in place of the policy: before anything
    /// is run, and only if an earlier attempt left no result or too few nodes remember one. It gets
    /// the context of the new attempt, whose [`child_key`](Context::child_key)s are those of the
    /// earlier ones, and must only read.
    ///
    /// [`Found`](Probed::Found) is stored and answered as [`Outcome::Replayed`], for the effect is
    /// an earlier attempt's; after [`NotFound`](Probed::NotFound) the handler runs;
    /// [`Unknown`](Probed::Unknown) parks the key.
    pub fn probe<P, PF>(self, probe: P) -> Probing<P>
    where
        P: FnOnce(Context) -> PF,
    {
        Probing { call: self, probe }
    }

    /// Runs the handler unless a result stands under the key, and stores what it returns.
    ///
    /// The handler runs inside this future. While it runs the claim is renewed; if that fails
    /// until the lease ends, [`Context::lost`] says so and others may take over. A result is stored
    /// as JSON.
    ///
    /// # Errors
    /// [`RunError`]: nothing was run (`Config`, `NoQuorum`), the handler failed (`Handler`), or it
    /// ran and its result is not known to be stored (`NotRecorded`, `Codec`).
    ///
    /// # Cancellation safety
    /// Dropped before the handler was started, the claim is given back and the attempt does not
    /// count. Dropped while the handler runs, the claim is left to lapse and the attempt stays
    /// visible; it is never freed. Dropped while the result is being stored, the requests are on
    /// their way.
    pub async fn run<T, E, F, Fut>(self, handler: F) -> Result<Outcome<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let no_probe = None::<fn(Context) -> Ready<Probed<T>>>;
        run::run(self, no_probe, handler).await
    }

    /// As [`run`](Self::run) with [`Lapsed::Rerun`]: what an operator does to a parked key whose
    /// effect is known not to have happened.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation safety
    /// As [`run`](Self::run).
    pub async fn rerun<T, E, F, Fut>(self, handler: F) -> Result<Outcome<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.on_lapsed(Lapsed::Rerun).run(handler).await
    }

    /// Stores a result without running anything: what an operator does to a parked key whose effect
    /// is known. A result that stands already is never changed, and a running handler is not
    /// interrupted.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, `Codec`; `NotRecorded` if the result may or may not have been stored.
    ///
    /// # Cancellation safety
    /// Dropped, the result may or may not be stored; resolving again is safe.
    pub async fn resolve<T>(self, value: &T) -> Result<Resolved<T>, RunError<Infallible>>
    where
        T: Serialize + DeserializeOwned,
    {
        let terms = self.terms()?;
        let bytes = encode(value)?;
        let core = &self.of.core;
        if bytes.len() > self.of.max_result {
            return Ok(Resolved::TooLarge);
        }
        Ok(match core.store(&terms, Some(&bytes), true).await {
            Store::Ours => Resolved::Stored,
            Store::Other(Some(bytes)) => Resolved::AlreadyStored(decode(&bytes)?),
            Store::Other(None) => Resolved::AlreadyStoredNotKept,
            Store::Refused(Refusal::Mismatch) => Resolved::Mismatch,
            Store::Refused(Refusal::NoQuorum(nodes)) => return Err(core.no_quorum(nodes).into()),
            Store::Refused(
                Refusal::InFlight { retry_after } | Refusal::Contended { retry_after },
            ) => Resolved::InFlight { retry_after },
            // A forced claim does not look at the request's age.
            Store::Forgotten | Store::Refused(Refusal::TooOld) => {
                Resolved::InFlight { retry_after: Duration::ZERO }
            }
            Store::Unsure(not) => return Err(RunError::NotRecorded(*not)),
        })
    }

    /// Looks at what stands under the key, without a claim.
    ///
    /// # Errors
    /// `Config`, `NoQuorum`, or `Codec` if what is stored does not read as `T`.
    ///
    /// # Cancellation safety
    /// Reads only.
    pub async fn lookup<T: DeserializeOwned>(self) -> Result<Status<T>, RunError<Infallible>> {
        let terms = self.terms()?;
        Ok(match self.of.core.look(&terms.key, terms.durability).await {
            Found::Stored(record) => match record.value {
                Some(bytes) => Status::Stored(decode(&bytes)?),
                None => Status::NotKept,
            },
            Found::Open { attempt, lease: Some(remaining), .. } => {
                Status::Running { attempt, remaining }
            }
            Found::Open { partial: true, .. } => Status::Unsettled,
            Found::Open { attempt: 0, .. } => Status::Absent,
            Found::Open { attempt, .. } => Status::Lapsed { attempt },
            Found::NoQuorum(nodes) => return Err(self.of.core.no_quorum(nodes).into()),
            Found::Wait => return Err(self.of.core.no_quorum(Vec::new()).into()),
        })
    }

    /// What the nodes are told, or why the call cannot be made.
    pub(super) fn terms<E>(&self) -> Result<ClaimTerms, RunError<E>> {
        if let Some(bad) = &self.bad {
            return Err(bad.clone().into());
        }
        let of = &self.of;
        let key = format!("{}idem:{}:{}", of.core.config.prefix, of.namespace, self.key);
        Ok(ClaimTerms {
            key: Arc::from(key),
            lease: of.lease,
            retention: of.retention,
            fingerprint: self.fingerprint.clone()?,
            durability: of.durability,
            born: self.created.max(of.in_use_since),
            created: self.created,
        })
    }
}

impl<P> Probing<P> {
    /// As [`Call::run`], with the probe in place of the policy.
    ///
    /// # Errors
    /// As [`Call::run`].
    ///
    /// # Cancellation safety
    /// As [`Call::run`]; dropped while the probe runs, the claim is given back.
    pub async fn run<T, E, F, Fut, PF>(self, handler: F) -> Result<Outcome<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        P: FnOnce(Context) -> PF,
        PF: Future<Output = Probed<T>>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        run::run(self.call, Some(self.probe), handler).await
    }
}
