//! Durability levels: how many replicas must have a grant before it counts, and how many had it.
//!
//! A master answers before its replicas have the write. A grant is lost if a replica without it is
//! promoted too early; then the quarantine prevents a second grant, and a durability level
//! (durability 1) prevents the loss itself.

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// The number of replicas that must have a grant, a renewal or a result before a node's vote
/// counts.
///
/// - **`Primary`** costs nothing and prevents no loss: a failover loses the last moments before it,
///   a manual switch under load about 5 000 grants.
/// - **`Replicas(k)`** survives the death of the master if a replica that has the grant is
///   promoted. But no promotion considers which replica confirmed what: a manual switch still lost
///   about 400 grants that one of two replicas had, and with the master and that replica cut off
///   from all others, 11 996 of 11 999 were lost.
/// - **`AllReplicas`** survives each failover to a replica that the node knows of, because every
///   such replica has the grant: none was lost in either test. In return one replica that is down
///   or frozen stops all grants of this node (of several nodes a majority goes on).
///
/// Waiting takes time out of the validity, which counts from the send, and each wait ends at the
/// node's deadline ([`Config::node_deadline`](crate::Config)). If too few replicas have confirmed
/// by then, the node's answer is [`NodeFault::NotDurable`](crate::error::NodeFault::NotDurable),
/// which is no vote, and its grant is rolled back.
///
/// The figures are of real servers, one master with two replicas; the
/// [manual](crate::manual::durability) has all of them. No level prevents a loss that the replicas
/// share: `FLUSHALL`, or a restart of all at once without persistence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Counts when the master executed it.
    #[default]
    Primary,
    /// Counts when at least this many replicas confirmed it, any of them. At least 1.
    Replicas(u32),
    /// Counts when all replicas confirmed it, including those that are down, because any of them
    /// may be promoted later. Their number depends on the kind of node:
    /// [`SentinelNode`](crate::SentinelNode) asks the Sentinels, [`RedisNode`](crate::RedisNode)
    /// uses the configured number or the connected replicas, [`MemoryNode`](crate::MemoryNode) has
    /// none. Without replicas the level is always reached.
    AllReplicas,
}

impl Durability {
    /// Checks that the level requires at least one replica.
    ///
    /// # Errors
    /// `Replicas(0)`, with the field, its value and the rule.
    pub fn check(self) -> Result<(), ConfigError> {
        if self == Self::Replicas(0) {
            let rule = "at least 1 replica; to wait for none use Durability::Primary";
            return Err(ConfigError::new("durability", "Replicas(0)", rule));
        }
        Ok(())
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Replicas(k) => write!(f, "at least {k} replicas"),
            Self::AllReplicas => f.write_str("all replicas"),
        }
    }
}

/// The durability of a grant or a result: the level that was required, and the number of replicas
/// that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Achieved {
    /// The level that was required, and reached on every node that counted.
    pub level: Durability,
    /// Least number of replicas that had it on each node that counted, when it was decided. Zero at
    /// `Primary`, where no level was required, and where a node has no replicas.
    pub replicas: u32,
}

impl Achieved {
    /// Returns what a level guarantees without counting.
    pub(crate) fn at_least(level: Durability) -> Self {
        let replicas = if let Durability::Replicas(k) = level { k } else { 0 };
        Self { level, replicas }
    }
}

impl fmt::Display for Achieved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} or more on each node that counted)", self.level, self.replicas)
    }
}

/// The point that a barrier confirms: all writes that this server process had executed in this data
/// history when it reported both (see [`Facts`](crate::op::Facts)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierPoint {
    /// Identity of the server process.
    pub identity: Arc<str>,
    /// Identifier of the data history. Without it a master that was demoted and promoted again, and
    /// lost its grants in between, would be taken for the one that granted.
    pub history_id: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_asks_for_nothing_is_refused() {
        let e = Durability::Replicas(0).check().unwrap_err();
        let text = "`durability` is Replicas(0): at least 1 replica; to wait for none use \
                     Durability::Primary";
        assert_eq!(e.to_string(), text);
        assert!(Durability::Replicas(1).check().is_ok() && Durability::Primary.check().is_ok());
    }
}
