//! Ordinary events of a deployment. Each event is a column of the tables.

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
    Backup,
    Emptied,
}

impl Happening {
    /// All events, in the order of the table.
    pub(super) const ALL: [Self; 8] = [
        Self::FirstWithoutInit,
        Self::First,
        Self::Restart,
        Self::Crash,
        Self::Planned,
        Self::ReplicaLost,
        Self::Backup,
        Self::Emptied,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FirstWithoutInit => "first start without init",
            Self::First => "first start",
            Self::Restart => "clean restart",
            Self::Crash => "kill -9 of the master",
            Self::Planned => "planned handover",
            Self::ReplicaLost => "one replica lost",
            Self::Backup => "restored backup",
            Self::Emptied => "emptied",
        }
    }

    /// Returns true if the event is the first start of a new deployment.
    pub(super) fn is_first(self) -> bool {
        matches!(self, Self::First | Self::FirstWithoutInit)
    }

    /// Returns true if the event can happen to this kind of deployment.
    pub(super) fn happens_to(self, kind: Kind) -> bool {
        match self {
            Self::ReplicaLost => kind.has_replicas(),
            Self::Backup => !kind.has_replicas(),
            _ => true,
        }
    }
}
