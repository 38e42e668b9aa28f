//! Ordinary events of a deployment, such as restarts. Each event is a column of the tables that
//! `nemesis ordinary` prints.

use super::fleet::Kind;
use crate::names::names;

names! {
    /// An ordinary event of a deployment. Each event is a column of the printed tables, in this
    /// order.
    pub(super) enum Happening {
        FirstWithoutInit = "first start without init",
        First = "first start",
        Restart = "clean restart",
        Crash = "kill -9 of the master",
        Planned = "planned handover",
        ReplicaLost = "one replica lost",
        Backup = "restored backup",
        Emptied = "emptied",
        BackedUp = "backup made",
        Returning = "returning master",
        Elsewhere = "another's server",
        Moved = "slot moved",
    }
}

impl Happening {
    pub(super) fn is_first(self) -> bool {
        matches!(self, Self::First | Self::FirstWithoutInit)
    }

    /// Returns true if the event loses nothing, so that it may cost nothing.
    pub(super) fn is_free(self) -> bool {
        self == Self::BackedUp
    }

    pub(super) fn happens_to(self, kind: Kind) -> bool {
        if kind == Kind::Cluster {
            return self.is_first()
                || matches!(self, Self::Restart | Self::Crash | Self::Planned | Self::Moved);
        }
        match self {
            Self::Moved => false,
            Self::Backup | Self::Elsewhere => !kind.has_replicas(),
            Self::ReplicaLost | Self::Returning => kind.has_replicas(),
            _ => true,
        }
    }
}
