//! Interface for the other packages of this workspace, which have exactly the same version and need
//! more than the public interface. It may change with every release.

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, RedisResult};

pub use crate::config::{RETENTION, default_clock_error, lasts};
pub use crate::dial::Line;
pub use crate::dial::endpoint::Endpoint;
pub use crate::dial::error_text::error_text;
use crate::dial::error_text::refusal;
use crate::dial::frames::{Excess, Limits};
use crate::election::{Leader, Metadata};
use crate::error::{ConfigError, NodeError};
pub use crate::idempotency::operator_decision::{Read, Record};
use crate::idempotency::{Call, Decided, Decision, Idempotency, KeyName, RunError};
pub use crate::lock::digest;
pub use crate::name::{
    DECISIONS, MARKER, SETTLED, check_name, check_namespace, check_prefix, of_key, of_record,
    record_key,
};
pub use crate::node::min_replicas_rule::{
    ADVISED_DOWN_AFTER, ADVISED_LAG, Checked, LAG_SLACK, MinReplicasFacts, MinReplicasRule,
};
pub use crate::node::sentinel::GroupAccess;
use crate::node::{RedisNodeBuilder, SentinelNodeBuilder};
use crate::op::{Holder, Loss, Reply};
use crate::redlock::RedlockBuilder;
pub use crate::sentinel::discovery::SENTINELS_MAX;
use crate::settings::Settings;
pub use crate::settings::url::NodeUrl;
pub use crate::shown::{SENTENCE_MAX, Secrets};
pub use crate::time::{AtMost, until_utc};
use crate::tls;
pub use crate::tls::Tls;
use crate::token::OwnerToken;

/// Connects to a server and logs in. It has no time limit, so the caller has to set one.
///
/// # Errors
/// The server cannot be reached, or refuses the login.
///
/// # Cancellation safety
/// If dropped, the connection is closed.
pub async fn open(at: &Endpoint) -> RedisResult<Line> {
    at.dial(AsyncConnectionConfig::new(), Limits::WORDS).await
}

/// Returns the nodes that the settings name, not built yet.
///
/// # Errors
/// [`ConfigError`] for the first invalid address, without possible secrets.
pub fn nodes(settings: &Settings) -> Result<Vec<NodeUrl>, ConfigError> {
    settings.nodes()
}

/// Applies all settings to a builder, except the nodes and their logins.
pub fn configure(settings: &Settings, builder: RedlockBuilder) -> RedlockBuilder {
    settings.configure(builder)
}

/// Returns the address, login and TLS settings of a server.
///
/// # Errors
/// [`ConfigError`] for the first invalid setting.
pub fn endpoint(node: &RedisNodeBuilder) -> Result<Endpoint, ConfigError> {
    node.endpoint()
}

/// Returns the addresses, logins and TLS settings of a Sentinel group.
///
/// # Errors
/// [`ConfigError`] for the first invalid setting.
pub fn group_access(node: &SentinelNodeBuilder) -> Result<GroupAccess, ConfigError> {
    node.access()
}

/// Returns why a server with this answer to `INFO` may not vote, neither as a master nor once it is
/// promoted; `None` if it may.
pub fn objection(info: &str) -> Option<NodeError> {
    crate::node::redis::facts::objection(info)
}

/// Returns true if the token stands for no owner, because the lock is kept after a planned handover
/// or reserved for a waiting handle.
pub fn is_ownerless(owner: OwnerToken) -> bool {
    owner.is_ownerless()
}

/// Reads what the leader of an election has published on a node beside its lock, of which `holder`
/// is the node's answer; `None` if it has published nothing there.
pub fn leader(owner: OwnerToken, holder: &Holder, remaining: Duration) -> Option<Leader> {
    Metadata::read(owner, holder).map(|(_, metadata)| metadata.leader(remaining))
}

/// Returns the prefix of the call's handle, and the name of its idempotency key.
pub fn key_of(call: &Call) -> (&str, KeyName) {
    (call.prefix(), call.name())
}

/// Returns the prefix of the handle from which `keys` was made.
pub fn prefix_of(keys: &Idempotency) -> &str {
    keys.prefix()
}

/// Returns the decision of an operator about a loss of data; `None` if no majority of the nodes
/// shows one.
///
/// # Errors
/// Too few nodes answered, or what is stored cannot be read.
///
/// # Cancellation safety
/// Reads only.
pub async fn decided(keys: &Idempotency, loss: Loss) -> Result<Option<Decided>, RunError> {
    keys.decided(loss).await
}

/// Reads one of the two records that may have a decision of an operator about a loss of data.
///
/// # Errors
/// Too few nodes answered, or what is stored cannot be read.
///
/// # Cancellation safety
/// Reads only.
pub async fn read_decision(
    keys: &Idempotency,
    loss: Loss,
    record: Record,
) -> Result<Read, RunError> {
    keys.read(loss, record).await
}

/// Stores a decision of an operator in one of the two records for a loss of data, unless the record
/// already has one. `decision` also has the name of the operator and the reason. Returns the
/// decision that the record has afterwards, and true if this call stored it.
///
/// # Errors
/// [`RunError`] if it is not known whether the decision is stored.
///
/// # Cancellation safety
/// If dropped, the decision may be stored; storing the same again is safe.
pub async fn store_decision(
    keys: &Idempotency,
    loss: Loss,
    record: Record,
    decision: (Decision, &str, &str),
) -> Result<(Decided, bool), RunError> {
    keys.settle(loss, record, decision).await
}

/// Asks each node for one of the two records with decisions about a loss of data or, if `record` is
/// `None`, for the losses that concern keys of the namespace.
///
/// # Cancellation safety
/// Reads only.
pub async fn ask_each(
    keys: &Idempotency,
    record: Option<(Loss, Record)>,
) -> Vec<(Arc<str>, Result<Reply, NodeError>)> {
    let op = match record {
        Some((loss, record)) => keys.ask_for_decision(loss, record),
        None => keys.ask_for_losses(),
    };
    keys.ask_each(&op).await
}

/// Connects to a server and logs in, for answers of up to 64 MiB. It has no time limit, so the
/// caller has to set one.
///
/// # Errors
/// The server cannot be reached or refuses the login.
///
/// # Cancellation safety
/// If dropped, the connection is closed.
pub async fn open_wide(at: &Endpoint) -> RedisResult<Line> {
    at.dial(AsyncConnectionConfig::new(), Limits::ENTRIES).await
}

/// Returns the message of an error of the server or its connection, without the secrets of the
/// login.
pub fn sentence(e: &RedisError, secrets: &Secrets) -> String {
    match tls::inside::<Excess>(e) {
        Some(excess) => excess.to_string(),
        None => refusal(e, secrets).unwrap_or_else(|| error_text(e, secrets)),
    }
}
