//! Interface for the other packages of this workspace, of exactly the same version, besides the
//! library's public one. Nothing here is promised: it may change with every release.

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, RedisResult};

pub use crate::config::{RETENTION, default_clock_error, lasts};
pub use crate::dial::Line;
pub use crate::dial::endpoint::Endpoint;
use crate::dial::frames::{Excess, Limits};
use crate::dial::said::refusal;
pub use crate::dial::said::said;
use crate::election::{Leader, Metadata};
use crate::error::{ConfigError, NodeError};
pub use crate::idempotency::decision::{Read, Record};
use crate::idempotency::{Call, Decided, Decision, Idempotency, KeyName, RunError};
pub use crate::lock::digest;
pub use crate::name::{
    DECISIONS, MARKER, SETTLED, check_name, check_namespace, check_prefix, of_key, of_record,
    record_key,
};
pub use crate::node::sentinel::GroupAccess;
use crate::node::{RedisNodeBuilder, SentinelNodeBuilder};
use crate::op::{Holder, Loss, Reply};
use crate::redlock::RedlockBuilder;
pub use crate::sentinel::discovery::SENTINELS_MAX;
pub use crate::sentinel::min_replicas::{
    ADVISED_DOWN_AFTER, ADVISED_LAG, Checked, LAG_SLACK, MinReplicasFacts, MinReplicasRule,
};
use crate::settings::Settings;
pub use crate::settings::url::NodeUrl;
pub use crate::shown::{SENTENCE_MAX, Secrets};
pub use crate::time::{AtMost, until_utc};
use crate::tls;
pub use crate::tls::Tls;
use crate::token::OwnerToken;

/// Connects and logs in. The caller limits the time.
///
/// # Errors
/// The server cannot be reached, or refuses the login.
///
/// # Cancellation safety
/// If dropped, the connection is closed.
pub async fn open(at: &Endpoint) -> RedisResult<Line> {
    at.dial(AsyncConnectionConfig::new(), Limits::WORDS).await
}

/// Returns the nodes in the settings, not built yet.
///
/// # Errors
/// The first invalid address, without possible secrets.
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
/// The first invalid setting.
pub fn endpoint(node: &RedisNodeBuilder) -> Result<Endpoint, ConfigError> {
    node.endpoint()
}

/// Returns the address, login and TLS settings of a group.
///
/// # Errors
/// The first invalid setting.
pub fn group_access(node: &SentinelNodeBuilder) -> Result<GroupAccess, ConfigError> {
    node.access()
}

/// Returns the reason for which no server with this `INFO` may vote, whatever its role; `None` if
/// it may.
pub fn objection(info: &str) -> Option<NodeError> {
    crate::node::redis::facts::objection(info)
}

/// Returns true if the token stands for no owner: a lock that is kept or reserved.
pub fn is_nobodys(owner: OwnerToken) -> bool {
    owner.is_nobodys()
}

/// Reads what the leader that holds an election published on a node; `None` if it published nothing
/// there.
pub fn leader(owner: OwnerToken, holder: &Holder, remaining: Duration) -> Option<Leader> {
    Metadata::read(owner, holder).map(|(_, metadata)| metadata.leader(remaining))
}

/// Returns the prefix of the handle and the name of the key.
pub fn key_of(call: &Call) -> (&str, KeyName) {
    (call.prefix(), call.name())
}

/// Returns the prefix of the handle.
pub fn prefix_of(keys: &Idempotency) -> &str {
    keys.prefix()
}

/// Returns the decision about a loss; `None` if a majority shows none.
///
/// # Errors
/// Too few nodes answered, or what is stored cannot be read.
///
/// # Cancellation safety
/// Reads only.
pub async fn decided(keys: &Idempotency, loss: Loss) -> Result<Option<Decided>, RunError> {
    keys.decided(loss).await
}

/// Reads one of the two records of a loss.
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

/// Stores a decision in one of the two records of a loss, unless the record has one. Returns the
/// decision that the record has; true if it is the one of this call.
///
/// # Errors
/// The decision is not known to be stored.
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

/// Reads from each node one of the two records of a loss or, without a record, the losses that
/// concern the namespace's keys.
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

/// Connects and logs in, for answers of up to 64 MiB. The caller limits the time.
///
/// # Errors
/// The server cannot be reached or refuses the login.
///
/// # Cancellation safety
/// If dropped, the connection is closed.
pub async fn open_wide(at: &Endpoint) -> RedisResult<Line> {
    at.dial(AsyncConnectionConfig::new(), Limits::ENTRIES).await
}

/// Returns the message of an error from the server or its connection, without the login's secrets.
pub fn sentence(e: &RedisError, secrets: &Secrets) -> String {
    match tls::inside::<Excess>(e) {
        Some(excess) => excess.to_string(),
        None => refusal(e, secrets).unwrap_or_else(|| said(e, secrets)),
    }
}
