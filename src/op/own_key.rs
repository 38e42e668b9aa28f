//! The keys of an op.

use super::{Ballot, Claim, Enlist, Op, RecordKey};
use crate::name::LockKeys;

impl Op {
    pub(crate) fn own_key(&self) -> Option<&str> {
        match self {
            Self::Enlist(Enlist { key, .. }) => Some(key),
            op => op.record_key().map(|key| &**key),
        }
    }

    pub(crate) fn record_key(&self) -> Option<&RecordKey> {
        match self {
            Self::Claim(Claim { key, .. })
            | Self::RaiseClaim { key, .. }
            | Self::ExtendClaim { ballot: Ballot { key, .. }, .. }
            | Self::Complete { ballot: Ballot { key, .. }, .. }
            | Self::Steps { ballot: Ballot { key, .. }, .. }
            | Self::Unclaim { key, .. }
            | Self::Lookup { key, .. } => Some(key),
            _ => None,
        }
    }

    pub(crate) fn lock_keys(&self) -> Option<&LockKeys> {
        match self {
            Self::Acquire { keys, .. }
            | Self::Raise { keys, .. }
            | Self::Extend { keys, .. }
            | Self::Release { keys, .. }
            | Self::Inspect { keys, .. } => Some(keys),
            _ => None,
        }
    }
}
