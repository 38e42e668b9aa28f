//! The handle for the idempotency keys of one namespace, and its settings.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::birth::{check_past, millis_since_1970};
use super::consumer::Holdings;
use super::in_flight::InFlight;
use super::metrics::Counters;
use super::operator_decision::Decisions;
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

/// A handle for the idempotency keys of one namespace: it makes the calls that run a handler under
/// a key and store its result. Cheap to clone.
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
    /// Time before which no key of the namespace was in use, in milliseconds since 1970; `None` if
    /// it is unknown.
    pub(super) in_use_since: Option<u64>,
    pub(super) accepted_loss: Duration,
    /// True if events, log and metrics report for how long keys without a creation time count as
    /// forgotten, which means that too few nodes know whether they were used before.
    pub(super) reports_forgotten: bool,
    pub(super) counters: Arc<Counters>,
    /// Cache of operators' decisions about the keys that nodes forgot when they lost data.
    pub(super) decisions: Arc<Decisions>,
    pub(super) in_flight: Arc<InFlight>,
    /// Running consumers that use this handle or a clone of it.
    pub(super) holdings: Arc<Holdings>,
}

/// Settings of an [`Idempotency`], made by [`Redlock::idempotency`]. One of
/// [`at_most_once`](Self::at_most_once) and [`at_least_once`](Self::at_least_once) is required, or
/// else both [`on_lapsed`](Self::on_lapsed) and [`on_forgotten`](Self::on_forgotten).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct IdempotencyBuilder {
    of: Idempotency,
    preset: Option<Policy>,
    on_lapsed: Option<Lapsed>,
    on_forgotten: Option<Forgotten>,
}

impl Redlock {
    /// Returns a builder of a handle for the idempotency keys of `namespace`.
    ///
    /// The namespace is for example the name of the operation or of the consumer. It has at most
    /// 512 bytes, no control characters and no colon. By default the lease is this handle's ttl and
    /// the retention is 24 hours. You have to choose what happens with a key of which it is unknown
    /// whether its handler took effect before: call
    /// [`at_most_once`](IdempotencyBuilder::at_most_once) or
    /// [`at_least_once`](IdempotencyBuilder::at_least_once). [`build`](IdempotencyBuilder::build)
    /// checks the settings.
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
    /// Makes a call under this key. If the key is invalid, the operations of the call return an
    /// error. On the nodes the record has the Redis key `<prefix>idem:<namespace>:<key>`.
    ///
    /// The key names the *request*. It is for example the client's idempotency key together with
    /// the client's name, or a message id that the producer of the message chose. Do not use an id
    /// that a redelivery changes.
    pub fn key(&self, key: impl Into<String>) -> Call {
        Call::new(self.clone(), &key.into())
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the policy of the namespace for a key whose earlier attempt began and left no
    /// result.
    pub fn lapsed(&self) -> Lapsed {
        self.policy.lapsed
    }

    /// Returns a new random name for a consumer of this process. No other process ever has this
    /// name, nor does this process after a restart.
    pub(crate) fn incarnation(&self) -> String {
        format!("{:032x}", self.core.env.random())
    }

    /// Returns the state of the nodes as [`Redlock::health`] does. Whether the nodes still know
    /// which keys were used is judged with the retention, the
    /// [`in_use_since`](IdempotencyBuilder::in_use_since) and the
    /// [`accept_loss`](IdempotencyBuilder::accept_loss) of this namespace. It also reports the
    /// messages that consumers with this handle or its clones do not handle until an operator acts:
    /// since when, why, and what to do.
    ///
    /// # Cancellation safety
    /// May be dropped at any time. The lock that it takes on each node as a test is then released
    /// in the background.
    pub async fn health(&self) -> Health {
        let redlock = Redlock { core: Arc::clone(&self.core) };
        let loss = DataLossTerms { born: self.in_use_since, accepted: self.accepted_loss };
        let waiting = self.holdings.waiting();
        Health { waiting, ..health(&redlock, self.retention, loss).await }
    }

    /// Returns how many calls of this handle and its clones were run, replayed, parked and run
    /// again since it was built. Cheap, because it only reads counters.
    pub fn metrics(&self) -> IdempotencyMetrics {
        self.counters.read()
    }
}

impl IdempotencyBuilder {
    /// The usual value for [`accept_loss`](Self::accept_loss): 20 s, in which a server with an
    /// append-only file usually restarts and a Sentinel group fails over.
    pub const SHORT_LOSS: Duration = Duration::from_secs(20);

    /// Sets the lease of a claim, which is the longest time for which other callers wait after the
    /// process that runs a handler died. While the handler runs, the claim is renewed. The default
    /// is the `ttl` of the [`Redlock`]; the lease is at most its `max_ttl`, and shorter than the
    /// retention.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.of.lease = lease;
        self
    }

