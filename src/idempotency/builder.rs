//! The handle of one namespace, and its settings.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Call, Lapsed};
use crate::driver::Core;
use crate::durability::Durability;
use crate::error::ConfigError;
use crate::name::check_name;
use crate::redlock::Redlock;

const RETENTION: Duration = Duration::from_secs(24 * 3_600);
const MAX_RESULT: usize = 1 << 20;
const MAX_RESULT_MAX: usize = 8 << 20;
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
    pub(super) max_result: usize,
    /// No key of the namespace is older, in milliseconds since 1970.
    pub(super) in_use_since: Option<u64>,
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
            max_result: MAX_RESULT,
            in_use_since: None,
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

/// A moment as nodes compare it; what lies before 1970 is 1970.
pub(super) fn millis_since_1970(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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

    /// The largest result in bytes (as JSON) that is stored for later callers; default 1 MiB, at
    /// most 8 MiB. Of a larger one the fact is stored: the caller whose handler ran has the value,
    /// later ones are answered [`Outcome::NotKept`](super::Outcome::NotKept), and the handler is
    /// not run again. A node sends all that waits for it over one connection, so large results cost
    /// everybody time: store them elsewhere, and their place here.
    pub fn max_result(mut self, bytes: usize) -> Self {
        self.0.max_result = bytes;
        self
    }

    /// No key of this namespace was in use before this: what began with this deployment, or where
    /// keys are known to be younger. A node that kept everything since then knows of every key
    /// whether it was claimed. Default: unknown.
    pub fn in_use_since(mut self, since: SystemTime) -> Self {
        self.0.in_use_since = Some(millis_since_1970(since));
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
        if i.max_result > MAX_RESULT_MAX {
            let value = format!("{} bytes", i.max_result);
            return Err(ConfigError::new("max_result", value, "at most 8 MiB"));
        }
        if i.retention > RETENTION_MAX {
            return Err(ConfigError::new("retention", retention, "at most 366 days"));
        }
        Ok(i)
    }
}
