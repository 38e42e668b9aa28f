//! The handle of one namespace, and its settings.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::birth::{check_past, millis_since_1970};
use super::consumer::Holdings;
use super::decision::Decisions;
use super::in_flight::InFlight;
use super::metrics::Counters;
use super::policy::Policy;
use super::{Call, Forgotten, IdempotencyMetrics, Lapsed};
use crate::client::Core;
use crate::client::claim::DataLossTerms;
use crate::config::RETENTION;
use crate::durability::Durability;
use crate::error::ConfigError;
use crate::health::{Health, health};
use crate::name::check_namespace;
use crate::redlock::Redlock;

const MAX_RESULT: usize = 1 << 20;
const MAX_RESULT_MAX: usize = 8 << 20;
const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A handle for the results of one namespace, by key. Cheap to clone.
///
/// Every process that handles the same keys must use the same nodes, prefix and namespace.
#[derive(Clone, Debug)]
pub struct Idempotency {
    pub(super) core: Arc<Core>,
    pub(super) namespace: Arc<str>,
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) policy: Policy,
    pub(super) durability: Durability,
    pub(super) max_result: usize,
    /// Time before which no key of the namespace was in use, in milliseconds since 1970.
    pub(super) in_use_since: Option<u64>,
    pub(super) accepted_loss: Duration,
    /// True if it is reported for how long keys without a birth count as forgotten.
    pub(super) reports_forgotten: bool,
    pub(super) counters: Arc<Counters>,
    /// Decisions about losses that were read a short time ago.
    pub(super) decisions: Arc<Decisions>,
    pub(super) in_flight: Arc<InFlight>,
    /// Running consumers that use this handle.
    pub(super) holdings: Arc<Holdings>,
}

/// Settings of an [`Idempotency`], made by [`Redlock::idempotency`]. Required:
/// [`at_most_once`](Self::at_most_once) or [`at_least_once`](Self::at_least_once).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct IdempotencyBuilder {
    of: Idempotency,
    preset: Option<Policy>,
    on_lapsed: Option<Lapsed>,
    on_forgotten: Option<Forgotten>,
}

impl Redlock {
    /// Returns a builder for the idempotency keys of a namespace, for example the name of the
    /// operation or of the consumer. At most 512 bytes, no control characters, no colon. Begins
    /// with the lease of the handle's ttl and a retention of 24 hours. You have to choose what
    /// happens with a key whose past is not known. [`build`](IdempotencyBuilder::build) checks the
    /// settings.
    pub fn idempotency(&self, namespace: impl AsRef<str>) -> IdempotencyBuilder {
        let core = Arc::clone(&self.core);
        let of = Idempotency {
            lease: core.config.ttl,
            core,
            namespace: Arc::from(namespace.as_ref()),
            retention: RETENTION,
            policy: Policy::AT_MOST_ONCE,
            durability: Durability::Primary,
            max_result: MAX_RESULT,
            in_use_since: None,
            accepted_loss: Duration::ZERO,
            reports_forgotten: true,
            counters: Arc::default(),
            decisions: Arc::default(),
            in_flight: Arc::default(),
            holdings: Arc::default(),
        };
        IdempotencyBuilder { of, preset: None, on_lapsed: None, on_forgotten: None }
    }
}

impl Idempotency {
    /// Makes a call under this key. An invalid key is reported by the operations of the call. On
    /// the nodes the record's key is `<prefix>idem:<namespace>:<key>`.
    ///
    /// The key names the *request*: the client's idempotency key together with the client, or a
    /// message id that its producer gave. Do not use an id that a redelivery changes.
    pub fn key(&self, key: impl Into<String>) -> Call {
        Call::new(self.clone(), &key.into())
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the policy for a key whose earlier attempt left no result.
    pub fn lapsed(&self) -> Lapsed {
        self.policy.lapsed
    }

    /// Returns a name for this process that no other process ever has, nor this one after a
    /// restart.
    pub(crate) fn incarnation(&self) -> String {
        format!("{:032x}", self.core.env.random())
    }

    /// Returns the state of the nodes as [`Redlock::health`] does, for the keys within this
    /// namespace's retention and since it is [in use](IdempotencyBuilder::in_use_since). It
    /// includes the messages that consumers with this handle or its clones hold or do not take,
    /// since when, why, and what to do.
    ///
    /// # Cancellation safety
    /// May be dropped at any time: what its requests took on the nodes is released in the
    /// background.
    pub async fn health(&self) -> Health {
        let redlock = Redlock { core: Arc::clone(&self.core) };
        let loss = DataLossTerms { born: self.in_use_since, accepted: self.accepted_loss };
        let waiting = self.holdings.waiting();
        Health { waiting, ..health(&redlock, self.retention, loss).await }
    }

    /// Returns the counts of this handle and its clones since it was built: what was run, replayed,
    /// parked, and run again. Cheap: it only reads counters.
    pub fn metrics(&self) -> IdempotencyMetrics {
        self.counters.read()
    }
}

impl IdempotencyBuilder {
    /// The usual value for [`accept_loss`](Self::accept_loss): 20 s, as long as a server with an
    /// append-only file takes to restart, or a group to fail over.
    pub const SHORT_LOSS: Duration = Duration::from_secs(20);