    /// Sets how long a result, or the record of an attempt without a result, is kept after it was
    /// last written, at most 366 days. It must be longer than anything may take to send the request
    /// again: a broker's redelivery, a client's retry, a replay by hand. A request that comes even
    /// later runs again, unless its [age is known](Call::created_at). Use the same retention in
    /// every process that handles the keys. A new version of a program may make it longer; make it
    /// shorter only when no request older than the new retention can still arrive. Default 24
    /// hours.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.of.retention = retention;
        self
    }

    /// Parks every key whose handler may have taken effect before: the handler does not run if an
    /// earlier attempt began and left no result ([`Lapsed::Park`]), nor if too few nodes know
    /// whether there was an earlier attempt ([`Forgotten::Park`]). The call is answered
    /// [`Outcome::Parked`](super::Outcome::Parked) until a person or a [probe](Call::probe)
    /// decides. Choose this for effects that must not happen twice in a system that does not
    /// recognise a repeat.
    ///
    /// If fewer than a majority of the nodes kept their data, every new key without
    /// [`created_at`](Call::created_at) is parked for a whole retention, or until an operator
    /// decides once for all of these keys (`palisade idem decide`).
    pub fn at_most_once(mut self) -> Self {
        self.preset = Some(Policy::AT_MOST_ONCE);
        self
    }

    /// Runs the handler also if it may have taken effect before: after an earlier attempt that left
    /// no result ([`Lapsed::Rerun`]), and if too few nodes know whether there was an earlier
    /// attempt ([`Forgotten::Run`]). Choose this for effects that recognise repeats: a downstream
    /// system that deduplicates by [`Context::child_key`](super::Context::child_key), an `INSERT …
    /// ON CONFLICT DO NOTHING`, setting a value.
    ///
    /// The promise that a result never changes then does not hold for a result that too many nodes
    /// lost: the handler runs once more, and its new result counts.
    pub fn at_least_once(mut self) -> Self {
        self.preset = Some(Policy::AT_LEAST_ONCE);
        self
    }

    /// Sets the policy for a key whose earlier attempt left no result, in place of the policy of
    /// [`at_most_once`](Self::at_most_once) or [`at_least_once`](Self::at_least_once).
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.on_lapsed = Some(policy);
        self
    }

    /// Sets the policy for a key of which too few nodes know whether it was used before, in place
    /// of the policy of [`at_most_once`](Self::at_most_once) or
    /// [`at_least_once`](Self::at_least_once). If in addition an earlier attempt without a result
    /// is known, the handler runs only if both this policy and the one for such attempts let it
    /// run.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.on_forgotten = Some(policy);
        self
    }

    /// Sets how many replicas must have a claim before its handler starts, and a result before a
    /// caller receives it, also if the result was stored by an earlier call; default
    /// [`Durability::Primary`]. [`Context::durability`](super::Context::durability) and
    /// [`Outcome::Executed`](super::Outcome::Executed) report how many replicas had the claim and
    /// the result.
    pub fn durability(mut self, level: Durability) -> Self {
        self.of.durability = level;
        self
    }

    /// Sets the largest result in bytes (as JSON) that is stored for later callers; default 1 MiB,
    /// at most 8 MiB. If a result is larger, the nodes store only that there is one: the caller
    /// whose handler ran gets the value, later callers are answered
    /// [`Outcome::NotKept`](super::Outcome::NotKept), and the handler is not run again. A node
    /// sends all answers over one connection, so that a large result delays every caller; store
    /// large results elsewhere, and a reference to them here.
    pub fn max_result(mut self, bytes: usize) -> Self {
        self.of.max_result = bytes;
        self
    }

    /// Sets the time before which no key of this namespace was in use. Nodes that lost no data
    /// since then know of each key whether it was used before. If a call also has the time of its
    /// own request ([`created_at`](Call::created_at)), the later of the two times counts. Unlike
    /// `created_at`, this time makes no request too old. By default it is unknown.
    ///
    /// Use a constant of the deployment, for example the day on which the namespace was first used,
    /// the same in every process. Never use the start of this process: if nodes lost data, keys
    /// that were used before the start would then count as new, and their handlers would run again.
    pub fn in_use_since(mut self, since: SystemTime) -> Self {
        self.of.in_use_since = Some(millis_since_1970(since));
        self
    }

    /// Accepts that a node may have lost the writes of a period, if the period was proved to be at
    /// most this long: keys then do not count as forgotten because of it. If a handler ran within
    /// such a period, it may run again when its request is sent again.
    ///
    /// After a restart, after a failover, or with data from a backup, a server may lack its latest
    /// writes. The time of the server's clock is regularly stored in the marker key, and the lost
    /// period is measured from the latest stored time that is still there to the first request
    /// after the restart. So the time for which the server was down counts as lost, too. The stored
    /// time is at most 1 s old when anything is written, and at most 3 s while a handle is idle. In
    /// a Sentinel group the time for which a replaced master may have gone on accepting writes is
    /// added. Without this setting the loss of one second makes every key without
    /// [`created_at`](Call::created_at) count as forgotten for a whole retention.
    /// [`SHORT_LOSS`](Self::SHORT_LOSS) (20 s) covers a restart of a server with an append-only
    /// file, and the failover of a group whose `down-after-milliseconds` is some seconds. No value
    /// covers a server that lost everything, and a backup is covered only if it is younger than the
    /// value.
    ///
    /// Use the same value in every process that handles the keys, less than the retention. Default
    /// zero: no loss is accepted.
    pub fn accept_loss(mut self, longest: Duration) -> Self {
        self.of.accepted_loss = longest;
        self
    }

    /// Turns off the events, log lines and metrics that report for how long keys without a creation
    /// time count as forgotten. For a namespace in which every key has a creation time, or may be
    /// run again if it is forgotten.
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
        // Each handle has counters of its own, also if several are built from clones of one
        // builder.
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
