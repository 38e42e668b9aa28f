//! Interface for the other packages of this workspace, which always have this package's version. It
//! may change with every release.

#[cfg(feature = "test-util")]
pub mod made;

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::config::{RETENTION, default_clock_error, lasts};
pub use crate::dial::Line;
pub use crate::dial::endpoint::Endpoint;
pub use crate::dial::error_text::error_text;
use crate::dial::error_text::refusal;
use crate::dial::frames::{Excess, Limits};
use crate::election::{Leader, Metadata};
use crate::error::{Commands, ConfigError, NodeError};
pub use crate::idempotency::operator_decision::Record;
pub use crate::idempotency::waiting::Waits;
use crate::idempotency::{
    Call, Decided, Decision, Idempotency, IdempotencyBuilder, KeyName, RunError, lossless,
};
pub use crate::lock::digest;
/// The rules of a server's marker.
pub mod lineage {
    pub use crate::node::lineage::{
        Handover, Losses, Lowering, Marker, Note, Process, ReplicationId, Shown,
    };
}
/// The pure parts, for the model checker: the machines, and a node in memory as a value.
#[cfg(feature = "test-util")]
pub mod model {
    pub use crate::node::memory::{NodeValue, SlotKeys};
    pub use crate::quorum::acquire::{Acquire, Loss};
    pub use crate::quorum::claim::{Denied, Promise, Record};
    pub use crate::quorum::complete::{Complete, Found, Look};
    pub use crate::quorum::extend::{Extend, Extension, Times};
    pub use crate::quorum::grant::{Grant, Known};
    pub use crate::quorum::release::{Found as Taken, Release};
    pub use crate::quorum::slots::AcquireSlot;
    pub use crate::quorum::vote::Witness;
    pub use crate::quorum::{Answer, Machine, Progress};

    use std::time::Duration;

    use crate::time::{Drift, Moment};

    /// Returns the end of the validity of a lease that was asked for at `sent`.
    pub fn valid_until(sent: Moment, ttl: Duration, drift: Drift) -> Moment {
        crate::time::valid_until(sent, ttl, drift)
    }
}
pub use crate::name::{
    DECISIONS, MARKER, NOTE, SETTLED, STAYS, check_name, check_namespace, check_prefix,
    deployment_id, of_key, of_record, record_key, slot_key, slot_of, trial_key,
};
pub use crate::node::cluster::map::{
    Map as ClusterMap, Round as ClusterRound, WORD as CLUSTER_WORD, Word as SlotWord,
};
pub use crate::node::cluster::nodes::View as ClusterView;
pub use crate::node::cluster::owners::{SlotOwner, cluster_masters, slot_owners};
pub use crate::node::min_replicas_rule::{
    ADVISED_DOWN_AFTER, ADVISED_LAG, Checked, LAG_SLACK, MinReplicasFacts, MinReplicasRule,
};
pub use crate::node::redis::faults::missing_right;
pub use crate::node::sentinel::GroupAccess;
use crate::node::{ClusterNodeBuilder, RedisNodeBuilder, SentinelNodeBuilder};
pub use crate::op::QuarantineId;
use crate::op::{Holder, Loss, Reply};
pub use crate::quorum::answers::attempts;
use crate::redlock::Redlock;
pub use crate::rules::records::{RecordChange, Unchanged};
pub use crate::safe_text::{SENTENCE_MAX, Secrets};
pub use crate::sentinel::conn::not_monitored;
pub use crate::sentinel::discovery::SENTINELS_MAX;
use crate::settings::Settings;
pub use crate::settings::given;
pub use crate::settings::nodes::NodeUrl;
pub use crate::settings::read::{SETTINGS, secret_variables, unknown_variables, variable};
pub use crate::settings::span::{FORM as SPAN_FORM, parse as parse_span};
pub use crate::store::operator::{RecordEdit, RecordRead};
pub use crate::time::{AtMost, until_utc};
use crate::tls;
pub use crate::tls::Tls;
use crate::token::OwnerToken;

/// Connects to a server and logs in. This function has no time limit, so the caller has to set one.
///
/// # Errors
/// The server cannot be reached, or refuses the login.
///
/// # Cancellation safety
/// If the future is dropped, the connection is closed.
pub async fn open(at: &Endpoint) -> RedisResult<Line> {
    // Callers await it in large futures.
    Box::pin(at.dial("an operator", AsyncConnectionConfig::new(), Limits::WORDS)).await
}

/// Returns the text of an error of [`open`], with the advice that a node gives.
pub fn opening_text(e: &RedisError, at: &Endpoint) -> String {
    crate::node::redis::faults::opening(e, at.is_tls(), &at.secrets()).detail().to_owned()
}

/// Returns the reason for which no client uses a server of this kind or version; `None` if clients
/// may use it. `info` is the server's reply to `INFO`.
pub fn unsupported(info: &str) -> Option<NodeError> {
    crate::node::redis::facts::kind_and_version(info, &Secrets::default()).err()
}

/// Keeps the keys of a namespace out of the reports of forgotten keys, because no operator has to
/// decide about them.
pub fn without_forgotten_reports(keys: IdempotencyBuilder) -> IdempotencyBuilder {
    keys.without_forgotten_reports()
}

/// Returns the addresses and settings of the nodes in `settings`. The nodes are not built yet.
///
/// # Errors
/// [`ConfigError`] for the first invalid address. The error contains no secrets.
pub fn nodes(settings: &Settings) -> Result<Vec<NodeUrl>, ConfigError> {
    settings.nodes()
}

/// Returns the address, login and TLS settings of a server.
///
/// # Errors
/// [`ConfigError`] for the first invalid setting.
pub fn endpoint(node: &RedisNodeBuilder) -> Result<Endpoint, ConfigError> {
    node.data()
}