    /// Sets the lease: the longest time for which other callers wait after the process that runs a
    /// handler died. The claim is renewed while the handler runs. Default the handle's ttl; at most
    /// its `max_ttl`, less than the retention.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.of.lease = lease;
        self
    }

    /// Sets how long a result (and the trace of an attempt without one) is kept after it was last
    /// written, at most 366 days. Must be longer than anything may take to send the request again:
    /// a broker's redelivery, a client's retry, a replay by hand. A request that comes even later
    /// runs again, unless its [age is known](Call::created_at). Use the same retention in every
    /// process that handles the keys: it may grow from one version of a program to the next.
    /// Shorten it only when no request older than the new retention can still arrive. Default 24
    /// hours.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.of.retention = retention;
        self
    }

    /// Parks every key whose past is not known: the handler does not run where an earlier attempt
    /// began and left no result ([`Lapsed::Park`]), nor where too few nodes know whether there was
    /// one ([`Forgotten::Park`]). The call is answered [`Outcome::Parked`](super::Outcome::Parked)
    /// until a person or a [probe](Call::probe) decides. For effects that must not happen twice and
    /// cannot recognise a repeat.
    ///
    /// If nodes are new or lost data, the past of every key without
    /// [`created_at`](Call::created_at) is unknown for a whole retention, or until an operator
    /// decides about the loss for all of them at once (`palisade idem decide`).
    pub fn at_most_once(mut self) -> Self {
        self.preset = Some(Policy::AT_MOST_ONCE);
        self
    }

    /// Runs every key whose past is not known again: after an attempt that left no result
    /// ([`Lapsed::Rerun`]), and where too few nodes know whether there was one
    /// ([`Forgotten::Run`]). For effects that recognise repeats: a downstream system that
    /// deduplicates by [`Context::child_key`](super::Context::child_key), an `INSERT … ON CONFLICT
    /// DO NOTHING`, setting a value.
    ///
    /// The promise that a result never changes does not hold for a forgotten result: where a
    /// majority of the nodes lost it, the handler runs once more and its new result counts.
    pub fn at_least_once(mut self) -> Self {
        self.preset = Some(Policy::AT_LEAST_ONCE);
        self
    }

    /// Sets the policy for an earlier attempt that left no result, in place of that of
    /// [`at_most_once`](Self::at_most_once) or [`at_least_once`](Self::at_least_once).
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.on_lapsed = Some(policy);
        self
    }

    /// Sets the policy for a key of which too few nodes know whether it was used before, in place
    /// of that of [`at_most_once`](Self::at_most_once) or [`at_least_once`](Self::at_least_once).
    /// Where an earlier attempt is known as well, both policies must let the handler run.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.on_forgotten = Some(policy);
        self
    }

    /// Sets how many replicas must have a claim before its handler starts, and a result before it
    /// is answered, including a result that was stored before; default [`Durability::Primary`].
    /// [`Context::durability`](super::Context::durability) and
    /// [`Outcome::Executed`](super::Outcome::Executed) report how many had them.
    pub fn durability(mut self, level: Durability) -> Self {
        self.of.durability = level;
        self
    }

    /// Sets the largest result in bytes (as JSON) that is stored for later callers; default 1 MiB,
    /// at most 8 MiB. Of a larger result only the fact is stored: the caller whose handler ran has
    /// the value, later callers are answered [`Outcome::NotKept`](super::Outcome::NotKept), and the
    /// handler is not run again. A node sends all answers over one connection, so large results
    /// delay every caller: store them elsewhere, and the reference here.
    pub fn max_result(mut self, bytes: usize) -> Self {
        self.of.max_result = bytes;
        self
    }

    /// Sets the time before which no key of this namespace was in use. It counts for every key as
    /// [`created_at`](Call::created_at) does for one: nodes that kept everything since then know of
    /// each key whether it was used. The later of the two times counts. Unlike `created_at` it
    /// makes no request too old. Default: unknown.
    ///
    /// Use a constant of the deployment, for example the day on which the namespace was first used,
    /// the same in every process. Never use the start of this process, for then keys that were used
    /// before it count as new wherever nodes lost data.
    pub fn in_use_since(mut self, since: SystemTime) -> Self {
        self.of.in_use_since = Some(millis_since_1970(since));
        self
    }

    /// Accepts a loss of a node's data that was proved to be at most this long: keys then do not
    /// count as forgotten for it. A request whose handler ran within a loss that is accepted may
    /// run again, if it is sent again.
    ///
    /// After a restart, a failover, or from a backup, a server may lack the writes of its last
    /// moments. The upper bound runs from the last surviving note of its clock to the first request
    /// after the restart. The note is at most 1 s old when anything is written, and at most 3 s
    /// while a handle is idle. So the time for which the server was down counts. In a Sentinel
    /// group the time for which a master that was replaced may have gone on is part of it, too.
    /// Without this setting one second that was lost makes every key without
    /// [`created_at`](Call::created_at) one whose past is not known for a whole retention.
    /// [`SHORT_LOSS`](Self::SHORT_LOSS) (20 s) covers a restart of a server with an append-only
    /// file, and the failover of a group whose `down-after-milliseconds` is some seconds. A server
    /// that lost everything is never covered by it; a backup only if it is younger than that.
    ///
    /// Use the same value in every process that handles the keys, less than the retention. Default
    /// zero: no loss is accepted.
    pub fn accept_loss(mut self, longest: Duration) -> Self {
        self.of.accepted_loss = longest;
        self
    }

    /// Turns off the report of how long keys without a birth count as forgotten. For a namespace in
    /// which that matters to no key.
    #[cfg(feature = "cron")]
    pub(crate) fn without_forgotten_reports(mut self) -> Self {
        self.of.reports_forgotten = false;
        self
    }

    /// Checks the settings and builds the handle.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Idempotency, ConfigError> {
        let policy = self.policy();
        let mut i = self.of;
        check_namespace(&i.namespace)?;
        i.policy = policy?;
        i.durability.check()?;
        let config = &i.core.config;
        config.check_ttl(i.lease).map_err(|e| e.named("lease"))?;
        config.check_renewed(i.lease).map_err(|e| e.named("lease"))?;
        let retention = format!("{:?}", i.retention);
        if i.retention <= i.lease {
            let rule = format!("longer than the lease ({:?})", i.lease);
            return Err(ConfigError::new("retention", retention, rule));
        }
        if i.max_result > MAX_RESULT_MAX {
            let value = format!("{} bytes", i.max_result);
            return Err(ConfigError::new("max_result", value, "at most 8 MiB"));
        }
        if i.retention > RETENTION_MAX {
            return Err(ConfigError::new("retention", retention, "at most 366 days"));
        }
        if i.accepted_loss >= i.retention {
            let rule = format!("less than the retention ({:?})", i.retention);
            let value = format!("{:?}", i.accepted_loss);
            return Err(ConfigError::new("accept_loss", value, rule));
        }
        if let Some(since) = i.in_use_since {
            check_past("in_use_since", since, i.core.env.wall_micros(), config.clock_error)?;
        }
        i.decisions = Arc::default();
        i.in_flight = Arc::default();
        i.holdings = Arc::default();
        // Handles made from clones of this builder have counters of their own.
        i.counters = Arc::new(Counters::new(&i.core.meters.namespace(&i.namespace)));
        Ok(i)
    }

    fn policy(&self) -> Result<Policy, ConfigError> {
        let rule = "call `at_most_once()` if the handler must not run twice: a key whose earlier \
                    attempt left no result, or that the nodes may have forgotten, is then parked \
                    until a person or a probe decides. Call `at_least_once()` if its effect \
                    recognises repeats: it then runs again in both cases";
        let none = self.preset.is_none() && self.on_lapsed.is_none() && self.on_forgotten.is_none();
        let missing = |what| {
            let what = if none { "at_most_once() or at_least_once()" } else { what };
            ConfigError::new(what, "not chosen", rule)
        };
        let lapsed = self.on_lapsed.or(self.preset.map(|p| p.lapsed));
        let forgotten = self.on_forgotten.or(self.preset.map(|p| p.forgotten));
        Ok(Policy {
            lapsed: lapsed.ok_or_else(|| missing("on_lapsed"))?,
            forgotten: forgotten.ok_or_else(|| missing("on_forgotten"))?,
        })
    }
}
