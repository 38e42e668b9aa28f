//! One connection to one server process.
/// What a server said of itself when the connection was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    /// `run_id`: the process.
    pub(crate) run_id: std::sync::Arc<str>,
    /// `master_replid`: the data history.
    pub(crate) replid: String,
    /// `redis_version` as (major, minor).
    pub(crate) version: (u32, u32),
    /// `min_slaves_good_slaves`; `None` if the min-replicas guard is off.
    pub(crate) good_replicas: Option<u32>,
    /// `min-replicas-to-write`, if CONFIG may be read.
    pub(crate) min_replicas: Option<u32>,
    /// `min-replicas-max-lag` in seconds, if CONFIG may be read.
    pub(crate) min_replicas_max_lag: Option<u32>,
}