/// Returns the address, login and TLS settings of each server that names a cluster.
///
/// # Errors
/// [`ConfigError`] for the first invalid setting.
pub fn cluster_servers(node: &ClusterNodeBuilder) -> Result<Vec<Endpoint>, ConfigError> {
    node.servers()
}

/// Returns the addresses, logins and TLS settings of a Sentinel group.
///
/// # Errors
/// [`ConfigError`] for the first invalid setting.
pub fn group_access(node: &SentinelNodeBuilder) -> Result<GroupAccess, ConfigError> {
    node.access()
}

/// Returns the reason for which a server must not vote, as a master or after a promotion. `info` is
/// the server's reply to `INFO`. `allow_eviction` is true if the server may delete keys when its
/// memory is full. Returns `None` if the server may vote.
pub fn objection(info: &str, allow_eviction: bool) -> Option<NodeError> {
    crate::node::redis::facts::objection(info, allow_eviction)
}

/// Returns true if the token belongs to no owner. A node stores such a token in the place of an
/// owner to keep a lock closed after a planned handover, or to reserve a lock for a waiting handle.
pub fn is_ownerless(owner: OwnerToken) -> bool {
    owner.is_ownerless()
}

/// Reads an election leader's metadata from a node's reply `holder`. Returns `None` if the reply
/// has no metadata of this owner.
pub fn leader(owner: OwnerToken, holder: &Holder, remaining: Duration) -> Option<Leader> {
    Metadata::read(owner, holder).map(|(_, metadata)| metadata.leader(remaining))
}

/// Converts a result to JSON, as it is stored on the nodes.
///
/// # Errors
/// What failed, and why: JSON does not keep a number that is not finite, nor `Some` of a value that
/// is written as `null`; or the result cannot be read back.
pub fn to_json<T: Serialize + DeserializeOwned>(
    result: &T,
) -> Result<String, (&'static str, serde_json::Error)> {
    lossless::encode(result)
}

/// Returns the prefix of the call's handle, and the name of its idempotency key.
pub fn key_of(call: &Call) -> (&str, KeyName) {
    (call.prefix(), call.name())
}

/// Returns the prefix of the handle from which `keys` was made.
pub fn prefix_of(keys: &Idempotency) -> &str {
    keys.prefix()
}

/// Returns the text as one word of a shell.
pub fn quoted(text: &str) -> String {
    crate::error::quoted(text)
}

/// Returns the commands of the program `palisade` for the nodes of the handle, for keys that are
/// kept for `retention`.
pub fn commands(redlock: &Redlock, retention: Duration) -> Commands {
    redlock.core.commands.with_retention(retention)
}

/// Returns the decision of an operator about a loss of data; `None` if no majority of the nodes has
/// a decision.
///
/// # Errors
/// Too few nodes answered, or the stored decision cannot be parsed.
///
/// # Cancellation safety
/// Reads only.
pub async fn decided(keys: &Idempotency, loss: Loss) -> Result<Option<Decided>, RunError> {
    keys.decided(loss).await
}

/// Stores a decision of an operator about a loss of data, if the loss has no decision yet. With
/// `replace`, a decision to run the affected calls also replaces a stored decision to park them (to
/// leave them to a person). `decision` also contains the name of the operator and the reason.
/// Returns the valid decision, and true if this call stored it.
///
/// # Errors
/// [`RunError`] if the decision may not be stored.
///
/// # Cancellation safety
/// If the future is dropped, the decision may or may not be stored. A second call with the same
/// decision is safe.
pub async fn decide(
    keys: &Idempotency,
    loss: Loss,
    decision: (Decision, &str, &str),
    replace: bool,
) -> Result<(Decided, bool), RunError> {
    keys.decide(loss, decision, replace).await
}

/// Stores that keys that a loss of data made forgotten run, as decided, also while this node gives
/// no answer, with the name of the operator and the reason.
///
/// # Errors
/// [`RunError`] if that may not be stored.
///
/// # Cancellation safety
/// As [`decide`].
pub async fn give_up(
    keys: &Idempotency,
    loss: Loss,
    node: &str,
    audit: (&str, &str),
) -> Result<(), RunError> {
    keys.give_up(loss, node, audit).await
}

/// Reads a record that can hold a decision about a loss of data, from each node. If
/// `record` is `None`, reads the losses that affect keys of the namespace.
///
/// # Cancellation safety
/// Reads only.
pub async fn ask_each(
    keys: &Idempotency,
    record: Option<(Loss, Record<'_>)>,
) -> Vec<(Arc<str>, Result<Reply, NodeError>)> {
    let op = match record {
        Some((loss, record)) => keys.ask_for_decision(loss, record),
        None => keys.ask_for_losses(),
    };
    keys.ask_each(&op).await
}

/// Connects to a server and logs in, for replies of up to 64 MiB. This function has no time limit,
/// so the caller has to set one.
///
/// # Errors
/// The server cannot be reached or refuses the login.
///
/// # Cancellation safety
/// If the future is dropped, the connection is closed.
pub async fn open_wide(at: &Endpoint) -> RedisResult<Line> {
    // Callers await it in large futures.
    Box::pin(at.dial("an operator", AsyncConnectionConfig::new(), Limits::ENTRIES)).await
}

/// Returns the text of an error of the server or its connection. The text contains no secrets of
/// the login.
pub fn sentence(e: &RedisError, secrets: &Secrets) -> String {
    match tls::inside::<Excess>(e) {
        Some(excess) => excess.to_string(),
        None => refusal(e, secrets).unwrap_or_else(|| error_text(e, secrets)),
    }
}
