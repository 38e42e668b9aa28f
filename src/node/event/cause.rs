//! Why a node's data history is another one than before.

/// Cause of a change of a node's data history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryCause {
    /// A new server process answers at the same address. Its data may be complete.
    Restart,
    /// Another server answers. A replica was promoted, or the address points to another server.
    Promotion,
    /// The node has lost its marker, by `FLUSHALL` or by a restart without data.
    DataLost,
    /// The node had no data of palisade when the handle first reached it: the node is new, or it
    /// was emptied. The log has this cause as information and not as a warning, because the warning
    /// `quarantine_begun` follows.
    FirstUse,
    /// The handle is new to this node, or the same server process has another data history than
    /// before.
    Unknown,
}

impl HistoryCause {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Promotion => "promotion",
            Self::DataLost => "data lost",
            Self::FirstUse => "first use",
            Self::Unknown => "unknown",
        }
    }
}
