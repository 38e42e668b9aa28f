//! Durability levels. A failover can lose a grant; the quarantine prevents a second grant of the
//! same lock, a durability level the loss itself (durability 1).

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// The number of replicas that must have a grant, a renewal or a result before a node's vote
/// counts.
///
/// - **`Primary`** costs nothing and prevents no loss. A failover loses the last grants before the
///   failover; a manual failover under load lost about 5 000 grants.
/// - **`Replicas(k)`**: a grant survives the death of the master if the failover promotes a replica
///   that has the grant. The failover does not choose the replica by its grants. In one test, one
///   of two replicas had confirmed each grant, and a manual failover still lost about 400 grants.
///   In another test, the master and the confirming replica were cut off from all others. This test
///   lost 11 996 of 11 999 grants.
/// - **`AllReplicas`**: a grant survives each failover to a replica in the node's list, because
///   every replica of the list has the grant. Both tests lost no grant at this level. The cost: a
///   single replica that is down or frozen stops all grants of its node. A handle of several nodes
///   can still acquire locks while a majority of the nodes grants.
///
/// The validity of a lock counts from the sending of the request, so the wait for replicas shortens
/// it. Each wait ends at the node's deadline ([`Config::node_deadline`](crate::Config)). If too few
/// replicas have confirmed by then, the node reports
/// [`NodeFault::NotDurable`](crate::error::NodeFault::NotDurable). This fault is no vote, and the
/// node's grant is rolled back.
///
/// The figures were measured on real servers, one master with two replicas; the
/// [manual](crate::manual::durability) has all of them. No level prevents a loss that the replicas
/// share, such as `FLUSHALL` or a restart of all servers at once without persistence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant counts as soon as the master has executed it.
    #[default]
    Primary,
    /// A grant counts when at least this many replicas have confirmed it. Any replicas count. The
    /// number is at least 1.
    Replicas(u32),
    /// A grant counts when all replicas have confirmed it, including replicas that are down,
    /// because any replica may be promoted later. The number of replicas depends on the kind of
    /// node: [`SentinelNode`](crate::SentinelNode) asks the Sentinels for it,
    /// [`RedisNode`](crate::RedisNode) uses the configured number or the number of connected
    /// replicas, and [`MemoryNode`](crate::MemoryNode) has no replicas. A node without replicas
    /// always reaches the level.
    AllReplicas,
}

impl Durability {
    /// Checks that the level requires at least one replica.
    ///
    /// # Errors
    /// [`ConfigError`] for `Replicas(0)`, with the field, its value and the rule.
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

/// The durability of a grant or a result: the required level, and the number of replicas that had
/// the grant or the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Achieved {
    /// Required level. Every node that voted yes reached it.
    pub level: Durability,
    /// Smallest number of replicas that had the grant or the result at the time of the decision,
    /// over all nodes that voted yes. Zero if the level is `Primary` or a node has no replicas.
    pub replicas: u32,
}

impl Achieved {
    /// Zero for a grant or result whose replicas were not counted.
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

/// Server process and data history whose writes a barrier confirms: all that this process had made
/// in this history when the server reported both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierPoint {
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Name that the server gave to its data. A master that is demoted and promoted again keeps its
    /// process, but may lose grants in between.
    pub replication: u64,
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
