//! What happens to a deployment: a column of the table.

use super::fleet::Kind;

/// An ordinary event of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    FirstWithoutInit,
    First,
    Restart,
    Crash,
    Planned,
    ReplicaLost,
}

impl Happening {
    /// All of them, in the order of the table.
    pub(super) const ALL: [Self; 6] = [
        Self::FirstWithoutInit,
        Self::First,
        Self::Restart,
        Self::Crash,
        Self::Planned,
        Self::ReplicaLost,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FirstWithoutInit => "first start without init",
            Self::First => "first start",
            Self::Restart => "restart",
            Self::Crash => "crash of the master",
            Self::Planned => "planned failover",
            Self::ReplicaLost => "one replica lost",
        }
    }

    /// Whether there was nothing before it.
    pub(super) fn is_first(self) -> bool {
        matches!(self, Self::First | Self::FirstWithoutInit)
    }

    /// Whether it can happen to such a deployment.
    pub(super) fn happens_to(self, kind: Kind) -> bool {
        self != Self::ReplicaLost || kind.has_replicas()
    }
}
