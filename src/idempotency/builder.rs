//! The handle of one namespace, and its settings.

use std::sync::Arc;
use std::time::Duration;

use super::{Call, Lapsed};
use crate::driver::Core;
use crate::durability::Durability;
use crate::error::ConfigError;
use crate::name::check_name;
use crate::redlock::Redlock;

const RETENTION: Duration = Duration::from_secs(24 * 3_600);
const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Results by key in one namespace. Cheap to clone.
///
/// Every process that handles the same keys must use the same nodes, prefix and namespace.
#[derive(Clone, Debug)]
pub struct Idempotency {
    pub(super) core: Arc<Core>,
    pub(super) namespace: Arc<str>,
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) on_lapsed: Lapsed,
    pub(super) durability: Durability,
}

/// Settings of an [`Idempotency`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct IdempotencyBuilder(Idempotency);

impl Idempotency {
    /// Begins with the lease of the handle's ttl, a retention of 24 hours, and [`Lapsed::Park`].
    pub fn builder(redlock: &Redlock) -> IdempotencyBuilder {
        let core = Arc::clone(&redlock.core);
        IdempotencyBuilder(Self {
            lease: core.config.ttl,
            core,
            namespace: Arc::from(""),
            retention: RETENTION,
            on_lapsed: Lapsed::default(),
            durability: Durability::Primary,
        })
    }

    /// A call under this key. A bad key is told by the verbs. On the nodes the record's key is
    /// `<prefix>idem:<namespace>:<key>`.
    ///
    /// The key is whatever names the *request*: the client's idempotency key together with whom it
    /// came from, a message's id given by its producer. Not an id that a redelivery changes.
    pub fn key(&self, key: impl Into<String>) -> Call {
        Call::new(self.clone(), &key.into())
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl IdempotencyBuilder {
    /// What the keys belong to, for example the name of the operation or of the consumer. Required.
    /// At most 512 bytes, no control characters, no colon.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.namespace = Arc::from(namespace.into());
        self
    }

    /// How long others wait after the process that runs a handler died; the keeper renews it while
    /// the handler runs. Default the handle's ttl; at most its `max_ttl`, less than the retention.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.lease = lease;
        self
    }

    /// How long a result (and the trace of an attempt without one) is kept after it was last
    /// written, at most 366 days. Must be longer than anything may take to send the request again:
    /// a broker's redelivery, a client's retry, a replay by hand. Default 24 hours.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.0.retention = retention;
        self
    }

    /// What to do when an earlier attempt left no result. Default [`Lapsed::Park`]. A probe is
    /// given with the call: [`Call::probe`].
    pub fn on_lapsed(mut self, policy: Lapsed) -> Self {
        self.0.on_lapsed = policy;
        self
    }

    /// How many replicas must have a claim before its handler starts, and a result before it is
    /// answered, also one that stood there already; default [`Durability::Primary`].
    /// [`Context::durability`](super::Context::durability) and
    /// [`Outcome::Executed`](super::Outcome::Executed) tell how many had them.
    pub fn durability(mut self, level: Durability) -> Self {
        self.0.durability = level;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Idempotency, ConfigError> {
        let i = self.0;
        check_name("namespace", &i.namespace)?;
        if i.namespace.contains(':') {
            // "a:b" with key "c" would be "a" with key "b:c".
            let value = format!("{:?}", i.namespace);
            return Err(ConfigError::new("namespace", value, "no colon"));
        }
        i.durability.check()?;
        let config = &i.core.config;
        config.check_ttl(i.lease).map_err(|e| e.named("lease"))?;
        config.check_renewed(i.lease).map_err(|e| e.named("lease"))?;
        let retention = format!("{:?}", i.retention);
        if i.retention <= i.lease {
            let rule = format!("longer than the lease ({:?})", i.lease);
            return Err(ConfigError::new("retention", retention, rule));
        }
        if i.retention > RETENTION_MAX {
            return Err(ConfigError::new("retention", retention, "at most 366 days"));
        }
        Ok(i)
    }
}
