//! [`Idempotency`], the handle for the keys of one namespace, and its settings.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::birth::{check_past, millis_since_1970};
use super::in_flight::InFlight;
use super::metrics::Counters;
use super::operator_decision::{Decision, Decisions};
use super::policy::Policy;
use super::waiting::AllWaits;
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
pub(super) const MAX_RESULT_MAX: usize = 8 << 20;
const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A handle for the idempotency keys of one namespace. Cheap to clone.
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
    /// Milliseconds since 1970; `None` if unknown.
    pub(super) in_use_since: Option<u64>,
    pub(super) accepted_loss: Duration,
    pub(super) reports_forgotten: bool,
    pub(super) counters: Arc<Counters>,
    pub(super) decisions: Arc<Decisions>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) waits: Arc<AllWaits>,
}

/// Settings of an [`Idempotency`], made by [`Redlock::idempotency`]. A policy is required: call
/// [`at_most_once`](Self::at_most_once), or [`at_least_once`](Self::at_least_once), or both
/// [`on_lapsed`](Self::on_lapsed) and [`on_forgotten`](Self::on_forgotten).
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
    /// The namespace is for example the name of the operation or of the consumer. The namespace has
    /// at most 512 bytes, no control characters and no colon. By default the lease is this handle's
    /// ttl and the retention is 24 hours. You have to choose a policy for keys whose handlers may
    /// have taken effect before: call [`at_most_once`](IdempotencyBuilder::at_most_once) or
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
            waits: Arc::default(),
        };
        IdempotencyBuilder { of, preset: None, on_lapsed: None, on_forgotten: None }
    }
}

impl Idempotency {
    /// Makes a call under this key. If the key is invalid, the operations of the call return an
    /// error. The Redis key of the record is `<prefix>idem:<namespace>:<key>`.
    ///
    /// The key names the *request*. Use for example the client's idempotency key together with the
    /// client's name, or a message id from the producer of the message. Do not use an id that a
    /// redelivery changes.
    ///
    /// Each text that is not blank is a key, also `null` and `undefined`, which some programs send
    /// in place of a value that they lack. All such requests have one key, and so one result: if a
    /// key comes from outside, refuse these words there.
    pub fn key(&self, key: impl Into<String>) -> Call {
        Call::new(self.clone(), &key.into())
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the policy of the namespace for lapsed keys.
    pub fn lapsed(&self) -> Lapsed {
        self.policy.lapsed
    }

    /// Returns the lease of a claim. If a process dies while it runs a handler, other callers wait
    /// for at most this time.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the state of the nodes, like [`Redlock::health`]. For [`Health::new_keys`] this
    /// function uses the retention, the [`in_use_since`](IdempotencyBuilder::in_use_since) and the
    /// [`accept_loss`](IdempotencyBuilder::accept_loss) of this namespace. The result also lists
    /// the messages that the consumers of this handle and its clones hold until an operator acts.
    ///
    /// # Cancellation safety
    /// May be dropped at any time. The check takes a trial lock on each node; after a drop this
    /// lock is released in the background.
    pub async fn health(&self) -> Health {
        let redlock = Redlock { core: Arc::clone(&self.core) };
        let loss = DataLossTerms { born: self.in_use_since, accepted: self.accepted_loss };
        let waiting = self.waits.read();
        let commands = self.core.commands.with_retention(self.retention);
        let (mut health, causes) = health(&redlock, self.retention, loss).await;
        for (node, losses) in health.nodes.iter_mut().zip(causes) {
            if matches!(self.decision(&losses, &[]).await, Ok(Decision::Run)) {
                node.new_keys = node.locks;
            }
        }
        Health { waiting, commands, ..health }
    }

    /// Returns the numbers of the calls of this handle and its clones, by their outcomes.
    pub fn metrics(&self) -> IdempotencyMetrics {
        self.counters.read()
    }
}

impl IdempotencyBuilder {
    /// The usual value for [`accept_loss`](Self::accept_loss): 20 s. Within this time a server with
    /// an append-only file usually restarts, and a Sentinel group usually fails over.
    pub const SHORT_LOSS: Duration = Duration::from_secs(20);

    /// Sets the lease of a claim. If a process dies while it runs a handler, other callers wait for
    /// at most this time. During the handler the claim is renewed. The lease is at most the
    /// `max_ttl` of the [`Redlock`], and shorter than the retention. The default is the `ttl` of
    /// the [`Redlock`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.of.lease = lease;
        self
    }

    /// Sets the time for which the nodes keep a result, or a record without a result, after its
    /// last write; at most 366 days. The retention must be longer than the latest possible repeat
    /// of a request: a broker's redelivery, a client's retry, a replay by a person. A later repeat
    /// runs the handler again, unless the [time of the request](Call::created_at) is set. Use the
    /// same retention in every process of the namespace. A new version of a program may use a
    /// longer retention. Use a shorter one only if no request older than the new retention can
    /// still arrive. Default 24 hours.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.of.retention = retention;
        self
    }

    /// Parks every key whose handler may have taken effect before: both that is [`Lapsed::Park`]
    /// and [`Forgotten::Park`]. The call returns [`Outcome::Parked`](super::Outcome::Parked) until
    /// a person or a [probe](Call::probe) decides. Choose this preset for effects that must not
    /// happen twice, in a system that does not recognise repeats.
    ///
    /// After a loss of data on too many nodes, every new key without
    /// [`created_at`](Call::created_at) is parked for a whole retention. An operator can end this
    /// earlier with one decision for all of these keys (`palisade idem decide`).
    pub fn at_most_once(mut self) -> Self {
        self.preset = Some(Policy::AT_MOST_ONCE);
        self
    }

    /// Runs the handler even if the handler may have taken effect before: [`Lapsed::Rerun`] and
    /// [`Forgotten::Run`]. Choose this preset for effects that are safe to repeat: a downstream
    /// system that deduplicates by [`Context::child_key`](super::Context::child_key), an `INSERT …
    /// ON CONFLICT DO NOTHING`, setting a value.
    ///
    /// Normally a stored result never changes. With this preset a result that too many nodes lost
    /// can change: the handler runs once more, and the new result counts.
    pub fn at_least_once(mut self) -> Self {
        self.preset = Some(Policy::AT_LEAST_ONCE);
        self
    }

    /// Sets the policy for lapsed keys. It replaces that of [`at_most_once`](Self::at_most_once) or
    /// [`at_least_once`](Self::at_least_once).
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.on_lapsed = Some(policy);
        self
    }

    /// Sets the policy for forgotten keys. It replaces that of [`at_most_once`](Self::at_most_once)
    /// or [`at_least_once`](Self::at_least_once). The handler of a key that is forgotten and lapsed
    /// runs only if both policies allow it.
    pub fn on_forgotten(mut self, policy: Forgotten) -> Self {
        self.on_forgotten = Some(policy);
        self
    }

    /// Sets the number of replicas that must have a claim before its handler starts, and a result
    /// before a caller receives it. The number also applies to a result of an earlier call. Default
    /// [`Durability::Primary`]. [`Context::durability`](super::Context::durability) and
    /// [`Outcome::Executed`](super::Outcome::Executed) report the number of replicas that had the
    /// claim and the result.
    pub fn durability(mut self, level: Durability) -> Self {
        self.of.durability = level;
        self
    }

    /// Sets the size limit of stored results, in bytes of JSON; default 1 MiB, at most 8 MiB. For a
    /// larger result the nodes store only its existence. The caller of the handler gets the value,
    /// later callers get [`Outcome::NotKept`](super::Outcome::NotKept), and the handler does not
    /// run again. All replies of a node use one connection, so a large result delays every caller.
    /// Store large results elsewhere, and return a reference to them.
    pub fn max_result(mut self, bytes: usize) -> Self {
        self.of.max_result = bytes;
        self
    }

    /// Sets the time before which no key of this namespace was in use. A node that lost no data
    /// since this time has the record of every used key. If a call also has a
    /// [`created_at`](Call::created_at), the later of the two times counts. In contrast to
    /// `created_at`, this time makes no request too old. By default this time is unknown.
    ///
    /// Use a constant of the deployment, for example the day of the first use of the namespace. Use
    /// the same time in every process. Never use the start of this process: after a loss of data,
    /// keys from before the start would count as new, and their handlers would run again.
    pub fn in_use_since(mut self, since: SystemTime) -> Self {
        self.of.in_use_since = Some(millis_since_1970(since));
        self
    }

    /// Accepts losses of data up to this length. A node may have lost its writes of a period. If
    /// the node's data show that the period is not longer than `longest`, keys do not count as
    /// forgotten because of this loss. A handler that ran within the lost period may then run again
    /// after a repeat of its request.
    ///
    /// A server may lack its latest writes after a restart, after a failover, or with data from a
    /// backup. The library regularly stores the time of the server's clock in `palisade:note`. The
    /// lost period begins at the stored time that came back, and ends at the first request after
    /// the restart. So the downtime of the server counts as lost, too. At a write the stored time
    /// is at most 1 s old; while a `Redlock` handle sends no requests it is at most 3 s old. In a
    /// Sentinel group a replaced master may still accept writes for the failover window, so this
    /// window is added to the lost period. Without this setting a loss of one second makes every
    /// key without [`created_at`](Call::created_at) count as forgotten for a whole retention.
    /// [`SHORT_LOSS`](Self::SHORT_LOSS) (20 s) covers a restart of a server with an append-only
    /// file. It also covers the failover of a group whose `down-after-milliseconds` is some
    /// seconds. No value covers a server that lost everything. A backup is covered only if its age
    /// is less than the value. In a cluster whose slots are moved, a loss may be longer than the
    /// data show.
    ///
    /// The value must be less than the retention. Use the same value in every process of the
    /// namespace. Default zero: no loss is accepted.
    pub fn accept_loss(mut self, longest: Duration) -> Self {
        self.of.accepted_loss = longest;
        self
    }

    /// Of no use where every key has a creation time, or where handlers of forgotten keys may run.
    pub(crate) fn without_forgotten_reports(mut self) -> Self {
        self.of.reports_forgotten = false;
        self
    }

    /// Checks the settings and builds the value.
    ///
    /// # Errors
    /// [`ConfigError`] with the field, the value and the rule.
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
        i.waits = Arc::default();
        // Even if several handles are built from clones of one builder.
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
